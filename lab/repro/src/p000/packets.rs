//! Figure 6: what network packets take from the CPU that serves them.

use std::time::Duration;

use anyhow::{Context, Result};

use super::bench::Bench;
use crate::page::number;
use crate::study::{Finding, Panel, Part, Point, Series, Status};
use evenkeel_bench::capability::Case;
use evenkeel_experiment::accounts::Window;
use evenkeel_noise::{Noise, NoiseConfig, NoiseKind};

/// Shares of a CPU, in %: no generator may take more than half.
const DUTIES_PCT: [u64; 6] = [5, 10, 20, 30, 40, 50];
const PERIOD_US: u64 = 10_000;
/// How long each rate is watched, in s.
const WATCH_S: f64 = 2.0;
/// A generator that is not stopped ends after this time.
const LIMIT: Duration = Duration::from_secs(60);
/// As good as a straight line.
const STRAIGHT: f64 = 0.98;

/// Packets of one rate, and what they took.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Packets {
    /// Packets a second.
    rate: f64,
    /// What they take of the CPU's time, as cbinfo counts it, 0..=1.
    share: f64,
}

/// Watches the network noise at one duty.
fn watch(bench: &Bench, duty_pct: u64) -> Result<Packets> {
    let cpu = bench.noisy();
    let config =
        NoiseConfig { busy_us: duty_pct * PERIOD_US / 100, period_us: PERIOD_US, limit: LIMIT };
    // Silence first: what the case before played must not be counted.
    bench.lab.quiet()?;
    let running = Noise::start(NoiseKind::Udp, cpu, config).context("network noise")?;
    let seen = bench.lab.under(Case::None, None, || {
        std::thread::sleep(Duration::from_secs_f64(bench.seconds(WATCH_S)));
        Ok(())
    })?;
    let report = running.stop()?;
    let window: Window = seen.window;
    let share = window.share(cpu, |times| times.softirq_ns + times.irq_ns);
    Ok(Packets { rate: report.packets as f64 / (report.wall_ns as f64 / 1e9), share })
}

/// Figure 6.
///
/// # Errors
/// The noise cannot be made, or the accounts cannot be read.
pub fn measure(bench: &Bench) -> Result<Part> {
    let all: Vec<Packets> =
        DUTIES_PCT.iter().map(|duty| watch(bench, *duty)).collect::<Result<_>>()?;
    let fit = proportion(&all);
    let panel = Panel {
        id: "figure-6".into(),
        title: "CPU utilisation by packet rate".into(),
        x: "packets a second, thousands".into(),
        y: "utilisation of the CPU, %".into(),
        places: all.iter().map(|packets| format!("{:.0}", packets.rate / 1e3)).collect(),
        series: vec![Series {
            name: "interrupts and softirqs (cbinfo)".into(),
            points: all.iter().map(|packets| Some(Point::once(100.0 * packets.share))).collect(),
        }],
    };
    Ok(Part {
        id: "figure-6".into(),
        title: "Figure 6: CPU utilisation by packet rate".into(),
        method: format!(
            "UDP packets from one network namespace to another through a veth pair, their receiving \
             softirqs steered to CPU {} (RPS); nothing else runs. No generator here may take more \
             than half of a CPU (the paper's takes up to all of it, with pktgen and a network \
             card without interrupt coalescing).",
            bench.noisy()
        ),
        findings: vec![Finding {
            claim: "utilisation grows in proportion to the packet rate".into(),
            paper: "proportional until the sender's limit".into(),
            ours: format!(
                "{} ns a packet, R2 = {:.3} of a line through 0",
                number(fit.ns_a_packet),
                fit.r2
            ),
            bound: "-".into(),
            status: Status::reproduced(fit.r2 >= STRAIGHT),
        }],
        panels: vec![panel],
        ..Part::default()
    })
}

/// A line through 0.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Proportion {
    /// Its slope: what a packet takes, in ns.
    ns_a_packet: f64,
    /// The share of the variance that it explains.
    r2: f64,
}

/// Least squares.
fn proportion(all: &[Packets]) -> Proportion {
    let sum = |of: &dyn Fn(&Packets) -> f64| all.iter().map(of).sum::<f64>();
    let slope = sum(&|p| p.rate * p.share) / sum(&|p| p.rate * p.rate);
    let mean = sum(&|p| p.share) / all.len() as f64;
    let left = sum(&|p| (p.share - slope * p.rate).powi(2));
    let total = sum(&|p| (p.share - mean).powi(2));
    Proportion { ns_a_packet: 1e9 * slope, r2: 1.0 - left / total }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_told_from_a_curve() {
        let packets = |rate: f64, share: f64| Packets { rate, share };
        let line = proportion(&[packets(1e5, 0.1), packets(2e5, 0.2), packets(4e5, 0.4)]);
        assert!((line.ns_a_packet - 1000.0).abs() < 1e-6 && line.r2 > 0.999);
        let flat = proportion(&[packets(1e5, 0.3), packets(2e5, 0.31), packets(4e5, 0.3)]);
        assert!(flat.r2 < STRAIGHT);
    }
}
