//! A contestant: one way of running, which takes its turn.

/// A contestant. `How` is what its runner needs to know: a scheduler in a guest or a simulation,
/// options of a command on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contestant<How> {
    /// Its name in the report.
    pub name: String,
    /// What it is, for the reader of a report.
    pub explanation: String,
    /// How it runs.
    pub how: How,
}

impl<How> Contestant<How> {
    /// A contestant with this name, its explanation, and how it runs.
    pub fn new(name: &str, explanation: &str, how: How) -> Self {
        Self { name: name.to_owned(), explanation: explanation.to_owned(), how }
    }
}
