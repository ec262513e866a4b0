//! `--policy auto`: to the consumer's core, like `runner`, but only where that saves more than it
//! costs. What the paper left open: how its four policies become one.
//!
//! A connection is left alone when its packets arrive right by themselves; when its consumer's core
//! has no time left (a steering thread comes before all ordinary tasks, but not before interrupts and
//! real-time tasks, and passing a packet on where it arrives costs nothing); and when fetching a strip from the other core's cache takes no
//! longer than handing it over to a thread on that core, both measured here at the start. While all
//! connections are left alone there is no program on the device at all: generic XDP has its price
//! (it copies packets that came in pieces) even where it does nothing.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_machine::{CpuSet, Machine};

use crate::load::{Load, LoadError};
use crate::measure::{MeasureError, StripTimes};
use crate::records::{NO_CORE, RULE_JUDGED, RULE_SATURATED, RawFlow, RawKey, RawLive};

/// How often connections are judged.
const INTERVAL: Duration = Duration::from_secs(1);
/// A connection that receives less in an interval is not worth a program on the device.
const ACTIVE_BYTES: u64 = 1 << 20;
/// The program is taken off when there was no use for it in so many intervals.
const PATIENCE: u32 = 10;
/// A core of which interrupts and real-time tasks take more than this, 0 to 1, is saturated ...
const SATURATED: f64 = 0.9;
/// ... until it is less than this.
const RELAXED: f64 = 0.7;

