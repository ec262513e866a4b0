//! `--policy auto`: to the consumer's core, like `runner`, but only where that saves more than it
//! costs. What the paper left open: how its four policies become one.
//!
//! The rule itself is bpf/sais/auto.h, which the programs apply to each packet. It leaves the packets of
//! a connection where they arrive in three cases:
//!
//! - they arrive on the consumer's core by themselves;
//! - the consumer's core has no time left: a steering thread comes before all ordinary tasks, but not
//!   before interrupts and real-time tasks;
//! - fetching a strip from the other core's cache takes no longer than handing it over to a thread on
//!   that core. Both times are measured here at the start.
//!
//! While all connections are left alone, next to nothing is done: there is no program on the device
//! (generic XDP copies packets that came in pieces even where it does nothing); what takes the cores'
//! time is not accounted for (which costs something at each switch and softirq); and receivers are
//! sampled for a tenth of the time only.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_machine::{CpuSet, Machine};

use crate::layout::{NO_CORE, RULE_JUDGED, RULE_SATURATED, RawFlow, RawKey, RawLive};
use crate::load::{Load, LoadError};
use crate::measure::{MeasureError, StripTimes};

/// How often connections are judged.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long before that receivers are sampled, while nothing is steered.
const LOOK: Duration = Duration::from_millis(100);
/// A connection that receives less in a second is not worth a program on the device.
const ACTIVE_BYTES_PER_S: f64 = (1 << 20) as f64;
/// The program is taken off when there was no use for it in so many intervals, and what takes the
/// cores' time is not accounted for any more when no connection was worth steering.
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
    /// It is not known which cores have time left.
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// `enum auto_verdict` of bpf/sais/auto.h, in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Home,
    Steer,
    Saturated,
    CostsMore,
}

unsafe extern "C" {
    fn sais_judge_auto(
        arrived: u32,
        consumer: u32,
        is_saturated: bool,
        shares_cache: bool,
        worth_within: bool,
        worth_across: bool,
    ) -> u32;
}

