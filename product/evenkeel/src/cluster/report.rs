//! From the records of a job to what `evenkeel cluster report` says: for each node what was gained and
//! lost, and which node held the others up. It only computes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use evenkeel_host::{Accounting, CpuSummary, Proven};
use schemars::JsonSchema;
use serde::Serialize;

use super::record::{Found, JobRecord, Measured};
use crate::cli::JobId;
use crate::terminal::clean;

/// A node counts as slower than the others by at least this part.
const TOLERANCE: f64 = 0.02;
/// A smaller part of a CPU's time is not named as a loss.
const NAMED: f64 = 0.005;

/// The version of [`Report`].
pub const FORMAT: u32 = 1;

/// A job, step by step.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Report {
    /// The version of this document.
    pub format: u32,
    /// The job, as it was asked for.
    pub job: String,
    /// Nodes that were asked and have no record of the job.
    pub nodes_without_record: Vec<String>,
    /// Records and answers that cannot be used, and why.
    pub problems: Vec<String>,
    /// Records of earlier starts of the job, which was requeued: they are left out.
    pub of_earlier_starts: usize,
    /// The steps with a record, the job's script first.
    pub steps: Vec<StepReport>,
}

/// A step of a job.
#[derive(Debug, Serialize, JsonSchema)]
pub struct StepReport {
    /// Its number; none: the script of the job.
    pub step: Option<u32>,
    /// How many nodes it has.
    pub nodes: u32,
    /// Their names, as Slurm lists them.
    pub node_list: String,
    /// How many of them have no record of it.
    pub nodes_without_record: u32,
    /// The records, by node and then by time.
    pub records: Vec<NodeReport>,
    /// The node that holds the others up; none where there is no other, or none is slower by more than
    /// 2 %.
    pub slowest: Option<Slowest>,
    /// Which of the records that is of: a node may have several.
    #[serde(skip)]
    slowest_record: Option<usize>,
}

/// A record of a step on one node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct NodeReport {
    /// The node.
    pub node: String,
    /// The version of its evenkeel.
    pub evenkeel: String,
    /// What was measured.
    #[serde(flatten)]
    pub measured: Measured,
    /// What the CPUs gave; none where nothing was measured.
    pub capability: Option<Capability>,
}

/// What the CPUs of a node gave a program. 1 is a CPU of full speed without disturbance.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Capability {
    /// The least that one CPU gave, 0 to 1.
    pub worst: f64,
    /// The average of the CPUs, 0 to 1.
    pub average: f64,
    /// The pace of a program that waits for its slowest thread, 0 to 1: that of the average where a gain
    /// was shown, and else that of the worst CPU.
    pub pace: f64,
    /// What took the rest.
    pub lost: Losses,
}

/// Shares of the CPUs' time, 0 to 1, by cause.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Losses {
    /// To handlers of interrupts.
    pub irq: f64,
    /// To softirqs.
    pub softirq: f64,
    /// To real-time and deadline tasks.
    pub real_time: f64,
    /// To other guests of the hypervisor.
    pub steal: f64,
    /// To CPUs that are slower than the fastest one.
    pub speed: f64,
}

/// The node that holds the others up.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Slowest {
    /// Its name.
    pub node: String,
    /// The pace there, 0 to 1.
    pub pace: f64,
    /// The lowest pace of the other nodes; none where nothing was measured there.
    pub pace_of_others: Option<f64>,
    /// What took the most of its worst CPU: irq, softirq, real_time, steal or speed; none: nothing that
    /// is measured.
    pub cause: Option<String>,
    /// That CPU.
    pub cpu: Option<u32>,
    /// Why it is the slowest, in words.
    pub why: String,
}

impl Losses {
    /// Each cause: its name as a field, what it is for people, and its share.
    fn by_cause(&self) -> [(&'static str, &'static str, f64); 5] {
        [
            ("irq", "interrupts", self.irq),
            ("softirq", "softirqs", self.softirq),
            ("real_time", "real-time tasks", self.real_time),
            ("steal", "other guests", self.steal),
            ("speed", "lower speed", self.speed),
        ]
    }

