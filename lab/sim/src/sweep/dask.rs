//! Dask: one task for each part. `dask.py`, the driver, submits them to Dask, which queues them and
//! tries those again that fail, and tells which parts have ended.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Serialize;

use super::folder::{Folder, Plan};
use super::{Spread, Told};
use crate::engine_error::EngineError;

pub(super) const NAME: &str = "dask";

const REMEDY: &str = "Dask is the package `distributed` of PyPI: `scripts/setup dask` installs it, or \
                      EVENKEEL_DASK_PYTHON names a Python that has it";

const DRIVER: &str = include_str!("dask.py");

/// What the driver is asked for: its argument, as JSON.
#[derive(Serialize)]
struct Asked<'a> {
    /// Simulates a part when its number is added.
    command: Vec<&'a str>,
    directory: &'a str,
    /// What the name of each part's log begins with.
    log: &'a str,
    parts: usize,
    retries: u32,
    /// Parts at once where the driver starts Dask itself.
    at_once: Option<usize>,
}

/// Submits the parts, and waits for their end.
///
/// # Errors
/// There is no Dask, or it ended early.
pub(super) fn run(
    spread: &Spread,
    python: &Path,
    folder: &Folder,
    plan: &Plan,
    tell: &mut dyn FnMut(Told),
) -> Result<(), EngineError> {
    let broken =
        |why: &dyn std::fmt::Display| EngineError::failed("dask", why.to_string().as_bytes());
    let no_text = |what: &str| broken(&format!("{what} is not in UTF-8, which Dask needs"));
    let words = spread.command.iter().map(|word| word.to_str());
    let directory = std::env::current_dir().map_err(|why| broken(&why))?;
    let log = folder.log("");
    let asked = Asked {
        command: words.collect::<Option<_>>().ok_or_else(|| no_text("an argument"))?,
        directory: directory.to_str().ok_or_else(|| no_text("the working directory"))?,
        log: log.to_str().ok_or_else(|| no_text("the path of the result"))?,
        parts: plan.parts.len(),
        retries: spread.retries,
        at_once: spread.at_once,
    };
    let asked = serde_json::to_string(&asked).map_err(|why| broken(&why))?;
    let mut child = Command::new(python)
        .args(["-I", "-u", "-c", DRIVER, &asked])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| EngineError::NotInstalled {
            program: python.display().to_string(),
            source,
            remedy: REMEDY,
        })?;
    // Open until the driver has ended: it ends when this process does, however that happens. Nothing is
    // written there: a driver that has ended already would end this process, too (SIGPIPE).
    let input = child.stdin.take();
    let (Some(answers), Some(mut errors)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(broken(&"the driver has no output"));
    };
    let said = std::thread::spawn(move || {
        let mut said = Vec::new();
        let _ = errors.read_to_end(&mut said);
        said
    });
    let (mut runs, mut is_over) = (0, false);
    for answer in BufReader::new(answers).lines().map_while(Result::ok) {
        match answer.split_once(' ') {
            Some(("done", part)) => {
                let part = part.parse().ok().and_then(|part: usize| plan.parts.get(part));
                runs += part.map_or(0, Vec::len);
                tell(Told::Done(runs, plan.runs()));
            }
            Some(("at", place)) => tell(Told::Said(format!("Dask runs the parts at {place}"))),
            _ => is_over |= answer == "over",
        }
    }
    let status = child.wait().map_err(|why| broken(&why))?;
    drop(input);
    let said = said.join().unwrap_or_default();
    match (is_over, status.code()) {
        (true, _) => Ok(()),
        // The driver's word for a Python without Dask.
        (false, Some(3)) => Err(EngineError::NotInstalled {
            program: format!("distributed, with {}", python.display()),
            source: std::io::ErrorKind::NotFound.into(),
            remedy: REMEDY,
        }),
        (false, _) => Err(EngineError::failed("dask", &said)),
    }
}
