//! Many simulations: a grid of workloads, machines and schedulers by a range of seeds. One line of
//! JSON a run, so that a sweep can be taken up where it was left, and spread by any job engine.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, Write};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use crate::grid::{Grid, Name, Row, SweepError};
use crate::workers::{Ended, Worker, Workers};

/// One part of a sweep that was spread over several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// From 1.
    pub index: usize,
    /// How many there are.
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

/// A run that came to no end, because its process did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// Which.
    pub run: String,
    /// How the process ended.
    pub why: String,
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: its process ended: {}", self.run, self.why)
    }
}

/// What came of a sweep.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    /// Runs that were made now.
    pub done: usize,
    /// Those that were not, and will be tried again by the next sweep into the same file.
    pub lost: Vec<Lost>,
}

/// Simulates what of the grid belongs to the shard and is not in the file yet, and appends the rows.
/// `progress` hears how many are done, and of how many.
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
                    // Who hears nobody any more has nothing left to do.
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

/// Opens the file for more rows. A last line without an end was cut off with its run: it goes.
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
