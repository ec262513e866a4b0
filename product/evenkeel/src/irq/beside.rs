//! `evenkeel run --move-noise`: `evenkeel irq run --for PID` beside one program, from its start to its
//! end. A process of its own, because a process has one journal, and so that what was moved is taken
//! back even if evenkeel is killed: it ends with the program at the latest.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use evenkeel_irq::online_cpus;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::gate::reason_against;
use crate::cli::FaultArgs;
use crate::exit::Impossible;

/// A program may be short: the shortest round.
const ROUND: &str = "1s";

/// The process that moves interrupts for a program.
#[derive(Debug)]
pub struct Beside {
    child: Child,
    /// What it prints: a file in memory, so that it waits for no reader.
    output: File,
}

/// What came of `--move-noise`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct InterruptsSummary {
    /// The moves, in their order.
    pub moves: Vec<Value>,
    /// Sources that another process moved meanwhile, and that were left alone then.
    pub left_alone: Vec<Value>,
    /// Sources that could not be moved, and why; changes of indirection tables that were taken back.
    pub refused: Vec<Value>,
    /// Affinities and indirection tables that were set back at the end.
    pub set_back: usize,
    /// What it comes to, in words.
    pub effect: String,
}

/// Whether interrupts can be moved for a program: looked at before it is started. Where there is nothing
/// to move them to, the reason.
///
/// # Errors
/// They cannot be moved here, by this user, or now.
pub fn prepare() -> Result<Option<String>> {
    if let Some(why) = reason_against(false) {
        return Err(Impossible(format!("--move-noise: {why}; or leave --move-noise out")).into());
    }
    let cpus = online_cpus().context("--move-noise: which CPUs are online is not known")?;
    Ok((cpus.len() < 2).then(|| format!("CPU {cpus} is the only one online")))
}

impl Beside {
    /// Starts moving interrupts for a program that runs.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start(pid: u32, faults: &FaultArgs) -> Result<Self> {
        let output = File::from(memfd_create(c"evenkeel-irq", MFdFlags::MFD_CLOEXEC)?);
        let mut command = Command::new("/proc/self/exe");
        command.arg0("evenkeel");
        command.args(["irq", "run", "--json", "--interval", ROUND, "--for", &pid.to_string()]);
        if faults.no_supervisor {
            command.arg("--no-supervisor");
        }
        // Not in the group of the terminal: its signals are the program's.
        command.stdin(Stdio::null()).stdout(output.try_clone()?).process_group(0);
        Ok(Self { child: command.spawn()?, output })
    }

    /// Has everything taken back, and says what was done.
    ///
    /// # Errors
    /// What it printed cannot be read.
    pub fn finish(mut self) -> Result<InterruptsSummary> {
        // It may have ended already.
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM);
        self.child.wait()?;
        let mut text = String::new();
        self.output.seek(SeekFrom::Start(0))?;
        self.output.read_to_string(&mut text)?;
        InterruptsSummary::of(&text)
    }
}

impl InterruptsSummary {
    /// Nothing was done, for this reason.
    pub fn no_effect(why: &str) -> Self {
        Self { effect: format!("not moved: {why}"), ..Self::default() }
    }

    /// Of what `irq run --json` prints.
    fn of(text: &str) -> Result<Self> {
        let mut summary = Self::default();
        let mut undone = None;
        for line in text.lines() {
            let Value::Object(event) = serde_json::from_str(line)? else { continue };
            for (kind, event) in event {
                match kind.as_str() {
                    "moved" | "spread" => summary.moves.push(event),
                    "let_go" => summary.left_alone.push(event),
                    "refused" | "unspread" | "withdrawn" => summary.refused.push(event),
                    "undone" => undone = Some(event),
                    _ => {}
                }
            }
        }
        let count = |name| {
            let list = undone.as_ref().and_then(|undone| undone[name].as_array());
            list.map_or(0, Vec::len)
        };
        let kinds = ["turned_back", "restored", "restored_tables"];
        summary.set_back = kinds.into_iter().map(count).sum();
        let words = summary.moves.iter().map(|step| {
            let name = step["name"].as_str().unwrap_or_default();
            format!("{name}: CPU {} -> CPU {}", step["from"], step["to"])
        });
        let (moves, words) = (summary.moves.len(), words.collect::<Vec<_>>().join(", "));
        let is_all_back = undone.is_some() && count("errors") == 0;
        summary.effect = match moves {
            0 if undone.is_none() => {
                "not moved: the program ended too soon, or see above".to_owned()
            }
            0 => "not moved: no move made the largest share clearly smaller".to_owned(),
            _ if is_all_back => {
                format!("moved {moves} times, {} set back at the end ({words})", summary.set_back)
            }
            _ => format!("moved {moves} times ({words}); run `evenkeel undo` to set them back"),
        };
        Ok(summary)
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_irq::{Event, Move, MovedByOther, Reason, SourceId};
    use evenkeel_journal::UndoReport;

    use super::*;

    fn moved(line: u32, to: u32) -> Event {
        Event::Moved(Move {
            source: SourceId::Line(line),
            name: format!("eth{line}"),
            from: 0,
            to,
            reason: Reason::Level,
            pct: 20.0,
            from_pct: 40.0,
            after_pct: 20.0,
        })
    }

    fn text(events: &[Event], report: Option<&UndoReport>) -> String {
        let events = events.iter().map(|event| serde_json::to_string(event).unwrap() + "\n");
        let end = report.map(|report| serde_json::json!({ "undone": report }).to_string());
        events.chain(end).collect()
    }

    #[test]
    fn the_summary_is_of_what_was_printed() {
        let found = [1].into_iter().collect();
        let (source, name) = (SourceId::Line(4), "ttyS0".to_owned());
        let let_go = MovedByOther { source, name: name.clone(), found };
        let refused = Event::Refused { source, name, why: "EPERM".to_owned() };
        let events = [moved(1, 2), moved(3, 1), Event::LetGo(let_go), refused];
        let restored_settings = vec!["/proc/irq/1/smp_affinity_list".into()];
        let report = UndoReport { restored_settings, ..UndoReport::default() };
        let summary = InterruptsSummary::of(&text(&events, Some(&report))).unwrap();
        let moves = "(eth1: CPU 0 -> CPU 2, eth3: CPU 0 -> CPU 1)";
        assert_eq!(summary.effect, format!("moved 2 times, 1 set back at the end {moves}"));
        let counts = (summary.moves.len(), summary.left_alone.len(), summary.refused.len());
        assert_eq!((counts, summary.set_back), ((2, 1, 1), 1));
    }

    #[test]
    fn what_was_not_done_is_said() {
        let effect = |text: &str| InterruptsSummary::of(text).unwrap().effect;
        assert!(effect("").contains("too soon"));
        let mut report = UndoReport::default();
        assert!(effect(&text(&[], Some(&report))).contains("no move made"));
        let error = evenkeel_journal::UndoError { path: None, task: None, why: "EIO".to_owned() };
        report.errors.push(error);
        assert!(effect(&text(&[moved(1, 2)], Some(&report))).contains("run `evenkeel undo`"));
        assert!(effect(&text(&[moved(1, 2)], None)).contains("run `evenkeel undo`"));
    }
}
