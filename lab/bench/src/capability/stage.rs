//! The noise that plays at present: one at a time, or silence.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use evenkeel_noise::{Noise, NoiseConfig, NoiseError, NoiseKind, Running};

/// The noise ends by itself after this time, whatever happens to us.
const LIMIT: Duration = Duration::from_secs(300);
/// Noise that is older is started anew before a run, so that no run outlives it.
const RENEW_AFTER: Duration = Duration::from_secs(150);
/// How long a noise is tried at most.
const TRY: Duration = Duration::from_secs(2);

/// What disturbs a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disturbance {
    /// Its name in a report.
    pub name: &'static str,
    /// The generator, and the part that it takes of each period: both in us. `None`: silence.
    pub noise: Option<(NoiseKind, u64, u64)>,
}

impl Disturbance {
    /// Another user's endless program.
    pub const HOG: Self = Self { name: "hog", noise: Some((NoiseKind::Hog, 1, 100)) };

    /// Whether all that it takes from a program can be seen without BPF.
    pub(super) fn is_seen_by_all(self) -> bool {
        self.noise.is_none_or(|(kind, ..)| kind == NoiseKind::Hog)
    }

    /// Whether it is an ordinary program beside the measured one.
    pub fn is_hog(self) -> bool {
        self.noise.is_some_and(|(kind, ..)| kind == NoiseKind::Hog)
    }

    /// The generator with its time limit.
    pub(super) fn config(self, limit: Duration) -> Option<(NoiseKind, NoiseConfig)> {
        let (kind, busy_us, period_us) = self.noise?;
        Some((kind, NoiseConfig { busy_us, period_us, limit }))
    }

    /// Starts it, for so long at most; `None`: it is silence.
    fn start(self, cpu: u32, limit: Duration) -> Result<Option<Running>, NoiseError> {
        let config = self.config(limit);
        config.map(|(kind, config)| Noise::start(kind, cpu, config)).transpose()
    }

    /// Tries it for a moment: why it cannot be made, if so.
    pub fn why_impossible(self, cpu: u32) -> Option<String> {
        // The hog needs nothing.
        if self.is_hog() {
            return None;
        }
        self.start(cpu, TRY).err().map(|error| error.to_string())
    }
}

/// The running generator, and what all generators took.
pub struct Stage {
    cpu: u32,
    playing: Option<(Disturbance, Running, Instant)>,
    duties: BTreeMap<&'static str, Vec<f64>>,
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

    /// Starts `noise` and ends all other noise; returns when it plays.
    ///
    /// # Errors
    /// The noise cannot be made, or the one that played lost its CPU.
    pub fn set(&mut self, noise: Disturbance) -> Result<()> {
        if self
            .playing
            .as_ref()
            .is_some_and(|(playing, _, since)| *playing == noise && since.elapsed() < RENEW_AFTER)
        {
            return Ok(());
        }
        self.quiet()?;
        let running = noise.start(self.cpu, LIMIT);
        let running = running.with_context(|| format!("case {}", noise.name))?;
        self.playing = running.map(|running| (noise, running, Instant::now()));
        Ok(())
    }

    /// Ends the noise.
    ///
    /// # Errors
    /// The generator died or lost its CPU, so that the runs under it mean nothing.
    pub fn quiet(&mut self) -> Result<()> {
        let Some((noise, running, _)) = self.playing.take() else { return Ok(()) };
        let report = running.stop().with_context(|| format!("case {}", noise.name))?;
        // The hog gets all that is left between two runs: that figure says nothing.
        if report.kind != NoiseKind::Hog {
            self.duties.entry(noise.name).or_default().push(report.duty);
        }
        Ok(())
    }

    /// The share of its CPU that a hog gets while `contest` runs a program there.
    ///
    /// # Errors
    /// The hog cannot be started, or `contest` fails.
    pub fn share_of_hog(&mut self, contest: impl FnOnce() -> Result<()>) -> Result<f64> {
        self.quiet()?;
        self.set(Disturbance::HOG)?;
        let contested = contest();
        let Some((_, running, _)) = self.playing.take() else { return Ok(0.0) };
        let report = running.stop()?;
        contested.map(|()| report.duty)
    }

    /// Processes of the noise that still run.
    pub fn processes(&self) -> Vec<u32> {
        self.playing.iter().filter_map(|(_, running, _)| running.process()).collect()
    }

    /// What the generators say that they took, by name: shares of the CPU, 0..=0.5.
    pub fn duties(&self) -> impl Iterator<Item = (&'static str, &[f64])> {
        self.duties.iter().map(|(name, duties)| (*name, duties.as_slice()))
    }
}
