//! A balancer's decision as lines of text, for `run --explain` and `explain`.

use evenkeel_host::{Decision, DecisionCpu};

/// One decision: the figures first, then the moves and reasons that follow from them.
pub fn describe(decision: &Decision) -> String {
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
    let mut text = format!(
        "  {:.3} s, after {:.0} ms, by {}: {}\n",
        words.at_ns as f64 / 1e9,
        words.interval_ns as f64 / 1e6,
        words.accounting,
        cpus.join(", ")
    );
    if let Some(waits) = &words.waits {
        text += &format!("    {waits}\n");
    }
    for (lead, lines) in [
        ("", &words.news),
        ("moved ", &words.moves),
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
    let words = decision.in_words();
    let lines = [words.news, words.moves, words.refused, words.reasons].concat();
    if lines.is_empty() { "no moves".to_owned() } else { lines.join("; ") }
}

#[cfg(test)]
mod tests {
    use evenkeel_capability::Reason;

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