/// Why connections cannot be judged.
#[derive(Debug, thiserror::Error)]
pub enum AutoError {
    /// The machine cannot be read.
    #[error("which cores share a cache cannot be told: {0}")]
    Machine(#[from] evenkeel_machine::Error),
    /// Nothing was measured.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// Who has time left is not known.
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// What connections are judged by.
pub(crate) struct Auto {
    times: StripTimes,
    /// The cache domain of each core.
    domains: BTreeMap<u32, u32>,
    saturated: CpuSet,
    load: Load,
    judged: Instant,
    /// What each connection had received when it was judged last.
    received_bytes: HashMap<RawKey, u64>,
    /// Intervals since there was use for the program.
    useless: u32,
}

impl Auto {
    /// Measures the machine, which takes less than two seconds, unless the times are given.
    pub(crate) fn new(cpus: &CpuSet, given: Option<StripTimes>) -> Result<Self, AutoError> {
        let machine = Machine::from_sysfs(Path::new("/"))?;
        let times = match given {
            Some(times) => times,
            None => StripTimes::measure(&machine, cpus)?,
        };
        Ok(Self {
            times,
            domains: machine.cpus.iter().map(|cpu| (cpu.id, cpu.llc)).collect(),
            saturated: CpuSet::new(),
            load: Load::watch()?,
            judged: Instant::now(),
            received_bytes: HashMap::new(),
            useless: PATIENCE,
        })
    }

    /// What was measured.
    pub(crate) fn times(&self) -> &StripTimes {
        &self.times
    }

    /// Whether it is time to judge.
    pub(crate) fn is_due(&self) -> bool {
        self.judged.elapsed() >= INTERVAL
    }

    /// Judges all connections; whether steering them is of use. While the kernel steers them itself
    /// (`is_hidden`) it does not show where they would arrive: then who receives much is of use.
    pub(crate) fn judge(&mut self, flows: &[(RawKey, RawFlow)], is_hidden: bool) -> bool {
        self.judged = Instant::now();
        let taken = self.load.taken_shares();
        self.note_taken(&taken);
        let is_useful = flows.iter().any(|(key, flow)| {
            let before = self.received_bytes.get(key).copied().unwrap_or(0);
            flow.received_bytes.saturating_sub(before) >= ACTIVE_BYTES
                && (is_hidden || self.reason(flow).is_ok())
        });
        let received = flows.iter().map(|(key, flow)| (*key, flow.received_bytes));
        self.received_bytes = received.collect();
        self.useless = if is_useful { 0 } else { self.useless.saturating_add(1) };
        self.useless < PATIENCE
    }

    fn note_taken(&mut self, shares: &[(u32, f64)]) {
        for (core, taken) in shares {
            if *taken > SATURATED {
                self.saturated.insert(*core);
            } else if *taken < RELAXED {
                self.saturated.remove(*core);
            }
        }
    }

    /// Tells the programs what connections are judged by.
    pub(crate) fn write(&self, live: &mut RawLive) {
        live.worth_within = u32::from(self.times.pays(true));
        live.worth_across = u32::from(self.times.pays(false));
        for (core, domain) in &self.domains {
            if let Some(place) = live.domain.get_mut(*core as usize) {
                *place = *domain as u16;
            }
        }
    }

    /// What becomes of packets for a core that may be used.
    pub(crate) fn rule(&self, core: u32) -> u8 {
        if self.saturated.contains(core) { RULE_SATURATED } else { RULE_JUDGED }
    }

    /// Why packets of a connection are handed over (`Ok`), or left where they arrive (`Err`). The
    /// programs judge each packet by the same rules.
    pub(crate) fn reason(&self, flow: &RawFlow) -> Result<String, String> {
        let (from, to) = (flow.arrived, flow.core);
        if from == NO_CORE || to == NO_CORE {
            return Err("it is not known yet where its packets arrive".into());
        }
        if from == to {
            return Err(format!("its packets arrive on CPU {to}, where it is consumed"));
        }
        if self.saturated.contains(to) {
            return Err(format!(
                "it is consumed on CPU {to}, which has no time left, so its packets are left on CPU \
                 {from}"
            ));
        }
        let is_shared = self.domains.get(&from) == self.domains.get(&to);
        let caches = if is_shared { "which shares a cache" } else { "which shares no cache" };
        let (Some(migrate_us), Some(hand_over_us)) =
            (self.times.migrate_us(is_shared), self.times.hand_over_us)
        else {
            return Err(format!("nothing was measured between CPUs {from} and {to}"));
        };
        let figures = format!(
            "its packets arrive on CPU {from} and are consumed on CPU {to}, {caches}: fetching a strip \
             takes {migrate_us:.1} us, handing it over {hand_over_us:.1} us"
        );
        if self.times.pays(is_shared) { Ok(figures) } else { Err(figures) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn auto() -> Auto {
        Auto {
            times: StripTimes {
                process_us: 5.0,
                within_us: Some(3.0),
                across_us: Some(12.0),
                hand_over_us: Some(8.0),
            },
            domains: [(0, 0), (1, 0), (2, 2)].into(),
            saturated: CpuSet::new(),
            load: Load::unknown(),
            judged: Instant::now(),
            received_bytes: HashMap::new(),
            useless: PATIENCE,
        }
    }

    fn flow(arrived: u32, core: u32, received_bytes: u64) -> RawFlow {
        RawFlow { arrived, core, received_bytes, ..bytemuck::Zeroable::zeroed() }
    }

    #[test]
    fn each_rule_has_its_reason() {
        let mut auto = auto();
        let why = |auto: &Auto, from, to| auto.reason(&flow(from, to, 0));
        assert!(why(&auto, NO_CORE, 1).unwrap_err().contains("not known yet"));
        assert!(why(&auto, 1, 1).unwrap_err().contains("where it is consumed"));
        let kept = why(&auto, 0, 1).unwrap_err();
        assert!(kept.contains("shares a cache: fetching a strip takes 3.0 us"), "{kept}");
        assert!(kept.ends_with("handing it over 8.0 us"), "{kept}");
        assert!(why(&auto, 0, 2).unwrap().contains("shares no cache: fetching a strip takes 12.0"));
        auto.note_taken(&[(0, 0.1), (2, 0.95)]);
        assert!(why(&auto, 0, 2).unwrap_err().contains("no time left"));
        // A little better is not good, and good is.
        auto.note_taken(&[(2, 0.8)]);
        assert!(why(&auto, 0, 2).is_err());
        auto.note_taken(&[(2, 0.5)]);
        assert!(why(&auto, 0, 2).is_ok());
    }

    #[test]
    fn the_program_is_there_while_it_is_of_use_and_a_little_longer() {
        let mut auto = auto();
        let mut judge =
            |arrived, bytes| auto.judge(&[(RawKey::default(), flow(arrived, 2, bytes))], false);
        assert!(!judge(2, 10 << 20), "it arrives right");
        assert!(judge(0, 20 << 20));
        // It receives hardly anything any more.
        for _ in 1..PATIENCE {
            assert!(judge(0, (20 << 20) + 1));
        }
        assert!(!judge(0, (20 << 20) + 2));
    }

    #[test]
    fn what_the_kernel_steers_is_of_use_while_it_receives() {
        let mut auto = auto();
        let mut judge = |bytes| auto.judge(&[(RawKey::default(), flow(2, 2, bytes))], true);
        assert!(judge(10 << 20));
        for _ in 1..PATIENCE {
            assert!(judge(10 << 20));
        }
        assert!(!judge(10 << 20));
    }

    #[test]
    fn the_programs_are_told_the_same() {
        let mut auto = auto();
        auto.saturated.insert(1);
        let mut live: RawLive = bytemuck::Zeroable::zeroed();
        auto.write(&mut live);
        assert_eq!((live.worth_within, live.worth_across), (0, 1));
        assert_eq!(live.domain[..3], [0, 0, 2]);
        assert_eq!((auto.rule(0), auto.rule(1)), (RULE_JUDGED, RULE_SATURATED));
    }
}
