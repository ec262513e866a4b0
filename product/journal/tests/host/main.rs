//! The journal on the live host: real threads, real masks, processes that are really killed. Runs as
//! any user; a test that needs root or two CPUs says so when it is skipped.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod ageing;
mod cpuset;
mod crash;
mod damage;
mod inheritance;
mod irqbalance;
mod lines;
mod persistent;
mod place;
mod roles;
mod setting;
mod slow_clone;
mod stand_in;
mod stranger;
mod supervisor;
mod tables;
mod tools;
mod unwritable;
