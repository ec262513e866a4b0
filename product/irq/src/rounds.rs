//! The rounds of `evenkeel irq run`. Each round plans for what was observed, and makes the first move of
//! the plan if the round before had planned it, too: so a short burst moves nothing. At most one move a
//! round, because the plan after a move is made of what it did. Pure: an [`Actuator`] acts.
//!
//! A change of an indirection table is one of these moves, made where the plan has no other. What it
//! brings is a guess, so the round after it looks whether it has levelled; if not, it is taken back, and
//! the table of that device stays.
//!
//! A source stays where it is for good once another process has changed its affinity, or once the kernel
//! has refused another one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use evenkeel_machine::CpuSet;
use schemars::JsonSchema;
use serde::Serialize;

use crate::decide::{Aim, Move, Reason, plan_for};
use crate::snapshot::{Held, Snapshot, SourceId};
use crate::spread::{Shown, Spread, Trial};

/// So many changes of a table in a row may be made of which the effect is not seen.
const MOST_UNSEEN: u32 = 3;

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

    /// Makes one change of an indirection table.
    ///
    /// # Errors
    /// The run cannot go on; the table was not changed.
    fn spread(&mut self, step: &Spread) -> Result<Outcome, Self::Error>;
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
    /// Buckets of a device lead to another queue.
    Spread(Spread),
    /// That did not level: they lead to their queue of before. The table of the device stays.
    Withdrawn(Spread),
    /// The table of a device cannot be changed: that is not tried again.
    Unspread {
        /// The device.
        device: String,
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
            Self::Spread(step) => write!(f, "spread {step}"),
            Self::Withdrawn(Spread { device, buckets, from_queue, to_queue, .. }) => write!(
                f,
                "took back {device}: {} buckets of queue {from_queue} that led to queue {to_queue} did \
                 not level the two CPUs; its table is not changed again",
                buckets.len()
            ),
            Self::Unspread { device, why } => {
                write!(f, "stays {device}: its RSS indirection table is not changed again: {why}")
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
    /// The changes of tables in the last plan: the device and both queues.
    planned_spreads: Vec<(String, u32, u32)>,
    /// The devices of which the table stays for good.
    kept_tables: BTreeSet<String>,
    /// The change of which no round has seen the effect yet.
    trial: Option<Trial>,
    /// How many changes of a device's table in a row none has seen the effect of.
    unseen: BTreeMap<String, u32>,
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
        self.planned_spreads.clear();
        let mut events = self.look(actuator)?;
        // At rest nothing shows what a change did, and what comes afterwards is other traffic.
        if let Some(Trial { step: Spread { device, .. }, .. }) = self.trial.take() {
            let unseen = self.unseen.entry(device.clone()).or_default();
            *unseen += 1;
            if *unseen == MOST_UNSEEN {
                self.kept_tables.insert(device.clone());
                let why = format!(
                    "its traffic ended {MOST_UNSEEN} times before it was seen what a change did"
                );
                events.push(Event::Unspread { device, why });
            }
        }
        Ok(events)
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
        if let Some(trial) = self.trial.take() {
            match trial.look(&snapshot) {
                Shown::NotLevelled => {
                    events.push(self.withdraw(trial, actuator)?);
                    // What is planned next is for what comes after this.
                    self.planned.clear();
                    self.planned_spreads.clear();
                    return Ok(events);
                }
                Shown::Levelled => {
                    self.unseen.remove(&trial.step.device);
                }
                // The table is not changed again before.
                Shown::Nothing => {
                    snapshot.devices.retain(|device| device.name != trial.step.device);
                    self.trial = Some(trial);
                }
                Shown::NoMore => {}
            }
        }
        snapshot.devices.retain(|device| !self.kept_tables.contains(&device.name));
        let plan = plan_for(&snapshot, self.aim);
        let moves = plan.moves;
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
        let of_spread = |step: &Spread| (step.device.clone(), step.from_queue, step.to_queue);
        if let Some(step) = plan.spreads.first()
            && moves.is_empty()
            && self.planned_spreads.contains(&of_spread(step))
        {
            match actuator.spread(step)? {
                Outcome::Moved => {
                    self.trial = Some(Trial::new(step, &snapshot));
                    events.push(Event::Spread(step.clone()));
                }
                Outcome::Nothing => {}
                outcome => events.push(self.keep_table(&step.device, outcome)),
            }
        }
        self.planned = moves.iter().map(key).collect();
        self.planned_spreads = plan.spreads.iter().map(of_spread).collect();
        Ok(events)
    }

    /// Takes back a change that has not levelled.
    fn withdraw<A: Actuator>(&mut self, trial: Trial, actuator: &mut A) -> Result<Event, A::Error> {
        let step = trial.step;
        self.kept_tables.insert(step.device.clone());
        Ok(match actuator.spread(&step.reversed())? {
            Outcome::Moved => Event::Withdrawn(step),
            outcome => self.keep_table(&step.device, outcome),
        })
    }

    /// Has the table of a device stay for good, because a change of it was not made.
    fn keep_table(&mut self, device: &str, outcome: Outcome) -> Event {
        self.kept_tables.insert(device.to_owned());
        unspread(device, outcome)
    }
}

/// What is said of a device of which the table was not changed.
pub(crate) fn unspread(device: &str, outcome: Outcome) -> Event {
    let why = match outcome {
        Outcome::Refused { why } => why,
        _ => "another process has changed it since".to_owned(),
    };
    Event::Unspread { device: device.to_owned(), why }
}
