//! Which contestants and figures are asked for.

use anyhow::{Result, bail};

use super::Experiment;

/// A part of an experiment; without names, all of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Only {
    /// These contestants, and the baseline.
    pub contestants: Vec<String>,
    /// These figures, or those whose names begin so.
    pub figures: Vec<String>,
}

impl Only {
    /// Whether all that is named is there.
    ///
    /// # Errors
    /// There is no such contestant or figure.
    pub fn check(&self, experiment: &Experiment) -> Result<()> {
        for contestant in &self.contestants {
            experiment.contestant(contestant)?;
        }
        for figure in &self.figures {
            if !experiment.metrics.iter().any(|metric| metric.name.starts_with(figure.as_str())) {
                let names: Vec<&str> =
                    experiment.metrics.iter().map(|metric| metric.name).collect();
                bail!("no figure begins with {figure:?}: give one of {}", names.join(", "));
            }
        }
        Ok(())
    }

    /// Whether this contestant takes part.
    pub fn has(&self, experiment: &Experiment, contestant: &str) -> bool {
        let is_baseline = experiment.contestants.first().is_some_and(|one| one.name == contestant);
        is_baseline
            || self.contestants.is_empty()
            || self.contestants.iter().any(|one| one == contestant)
    }

    /// Whether this figure is asked for.
    pub fn wants(&self, figure: &str) -> bool {
        self.figures.is_empty()
            || self.figures.iter().any(|beginning| figure.starts_with(beginning.as_str()))
    }

    /// As arguments for the guest, which has one contestant only.
    pub fn arguments(&self) -> Vec<String> {
        if self.figures.is_empty() {
            return Vec::new();
        }
        vec!["--figures".to_owned(), self.figures.join(",")]
    }
}

#[cfg(test)]
mod tests {
    use super::super::Contestant;
    use super::*;

    #[test]
    fn the_baseline_is_always_there_and_beginnings_name_figures() {
        let contestants = ["a", "b", "c"].map(|name| Contestant::keel(name, "", ""));
        let experiment = Experiment::sample(contestants.to_vec(), &[]);
        let all = Only::default();
        assert!(
            all.has(&experiment, "c") && all.wants("wake-p99-40") && all.arguments().is_empty()
        );
        let some =
            Only { contestants: vec!["b".into()], figures: vec!["wake-".into(), "a".into()] };
        assert!(some.has(&experiment, "a") && some.has(&experiment, "b"));
        assert!(!some.has(&experiment, "c"));
        assert!(some.wants("wake-p99-40") && !some.wants("rt-mean-40"));
        assert_eq!(some.arguments(), ["--figures", "wake-,a"]);
    }
}
