//! What was wanted of SAIs, and whether the rows show it: reached, missed, or undecided.

use serde::{Deserialize, Serialize};

use super::contestant::Contestant;
use super::placement::Placement;
use super::table::{Row, SI_IRQBALANCE, SI_SAIS};
use crate::interleave::{Measurement, Outcome};
use crate::stats::{Comparison, Judged, Verdict, judge};
use evenkeel_experiment::Reached;
use evenkeel_experiment::cells::Cells;

/// Of a ratio whose direction is not certain, so much less is no loss.
const AS_GOOD_AS: f64 = 0.95;
/// What an interval is to cover.
const LEVEL: f64 = 0.95;
/// What is wanted of the runner's core against a dedicated one, and of one core against two in memory.
const VS_DEDICATED: f64 = 1.15;
const IN_MEMORY: f64 = 1.2;
/// The share of packets that are to be at home, in %, where their consumer is pinned, and from 10 ms
/// after it has moved.
const PINNED_PCT: f64 = 99.9;
const MOVED_PCT: f64 = 99.0;
/// And of those of data that are to come with a hint, after the first round trip.
const HINTED_PCT: f64 = 100.0;

/// Something that was wanted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Aim {
    /// Of what.
    pub what: String,
    /// What was found.
    pub found: String,
    /// What was wanted; `None`: it is only to be known.
    pub wanted: Option<String>,
    /// Whether it was reached.
    pub reached: Option<Reached>,
}

/// What is wanted of a ratio.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Want {
    Nothing,
    NotWorse,
    Better,
    AtLeast(f64),
}

/// What is compared; less is better.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Figure {
    Goodput,
    CpuTime,
}

impl Figure {
    fn name(self) -> &'static str {
        if self == Self::Goodput { "goodput" } else { "CPU-s/GB" }
    }

    fn of(self) -> fn(&Measurement) -> Option<f64> {
        match self {
            Self::Goodput => |run| Some(run.seconds),
            Self::CpuTime => |run| run.cpu_s,
        }
    }
}

/// Two contestants of all cases in which both take part.
struct Pair {
    ours: String,
    theirs: String,
    figure: Figure,
    want: Want,
}

fn pairs() -> Vec<Pair> {
    let pair = |ours: Contestant, theirs: Contestant, figure, want| Pair {
        ours: ours.name(),
        theirs: theirs.name(),
        figure,
        want,
    };
    let auto = Contestant::Flow("auto");
    let mut pairs = vec![Pair {
        ours: SI_SAIS.into(),
        theirs: SI_IRQBALANCE.into(),
        figure: Figure::Goodput,
        want: Want::AtLeast(IN_MEMORY),
    }];
    for theirs in [Contestant::None, Contestant::Rfs] {
        pairs.push(pair(auto, theirs, Figure::Goodput, Want::NotWorse));
        pairs.push(pair(auto, theirs, Figure::CpuTime, Want::NotWorse));
    }
    let balanced = Contestant::Flow("least-loaded");
    pairs.push(pair(auto, balanced, Figure::Goodput, Want::Better));
    pairs.push(pair(auto, balanced, Figure::CpuTime, Want::Better));
    let dedicated = Contestant::Flow("dedicated:0");
    let at_least = Want::AtLeast(VS_DEDICATED);
    pairs.push(pair(Contestant::Flow("runner"), dedicated, Figure::Goodput, at_least));
    // What the option in each packet costs, the lost fast path included.
    let (hint, flow) = (Contestant::Hint("issuer"), Contestant::Flow("issuer"));
    pairs.push(pair(hint, flow, Figure::CpuTime, Want::Nothing));
    pairs
}

/// All of them, judged as one family that was looked at so many times.
pub(super) fn of(outcomes: &[Outcome], rows: &[Row], looks: usize) -> Vec<Aim> {
    let mut compared: Vec<(String, Pair, Comparison)> = Vec::new();
    for pair in pairs() {
        for ours in outcomes.iter().filter(|outcome| outcome.contestant == pair.ours) {
            let is_theirs =
                |other: &&Outcome| other.case == ours.case && other.contestant == pair.theirs;
            let theirs = outcomes.iter().find(is_theirs);
            // Where the link is the bound, nobody can be better.
            let is_shaped = ours.case.contains(" Gb/s");
            if is_shaped && !matches!(pair.want, Want::NotWorse) {
                continue;
            }
            let comparison = theirs.and_then(|theirs| ours.compared_by(theirs, pair.figure.of()));
            if let Some(comparison) = comparison {
                compared.push((
                    ours.case.clone(),
                    Pair { ours: pair.ours.clone(), theirs: pair.theirs.clone(), ..pair },
                    comparison,
                ));
            }
        }
    }
    let comparisons: Vec<Comparison> = compared.iter().map(|(_, _, of)| *of).collect();
    let judged = judge(&comparisons, looks);
    let ratios =
        compared.iter().zip(judged).map(|((case, pair, _), judged)| ratio(case, pair, &judged));
    let mut aims: Vec<Aim> = ratios.collect();
    aims.extend(shares(rows));
    aims
}

