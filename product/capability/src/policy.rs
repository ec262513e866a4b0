//! The one entry: a snapshot in, a plan out, by the policy that the caller chose.

use std::collections::BTreeMap;

use crate::lag::{self, LagParameters, LagState};
use crate::paper::{self, PaperParameters, PaperState};
use crate::plan::Plan;
use crate::snapshot::{Invalid, Snapshot, TaskId};

/// How moves are decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Policy {
    /// The paper's eight steps (000, section 3.2).
    Paper(PaperParameters),
    /// The task that is furthest behind gets the most capable CPU next.
    Lag(LagParameters),
}

/// What a policy remembers from interval to interval.
#[derive(Debug, Clone)]
pub struct State {
    policy: Memory,
}

#[derive(Debug, Clone)]
enum Memory {
    Paper(PaperState),
    Lag(Box<LagState>),
}

impl State {
    /// The state before the first interval.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy: match policy {
                Policy::Paper(parameters) => Memory::Paper(PaperState::new(parameters)),
                Policy::Lag(parameters) => Memory::Lag(Box::new(LagState::new(parameters))),
            },
        }
    }

    /// Length of the first interval.
    pub fn first_interval_ns(&self) -> u64 {
        match &self.policy {
            Memory::Paper(state) => state.first_interval_ns(),
            Memory::Lag(state) => state.first_interval_ns(),
        }
    }

    /// The lag of each task behind the task furthest ahead, in capability time, at the last plan.
    /// Empty for the paper's policy, which tracks no lags.
    pub fn lags_ns(&self) -> BTreeMap<TaskId, u64> {
        match &self.policy {
            Memory::Paper(_) => BTreeMap::new(),
            Memory::Lag(state) => state.lags_ns(),
        }
    }
}

/// Decides the moves after the interval that `snapshot` describes.
///
/// # Errors
/// The snapshot contradicts itself; `state` is then unchanged.
pub fn plan(snapshot: &Snapshot, state: &mut State) -> Result<Plan, Invalid> {
    snapshot.validate()?;
    Ok(match &mut state.policy {
        Memory::Paper(memory) => paper::plan(snapshot, memory),
        Memory::Lag(memory) => lag::plan(snapshot, memory),
    })
}
