//! The noises of `bench scale`: each is made on a CPU of this machine for a moment, and what it took
//! there is what the model and the simulation take.

use std::time::Duration;

use anyhow::{Context, Result};
use evenkeel_experiment::{host, interrupt};
use evenkeel_noise::{Noise, NoiseConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::model::Theft;
use crate::capability::Case;

/// How long each noise is measured.
pub const MEASURED_FOR: Duration = Duration::from_secs(3);

/// A noise, as it was told to be and as it was.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MeasuredNoise {
    /// Its name.
    pub noise: String,
    /// What it was told to take of each period, in ms.
    pub busy_ms: f64,
    /// The period, in ms.
    pub period_ms: f64,
    /// The part of its CPU that it took, by its own measure; none: it cannot be made here.
    pub duty: Option<f64>,
}

impl MeasuredNoise {
    /// As it is told to be.
    ///
    /// # Errors
    /// This is no noise.
    pub fn told(noise: Case) -> Result<Self> {
        let (_, busy_us, period_us) = noise.disturbance().noise.context("this is no noise")?;
        let [busy_ms, period_ms] = [busy_us, period_us].map(|us| us as f64 / 1e3);
        Ok(Self { noise: noise.name().to_owned(), busy_ms, period_ms, duty: None })
    }

    /// The part of its CPU that it was told to take.
    pub fn told_duty(&self) -> f64 {
        self.busy_ms / self.period_ms
    }

    /// What it takes of each period.
    pub fn theft(&self) -> Theft {
        let duty = self.duty.unwrap_or_else(|| self.told_duty());
        Theft { busy_ms: duty * self.period_ms, period_ms: self.period_ms }
    }
}

/// Makes these noises, one after the other.
///
/// # Errors
/// No CPU may be used, or a signal asked for the end.
pub fn measure(noises: &[Case]) -> Result<Vec<MeasuredNoise>> {
    let usable = host::usable_cpus()?;
    let cpu = usable.iter().next().context("no CPU may be used: is /sys mounted?")?;
    noises.iter().map(|noise| measure_one(*noise, cpu)).collect()
}

fn measure_one(noise: Case, cpu: u32) -> Result<MeasuredNoise> {
    interrupt::check()?;
    let (kind, busy_us, period_us) = noise.disturbance().noise.context("this is no noise")?;
    let config = NoiseConfig { busy_us, period_us, limit: 2 * MEASURED_FOR };
    let took = Noise::start(kind, cpu, config).and_then(|running| {
        std::thread::sleep(MEASURED_FOR);
        running.stop()
    });
    let took = took.inspect_err(|why| {
        tracing::warn!("{} is taken to be as it is told: {why}", noise.name());
    });
    let duty = took.ok().map(|report| report.duty).filter(|duty| (0.01..0.9).contains(duty));
    Ok(MeasuredNoise { duty, ..MeasuredNoise::told(noise)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_counts_and_else_what_was_told() {
        let told = MeasuredNoise::told(Case::Softirq).unwrap();
        assert_eq!((told.busy_ms, told.period_ms, told.told_duty()), (4.0, 10.0, 0.4));
        let busy_ms = |duty: Option<f64>| MeasuredNoise { duty, ..told.clone() }.theft().busy_ms;
        assert!((busy_ms(None) - 4.0).abs() < 1e-9);
        assert!((busy_ms(Some(0.41)) - 4.1).abs() < 1e-9);
        assert!(MeasuredNoise::told(Case::None).is_err());
    }
}
