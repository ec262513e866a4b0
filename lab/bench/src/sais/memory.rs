//! The paper's experiment without a network (001, section VI): strips of 64 KiB from many files in
//! memory, read by one thread and combined to transfers of 1 MiB by another. *Si-SAIs*: both on one
//! core. *Si-Irqbalance*: on two, so that each strip has to change caches. In the paper the second are
//! processes, which the kernel may place on any cores; here they are placed, so that what is compared
//! is what the paper means to compare.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use evenkeel_experiment::host::run_on;
use evenkeel_sais::STRIP_BYTES;

use super::Transferred;

/// Files, each with one strip of a transfer.
const FILES: usize = 16;
/// Strips in each file.
const STRIPS: u64 = 64;

/// Files in memory without names: they vanish with the process that has them open, however it ends.
pub struct Files(Vec<File>);

impl Files {
    /// Writes them, 64 MiB in all.
    ///
    /// # Errors
    /// There is no file system in memory, or no room.
    pub fn new() -> Result<Self> {
        let strip = vec![7; STRIP_BYTES];
        let make = |_| -> Result<File> {
            let file = tempfile::tempfile_in("/dev/shm");
            let file = file.context("no file system in memory at /dev/shm")?;
            for strip_number in 0..STRIPS {
                file.write_all_at(&strip, strip_number * STRIP_BYTES as u64)?;
            }
            Ok(file)
        };
        (0..FILES).map(make).collect::<Result<_>>().map(Self)
    }
}

/// A transfer on its way from reader to combiner.
type Strips = Vec<Vec<u8>>;

/// Pairs of threads, each reading and combining for so long, with the cores of reader and combiner.
///
/// # Errors
/// A file cannot be read, or a thread not be placed.
pub fn run(files: &Files, pairs: &[(u32, u32)], time: Duration) -> Result<Transferred> {
    let total = Mutex::new(0_u64);
    let start = Instant::now();
    let end = start + time;
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for (reader, combiner) in pairs.iter().copied() {
            let (filled_in, filled_out) = sync_channel::<Strips>(1);
            let (empty_in, empty_out) = sync_channel::<Strips>(2);
            for _ in 0..2 {
                empty_in.send(vec![vec![0; STRIP_BYTES]; FILES])?;
            }
            threads.push(scope.spawn(move || read(files, reader, &empty_out, &filled_in, end)));
            let total = &total;
            threads.push(scope.spawn(move || {
                let bytes = combine(combiner, &filled_out, &empty_in)?;
                *total.lock().map_err(|_| anyhow!("a thread of the benchmark has failed"))? +=
                    bytes;
                Ok(())
            }));
        }
        for thread in threads {
            thread.join().map_err(|_| anyhow!("a thread of the benchmark has failed"))??;
        }
        Ok::<(), anyhow::Error>(())
    })?;
    let bytes = total.into_inner().map_err(|_| anyhow!("a thread of the benchmark has failed"))?;
    Ok(Transferred { bytes, time: start.elapsed(), ..Transferred::default() })
}

fn read(
    files: &Files,
    cpu: u32,
    empty: &Receiver<Strips>,
    filled: &SyncSender<Strips>,
    end: Instant,
) -> Result<()> {
    run_on(cpu)?;
    let mut number = 0;
    while Instant::now() < end {
        let Ok(mut strips) = empty.recv() else { break };
        for (file, strip) in files.0.iter().zip(&mut strips) {
            file.read_exact_at(strip, number % STRIPS * STRIP_BYTES as u64)?;
        }
        number += 1;
        if filled.send(strips).is_err() {
            break;
        }
    }
    Ok(())
}

fn combine(cpu: u32, filled: &Receiver<Strips>, empty: &SyncSender<Strips>) -> Result<u64> {
    run_on(cpu)?;
    let (mut whole, mut bytes) = (vec![0; FILES * STRIP_BYTES], 0);
    while let Ok(strips) = filled.recv() {
        for (strip, place) in strips.iter().zip(whole.chunks_mut(STRIP_BYTES)) {
            place.copy_from_slice(strip);
        }
        std::hint::black_box(&mut whole);
        bytes += whole.len() as u64;
        // The reader may have ended.
        let _ = empty.send(strips);
    }
    Ok(bytes)
}