fn ratio(case: &str, pair: &Pair, judged: &Judged) -> Aim {
    let ratio = judged.comparison.ratio;
    let verdict = match judged.verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::Undecided => "undecided",
    };
    let (wanted, reached) = match pair.want {
        Want::Nothing => (None, None),
        Want::NotWorse => (Some("not worse".to_owned()), Some(not_worse(judged))),
        Want::Better => (Some("better".to_owned()), Some(better(judged))),
        Want::AtLeast(factor) => (Some(format!("{factor:.2}")), Some(at_least(judged, factor))),
    };
    Aim {
        what: format!("{case}: {} against {}, {}", pair.ours, pair.theirs, pair.figure.name()),
        found: format!("{:.3} ({:.3} - {:.3}), {verdict}", ratio.median, ratio.lo, ratio.hi),
        wanted,
        reached,
    }
}

/// Whether there are enough rounds for an interval.
fn is_sure(judged: &Judged) -> bool {
    judged.comparison.ratio.coverage >= LEVEL
}

fn not_worse(judged: &Judged) -> Reached {
    match judged.verdict {
        Verdict::Worse => Reached::Missed,
        Verdict::Better => Reached::Reached,
        Verdict::Undecided if is_sure(judged) && judged.comparison.ratio.lo >= AS_GOOD_AS => {
            Reached::Reached
        }
        Verdict::Undecided => Reached::Undecided,
    }
}

fn better(judged: &Judged) -> Reached {
    match judged.verdict {
        Verdict::Better => Reached::Reached,
        Verdict::Worse => Reached::Missed,
        Verdict::Undecided => Reached::Undecided,
    }
}

fn at_least(judged: &Judged, factor: f64) -> Reached {
    let ratio = judged.comparison.ratio;
    if !is_sure(judged) {
        Reached::Undecided
    } else if ratio.lo >= factor {
        Reached::Reached
    } else if ratio.hi < factor {
        Reached::Missed
    } else {
        Reached::Undecided
    }
}

/// What is wanted of one connection's packets.
pub(super) fn of_placement(placement: &Placement) -> [Aim; 4] {
    let aim = |what: &str, pct: f64, least_pct: f64| Aim {
        what: what.into(),
        found: format!("{pct:.2} %"),
        wanted: Some(format!("{least_pct} %")),
        reached: Some(if pct >= least_pct { Reached::Reached } else { Reached::Missed }),
    };
    let Placement { pinned_pct, moved_pct, disordered, segments, hinted_pct } = *placement;
    [
        aim("runner: packets on the core of their consumer, who is pinned", pinned_pct, PINNED_PCT),
        aim("runner: the same from 10 ms after the consumer has moved", moved_pct, MOVED_PCT),
        Aim {
            what: "runner: segments of both that came out of order, of those sent in order".into(),
            found: format!("{disordered} of {segments}"),
            wanted: Some("0".into()),
            reached: Some(if disordered == 0 { Reached::Reached } else { Reached::Missed }),
        },
        aim(
            "hint mode: of the data that left the server after the first round trip, with a hint",
            hinted_pct,
            HINTED_PCT,
        ),
    ]
}

/// What is wanted of packets in all cases.
fn shares(rows: &[Row]) -> Vec<Aim> {
    let mut aims: Vec<Aim> = disorder(rows).into_iter().collect();
    let of = |name: String| rows.iter().filter(move |row| row.contestant == name);
    let predicted = |name: Contestant| {
        of(name.name()).find_map(|row| Some(row.traffic.as_ref()?.predicted_pct))
    };
    let (flow, hint) = (Contestant::Flow("issuer"), Contestant::Hint("issuer"));
    aims.extend(predicted(flow).zip(predicted(hint)).map(|(flow, hint)| Aim {
        what: "segments on TCP's fast path at the client (header prediction), issuer".into(),
        found: format!("{flow:.0} % in flow mode, {hint:.0} % in hint mode"),
        wanted: None,
        reached: None,
    }));
    aims
}

/// What is overtaken under whoever steers, and what is so without anybody: in all runs of all
/// cases, as a share of all segments, because not all have as many runs.
fn disorder(rows: &[Row]) -> Option<Aim> {
    let ours = |row: &&Row| row.traffic.as_ref().is_some_and(|all| all.steering_pct.is_some());
    let nobody = |row: &&Row| row.contestant == Contestant::None.name();
    let sum = |is_meant: &dyn Fn(&&Row) -> bool| -> (f64, f64) {
        let meant = rows.iter().filter(is_meant).filter_map(|row| row.traffic.as_ref());
        meant.fold((0.0, 0.0), |sum, all| (sum.0 + all.out_of_order, sum.1 + all.segments))
    };
    let (ours, nobody) = (sum(&ours), sum(&nobody));
    if ours.1 == 0.0 || nobody.1 == 0.0 {
        return None;
    }
    let is_more = ours.0 / ours.1 > nobody.0 / nobody.1;
    Some(Aim {
        what: "segments that others overtook, in all runs of all cases".into(),
        found: format!(
            "{:.0} of {:.0} where `sais` steers, {:.0} of {:.0} with nobody",
            ours.0, ours.1, nobody.0, nobody.1
        ),
        wanted: Some("no more than with nobody".into()),
        reached: Some(match is_more {
            false => Reached::Reached,
            // A cable that disorders by itself says little.
            true if nobody.0 > 0.0 => Reached::Undecided,
            true => Reached::Missed,
        }),
    })
}

