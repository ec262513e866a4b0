//! The shares library in real programs of clang and flang, with skewed weights: loops are divided,
//! whole and alike within a region; all else is the runtime's; and a program is none the worse where
//! the library has nothing to do. The test plays the balancer.

mod library;
mod lifetime;
mod loops;
mod programs;
mod run;
mod strangers;

pub use programs::clang_with_openmp;
