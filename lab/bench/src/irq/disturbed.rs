//! A program of threads that meet every 2 ms, beside one queue of the card that is hot with several
//! connections: the noise that moving threads cannot help against. What is left of the CPUs for the
//! program is what nothing else takes, the ends of the connections and the contestant included.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use evenkeel_cbinfo::Cbinfo;
use evenkeel_experiment::accounts::children_cpu_ns;
use evenkeel_experiment::{Sample, command};
use evenkeel_machine::CpuSet;

use super::experiment::{AVERAGE, GOODPUT, OF_AVERAGE, TIME};
use super::runner::Place;
use super::stage::Stage;
use super::traffic::{Course, Flow, in_traffic};
use crate::programs::{Installed, Program, field};
use crate::sais::runner::{MEGABYTE, follow_threads};

/// Connections of the hot queue.
const FLOWS: usize = 4;
/// After each strip of 64 KiB a connection pauses: the queue is busy, and its CPU has time for more.
const PAUSE: Duration = Duration::from_millis(1);
/// Between two barriers each thread has so many units of work, about 1 ms each.
const UNITS_A_PHASE: u64 = 2;

/// One run of the program; on `stage` beside a hot queue, without one undisturbed.
///
/// # Errors
/// The program fails, or the network refused.
pub(super) fn run(
    accounts: &mut Cbinfo,
    programs: &Installed,
    place: &Place<'_>,
    stage: Option<&Stage>,
) -> Result<Sample> {
    let Some(stage) = stage else { return program(accounts, programs, place, true) };
    follow_threads(accounts, "napi/")?;
    let flows = [Flow { queue: 0, cpu: None }; FLOWS];
    let course = Course::default();
    let ((mut sample, time), _) = in_traffic(stage, &flows, Some(PAUSE), &course, || {
        std::thread::sleep(place.times.warm_up);
        course.measured(|| program(accounts, programs, place, false))
    })?;
    sample.set(GOODPUT, Some(course.bytes() as f64 / MEGABYTE / time.as_secs_f64()));
    Ok(sample)
}

fn program(
    accounts: &mut Cbinfo,
    programs: &Installed,
    place: &Place<'_>,
    is_pinned: bool,
) -> Result<Sample> {
    let threads = place.cpus.len();
    let phases = (place.times.measured.as_millis() as u64 / UNITS_A_PHASE).max(1);
    let work = phases * UNITS_A_PHASE * threads as u64;
    let words = ["--work".to_owned(), work.to_string(), "--phases".into(), phases.to_string()];
    let mut command = programs.command(Program::StaticLoop, words);
    command::set_threads(&mut command, threads);
    if is_pinned {
        command.env("OMP_PROC_BIND", "true").env("OMP_PLACES", "threads");
    }
    let (start, before, own_before) =
        (Instant::now(), Clock::read(accounts, place.cpus)?, children_cpu_ns());
    let ended = command::run(&mut command)?;
    let (wall, after) = (start.elapsed(), Clock::read(accounts, place.cpus)?);
    field(&ended.output, "checksum").context("static_loop said nothing")?;
    let all_ns = wall.as_nanos() as f64 * threads as f64;
    let own_ns = children_cpu_ns().saturating_sub(own_before) as f64;
    let idle_ns = after.idle_ns.saturating_sub(before.idle_ns) as f64;
    let foreign_ns = after.foreign_ns.saturating_sub(before.foreign_ns) as f64;
    let average = ((idle_ns + own_ns) / all_ns).min(1.0);
    let figures = [(TIME, ended.seconds), (AVERAGE, average)];
    Ok(Sample { foreign_pct: 100.0 * foreign_ns / all_ns, ..Sample::new(figures) })
}

/// Times of the CPUs together.
struct Clock {
    /// Without a task to run.
    idle_ns: u64,
    /// Of what does not descend from this process.
    foreign_ns: u64,
}

impl Clock {
    fn read(accounts: &mut Cbinfo, cpus: &CpuSet) -> Result<Self> {
        // The events are of no use here, but a full buffer would count them as lost.
        accounts.events()?;
        let mut all = accounts.cpus();
        all.retain(|account| cpus.contains(account.cpu));
        Ok(Self {
            idle_ns: all.iter().map(|account| account.idle_ns).sum(),
            foreign_ns: all.iter().map(|account| account.foreign_ns).sum(),
        })
    }
}

/// Rate of the program / its rate if it had the average of what was left of the CPUs.
pub(super) fn relate(reference: &Sample, sample: &mut Sample) {
    let undisturbed = reference.get(TIME).zip(reference.get(AVERAGE));
    let disturbed = sample.get(TIME).zip(sample.get(AVERAGE));
    let share = undisturbed.zip(disturbed).and_then(|((time, average), (longer, left))| {
        (longer > 0.0 && left > 0.0).then(|| time * average / (longer * left))
    });
    sample.set(OF_AVERAGE, share);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_follows_from_what_is_left_of_the_cpus() {
        let measured = |seconds, average| Sample::new([(TIME, seconds), (AVERAGE, average)]);
        // 5 s undisturbed; with 0.8 of the CPUs left, 6.25 s are the bound.
        let mut sample = measured(6.25, 0.8);
        relate(&measured(5.0, 1.0), &mut sample);
        assert_eq!(sample.get(OF_AVERAGE), Some(1.0));
        let mut sample = measured(12.5, 0.8);
        relate(&measured(5.0, 1.0), &mut sample);
        assert_eq!(sample.get(OF_AVERAGE), Some(0.5));
        let mut other = Sample::new([("goodput", 1.0)]);
        relate(&measured(5.0, 1.0), &mut other);
        assert_eq!(other.get(OF_AVERAGE), None);
    }
}