    /// Those that are named, for people; `None`: there is none.
    fn in_words(&self) -> Option<String> {
        let named = self.by_cause().into_iter().filter(|(.., share)| *share >= NAMED);
        let named: Vec<String> =
            named.map(|(_, what, share)| format!("{what} {:.1} %", share * 100.0)).collect();
        (!named.is_empty()).then(|| named.join(", "))
    }

    fn of(cpu: &CpuSummary) -> Self {
        let share = |ns: u64| ns as f64 / cpu.elapsed_ns.max(1) as f64;
        Self {
            irq: share(cpu.irq_ns),
            softirq: share(cpu.softirq_ns),
            real_time: share(cpu.rt_ns),
            steal: share(cpu.steal_ns),
            speed: 1.0 - f64::from(cpu.speed.min(1024)) / 1024.0,
        }
    }

    fn plus(self, other: &Self) -> Self {
        Self {
            irq: self.irq + other.irq,
            softirq: self.softirq + other.softirq,
            real_time: self.real_time + other.real_time,
            steal: self.steal + other.steal,
            speed: self.speed + other.speed,
        }
    }

    fn divided_by(self, count: f64) -> Self {
        Self {
            irq: self.irq / count,
            softirq: self.softirq / count,
            real_time: self.real_time / count,
            steal: self.steal / count,
            speed: self.speed / count,
        }
    }
}

impl Capability {
    fn of(measured: &Measured) -> Option<Self> {
        let cpus = &measured.cpus;
        if measured.accounting == Accounting::None || cpus.iter().all(|cpu| cpu.elapsed_ns == 0) {
            return None;
        }
        let count = cpus.len() as f64;
        let worst = cpus.iter().map(CpuSummary::capability).fold(1.0, f64::min);
        let average = cpus.iter().map(CpuSummary::capability).sum::<f64>() / count;
        let lost = cpus.iter().map(Losses::of).fold(Losses::default(), |all, one| all.plus(&one));
        let pace = if measured.gain.proven == Proven::Gains { average } else { worst };
        Some(Self { worst, average, pace, lost: lost.divided_by(count) })
    }
}

impl Report {
    /// What the records of a job come to. `nodes` are those that were asked, as far as that is known.
    pub fn of(job: &JobId, found: Found, nodes: &[String]) -> Self {
        let Found { records, problems } = found;
        let with_record: BTreeSet<&str> =
            records.iter().map(|record| record.place.node.as_str()).collect();
        let without = nodes.iter().filter(|node| !with_record.contains(node.as_str()));
        let nodes_without_record = without.cloned().collect();
        let last = records.iter().map(|record| record.place.restarts).max().unwrap_or_default();
        let (records, earlier): (Vec<_>, Vec<_>) =
            records.into_iter().partition(|record| record.place.restarts == last);
        let mut steps: BTreeMap<Option<u32>, Vec<JobRecord>> = BTreeMap::new();
        for record in records {
            steps.entry(record.place.step).or_default().push(record);
        }
        Self {
            format: FORMAT,
            job: job.to_string(),
            nodes_without_record,
            problems,
            of_earlier_starts: earlier.len(),
            steps: steps.into_iter().map(|(step, records)| StepReport::of(step, records)).collect(),
        }
    }