/// For people.
pub(super) fn table(aims: &[Aim]) -> Cells {
    let cells = |aim: &Aim| {
        let reached = match aim.reached {
            Some(Reached::Reached) => "reached",
            Some(Reached::Missed) => "missed",
            Some(Reached::Undecided) => "undecided",
            None => "-",
        };
        let wanted = aim.wanted.as_deref().unwrap_or("-");
        [aim.what.as_str(), &aim.found, wanted, reached].map(str::to_owned).to_vec()
    };
    Cells {
        header: ["figure", "found", "wanted", "reached"].map(str::to_owned).to_vec(),
        numbers: vec![1],
        rows: aims.iter().map(cells).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sais::traffic::Traffic;

    fn outcome(contestant: &str, seconds: f64, cpu_s: f64) -> Outcome {
        // Not quite equal, as nothing is that is measured.
        let run = |round: usize| {
            let more = 1.0 + round as f64 * 1e-3;
            let (seconds, cpu_s) = (seconds * more, Some(cpu_s * more));
            Some(Measurement { seconds, cpu_s, ..Measurement::default() })
        };
        Outcome {
            case: "unshaped".into(),
            program: "transfer".into(),
            contestant: contestant.into(),
            rounds: (0..12).map(run).collect(),
            judged: None,
            repeated: 0,
            failed: None,
        }
    }

    #[test]
    fn packets_just_short_of_what_is_wanted_miss_it() {
        let reached = |pinned_pct, moved_pct, disordered, hinted_pct| {
            let segments = 1000;
            let found = Placement { pinned_pct, moved_pct, disordered, segments, hinted_pct };
            of_placement(&found).map(|aim| aim.reached == Some(Reached::Reached))
        };
        assert_eq!(reached(99.9, 99.0, 0, 100.0), [true; 4]);
        assert_eq!(reached(99.89, 98.99, 1, 99.99), [false; 4]);
    }

    #[test]
    fn losses_are_said_like_gains() {
        let outcomes = [
            outcome("none", 1.0, 1.0),
            outcome("dedicated:0", 2.0, 2.0),
            outcome("least-loaded", 1.5, 1.0),
            outcome("runner", 1.9, 2.0),
            outcome("auto", 1.0, 1.4),
        ];
        let aims = of(&outcomes, &[], 1);
        let reached = |what: &str| {
            let aim = aims.iter().find(|aim| aim.what == format!("unshaped: {what}"));
            aim.unwrap_or_else(|| panic!("{what}: {aims:?}")).reached
        };
        assert_eq!(reached("auto against none, goodput"), Some(Reached::Reached));
        assert_eq!(reached("auto against none, CPU-s/GB"), Some(Reached::Missed));
        assert_eq!(reached("auto against least-loaded, goodput"), Some(Reached::Reached));
        assert_eq!(reached("auto against least-loaded, CPU-s/GB"), Some(Reached::Missed));
        assert_eq!(reached("runner against dedicated:0, goodput"), Some(Reached::Missed));
        assert_eq!(aims.len(), 5, "who takes no part is compared with nobody: {aims:?}");
        let table = table(&aims).terminal();
        assert!(table.contains("1.500 (1.500 - 1.500), better"), "{table}");
        assert!(table.contains("1.053 (1.053 - 1.053), better"), "{table}");
    }

    #[test]
    fn what_comes_out_of_order_is_added_over_all_runs_and_cases() {
        let row = |contestant: &str, out_of_order, steering_pct| {
            let traffic =
                Traffic { out_of_order, segments: 1000.0, steering_pct, ..Traffic::default() };
            let mut row = Row::new(&outcome(contestant, 1.0, 1.0), None);
            row.traffic = Some(traffic);
            row
        };
        let reached = |rows: &[Row]| disorder(rows).and_then(|aim| aim.reached);
        let on = Some(100.0);
        let mut rows = vec![row("none", 0.0, None), row("runner", 0.0, on), row("auto", 0.0, on)];
        assert_eq!(reached(&rows), Some(Reached::Reached));
        // Whoever of ours it is, and in whichever case; who is not ours does not matter.
        rows.push(row("round robin", 70.0, None));
        assert_eq!(reached(&rows), Some(Reached::Reached));
        rows.push(row("issuer, hint", 1.0, on));
        assert_eq!(reached(&rows), Some(Reached::Missed));
        rows.push(row("none", 1.0, None));
        assert_eq!(reached(&rows), Some(Reached::Reached), "1 of 3000 against 1 of 2000");
        rows.push(row("auto", 9.0, on));
        assert_eq!(reached(&rows), Some(Reached::Undecided));
        assert_eq!(reached(&rows[..1]), None, "nobody steers");
    }
}
