//! What operators of many nodes get: the manifests for Kubernetes (packaging/kubernetes), and the
//! dashboard and alerts for the metrics of all nodes (packaging/fleet). All of it names things of the
//! product: capabilities, paths, ports, metrics. These tests compare them with the product.
//!
//! | file | what it holds |
//! |---|---|
//! | `manifests` | the manifests as types: a field that is not known there is refused |
//! | `kubernetes` | what must hold for the manifests |
//! | `queries` | what the dashboard and the alerts ask Prometheus for |
//! | `prometheus` | the alerts in Prometheus' own test |
//! | `tables` | the table of metrics in the docs |
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod kubernetes;
mod manifests;
mod prometheus;
mod queries;
mod tables;

use std::path::{Path, PathBuf};

/// A file or folder of the project.
fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(path)
}

/// The text of a file of the project.
fn text_of(path: &str) -> String {
    let path = project(path);
    std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}
