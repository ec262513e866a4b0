//! Files of rows, one line of JSON each: reading them, and merging them into one that is the same
//! whatever the order in which the rows were made.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::grid::{Grid, Name, Row, Run, SweepError};

/// The rows of a file.
///
/// # Errors
/// [`SweepError::Rows`], [`SweepError::Line`].
pub fn read(path: &Path) -> Result<Vec<Row>, SweepError> {
    let text = fs::read_to_string(path).map_err(rows_error(path))?;
    text.lines().enumerate().map(|(at, line)| parse(path, at + 1, line)).collect()
}

fn parse(path: &Path, line: usize, text: &str) -> Result<Row, SweepError> {
    let named = |why| SweepError::Line { path: path.to_owned(), line, why };
    serde_json::from_str(text).map_err(named)
}

pub(super) fn rows_error(path: &Path) -> impl Fn(io::Error) -> SweepError + Copy {
    move |source| SweepError::Rows { path: path.to_owned(), source }
}

/// The rows of several files, each run once, by their names.
#[derive(Debug, Default)]
pub(super) struct Known {
    rows: BTreeMap<Name, Line>,
}

/// A row as it was written, to the byte: a number that is read and written again may differ.
#[derive(Debug)]
struct Line {
    text: String,
    input: String,
    path: PathBuf,
    number: usize,
}

impl Known {
    /// Takes the rows of a file in; of one that does not exist none. A last line without a line feed is
    /// that of a process that was killed, and is left out.
    pub fn add(&mut self, path: &Path) -> Result<(), SweepError> {
        let text = match fs::read_to_string(path) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(()),
            text => text.map_err(rows_error(path))?,
        };
        let whole = text.rfind('\n').map_or(0, |at| at + 1);
        for (at, text) in text[..whole].lines().enumerate() {
            let row = parse(path, at + 1, text)?;
            let name = row.name();
            let run = describe(&name);
            let line = Line {
                text: text.to_owned(),
                input: row.input,
                path: path.to_owned(),
                number: at + 1,
            };
            match self.rows.entry(name) {
                Entry::Vacant(place) => {
                    place.insert(line);
                }
                Entry::Occupied(known) if known.get().text == line.text => {}
                Entry::Occupied(known) if known.get().input == line.input => {
                    return Err(SweepError::Differ { path: path.to_owned(), line: at + 1, run });
                }
                Entry::Occupied(_) => {
                    return Err(SweepError::OtherInput {
                        path: path.to_owned(),
                        line: at + 1,
                        run,
                    });
                }
            }
        }
        Ok(())
    }

    /// Whether the run has a row.
    ///
    /// # Errors
    /// [`SweepError::OtherInput`]: it has one that was made of another input.
    pub fn has(&self, grid: &Grid, run: &Run) -> Result<bool, SweepError> {
        match self.rows.get(&run.name(grid)) {
            None => Ok(false),
            Some(line) if line.input == run.input => Ok(true),
            Some(Line { path, number, .. }) => Err(SweepError::OtherInput {
                path: path.clone(),
                line: *number,
                run: run.to_string(),
            }),
        }
    }

    /// Makes all rows, in the order of their names, the content of a file: all or nothing.
    pub fn write(&self, path: &Path) -> Result<(), SweepError> {
        let text: String = self.rows.values().flat_map(|line| [line.text.as_str(), "\n"]).collect();
        if fs::read(path).is_ok_and(|before| before == text.as_bytes()) {
            return Ok(());
        }
        let write = || -> io::Result<()> {
            let parent = path.parent().unwrap_or(Path::new("."));
            // As any file that a program makes: what the user's mask leaves, or as it was.
            let mode = fs::metadata(path).map(|meta| meta.permissions());
            let mode = mode.unwrap_or_else(|_| fs::Permissions::from_mode(0o666));
            let mut file =
                tempfile::Builder::new().prefix(".sweep-").permissions(mode).tempfile_in(parent)?;
            file.write_all(text.as_bytes())?;
            file.as_file().sync_all()?;
            file.persist(path)?;
            Ok(())
        };
        write().map_err(rows_error(path))
    }
}

fn describe((workload, machine, scheduler, _, seed): &Name) -> String {
    format!("{workload} on {machine} under {scheduler}, seed {seed}")
}
