//! The policies' rules and properties, tested on the same headers that the keel is made of.

#![allow(clippy::unwrap_used)]

mod balance;
mod bounds;
mod capability;
mod gate;
mod ias;
mod literal;
mod native;
mod order;
mod parts;
mod rounds;
mod row;
mod seam;
mod shares;