    /// One line about a step on several nodes: its slowest node, what that one lost by cause, and what
    /// it gained, which is the job's gain where all wait for each other. `None` for a step on one node,
    /// which has its line already, and for one without a record.
    pub fn line_of_step(&self, number: u32) -> Option<String> {
        let step = self.steps.iter().find(|step| step.step == Some(number))?;
        if step.nodes < 2 {
            return None;
        }
        let mut line = format!("step {}.{number} on {} nodes: ", self.job, step.nodes);
        let of_slowest = step.slowest.as_ref().and_then(|slowest| {
            line += &format!("slowest {}: {}", clean(&slowest.node), clean(&slowest.why));
            step.records.get(step.slowest_record?)
        });
        match of_slowest {
            Some(record) => {
                if let Some(lost) = record.capability.as_ref().and_then(|it| it.lost.in_words()) {
                    line += &format!("; lost of all its CPUs' time: {lost}");
                }
                if record.measured.gain.proven != Proven::Nothing {
                    line += &format!("; {}", clean(&record.measured.gain.to_string()));
                }
            }
            None => {
                let tolerance = TOLERANCE * 100.0;
                line += &format!("none with a record was slower by {tolerance:.0} % or more");
            }
        }
        if step.nodes_without_record > 0 {
            line += &format!("; no record of {} of them", step.nodes_without_record);
        }
        Some(line)
    }

    /// Whether each node has its record, and each record was understood.
    pub fn is_complete(&self) -> bool {
        self.nodes_without_record.is_empty()
            && self.problems.is_empty()
            && self.steps.iter().all(|step| step.nodes_without_record == 0)
    }
}

impl StepReport {
    fn of(step: Option<u32>, mut records: Vec<JobRecord>) -> Self {
        let order = |record: &JobRecord| (record.place.node_index, record.measured.at_unix_s);
        records.sort_by_key(order);
        let nodes = records.iter().map(|record| record.place.nodes).max().unwrap_or_default();
        let node_list = records.first().map(|record| record.place.node_list.clone());
        let names: BTreeSet<&str> =
            records.iter().map(|record| record.place.node.as_str()).collect();
        let nodes_without_record = nodes.saturating_sub(names.len() as u32);
        let of_record = |record: JobRecord| NodeReport {
            node: record.place.node,
            evenkeel: record.evenkeel,
            capability: Capability::of(&record.measured),
            measured: record.measured,
        };
        let records: Vec<NodeReport> = records.into_iter().map(of_record).collect();
        let (slowest_record, slowest) = slowest(&records).unzip();
        let node_list = node_list.unwrap_or_default();
        Self { step, nodes, node_list, nodes_without_record, records, slowest, slowest_record }
    }
}

