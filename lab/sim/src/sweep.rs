//! Simulates a grid of workloads, machines, schedulers and seeds. Each run is one line of JSON, so that
//! an interrupted sweep can be resumed, and any job engine can spread it.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, Write};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use crate::grid::{Grid, Name, Row, SweepError};
use crate::workers::{Ended, Worker, Workers};

/// One part of a sweep that is spread over several jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// From 1.
    pub index: usize,
    /// The number of parts.
    pub of: usize,
}

impl std::str::FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('/').and_then(|(index, of)| {
            Some(Self { index: index.parse().ok()?, of: of.parse().ok()? })
        });
        parsed
            .filter(|shard| (1..=shard.of).contains(&shard.index))
            .ok_or_else(|| format!("\"{text}\": expected a part of all, like 2/8"))
    }
}

/// A run that was lost because its process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// The run.
    pub run: String,
    /// How the process ended.
    pub why: String,
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: its process ended: {}", self.run, self.why)
    }
}

/// The result of a sweep.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    /// The number of runs that were simulated.
    pub done: usize,
    /// Lost runs. The next sweep into the same file tries them again.
    pub lost: Vec<Lost>,
}

/// Simulates all runs of the shard that are not in the file yet, and appends their rows. `progress`
/// gets how many are done, and of how many.
///
/// # Errors
/// [`SweepError`]; rows that were written stay.
pub fn sweep(
    grid: &Grid,
    shard: Shard,
    workers: Workers<'_>,
    out: &Path,
    mut progress: impl FnMut(usize, usize),
) -> Result<Swept, SweepError> {
    let rows_error = |source: io::Error| SweepError::Rows { path: out.to_owned(), source };
    let mut file = open(out).map_err(rows_error)?;
    let mut known: BTreeMap<Name, (usize, String)> = BTreeMap::new();
    for (at, row) in read(out)?.into_iter().enumerate() {
        known.insert(row.name(), (at + 1, row.input));
    }
    let mut todo = Vec::new();
    for (at, run) in grid.runs()?.into_iter().enumerate() {
        if at % shard.of != shard.index - 1 {
            continue;
        }
        match known.get(&run.name(grid)) {
            None => todo.push((at, run)),
            Some((_, input)) if *input == run.input => {}
            Some((line, _)) => {
                let (path, line, run) = (out.to_owned(), *line, run.to_string());
                return Err(SweepError::OtherInput { path, line, run });
            }
        }
    }
    let next = AtomicUsize::new(0);
    let mut swept = Swept::default();
    progress(0, todo.len());
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..workers.count().clamp(1, todo.len().max(1)) {
            let (sender, next, todo) = (sender.clone(), &next, &todo);
            scope.spawn(move || {
                let mut worker = Worker::new(workers);
                let take = || todo.get(next.fetch_add(1, Ordering::Relaxed));
                let mut this = take();
                while let Some(run) = this {
                    let then = take();
                    let ended = worker.simulate(grid, run, then.map(|(at, _)| *at));
                    // The receiver is gone after an error.
                    if sender.send(ended.map(|ended| (&run.1, ended))).is_err() {
                        break;
                    }
                    this = then;
                }
            });
        }
        drop(sender);
        for ended in receiver {
            match ended? {
                (_, Ended::Row(row)) => {
                    let mut line =
                        serde_json::to_vec(&row).map_err(|why| rows_error(io::Error::from(why)))?;
                    line.push(b'\n');
                    file.write_all(&line).map_err(rows_error)?;
                    swept.done += 1;
                }
                (run, Ended::Lost(why)) => swept.lost.push(Lost { run: run.to_string(), why }),
            }
            progress(swept.done + swept.lost.len(), todo.len());
        }
        Ok(swept)
    })
}

/// Opens the file for more rows. A last line without a newline is incomplete and is removed.
fn open(path: &Path) -> io::Result<File> {
    let mut file = OpenOptions::new().create(true).read(true).append(true).open(path)?;
    let text = fs::read(path)?;
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    file.set_len(whole as u64)?;
    file.seek(io::SeekFrom::End(0))?;
    Ok(file)
}

/// The rows of a file.
///
/// # Errors
/// [`SweepError::Rows`], [`SweepError::Line`].
pub fn read(path: &Path) -> Result<Vec<Row>, SweepError> {
    let text = fs::read_to_string(path)
        .map_err(|source| SweepError::Rows { path: path.to_owned(), source })?;
    let row = |(at, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|why| SweepError::Line {
            path: path.to_owned(),
            line: at + 1,
            why,
        })
    };
    text.lines().enumerate().map(row).collect()
}