/// What connections are judged by.
pub(crate) struct Auto {
    times: StripTimes,
    /// The cache domain of each core.
    domains: BTreeMap<u32, u32>,
    saturated: CpuSet,
    /// None while no connection is worth steering.
    load: Option<Load>,
    judged: Instant,
    /// Since when receivers are sampled; none: they are not.
    looking: Option<Instant>,
    /// What each connection had received when it was judged last.
    received_bytes: HashMap<RawKey, u64>,
    /// Intervals since a connection was worth steering.
    idle: u32,
    /// Intervals since there was use for the program.
    useless: u32,
    /// A connection may be worth steering, but it is not known yet which cores have time left.
    is_unsure: bool,
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
            load: None,
            judged: Instant::now(),
            looking: Some(Instant::now()),
            received_bytes: HashMap::new(),
            idle: PATIENCE,
            useless: PATIENCE,
            is_unsure: false,
        })
    }

    /// What was measured.
    pub(crate) fn times(&self) -> &StripTimes {
        &self.times
    }

    /// Whether it is time to judge.
    pub(crate) fn is_due(&self) -> bool {
        self.judged.elapsed() >= if self.is_unsure { LOOK } else { INTERVAL }
    }

    /// Whether it judges again in a moment, and has to sample receivers until then.
    pub(crate) fn is_unsure(&self) -> bool {
        self.is_unsure
    }

    /// Whether it is time to begin to sample receivers.
    pub(crate) fn looks_soon(&self) -> bool {
        self.looking.is_none() && self.judged.elapsed() >= INTERVAL - LOOK
    }

    /// Receivers are sampled from now on, or not any more.
    pub(crate) fn look(&mut self, does_look: bool) {
        self.looking = does_look.then(Instant::now);
    }

    /// Judges all connections, and returns whether steering them is of use. While the kernel steers
    /// packets itself (`is_hidden`), it cannot be seen where they would arrive: then every busy receiver
    /// counts.
    ///
    /// # Errors
    /// What takes the cores' time cannot be accounted for.
    pub(crate) fn judge(
        &mut self,
        flows: &[(RawKey, RawFlow)],
        is_hidden: bool,
    ) -> Result<bool, AutoError> {
        self.judged = Instant::now();
        let active_bytes = active_bytes(self.looking.map(|since| since.elapsed()));
        if let Some(load) = &mut self.load {
            let taken = load.taken_shares();
            self.note_taken(&taken);
        }
        let is_active = |(key, flow): &&(RawKey, RawFlow)| {
            let before = self.received_bytes.get(key).copied().unwrap_or(0);
            let received_bytes = flow.received_bytes.saturating_sub(before);
            received_bytes > 0 && received_bytes as f64 >= active_bytes
        };
        let active: Vec<&RawFlow> = flows.iter().filter(is_active).map(|(_, flow)| flow).collect();
        let is_wanted = active.iter().any(|flow| is_hidden || self.explain(flow, false).is_ok());
        let is_useful = active.iter().any(|flow| is_hidden || self.reason(flow).is_ok());
        let received = flows.iter().map(|(key, flow)| (*key, flow.received_bytes));
        self.received_bytes = received.collect();
        self.idle = if is_wanted { 0 } else { self.idle.saturating_add(1) };
        self.is_unsure = self.idle < PATIENCE && self.load.is_none();
        if self.idle >= PATIENCE {
            (self.load, self.saturated) = (None, CpuSet::new());
        } else if self.is_unsure {
            // In a moment it is known which cores have no time left.
            self.load = Some(Load::watch()?);
            return Ok(false);
        }
        self.useless = if is_useful { 0 } else { self.useless.saturating_add(1) };
        Ok(self.useless < PATIENCE)
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
        live.is_looking = u32::from(self.looking.is_some());
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

    /// Why packets of a connection are handed over (`Ok`), or left where they arrive (`Err`).
    pub(crate) fn reason(&self, flow: &RawFlow) -> Result<String, String> {
        self.explain(flow, self.saturated.contains(flow.core))
    }

    /// The same for a consumer's CPU that is saturated, or is not.
    fn explain(&self, flow: &RawFlow, is_saturated: bool) -> Result<String, String> {
        let (arrived, consumer) = (flow.arrived, flow.core);
        if arrived == NO_CORE || consumer == NO_CORE {
            return Err("it is not known yet where its packets arrive".into());
        }
        let shares_cache = self.domains.get(&arrived) == self.domains.get(&consumer);
        let verdict = self.judge_packets(arrived, consumer, is_saturated, shares_cache);
        if verdict == Verdict::Home {
            return Err(format!("its packets arrive on CPU {consumer}, where it is consumed"));
        }
        if verdict == Verdict::Saturated {
            return Err(format!(
                "it is consumed on CPU {consumer}, which has no time left, so its packets are left on \
                 CPU {arrived}"
            ));
        }
        let (Some(migrate_us), Some(hand_over_us)) =
            (self.times.migrate_us(shares_cache), self.times.hand_over_us(shares_cache))
        else {
            return Err(format!("nothing was measured between CPUs {arrived} and {consumer}"));
        };
        let caches = if shares_cache { "which shares a cache" } else { "which shares no cache" };
        let figures = format!(
            "its packets arrive on CPU {arrived} and are consumed on CPU {consumer}, {caches}: fetching \
             a strip takes {migrate_us:.1} us, handing it over {hand_over_us:.1} us"
        );
        if verdict == Verdict::Steer { Ok(figures) } else { Err(figures) }
    }

    /// The rule that the programs apply to each packet, for one connection.
    fn judge_packets(
        &self,
        arrived: u32,
        consumer: u32,
        is_saturated: bool,
        shares_cache: bool,
    ) -> Verdict {
        let (within, across) = (self.times.pays(true), self.times.pays(false));
        // SAFETY: a function of six integers without state (native/auto.c).
        let verdict = unsafe {
            sais_judge_auto(arrived, consumer, is_saturated, shares_cache, within, across)
        };
        match verdict {
            0 => Verdict::Home,
            1 => Verdict::Steer,
            2 => Verdict::Saturated,
            _ => Verdict::CostsMore,
        }
    }
}