/// The node that holds the others up, and the index of the record that shows it.
fn slowest(records: &[NodeReport]) -> Option<(usize, Slowest)> {
    let pace = |record: &NodeReport| record.capability.as_ref().map(|capability| capability.pace);
    let measured = records.iter().enumerate();
    let measured = measured.filter_map(|(index, record)| Some((index, record, pace(record)?)));
    let (index, slow, own_pace) = measured.min_by(|(.., one), (.., other)| one.total_cmp(other))?;
    let others: Vec<&NodeReport> =
        records.iter().filter(|record| record.node != slow.node).collect();
    let pace_of_others = others.iter().filter_map(|other| pace(other)).min_by(f64::total_cmp);
    // Where nothing was measured, the CPUs looked alike, and nothing took much of them, ...
    let limit = pace_of_others.unwrap_or(1.0) * (1.0 - TOLERANCE);
    // ... or that one may be slower.
    let is_any_unknown = others.iter().any(|other| other.measured.is_unmeasured);
    if others.is_empty() || is_any_unknown || own_pace >= limit {
        return None;
    }
    let worst = slow.measured.cpus.iter();
    let worst = worst.min_by(|one, other| one.capability().total_cmp(&other.capability()))?;
    let cause = Losses::of(worst)
        .by_cause()
        .into_iter()
        .max_by(|(.., one), (.., other)| one.total_cmp(other));
    let cause = cause.filter(|(.., share)| *share >= NAMED);
    let rest = match pace_of_others {
        Some(pace) => format!("that of the others at {:.0} % or more", pace * 100.0),
        None => "and on the others nothing was measured".to_owned(),
    };
    let what = cause.map_or_else(String::new, |(_, what, share)| {
        format!("; {what} took {:.0} % of CPU {}", share * 100.0, worst.cpu)
    });
    let then = match (&slow.measured.gain.proven, slow.measured.is_bound) {
        (Proven::Gains, _) => ", and moves spread that over its CPUs",
        (_, true) => ", and no thread was moved from there, since each rank is bound",
        _ => "",
    };
    let why =
        format!("its program ran at {:.0} % of full pace, {rest}{what}{then}", own_pace * 100.0);
    let slowest = Slowest {
        node: slow.node.clone(),
        pace: own_pace,
        pace_of_others,
        cause: cause.map(|(name, ..)| name.to_owned()),
        cpu: cause.map(|_| worst.cpu),
        why,
    };
    Some((index, slowest))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let job = &self.job;
        for step in &self.steps {
            match step.step {
                Some(number) => write!(f, "Step {job}.{number}")?,
                None => write!(f, "Script of job {job}")?,
            }
            writeln!(f, " on {}:", clean(&step.node_list))?;
            for record in &step.records {
                writeln!(f, "  {record}")?;
            }
            if step.nodes_without_record > 0 {
                let (missing, nodes) = (step.nodes_without_record, step.nodes);
                writeln!(f, "  no record of {missing} of its {nodes} nodes")?;
            }
            match &step.slowest {
                Some(slowest) => {
                    writeln!(f, "  slowest: {}: {}", clean(&slowest.node), clean(&slowest.why))?;
                }
                // A node without a record may have been the slowest.
                None if step.nodes > 1 && step.nodes_without_record == 0 => {
                    let tolerance = TOLERANCE * 100.0;
                    writeln!(
                        f,
                        "  no node was slower than the others by {tolerance:.0} % or more"
                    )?;
                }
                None => {}
            }
        }
        if !self.nodes_without_record.is_empty() {
            let nodes = clean(&self.nodes_without_record.join(", "));
            writeln!(
                f,
                "No record of the job on {nodes}: no program ended there under evenkeel, it was killed \
                 by SIGKILL, or the node has started anew since."
            )?;
        }
        if self.of_earlier_starts > 0 {
            let count = self.of_earlier_starts;
            writeln!(f, "{count} record(s) of earlier starts of the requeued job left out.")?;
        }
        self.problems.iter().try_for_each(|why| writeln!(f, "Not read: {}", clean(why)))
    }
}

