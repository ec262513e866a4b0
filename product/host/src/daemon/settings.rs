//! Settings of the daemon that SIGHUP reloads.

use crate::options::Options;

/// Settings that can change while the daemon runs (SIGHUP).
#[derive(Debug, Clone)]
pub struct Settings {
    /// How to balance.
    pub options: Options,
    /// Standing rules: programs with these command names join by themselves.
    pub names: Vec<String>,
    /// Standing rules: all processes of these cgroups join by themselves.
    pub cgroups: Vec<String>,
}
