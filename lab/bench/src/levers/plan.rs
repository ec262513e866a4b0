//! Which cells are measured, and in which order: those of the claims first.

use anyhow::{Result, bail};

use super::claims;
use super::table::{DEFAULT, NOISES};
use super::table::{Noise, Program, contestants, programs};

/// The program of the short form, and its noises.
const QUICK: (&str, [&str; 2]) = ("ep.S-gcc", ["none", "softirq-fine"]);
/// The class that is only there to try things: measured where it is named.
const TRIAL_CLASS: &str = "S";

/// A program under a noise.
#[derive(Debug, Clone)]
pub struct Cell {
    /// The program.
    pub program: Program,
    /// The noise.
    pub noise: &'static Noise,
    /// A claim is made of it.
    pub is_claimed: bool,
    /// The contestants that run it, the baseline first.
    pub contestants: Vec<String>,
}

impl Cell {
    /// `PROGRAM/NOISE`, as `--only` takes it.
    pub fn name(&self) -> String {
        format!("{}/{}", self.program.name, self.noise.name())
    }
}

/// A part of the table, as `PROGRAM/NOISE/CONTESTANT`; an absent or empty part, or `*`, stands for all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    program: Option<String>,
    noise: Option<String>,
    contestant: Option<String>,
}

/// Letters, digits and points: so that `run-threads-4` is `run --threads 4`.
fn plain(name: &str) -> String {
    let kept = name.chars().filter(|one| one.is_alphanumeric() || *one == '.');
    kept.collect::<String>().to_lowercase()
}

impl Pattern {
    /// Reads one.
    ///
    /// # Errors
    /// It has more than three parts, or one that names nothing: the error lists what there is.
    pub fn parse(text: &str) -> Result<Self> {
        let parts: Vec<&str> = text.split('/').map(str::trim).collect();
        if parts.len() > 3 {
            bail!("{text:?} has {} parts: give PROGRAM/NOISE/CONTESTANT", parts.len());
        }
        let part = |index: usize| {
            let part = parts.get(index).filter(|part| !part.is_empty() && **part != "*");
            part.map(|part| (*part).to_owned())
        };
        let pattern = Self { program: part(0), noise: part(1), contestant: part(2) };
        let known = |what: &str, part: &Option<String>, names: Vec<String>, has: bool| match part {
            Some(part) if !has => bail!("no {what} {part:?}: choose among {}", names.join(", ")),
            _ => Ok(()),
        };
        let (programs, contestants) = (programs(), contestants());
        known(
            "program",
            &pattern.program,
            programs.iter().map(|one| one.name.to_owned()).collect(),
            programs.iter().any(|one| pattern.has_program(one.name)),
        )?;
        known(
            "noise",
            &pattern.noise,
            NOISES.iter().map(|one| one.name().to_owned()).collect(),
            NOISES.iter().any(|one| pattern.has_noise(one.name())),
        )?;
        known(
            "contestant",
            &pattern.contestant,
            contestants.iter().map(|one| one.name.clone()).collect(),
            contestants.iter().any(|one| pattern.has_contestant(&one.name)),
        )?;
        Ok(pattern)
    }

    /// `lu` stands for `lu.W-gcc` and all others that begin so up to a point or a dash.
    fn has_program(&self, name: &str) -> bool {
        let Some(part) = &self.program else { return true };
        let (part, name) = (part.to_lowercase(), name.to_lowercase());
        let rest = name.strip_prefix(part.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '-']))
    }

    fn has_noise(&self, name: &str) -> bool {
        self.noise.as_ref().is_none_or(|part| plain(part) == plain(name))
    }

    fn has_contestant(&self, name: &str) -> bool {
        self.contestant.as_ref().is_none_or(|part| plain(part) == plain(name))
    }

    /// Whether it means this class of program, too, or only those that are usually measured.
    fn wants(&self, program: &Program) -> bool {
        self.has_program(program.name) && (program.class != TRIAL_CLASS || self.program.is_some())
    }
}

/// What `--only` may be, of all that begins so: programs, after a slash their noises, and after another
/// one the contestants, in words that a shell takes as one.
pub fn patterns(beginning: &str) -> Vec<String> {
    let names: Vec<String> = match beginning.matches('/').count() {
        0 => programs().iter().map(|one| one.name.to_owned()).collect(),
        1 => NOISES.iter().map(|one| one.name().to_owned()).collect(),
        2 => {
            contestants().iter().map(|one| one.name.replace(" --", "-").replace(' ', "-")).collect()
        }
        _ => Vec::new(),
    };
    let before = beginning.rfind('/').map_or("", |slash| &beginning[..=slash]);
    let whole = names.into_iter().map(|name| format!("{before}{name}"));
    whole.filter(|whole| whole.starts_with(beginning)).collect()
}

/// The contestants that run a program, as far as they are asked for; the baseline always.
fn contestants_of(program: &Program, is_wanted: &dyn Fn(&str) -> bool) -> Vec<String> {
    let all = contestants().into_iter().filter(|one| program.why_not(one.how).is_none());
    all.map(|one| one.name).filter(|name| name == DEFAULT || is_wanted(name)).collect()
}

/// The cells of all patterns, the claimed ones first; without a pattern all cells.
pub fn cells(only: &[Pattern]) -> Vec<Cell> {
    let everything = [Pattern { program: None, noise: None, contestant: None }];
    let only = if only.is_empty() { &everything[..] } else { only };
    let mut cells = Vec::new();
    for program in programs() {
        for noise in &NOISES {
            let matching =
                || only.iter().filter(|one| one.wants(&program) && one.has_noise(noise.name()));
            if matching().next().is_none() {
                continue;
            }
            cells.push(Cell {
                program,
                noise,
                is_claimed: claims::place(program.name, noise.name()).is_some(),
                contestants: contestants_of(&program, &|name| {
                    matching().any(|one| one.has_contestant(name))
                }),
            });
        }
    }
    // Stable: the rest keeps the order of the table.
    cells.sort_by_key(|cell| {
        claims::place(cell.program.name, cell.noise.name()).unwrap_or(usize::MAX)
    });
    cells
}