impl fmt::Display for NodeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Measured { ranks, elapsed_ns, is_running, outcome, .. } = &self.measured;
        write!(f, "{}: ", clean(&self.node))?;
        match ranks {
            0 => {}
            1 => write!(f, "1 rank, ")?,
            ranks => write!(f, "{ranks} ranks, ")?,
        }
        let tense = if *is_running { " so far" } else { "" };
        write!(f, "{:.1} s{tense}: {}", *elapsed_ns as f64 / 1e9, clean(outcome))?;
        match self.capability.as_ref().and_then(|capability| capability.lost.in_words()) {
            Some(lost) => write!(f, "\n    lost of all its CPUs' time: {lost}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launcher::SlurmPlace;
    use evenkeel_host::Gain;
    use serde_json::json;

    /// A record of a node, each CPU of which lost so many percent to softirqs.
    fn record(
        node_index: u32,
        step: Option<u32>,
        softirq_pct: &[u64],
        proven: Proven,
    ) -> JobRecord {
        let cpus: Vec<_> = (0..)
            .zip(softirq_pct)
            .map(|(cpu, pct)| {
                json!({"cpu": cpu, "speed": 1024, "elapsed_ns": 1000, "irq_ns": 0, "rt_ns": 0,
                       "softirq_ns": pct * 10, "steal_ns": 0, "idle_ns": 0})
            })
            .collect();
        let accounting = if cpus.is_empty() { "none" } else { "cbinfo" };
        let measured = json!({
            "is_running": false, "at_unix_s": 1, "command": ["app"], "exit_code": 0,
            "elapsed_ns": 2_000_000_000_u64, "ranks": 2, "is_bound": false, "accounting": accounting,
            "moves": 3, "gain": Gain { proven, ..Gain::default() }, "outcome": "moved", "cpus": cpus,
        });
        let place = SlurmPlace {
            job: 77,
            array_task: None,
            step,
            restarts: 0,
            node: format!("n{node_index}"),
            node_index,
            nodes: 2,
            node_list: "n[0-1]".to_owned(),
        };
        JobRecord::new(place, serde_json::from_value(measured).unwrap())
    }

    fn report(records: Vec<JobRecord>, nodes: &[&str]) -> Report {
        let nodes: Vec<String> = nodes.iter().map(|node| (*node).to_owned()).collect();
        let found = Found { records, problems: Vec::new() };
        Report::of(&"77".parse().unwrap(), found, &nodes)
    }

    #[test]
    fn the_node_whose_cpus_give_the_least_is_the_slowest() {
        let quiet = || record(1, Some(0), &[0, 0], Proven::Nothing);
        for (proven, pace, then) in [
            (Proven::Withdrawn, 0.6, ""),
            (Proven::Gains, 0.8, ", and moves spread that over its CPUs"),
        ] {
            let report = report(vec![quiet(), record(0, Some(0), &[0, 40], proven)], &["n0", "n1"]);
            assert!(report.is_complete(), "{report:?}");
            let slowest = report.steps[0].slowest.as_ref().unwrap();
            assert_eq!((slowest.node.as_str(), slowest.cpu), ("n0", Some(1)));
            assert_eq!(slowest.cause.as_deref(), Some("softirq"));
            assert!((slowest.pace - pace).abs() < 1e-9, "{slowest:?}");
            let expected = format!(
                "its program ran at {:.0} % of full pace, that of the others at 100 % or more; softirqs \
                 took 40 % of CPU 1{then}",
                pace * 100.0
            );
            assert_eq!(slowest.why, expected);
            let capability = report.steps[0].records[0].capability.as_ref().unwrap();
            assert!((capability.lost.softirq - 0.2).abs() < 1e-9, "{capability:?}");
            let text = report.to_string();
            assert!(
                text.starts_with("Step 77.0 on n[0-1]:\n  n0: 2 ranks, 2.0 s: moved\n"),
                "{text}"
            );
            assert!(text.contains("lost of all its CPUs' time: softirqs 20.0 %\n"), "{text}");
            assert!(text.contains(&format!("  slowest: n0: {expected}\n")), "{text}");
        }
    }

    #[test]
    fn a_step_on_several_nodes_has_one_line_with_its_slowest_node() {
        let mut noisy = record(0, Some(0), &[0, 40], Proven::Gains);
        noisy.measured.gain.ratio = Some(1.25);
        let quiet = record(1, Some(0), &[0, 0], Proven::Nothing);
        let both = report(vec![noisy.clone(), quiet], &[]);
        let line = both.line_of_step(0).unwrap();
        let begin = "step 77.0 on 2 nodes: slowest n0: its program ran at 80 % of full pace, ";
        assert!(line.starts_with(begin) && !line.contains('\n'), "{line}");
        let lost = "; lost of all its CPUs' time: softirqs 20.0 %; ran 1.25x as fast as without (";
        assert!(line.contains(lost), "{line}");
        assert_eq!(both.line_of_step(1), None);
        // A node without a record may have been the slowest.
        let line = report(vec![noisy.clone()], &[]).line_of_step(0).unwrap();
        let expected = "step 77.0 on 2 nodes: none with a record was slower by 2 % or more; no \
                        record of 1 of them";
        assert_eq!(line, expected);
        noisy.place.nodes = 1;
        assert_eq!(report(vec![noisy], &[]).line_of_step(0), None, "its node has said it");
    }

    /// Ranks that end at different times leave several records on a node.
    #[test]
    fn the_line_is_of_the_record_that_was_the_slowest() {
        let first = record(0, Some(0), &[0, 10], Proven::Nothing);
        let mut slow = record(0, Some(0), &[0, 40], Proven::Gains);
        (slow.measured.at_unix_s, slow.measured.gain.ratio) = (2, Some(1.25));
        let quiet = record(1, Some(0), &[0, 0], Proven::Nothing);
        let line = report(vec![first, slow, quiet], &[]).line_of_step(0).unwrap();
        assert!(line.contains("slowest n0: its program ran at 80 % of full pace"), "{line}");
        let lost = "; lost of all its CPUs' time: softirqs 20.0 %; ran 1.25x as fast as without (";
        assert!(line.contains(lost), "{line}");
    }

    #[test]
    fn nodes_that_are_alike_have_no_slowest_one() {
        let alike = |first: &[u64], second: &[u64]| {
            let records = [(0, first), (1, second)];
            let records = records.map(|(node, lost)| record(node, Some(0), lost, Proven::Nothing));
            report(records.to_vec(), &[]).steps.remove(0).slowest
        };
        assert!(alike(&[10, 11], &[10, 10]).is_none());
        assert!(alike(&[], &[]).is_none(), "nothing was measured");
        let beside_quiet = alike(&[], &[30, 0]).unwrap();
        assert!(beside_quiet.why.contains("and on the others nothing was measured"));
        // The other one is unequal, too, and by how much is not known.
        let mut unmeasured = record(0, Some(0), &[], Proven::Nothing);
        unmeasured.measured.is_unmeasured = true;
        let records = vec![unmeasured, record(1, Some(0), &[30, 0], Proven::Nothing)];
        assert!(report(records, &[]).steps[0].slowest.is_none());
        // A single node is no slower than others.
        let alone = report(vec![record(0, None, &[50, 0], Proven::Nothing)], &[]);
        assert!(alone.steps[0].slowest.is_none());
    }

    #[test]
    fn what_is_missing_is_counted_and_named() {
        let records = vec![
            record(0, Some(1), &[0], Proven::Nothing),
            record(0, None, &[0], Proven::Nothing),
            record(1, None, &[0], Proven::Nothing),
        ];
        let report = report(records, &["n0", "n1", "n2"]);
        assert!(!report.is_complete());
        let steps: Vec<_> =
            report.steps.iter().map(|step| (step.step, step.nodes_without_record)).collect();
        assert_eq!(steps, [(None, 0), (Some(1), 1)]);
        assert_eq!(report.nodes_without_record, ["n2"]);
        let text = report.to_string();
        assert!(text.starts_with("Script of job 77 on n[0-1]:\n"), "{text}");
        assert!(text.contains("  no record of 1 of its 2 nodes\n"), "{text}");
        assert!(text.contains("No record of the job on n2: "), "{text}");
    }

    #[test]
    fn a_requeued_job_is_reported_as_it_ran_last() {
        let mut again = record(0, Some(0), &[0], Proven::Nothing);
        again.place.restarts = 1;
        let report = report(vec![record(0, Some(0), &[40], Proven::Nothing), again], &[]);
        assert_eq!((report.steps[0].records.len(), report.of_earlier_starts), (1, 1));
        assert!(report.to_string().contains("1 record(s) of earlier starts"));
    }

    /// Any user may write to a directory that is shared.
    #[test]
    fn figures_that_cannot_be_are_reported_all_the_same() {
        let mut one = record(0, Some(0), &[50, 0], Proven::Gains);
        for cpu in &mut one.measured.cpus {
            (cpu.irq_ns, cpu.softirq_ns, cpu.speed) = (u64::MAX, u64::MAX, u32::MAX);
        }
        one.place.nodes = 0;
        one.measured.elapsed_ns = u64::MAX;
        let report = report(vec![one, record(1, Some(0), &[0], Proven::Nothing)], &[]);
        assert!(report.to_string().contains("slowest: n0: "), "{report}");
        assert!(serde_json::to_string(&report).is_ok());
    }

    #[test]
    fn what_a_record_says_does_no_harm_to_a_terminal() {
        let mut one = record(0, Some(0), &[0], Proven::Nothing);
        one.measured.outcome = "\x1b[2Jgone".to_owned();
        assert!(!report(vec![one], &[]).to_string().contains('\x1b'));
    }
}