/// A connection that received less than this is not worth steering, if receivers were sampled for so
/// long.
fn active_bytes(looked: Option<Duration>) -> f64 {
    ACTIVE_BYTES_PER_S * looked.unwrap_or_default().min(INTERVAL).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn auto() -> Auto {
        Auto {
            times: StripTimes {
                process_us: None,
                within_us: Some(3.0),
                across_us: Some(12.0),
                hand_over_within_us: Some(8.0),
                hand_over_across_us: Some(8.0),
            },
            domains: [(0, 0), (1, 0), (2, 2)].into(),
            saturated: CpuSet::new(),
            load: Some(Load::unknown()),
            judged: Instant::now(),
            looking: Some(Instant::now() - INTERVAL),
            received_bytes: HashMap::new(),
            idle: 0,
            useless: PATIENCE,
            is_unsure: false,
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
        let mut judge = |arrived, bytes| {
            auto.judge(&[(RawKey::default(), flow(arrived, 2, bytes))], false).unwrap()
        };
        assert!(!judge(2, 10 << 20), "it arrives right");
        assert!(judge(0, 20 << 20));
        // It receives hardly anything any more.
        for _ in 1..PATIENCE {
            assert!(judge(0, (20 << 20) + 1));
        }
        assert!(!judge(0, (20 << 20) + 2));
    }

    #[test]
    fn what_takes_time_is_not_accounted_for_when_no_connection_is_worth_steering() {
        let mut auto = auto();
        auto.saturated.insert(1);
        for _ in 0..PATIENCE {
            assert!(auto.load.is_some() && !auto.saturated.is_empty());
            // It pays nowhere between these two.
            let flows = [(RawKey::default(), flow(0, 1, 0))];
            assert!(!auto.judge(&flows, false).unwrap());
        }
        assert!(auto.load.is_none() && auto.saturated.is_empty());
    }

    #[test]
    fn cores_with_time_left_are_known_in_a_moment() {
        let mut auto = Auto { judged: Instant::now() - 2 * LOOK, ..auto() };
        assert!(!auto.is_due());
        auto.is_unsure = true;
        assert!(auto.is_due(), "it need not wait for the next interval");
        // Of what it was unsure it is sure when it has judged with a load.
        assert!(auto.judge(&[(RawKey::default(), flow(0, 2, 10 << 20))], false).unwrap());
        assert!(!auto.is_unsure() && !auto.is_due());
    }

    #[test]
    fn it_looks_for_a_part_of_the_time_and_expects_as_much_less() {
        let mut auto = auto();
        auto.judged = Instant::now() - INTERVAL;
        assert!(!auto.looks_soon(), "it looks already");
        auto.look(false);
        assert!(auto.looks_soon());
        let looks = |auto: &Auto| {
            let mut live: RawLive = bytemuck::Zeroable::zeroed();
            auto.write(&mut live);
            live.is_looking
        };
        assert_eq!(looks(&auto), 0);
        auto.look(true);
        assert_eq!(looks(&auto), 1);
        assert_eq!(active_bytes(Some(INTERVAL)), ACTIVE_BYTES_PER_S);
        assert_eq!(active_bytes(Some(INTERVAL / 4)), ACTIVE_BYTES_PER_S / 4.0);
        assert_eq!(active_bytes(Some(10 * INTERVAL)), ACTIVE_BYTES_PER_S);
    }

    #[test]
    fn what_the_kernel_steers_is_of_use_while_it_receives() {
        let mut auto = auto();
        let mut judge =
            |bytes| auto.judge(&[(RawKey::default(), flow(2, 2, bytes))], true).unwrap();
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
