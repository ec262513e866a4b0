//! A row of `evenkeel top` in full: what is known about it, line by line, and why. Pure.

use evenkeel_host::doctor::CpuNow;
use evenkeel_host::{Accounting, ThreadTimes};

use super::interrupts::Rate;
use super::model::{Keel, Model, Program};
use super::table::Pane;
use super::tables::{answer_key, decision_key, interrupt_key, left_pct, name, tasks_pct};
use crate::terminal::clean;
use crate::{decision_text, status};

/// So many of the last decisions are told with a program.
const DECISIONS: usize = 5;
/// So many lines are told with the CPU that they interrupt.
const LINES: usize = 5;

/// What is known about a row, in lines of any length; `None`: it is gone.
pub fn explain(model: &Model, pane: Pane, key: &str) -> Option<Vec<String>> {
    let lines = match pane {
        Pane::Cpus => cpu(model, key.parse().ok()?),
        Pane::Programs => model
            .programs
            .iter()
            .find(|program| program.status.root.to_string() == key)
            .map(program),
        Pane::Decisions => decision(model, key),
        Pane::Interrupts => {
            model.interrupts.iter().flatten().find(|rate| interrupt_key(rate) == key).map(line)
        }
        Pane::Keel => counter(model.keel.as_ref()?, key),
    };
    Some(lines?.iter().map(|line| clean(line)).collect())
}

fn cpu(model: &Model, number: u32) -> Option<Vec<String>> {
    let Some(figures) = &model.cpus.figures else {
        let is_known = model.cpus.speeds.iter().any(|(cpu, _)| *cpu == number);
        return is_known.then(|| vec!["The first interval has not passed yet.".to_owned()]);
    };
    let cpu = figures.cpus.iter().find(|cpu| cpu.cpu == number)?;
    let seconds = figures.watched_ns as f64 / 1e9;
    let mut lines = vec![
        format!(
            "CPU {number} gives {:.1} % of what the fastest CPU gives undisturbed (capability {} of \
             1024), over {seconds:.1} s by {}.",
            left_pct(cpu),
            cpu.capability,
            figures.accounting
        ),
        causes(cpu),
    ];
    lines.extend(cpu.rt_pct.is_none().then(|| {
        "/proc does not tell real-time tasks from others: they are among the tasks.".to_owned()
    }));
    let on_cpu = |rate: &Rate| rate.per_s.get(&number).copied().unwrap_or(0.0);
    let mut rates: Vec<&Rate> =
        model.interrupts.iter().flatten().filter(|rate| on_cpu(rate) > 0.0).collect();
    rates.sort_by(|one, other| on_cpu(other).total_cmp(&on_cpu(one)));
    for rate in rates.into_iter().take(LINES) {
        lines.push(format!("  {} {}: {:.0} a second here", rate.label, name(rate), on_cpu(rate)));
    }
    if let Some(cpu) = model.keel.as_ref().and_then(|keel| keel.statistics.cpus.get(&number)) {
        let taken = if cpu.taken { ", a higher scheduling class has it" } else { "" };
        lines.push(format!(
            "For the keel: {} tasks run or wait, busy {} %, capability {}{taken}.",
            cpu.runnable, cpu.busy_pct, cpu.capability
        ));
    }
    lines.push(String::new());
    lines.push("All CPUs:".to_owned());
    lines.push(figures.verdict.clone());
    lines.extend(figures.remarks.iter().cloned());
    lines.extend(model.cpus.why_not_exact.iter().map(|why| format!("Not exact, because: {why}")));
    Some(lines)
}

fn causes(cpu: &CpuNow) -> String {
    let taken = [
        (Some(cpu.irq_pct), "interrupt handlers"),
        (Some(cpu.softirq_pct), "softirqs"),
        (cpu.rt_pct, "real-time tasks"),
        (Some(cpu.steal_pct), "the hypervisor (steal)"),
        (Some(tasks_pct(cpu)), "other tasks"),
    ];
    let taken: Vec<String> = taken
        .into_iter()
        .filter_map(|(pct, cause)| Some(format!("{:.1} % {cause}", pct?)))
        .collect();
    format!("Taken: {}. Idle: {:.1} %.", taken.join(", "), cpu.idle_pct)
}

fn program(program: &Program) -> Vec<String> {
    let status = &program.status;
    let mut lines = vec![status::headline(status)];
    if let Some(shares) = &status.shares {
        lines.push(format!("Loops: {shares}"));
    }
    if status.accounting != Accounting::None {
        lines.push(status::waits(status.accounting, &status.waits));
    }
    for cpu in &status.cpus {
        let left = cpu.capability() * 100.0;
        lines.push(format!("  CPU {}: {left:.1} % left for the program so far", cpu.cpu));
    }
    if program.threads.is_empty() {
        lines.push("Nothing is known of its threads.".to_owned());
    }
    if program.is_from_proc {
        lines.push("Its threads, from /proc, as its balancer observes nothing now:".to_owned());
    }
    lines.extend(program.threads.iter().filter_map(thread));
    let skipped = status.decisions.len().saturating_sub(DECISIONS);
    for decision in status.decisions.iter().skip(skipped) {
        lines.extend(
            decision_text::describe(decision, status.started_ns).lines().map(str::to_owned),
        );
    }
    lines
}

