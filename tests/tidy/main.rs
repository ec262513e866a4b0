//! What holds for the files of the project as such: how long lines and files are, which words are
//! not used, that no file is dead, that links, commands and figures in the docs are good, that no
//! generated page was edited by hand, and that crates and files depend on each other in one direction.
//! Mutations of the keel fit its source, and each decision is made where docs/policies.md says.
//! `make tidy` runs this program alone.
//!
//! Each rule reports all that breaks it as FILE:LINE with the remedy. What is known to break a
//! rule, and which part of the work mends it, stands in `open.rs`; an entry there that has become
//! needless fails, too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod circles;
mod commands;
mod crates;
mod dead_files;
mod decided;
mod figures;
mod generated;
mod links;
mod markdown;
mod modules;
mod mutations;
mod numbers;
mod open;
mod project;
mod report;
mod size;
mod words;
