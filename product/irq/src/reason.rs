//! Why something is moved.

use schemars::JsonSchema;
use serde::Serialize;

/// Why a source is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Its CPU is one of the program's.
    Protect,
    /// Its CPU has the largest share.
    Level,
    /// What it brings is received on the other CPU.
    Source,
}
