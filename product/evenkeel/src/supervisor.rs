//! How `run`, `daemon` and `sais attach` start their supervisor, the process that undoes their
//! changes if they are killed.

use evenkeel_journal::{SupervisorCommand, same_program};

use crate::cli::FaultArgs;

/// The supervisor is this executable; none for the fault test `--no-supervisor`.
pub fn command(faults: &FaultArgs) -> SupervisorCommand {
    if faults.no_supervisor { |_| None } else { same_program }
}