/// Of these cells the claimed ones, with no other contestants than the claims need.
pub fn of_claims(mut cells: Vec<Cell>) -> Vec<Cell> {
    cells.retain(|cell| cell.is_claimed);
    for Cell { program, noise, contestants, .. } in &mut cells {
        let is_needed = |name: &str| claims::needs(program.name, noise.name(), name);
        contestants.retain(|name| name == DEFAULT || is_needed(name));
    }
    cells
}

/// The cells of the short form.
pub fn quick_cells() -> Vec<Cell> {
    let (program, noises) = QUICK;
    let only = noises.map(|noise| Pattern {
        program: Some(program.to_owned()),
        noise: Some(noise.to_owned()),
        contestant: None,
    });
    cells(&only)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(only: &[&str]) -> Vec<String> {
        let only: Vec<Pattern> = only.iter().map(|text| Pattern::parse(text).unwrap()).collect();
        cells(&only).iter().map(Cell::name).collect()
    }

    #[test]
    fn the_claimed_cells_come_first_and_the_trial_class_is_left_out() {
        let cells = cells(&[]);
        let claimed = cells.iter().take_while(|cell| cell.is_claimed).count();
        assert!(cells[claimed..].iter().all(|cell| !cell.is_claimed));
        // 8 programs under 4 noises, the loops under 2, the uneven one under 3, that of MPI under 2,
        // 6 by clang under 2, and SP in the class of the claim for threads.
        assert_eq!(claimed, 32 + 4 + 3 + 2 + 12 + 1);
        assert_eq!(cells.len(), (8 * 2 * 2 + 10) * 6);
        assert_eq!(cells[0].name(), "lu.W-gcc/none");
        assert!(cells.iter().all(|cell| cell.program.class != "S"));
        assert!(cells.iter().all(|cell| cell.contestants[0] == DEFAULT));
    }

    #[test]
    fn the_claims_need_few_contestants() {
        let claimed = of_claims(cells(&[]));
        assert_eq!(claimed.len(), 32 + 4 + 3 + 2 + 12 + 1);
        let contestants = |name: &str| {
            claimed.iter().find(|cell| cell.name() == name).unwrap().contestants.join(", ")
        };
        assert_eq!(contestants("lu.W-gcc/none"), "default, run");
        assert_eq!(contestants("loop.uneven/none"), "default, run");
        assert_eq!(contestants("mpi_loop.100ms/softirq"), "default, run");
        assert_eq!(contestants("lu.A-clang/udp"), "default, run, run --shares, by hand");
        assert_eq!(contestants("ep.A-gcc/softirq-fine"), "default, run, run --threads 4, by hand");
        let some = of_claims(cells(&[Pattern::parse("lu//run").unwrap()]));
        assert!(some.iter().all(|cell| cell.contestants == ["default", "run"]));
    }

    #[test]
    fn patterns_pick_programs_noises_and_contestants() {
        assert_eq!(
            names(&["lu/udp"]),
            [
                "lu.A-clang/udp",
                "lu.S-gcc/udp",
                "lu.S-clang/udp",
                "lu.W-gcc/udp",
                "lu.W-clang/udp",
                "lu.A-gcc/udp"
            ]
        );
        assert_eq!(names(&["ep.W-gcc/Hog", "sp.A-gcc/none"]), ["sp.A-gcc/none", "ep.W-gcc/hog"]);
        assert_eq!(names(&["*/fifo"]).len(), 8 * 2 * 2 + 10);
        let only = [Pattern::parse("sp.A-clang//run-shares").unwrap()];
        let picked = cells(&only);
        assert_eq!(picked.len(), NOISES.len());
        assert!(picked.iter().all(|cell| cell.contestants == ["default", "run --shares"]));
        // `ep` is not `ep_mpi`.
        assert!(names(&["ep/none"]).iter().all(|name| name.starts_with("ep.")));
    }

    #[test]
    fn each_pattern_that_is_offered_is_one() {
        assert!(patterns("cg").contains(&"cg.W-gcc".to_owned()), "{:?}", patterns("cg"));
        assert_eq!(patterns("lu/so"), ["lu/softirq-fine", "lu/softirq"]);
        assert!(patterns("lu/none/run-").contains(&"lu/none/run-threads-4".to_owned()));
        assert!(patterns("lu/none/run/").is_empty() && patterns("ua").is_empty());
        for beginning in ["", "lu/", "lu/none/"] {
            assert!(patterns(beginning).iter().all(|one| Pattern::parse(one).is_ok()));
        }
    }

    #[test]
    fn what_names_nothing_is_refused_with_what_there_is() {
        for (text, words) in [
            ("ua", "no program \"ua\": choose among lu.S-gcc,"),
            ("lu/rain", "no noise \"rain\": choose among none, softirq-fine,"),
            ("lu/none/cfs", "no contestant \"cfs\": choose among default, pinned, run,"),
            ("lu/none/run/twice", "has 4 parts: give PROGRAM/NOISE/CONTESTANT"),
        ] {
            let error = Pattern::parse(text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn the_short_form_has_one_program_and_two_noises() {
        let cells = quick_cells();
        let names: Vec<String> = cells.iter().map(Cell::name).collect();
        assert_eq!(names, ["ep.S-gcc/none", "ep.S-gcc/softirq-fine"]);
        assert!(cells.iter().all(|cell| cell.contestants.len() == 5 && !cell.is_claimed));
    }
}
