//! The rounds of `evenkeel irq run`. Each round plans for what was observed, and makes the first move of
//! the plan if the round before had planned it, too: so a short burst moves nothing. At most one move a
//! round, because the plan after a move is made of what it did. Pure: an [`Actuator`] acts.
//!
//! A source stays where it is for good once another process has changed its affinity, or once the kernel
//! has refused another one.

use std::collections::BTreeMap;
use std::fmt;

use evenkeel_machine::CpuSet;
use schemars::JsonSchema;
use serde::Serialize;

use crate::decide::{Aim, Move, Reason, plan_for};
use crate::snapshot::{Held, Snapshot, SourceId};

/// What moves sources.
pub trait Actuator {
    /// Why nothing can be moved any more.
    type Error;

    /// What has become of the moved sources, each change once.
    ///
    /// # Errors
    /// The run cannot go on.
    fn look(&mut self) -> Result<Vec<Change>, Self::Error>;

    /// Makes one move.
    ///
    /// # Errors
    /// The run cannot go on; the source was not moved.
    fn carry_out(&mut self, step: &Move) -> Result<Outcome, Self::Error>;
}

/// What has become of a source that was moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Another process has moved it.
    ByOther(MovedByOther),
    /// Its CPUs went offline: it has its affinity of before again, and may be moved.
    SetBack {
        /// The source.
        source: SourceId,
        /// As the kernel names it.
        name: String,
        /// Those CPUs.
        offline: CpuSet,
    },
}

/// A source that another process has moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct MovedByOther {
    /// The source.
    pub source: SourceId,
    /// As the kernel names it.
    pub name: String,
    /// The affinity that it has.
    pub found: CpuSet,
}

/// What came of a move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It was made.
    Moved,
    /// The source is gone, or is there already.
    Nothing,
    /// Another process has changed the affinity since this one did.
    LetGo {
        /// The affinity that it has.
        found: CpuSet,
    },
    /// The kernel, or what a user allowed, lets no such move be made.
    Refused {
        /// Why.
        why: String,
    },
}

/// What is said of a round.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A source was moved.
    Moved(Move),
    /// Another process has moved a source: it is left alone from now on.
    LetGo(MovedByOther),
    /// The CPUs of a moved source went offline.
    SetBack {
        /// The source.
        source: SourceId,
        /// As the kernel names it.
        name: String,
        /// Those CPUs.
        offline: CpuSet,
    },
    /// A source cannot be moved: that is not tried again.
    Refused {
        /// The source.
        source: SourceId,
        /// As the kernel names it.
        name: String,
        /// Why.
        why: String,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Moved(step) => write!(f, "moved {step}"),
            Self::LetGo(MovedByOther { source, name, found }) => write!(
                f,
                "left alone {name} ({source}): another process set its affinity to CPUs {found}"
            ),
            Self::SetBack { source, name, offline } => write!(
                f,
                "set back {name} ({source}) to its earlier affinity: CPU {offline} went offline"
            ),
            Self::Refused { source, name, why } => {
                write!(f, "stays {name} ({source}), and is not tried again: {why}")
            }
        }
    }
}

/// What is remembered from round to round.
#[derive(Debug, Default)]
pub struct Rounds {
    aim: Aim,
    /// The moves of the last plan.
    planned: Vec<(SourceId, String, u32, Reason)>,
    /// The sources that stay for good. By name as well: a number may become another source's.
    stays: BTreeMap<(SourceId, String), Held>,
}

impl Rounds {
    /// Rounds with this aim.
    pub fn new(aim: Aim) -> Self {
        Self { aim, ..Self::default() }
    }

    /// A round in which nothing can be moved; returns what is to be said.
    ///
    /// # Errors
    /// That of the actuator.
    pub fn rest<A: Actuator>(&mut self, actuator: &mut A) -> Result<Vec<Event>, A::Error> {
        self.planned.clear();
        self.look(actuator)
    }

    /// What has become of the moved sources.
    fn look<A: Actuator>(&mut self, actuator: &mut A) -> Result<Vec<Event>, A::Error> {
        let mut events = Vec::new();
        for change in actuator.look()? {
            events.push(match change {
                Change::ByOther(moved) => {
                    self.stays.insert((moved.source, moved.name.clone()), Held::LetGo);
                    Event::LetGo(moved)
                }
                Change::SetBack { source, name, offline } => {
                    Event::SetBack { source, name, offline }
                }
            });
        }
        Ok(events)
    }

    /// One round; returns what is to be said.
    ///
    /// # Errors
    /// That of the actuator.
    pub fn round<A: Actuator>(
        &mut self,
        mut snapshot: Snapshot,
        actuator: &mut A,
    ) -> Result<Vec<Event>, A::Error> {
        let mut events = self.look(actuator)?;
        for source in &mut snapshot.sources {
            if let Some(held) = self.stays.get(&(source.id, source.name.clone())) {
                source.held = Some(*held);
            }
        }
        let moves = plan_for(&snapshot, self.aim).moves;
        let key = |step: &Move| (step.source, step.name.clone(), step.to, step.reason);
        // Only the first one: each further move of a plan may depend on those before it.
        if let Some(step) = moves.first()
            && self.planned.contains(&key(step))
        {
            let place = (step.source, step.name.clone());
            match actuator.carry_out(step)? {
                Outcome::Moved => events.push(Event::Moved(step.clone())),
                Outcome::Nothing => {}
                Outcome::LetGo { found } => {
                    let (source, name) = place.clone();
                    self.stays.insert(place, Held::LetGo);
                    events.push(Event::LetGo(MovedByOther { source, name, found }));
                }
                Outcome::Refused { why } => {
                    let (source, name) = place.clone();
                    self.stays.insert(place, Held::Refused);
                    events.push(Event::Refused { source, name, why });
                }
            }
        }
        self.planned = moves.iter().map(key).collect();
        Ok(events)
    }
}
