//! The noise that plays at present: one case at a time, or silence.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::matrix::Case;
use evenkeel_noise::{Noise, NoiseKind, Running};

/// The noise ends by itself after this time, whatever happens to us.
const LIMIT: Duration = Duration::from_secs(300);
/// Noise that is older is started anew before a run, so that no run outlives it.
const RENEW_AFTER: Duration = Duration::from_secs(150);

/// The running generator, and what all generators took.
pub struct Stage {
    cpu: u32,
    playing: Option<(Case, Running, Instant)>,
    duties: BTreeMap<Case, Vec<f64>>,
}

impl Stage {
    /// Silence; noise is to fall on `cpu`.
    pub fn new(cpu: u32) -> Self {
        Self { cpu, playing: None, duties: BTreeMap::new() }
    }

    /// The CPU that noise falls on.
    pub fn cpu(&self) -> u32 {
        self.cpu
    }

    /// Starts the noise of `case` and ends all other noise; returns when it plays.
    ///
    /// # Errors
    /// The noise cannot be made, or the one that played lost its CPU.
    pub fn set(&mut self, case: Case) -> Result<()> {
        if self
            .playing
            .as_ref()
            .is_some_and(|(playing, _, since)| *playing == case && since.elapsed() < RENEW_AFTER)
        {
            return Ok(());
        }
        self.quiet()?;
        if let Some((kind, config)) = case.noise(LIMIT) {
            let running = Noise::start(kind, self.cpu, config)
                .with_context(|| format!("case {}", case.name()))?;
            self.playing = Some((case, running, Instant::now()));
        }
        Ok(())
    }

    /// Ends the noise.
    ///
    /// # Errors
    /// The generator died or lost its CPU, so that the runs under it mean nothing.
    pub fn quiet(&mut self) -> Result<()> {
        let Some((case, running, _)) = self.playing.take() else { return Ok(()) };
        let report = running.stop().with_context(|| format!("case {}", case.name()))?;
        // The hog gets all that is left between two runs: that figure says nothing.
        if report.kind != NoiseKind::Hog {
            self.duties.entry(case).or_default().push(report.duty);
        }
        Ok(())
    }

    /// The share of its CPU that a hog gets while `contest` runs a program there.
    ///
    /// # Errors
    /// The hog cannot be started, or `contest` fails.
    pub fn share_of_hog(&mut self, contest: impl FnOnce() -> Result<()>) -> Result<f64> {
        self.quiet()?;
        self.set(Case::Hog)?;
        let contested = contest();
        let Some((_, running, _)) = self.playing.take() else { return Ok(0.0) };
        let report = running.stop()?;
        contested.map(|()| report.duty)
    }

    /// Processes of the noise that still run.
    pub fn processes(&self) -> Vec<u32> {
        self.playing.iter().filter_map(|(_, running, _)| running.process()).collect()
    }

    /// What the generators say that they took, by case: shares of the CPU, 0..=0.5.
    pub fn duties(&self) -> impl Iterator<Item = (Case, &[f64])> {
        self.duties.iter().map(|(case, duties)| (*case, duties.as_slice()))
    }
}
