//! The policies' rules and properties, on the very headers that the keel is made of.

mod balance;
mod native;
mod order;
mod shares;
