//! What is measured so far, and the way on from there: cell by cell, each saved as soon as it is
//! finished.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use evenkeel_experiment::{MachineInfo, Report, interrupt};
use serde::{Deserialize, Serialize};

use super::cell::Measured;
use super::plan::Cell;

/// Under which word the report keeps this.
pub const DETAIL: &str = "cells";

/// All cells that were measured, by this invocation or earlier ones.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// They are of the short form.
    pub is_quick: bool,
    /// The cells, in the order in which they were measured.
    pub cells: Vec<Measured>,
    /// What the report said of the machine; it keeps that itself.
    #[serde(skip)]
    pub notes: BTreeMap<String, String>,
}

/// What became of a cell that was to be measured.
pub enum Outcome {
    /// It was measured to its end.
    Measured(Measured),
    /// It cannot be measured here, for this reason.
    Impossible(String),
}

/// What became of the cells that were to be measured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filled {
    /// Measured now.
    pub measured: usize,
    /// There already.
    pub kept: usize,
    /// Names of those for which there was no time.
    pub left: Vec<String>,
    /// Names of those that cannot be measured here, and why.
    pub impossible: Vec<(String, String)>,
}

impl State {
    /// What a file holds; nothing if it is not there.
    ///
    /// # Errors
    /// The file holds something else, or was measured on another machine or in another form: cells of
    /// both cannot stand in one table.
    pub fn load(experiment: &str, path: &Path, is_quick: bool) -> Result<Self> {
        if !path.exists() {
            return Ok(Self { is_quick, ..Self::default() });
        }
        let remedy = "give another file with --json, or remove this one";
        let report = Report::load(experiment, path).with_context(|| remedy.to_owned())?;
        let mut state =
            Self::of(&report).with_context(|| format!("{}: {remedy}", path.display()))?;
        let (here, there) = (MachineInfo::read(), &report.machine);
        ensure!(
            state.cells.is_empty() || (&here.model, here.cpus) == (&there.model, there.cpus),
            "{} was measured on another machine ({}, {} CPUs): {remedy}",
            path.display(),
            there.model,
            there.cpus
        );
        if state.is_quick != is_quick {
            let (it, asked) = if is_quick { ("whole", "short") } else { ("short", "whole") };
            bail!(
                "{} is of the {it} form, and the {asked} one is asked for: {remedy}",
                path.display()
            );
        }
        state.notes.clone_from(&report.machine.notes);
        Ok(state)
    }

    /// What a report keeps of it.
    ///
    /// # Errors
    /// It has none: it is not of this benchmark.
    pub fn of(report: &Report) -> Result<Self> {
        let kept = report.details.get(DETAIL).context("no cells are in it")?;
        serde_json::from_value(kept.clone()).context("its cells cannot be read")
    }

    /// The measured cell.
    pub fn find(&self, cell: &Cell) -> Option<&Measured> {
        self.cells.iter().find(|one| one.is_of(cell))
    }

    fn put(&mut self, measured: Measured) {
        let place = |one: &Measured| (one.program.clone(), one.noise.clone());
        self.cells.retain(|one| place(one) != place(&measured));
        self.cells.push(measured);
    }

    /// Measures the cells that are missing, in their order, and saves after each; begins none after the
    /// `budget`. A cell that can be measured no more keeps what it has.
    ///
    /// # Errors
    /// A signal asked for the end, or nothing can be saved: what is saved stays.
    pub fn fill(
        &mut self,
        cells: &[Cell],
        commit: &str,
        budget: Duration,
        elapsed: &dyn Fn() -> Duration,
        measure: &mut dyn FnMut(&Cell) -> Result<Outcome>,
        save: &mut dyn FnMut(&Self) -> Result<()>,
    ) -> Result<Filled> {
        let mut filled = Filled::default();
        for cell in cells {
            interrupt::check()?;
            let has_all = |one: &Measured| one.has_all(&cell.contestants, commit);
            if self.find(cell).is_some_and(has_all) {
                filled.kept += 1;
            } else if elapsed() >= budget {
                filled.left.push(cell.name());
            } else {
                match measure(cell)? {
                    Outcome::Measured(measured) => {
                        self.put(measured);
                        save(self)?;
                        filled.measured += 1;
                    }
                    Outcome::Impossible(why) => filled.impossible.push((cell.name(), why)),
                }
            }
        }
        Ok(filled)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell as Slot, RefCell};

    use super::super::cell::tests::{measured, planned};
    use super::super::table::{DEFAULT, RUN};
    use super::*;

    const NAMES: [&str; 3] = ["lu.W-gcc/none/run", "sp.W-gcc/none/run", "bt.W-gcc/none/run"];