fn thread(thread: &ThreadTimes) -> Option<String> {
    let all = thread.run_ns + thread.queued_ns + thread.slept_ns;
    let pct = |ns: u64| ns as f64 * 100.0 / all as f64;
    let spun = thread.spun.map(|share| format!(", of which it spins for {share}"));
    (all > 0).then(|| {
        format!(
            "  thread {}: on a CPU {:.0} %{}, waits for one {:.0} %, sleeps {:.0} %",
            thread.tid,
            pct(thread.run_ns),
            spun.unwrap_or_default(),
            pct(thread.queued_ns),
            pct(thread.slept_ns)
        )
    })
}

fn decision(model: &Model, key: &str) -> Option<Vec<String>> {
    for program in &model.programs {
        let status = &program.status;
        let mut all = status.decisions.iter();
        if let Some(found) = all.find(|one| decision_key(status.root, one.at_ns) == key) {
            let text = decision_text::describe(found, status.started_ns);
            let heading = format!("{} (pid {}):", program.command(), status.root);
            return Some(std::iter::once(heading).chain(text.lines().map(str::to_owned)).collect());
        }
    }
    let mut answers = model.keel.iter().flat_map(|keel| &keel.answers);
    let answer = answers.find(|answer| answer_key(answer) == key)?;
    Some(vec!["The keel's gate was asked:".to_owned(), answer.to_string()])
}

fn line(rate: &Rate) -> Vec<String> {
    let mut lines = vec![format!("{} {}: {:.1} a second", rate.label, name(rate), rate.total())];
    lines.extend(rate.queue.iter().map(|queue| format!("Queue of a network device: {queue}")));
    let came = rate.per_s.iter().filter(|(_, rate)| **rate > 0.0);
    lines.extend(came.map(|(cpu, rate)| format!("  CPU {cpu}: {rate:.1} a second")));
    lines.push(
        "What it costs there, and where it could go: evenkeel irq status, irq plan".to_owned(),
    );
    lines
}

fn counter(keel: &Keel, key: &str) -> Option<Vec<String>> {
    let count = keel.statistics.counters.get(key)?;
    let mut lines = vec![format!("{key}: {count} since the keel was loaded")];
    lines.extend(keel.per_s.get(key).map(|rate| format!("Now: {rate:.1} a second")));
    lines.extend(keel.meanings.get(key).cloned());
    let statistics = &keel.statistics;
    lines.push(format!(
        "Policies {}, slice {} us, loaded again after hotplug {} times",
        statistics.policies.join("/"),
        statistics.slice_us,
        statistics.restarts
    ));
    Some(lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::sample;
    use crate::top::tables::tables;

    fn text(pane: Pane, key: &str) -> String {
        explain(&sample::model(2), pane, key).unwrap().join("\n")
    }

    #[test]
    fn every_row_of_every_pane_is_explained() {
        let model = sample::model(3);
        for (pane, table) in Pane::ALL.into_iter().zip(tables(&model)) {
            assert!(!table.rows.is_empty());
            for row in &table.rows {
                assert!(explain(&model, pane, &row.key).is_some_and(|lines| !lines.is_empty()));
            }
            assert_eq!(explain(&model, pane, "no such row"), None);
        }
    }

    #[test]
    fn a_cpu_is_explained_by_causes_and_lines() {
        let text = text(Pane::Cpus, "1");
        assert!(text.starts_with("CPU 1 gives 50.0 % of what the fastest CPU gives"), "{text}");
        assert!(text.contains("40.0 % softirqs, 9.0 % the hypervisor"), "{text}");
        assert!(text.contains("real-time tasks from others"), "{text}");
        assert!(text.contains("NET_RX softirq: 797 a second here"), "{text}");
        assert!(text.contains("Not exact, because: no privilege"), "{text}");
    }

    #[test]
    fn a_program_is_explained_by_threads_and_decisions() {
        let text = text(Pane::Programs, "1234");
        assert!(text.contains("ran 1.27x as fast as without (1.23-1.29"), "{text}");
        assert!(text.contains("thread 1236: on a CPU 80 %, of which it spins for 12 %"), "{text}");
        assert!(text.contains("no moves needed"), "{text}");
        assert!(super::explain(&sample::model(2), Pane::Programs, "99").is_some());
    }

    #[test]
    fn a_decision_a_line_and_a_counter_are_explained() {
        let model = sample::model(2);
        let [_, _, decisions, ..] = tables(&model);
        assert!(text(Pane::Decisions, &decisions.rows[0].key).contains("gate was asked"));
        assert!(text(Pane::Decisions, &decisions.rows[1].key).contains("CPU 1: 50 % for 1 task"));
        assert!(text(Pane::Interrupts, "Softirq NET_RX").contains("CPU 1: 797.0 a second"));
        assert!(text(Pane::Keel, "enqueue").contains("Now: 120.0 a second"));
        assert!(!text(Pane::Interrupts, "Interrupt 36").contains("Queue"));
        let of_queue = explain(&sample::model_with_queue(), Pane::Interrupts, "Interrupt 36");
        assert!(of_queue.unwrap()[1].ends_with("device: eth0:3"));
    }

    #[test]
    fn what_a_program_is_called_cannot_break_the_screen() {
        let mut model = sample::model(2);
        model.programs[0].status.command = vec!["a\u{1b}[2J".to_owned()];
        let lines = explain(&model, Pane::Programs, "1234").unwrap();
        assert!(lines[0].starts_with("a?[2J (pid 1234"), "{lines:?}");
    }
}
