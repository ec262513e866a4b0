//! What is asked for: how many runs, which part of the experiment, where the results go.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::output::check_short_form;

/// What is asked for.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Runs, or rounds, of each contestant to begin with.
    pub runs: Option<usize>,
    /// Runs that no row exceeds.
    pub max_runs: Option<usize>,
    /// Which part of the experiment.
    pub only: Only,
    /// The short form, which shows that it works and decides little.
    pub quick: bool,
    /// Where to write the report as JSON.
    pub json: Option<PathBuf>,
    /// Where to write the Markdown page.
    pub markdown: Option<PathBuf>,
    /// Where to write the HTML page.
    pub html: Option<PathBuf>,
    /// Measure nothing: show the report that this JSON file holds.
    pub from: Option<PathBuf>,
    /// Print nothing.
    pub is_quiet: bool,
    /// In a guest: measure one round under this contestant.
    pub inside: Option<String>,
    /// There: also measure what its callbacks cost.
    pub costs: bool,
    /// The command line, to be run again.
    pub command: String,
}

impl Options {
    /// Whether the page may be written where it is to be.
    ///
    /// # Errors
    /// A short form would be written over results that are committed.
    pub fn check_page(&self) -> Result<()> {
        match &self.markdown {
            Some(page) if self.quick && self.from.is_none() => check_short_form(page),
            _ => Ok(()),
        }
    }
}

/// A part of an experiment; an empty list stands for all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Only {
    /// These cases.
    pub cases: Vec<String>,
    /// These programs.
    pub programs: Vec<String>,
    /// These contestants, and the baseline.
    pub contestants: Vec<String>,
    /// These figures, or those with names that begin so.
    pub figures: Vec<String>,
}

impl Only {
    /// Whether this contestant takes part.
    pub fn has(&self, baseline: &str, contestant: &str) -> bool {
        contestant == baseline
            || self.contestants.is_empty()
            || self.contestants.iter().any(|one| one == contestant)
    }

    /// Whether this figure is asked for.
    pub fn wants(&self, figure: &str) -> bool {
        self.figures.is_empty()
            || self.figures.iter().any(|beginning| figure.starts_with(beginning.as_str()))
    }

    /// As arguments for a guest, which has one contestant only.
    pub fn arguments(&self) -> Vec<String> {
        if self.figures.is_empty() {
            return Vec::new();
        }
        vec!["--figures".to_owned(), self.figures.join(",")]
    }
}

/// All of `all` with names that are given, in the order of `all`; all of them if no name is given. `-`
/// and `_` are the same in names.
///
/// # Errors
/// A name is unknown: the error lists those that are known.
pub fn choose<'a, T>(
    what: &str,
    names: &[String],
    all: &'a [T],
    name_of: impl Fn(&T) -> &str,
) -> Result<Vec<&'a T>> {
    let plain = |name: &str| name.trim().to_ascii_lowercase().replace('_', "-");
    for name in names {
        if !all.iter().any(|item| plain(name_of(item)) == plain(name)) {
            let list: Vec<&str> = all.iter().map(&name_of).collect();
            bail!("unknown {what} {name:?}: choose among {}", list.join(", "));
        }
    }
    let is_named = |item: &&T| {
        names.is_empty() || names.iter().any(|name| plain(name_of(item)) == plain(name))
    };
    Ok(all.iter().filter(is_named).collect())
}

/// The one of `all` with exactly this name.
///
/// # Errors
/// The name is unknown: the error lists those that are known.
pub fn named<T: Copy>(
    what: &str,
    name: &str,
    all: &[T],
    name_of: impl Fn(T) -> &'static str,
) -> Result<T> {
    let found = all.iter().copied().find(|item| name_of(*item) == name);
    found.with_context(|| {
        let names: Vec<&str> = all.iter().map(|item| name_of(*item)).collect();
        format!("there is no {what} {name:?}: give some of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_form_is_not_written_over_what_is_committed() {
        let root = tempfile::tempdir().unwrap();
        let committed = root.path().join("docs/results");
        std::fs::create_dir_all(&committed).unwrap();
        let page = committed.join("sais.md");
        let options = |quick, page: PathBuf, from: Option<PathBuf>| {
            Options { quick, markdown: Some(page), from, ..Options::default() }.check_page()
        };
        let why = options(true, page.clone(), None).unwrap_err().to_string();
        assert!(why.contains("docs/results: give another directory"), "{why}");
        assert!(options(true, committed.join("../results/sais.md"), None).is_err());
        // What was measured in full, what an earlier one measured, and any other place.
        assert!(options(false, page.clone(), None).is_ok());
        assert!(options(true, page, Some("sais.json".into())).is_ok());
        for other in [root.path().join("sais.md"), "sais.md".into(), "/no/such/sais.md".into()] {
            assert!(options(true, other, None).is_ok());
        }
        assert!(Options { quick: true, ..Options::default() }.check_page().is_ok());
    }

    #[test]
    fn the_baseline_is_always_there_and_beginnings_name_figures() {
        let all = Only::default();
        assert!(all.has("a", "c") && all.wants("wake-p99-40") && all.arguments().is_empty());
        let some = Only {
            contestants: vec!["b".into()],
            figures: vec!["wake-".into(), "a".into()],
            ..Only::default()
        };
        assert!(some.has("a", "a") && some.has("a", "b") && !some.has("a", "c"));
        assert!(some.wants("wake-p99-40") && !some.wants("rt-mean-40"));
        assert_eq!(some.arguments(), ["--figures", "wake-,a"]);
    }

    #[test]
    fn names_choose_in_the_order_of_all() {
        let all = ["static_loop", "ep", "cg"];
        let names = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        let chosen = choose("program", &names("cg,static-loop,cg"), &all, |name| name).unwrap();
        assert_eq!(chosen, [&"static_loop", &"cg"]);
        assert_eq!(choose("program", &[], &all, |name| name).unwrap().len(), 3);
        let error = choose("program", &names("sp"), &all, |name| name).unwrap_err().to_string();
        assert_eq!(error, "unknown program \"sp\": choose among static_loop, ep, cg");
    }
}