    fn cells() -> Vec<Cell> {
        NAMES.map(planned).to_vec()
    }

    fn result(cell: &Cell) -> Outcome {
        let runs: &[&[(&str, f64)]] = &[&[("time", 2.0)]];
        Outcome::Measured(measured(&cell.name(), &[(DEFAULT, runs), (RUN, runs)]))
    }

    /// Fills with this commit; each cell takes a second, and there are so many.
    fn fill(state: &mut State, commit: &str, seconds: u64) -> (Filled, Vec<String>, Vec<usize>) {
        let (clock, names, saved) = (Slot::new(0), RefCell::new(Vec::new()), RefCell::new(vec![]));
        let filled = state.fill(
            &cells(),
            commit,
            Duration::from_secs(seconds),
            &|| Duration::from_secs(clock.get()),
            &mut |cell| {
                clock.set(clock.get() + 1);
                names.borrow_mut().push(cell.program.name.to_owned());
                Ok(result(cell))
            },
            &mut |state| {
                saved.borrow_mut().push(state.cells.len());
                Ok(())
            },
        );
        (filled.unwrap(), names.into_inner(), saved.into_inner())
    }

    #[test]
    fn each_cell_is_saved_and_the_next_invocation_goes_on() {
        let mut state = State::default();
        let (filled, names, saved) = fill(&mut state, "abc", 2);
        assert_eq!((filled.measured, filled.kept), (2, 0));
        assert_eq!(filled.left, ["bt.W-gcc/none"]);
        assert_eq!((names, saved), (vec!["lu.W-gcc".to_owned(), "sp.W-gcc".into()], vec![1, 2]));
        let (filled, names, saved) = fill(&mut state, "abc", 100);
        assert_eq!((filled.measured, filled.kept), (1, 2));
        assert_eq!((names, saved), (vec!["bt.W-gcc".to_owned()], vec![3]));
        // Another commit measures nothing again; what failed there, it does.
        state.cells[1].lines[1].failed = Some("it ended".into());
        let (filled, names, _) = fill(&mut state, "abc", 100);
        assert_eq!((filled.measured, filled.kept, names.len()), (0, 3, 0));
        let (filled, names, _) = fill(&mut state, "def", 100);
        assert_eq!((filled.measured, filled.kept), (1, 2));
        assert_eq!(names, ["sp.W-gcc"]);
        assert_eq!(state.cells.len(), 3);
    }

    #[test]
    fn what_cannot_be_measured_is_told_and_the_rest_goes_on() {
        let mut state = State::default();
        let mut measure = |cell: &Cell| {
            Ok(match cell.program.name {
                "sp.W-gcc" => Outcome::Impossible("package sp".into()),
                _ => result(cell),
            })
        };
        let (budget, now) = (Duration::from_secs(9), || Duration::ZERO);
        let filled =
            state.fill(&cells(), "abc", budget, &now, &mut measure, &mut |_| Ok(())).unwrap();
        assert_eq!(filled.measured, 2);
        assert_eq!(filled.impossible, [("sp.W-gcc/none".to_owned(), "package sp".to_owned())]);
        // An error ends it; what was measured before stays.
        let mut failing = State::default();
        let mut measure = |cell: &Cell| match cell.program.name {
            "sp.W-gcc" => bail!("no space left"),
            _ => Ok(result(cell)),
        };
        failing.fill(&cells(), "abc", budget, &now, &mut measure, &mut |_| Ok(())).unwrap_err();
        assert_eq!(failing.cells.len(), 1);
    }

    #[test]
    fn a_file_of_another_machine_or_form_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = |report: &Report| {
            std::fs::write(file.path(), serde_json::to_string(report).unwrap()).unwrap();
        };
        let mut state = State::default();
        fill(&mut state, "abc", 100);
        let mut report = Report { experiment: "programs".into(), ..Report::default() };
        report.details.insert(DETAIL.into(), serde_json::to_value(&state).unwrap());
        report.machine = MachineInfo::read();
        write(&report);
        assert_eq!(State::load("programs", file.path(), false).unwrap(), state);
        let error =
            |is_quick| format!("{:#}", State::load("programs", file.path(), is_quick).unwrap_err());
        assert!(error(true).contains("is of the whole form, and the short one"), "{}", error(true));
        report.machine.cpus += 1;
        write(&report);
        assert!(error(false).contains("another machine"), "{}", error(false));
        report.details.clear();
        write(&report);
        assert!(error(false).contains("remove this one"), "{}", error(false));
        let absent = State::load("programs", Path::new("/no/such/file"), true).unwrap();
        assert_eq!(absent, State { is_quick: true, ..State::default() });
    }
}
