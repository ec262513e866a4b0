//! A balancer's decision as lines of text, for `run --explain` and `explain`.

use evenkeel_host::{Decision, DecisionCpu};

/// Leads a move that was not made, as the program is only observed.
const WOULD_MOVE: &str = "would move ";

/// One decision of a program that was started then, on CLOCK_BOOTTIME: the figures first, then the moves
/// and reasons that follow from them.
pub fn describe(decision: &Decision, started_ns: Option<u64>) -> String {
    let words = decision.in_words();
    let cpus: Vec<String> = words
        .cpus
        .iter()
        .map(|DecisionCpu { cpu, capability_per_mille, tasks }| {
            let share = *capability_per_mille as f64 / 10.0;
            let plural = if *tasks == 1 { "" } else { "s" };
            format!("CPU {cpu}: {share:.0} % for {tasks} task{plural}")
        })
        .collect();
    let (at_ns, since) = match started_ns {
        Some(started_ns) if decision.at_boottime_ns > 0 => {
            (decision.at_boottime_ns.saturating_sub(started_ns), "the start")
        }
        _ => (words.at_ns, "boot"),
    };
    let mut text = format!(
        "  {:.3} s since {since}, after {:.0} ms, by {}: {}\n",
        at_ns as f64 / 1e9,
        words.interval_ns as f64 / 1e6,
        words.accounting,
        cpus.join(", ")
    );
    if let Some(waits) = &words.waits {
        text += &format!("    {waits}\n");
    }
    let moved = if decision.dry_run { WOULD_MOVE } else { "moved " };
    for (lead, lines) in [
        ("", &words.news),
        (moved, &words.moves),
        ("refused: ", &words.refused),
        ("", &words.reasons),
    ] {
        for line in lines {
            text += &format!("    {lead}{line}\n");
        }
    }
    text
}

/// The same in one line, without the figures.
pub fn summarise(decision: &Decision) -> String {
    let mut words = decision.in_words();
    if decision.dry_run {
        words.moves.iter_mut().for_each(|line| line.insert_str(0, WOULD_MOVE));
    }
    let lines = [words.news, words.moves, words.refused, words.reasons].concat();
    if lines.is_empty() { "no moves".to_owned() } else { lines.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_capability::Reason;

    fn decision(dry_run: bool) -> Decision {
        serde_json::from_value(serde_json::json!({
            "at_ns": 90_000_000_000u64, "interval_ns": 50_000_000, "average_per_mille": 900,
            "cpus": [], "reasons": [], "refused": [], "dry_run": dry_run,
            "moves": [{"task": {"tid": 7, "start": 1}, "from": 0, "to": 1,
                "reason": {"rule": "pull", "local_ecpt_ns": 2, "remote_ecpt_ns": 1,
                    "working_set_bytes": null}}],
        }))
        .unwrap()
    }

    #[test]
    fn a_move_of_a_program_that_is_only_observed_is_told_as_not_made() {
        let (made, thought) = (decision(false), decision(true));
        assert!(describe(&made, None).contains("    moved task 7 from CPU 0 to CPU 1"));
        assert!(describe(&thought, None).contains("    would move task 7 from CPU 0 to CPU 1"));
        assert!(summarise(&made).starts_with("task 7 from"), "{}", summarise(&made));
        assert!(summarise(&thought).starts_with("would move task 7 from"));
    }

    #[test]
    fn the_time_of_a_decision_is_that_since_the_start_or_says_that_it_is_since_boot() {
        let mut decision = decision(false);
        let since_boot = "  90.000 s since boot, after 50 ms, by ";
        assert!(describe(&decision, Some(98_000_000_000)).starts_with(since_boot));
        decision.at_boottime_ns = 99_500_000_000;
        assert!(describe(&decision, None).starts_with(since_boot));
        let since_start = "  1.500 s since the start, after 50 ms, by ";
        assert!(describe(&decision, Some(98_000_000_000)).starts_with(since_start));
    }

    /// The page has N for each figure.
    #[test]
    fn the_page_on_levers_quotes_reasons_as_they_are_printed() {
        let page = include_str!("../../../docs/how-to/lever.md");
        for reason in [
            Reason::PhasesTooShort { phase_ns: 4_000_000 },
            Reason::Bound,
            Reason::Balanced { spread_ppm: 20_000 },
        ] {
            let printed = reason.to_string();
            let is_figure = |word: &str| word.starts_with(|c: char| c.is_ascii_digit());
            let words = printed.split(' ').map(|word| if is_figure(word) { "N" } else { word });
            let quoted = format!("`{}`", words.collect::<Vec<_>>().join(" "));
            assert!(page.contains(&quoted), "{quoted}");
        }
    }
}
