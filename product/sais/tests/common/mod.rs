//! What tests of packets share.

pub mod edge;
