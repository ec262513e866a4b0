//! The moves of `evenkeel irq once`: all those of one plan, in its order, and then its changes of
//! indirection tables. Pure: an [`Actuator`] acts.

use std::collections::BTreeSet;

use crate::decide::{Aim, plan_for};
use crate::rounds::{Actuator, Event, MovedByOther, Outcome, unspread};
use crate::snapshot::{Held, Snapshot};

/// Makes all moves that are planned with this aim for what was observed; returns what is to be said. If
/// a move cannot be made, the rest is planned anew without it: a move may depend on those before it.
///
/// # Errors
/// That of the actuator.
pub fn once<A: Actuator>(
    mut snapshot: Snapshot,
    aim: Aim,
    actuator: &mut A,
) -> Result<Vec<Event>, A::Error> {
    let mut events = Vec::new();
    // Each further plan has one source less to move.
    'plan: loop {
        let plan = plan_for(&snapshot, aim);
        for step in plan.moves {
            let (source, name) = (step.source, step.name.clone());
            let (held, event) = match actuator.carry_out(&step)? {
                Outcome::Moved => {
                    snapshot.relocate(source, step.to);
                    events.push(Event::Moved(step));
                    continue;
                }
                Outcome::Nothing => continue,
                Outcome::LetGo { found } => {
                    (Held::LetGo, Event::LetGo(MovedByOther { source, name, found }))
                }
                Outcome::Refused { why } => (Held::Refused, Event::Refused { source, name, why }),
            };
            events.push(event);
            snapshot.hold(source, held);
            continue 'plan;
        }
        let mut kept = BTreeSet::new();
        for step in plan.spreads {
            // Each change of a table is planned upon those before it.
            if kept.contains(&step.device) {
                continue;
            }
            match actuator.spread(&step)? {
                Outcome::Moved => events.push(Event::Spread(step)),
                Outcome::Nothing => {
                    kept.insert(step.device);
                }
                outcome => {
                    events.push(unspread(&step.device, outcome));
                    kept.insert(step.device);
                }
            }
        }
        return Ok(events);
    }
}
