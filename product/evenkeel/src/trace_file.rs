//! The trace of `irq run --perfetto` and of `sched --perfetto`: the file is opened before the command
//! confines itself, and its content is replaced once nothing can refuse the command any more. A file
//! that cannot be written any longer ends the trace, not the command.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Result;
use evenkeel_perfetto::{Annotation, EventKind, Writer};
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::time::{ClockId, clock_gettime};

use crate::cli::{Command, IrqPart};
use crate::report_file::{ReportFile, TRACE};

/// A file that waits for its trace. Dropped, it leaves an older file as it was, and no new one.
pub struct TraceFile {
    report: ReportFile,
    stream: File,
    folder: PathBuf,
}

impl TraceFile {
    /// Opens the file that a service is to write; none: it writes no trace.
    ///
    /// # Errors
    /// It cannot be written, or is no regular file; the text names it, and says what to do.
    pub fn of(command: &Command) -> Result<Option<Self>> {
        let path = match command {
            Command::Sched(args) => args.perfetto.as_deref(),
            Command::Irq(args) => match &args.part {
                IrqPart::Run(args) => args.perfetto.as_deref(),
                _ => None,
            },
            _ => None,
        };
        path.map(Self::open).transpose()
    }

    /// Opens this file.
    ///
    /// # Errors
    /// As [`TraceFile::of`].
    pub fn open(path: &Path) -> Result<Self> {
        let report = ReportFile::open(TRACE, path)?;
        let stream = report.stream()?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        Ok(Self { report, stream, folder: folder.unwrap_or(Path::new(".")).to_owned() })
    }

    /// Where the file is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

/// Writes the trace of a service; without a file, nothing.
pub struct Recorder {
    writer: Writer<File>,
}

impl Recorder {
    /// Begins the trace: what was in the file is replaced.
    pub fn begin(file: Option<TraceFile>) -> Self {
        let Some(TraceFile { report, stream, .. }) = file else {
            return Self { writer: Writer::new(None) };
        };
        // A write beyond the limit on file sizes is an error then, and ends no process.
        // SAFETY: a signal that is ignored calls no handler.
        let ignored = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) };
        let emptied = stream.set_len(0);
        report.keep();
        let mut recorder = Self { writer: Writer::new(Some(stream)) };
        if let Err(why) = ignored.map_err(io::Error::from).and(emptied) {
            recorder.give_up(&why);
        }
        recorder
    }

    /// Whether anything is written.
    pub fn is_open(&self) -> bool {
        self.writer.is_open()
    }

    /// The trace; [`Recorder::flush`] writes it.
    pub fn writer(&mut self) -> &mut Writer<File> {
        &mut self.writer
    }

    /// Adds something that happens at a time on the clock of [`now_ns`]; each reason has its own name.
    pub fn note(&mut self, at_ns: u64, track: u64, what: &str, why: Vec<(String, String)>) {
        let reason = |(name, text)| Annotation { name, text };
        let annotations: Vec<Annotation> = why.into_iter().map(reason).collect();
        let kind = EventKind::Instant { name: what, annotations: &annotations };
        self.writer.event(at_ns, track, kind);
    }

    /// Writes what was added since the last call.
    pub fn flush(&mut self) {
        if let Err(why) = self.writer.flush() {
            self.give_up(&why);
        }
    }

    fn give_up(&mut self, why: &io::Error) {
        tracing::warn!("--perfetto: the trace ends here: {why}; the command runs on");
        self.writer.close();
    }
}

/// Now, in ns on the clock of Perfetto's own recordings.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map(std::time::Duration::from);
    now.unwrap_or_default().as_nanos() as u64
}

/// The reasons of one kind, each with a number in its name.
pub fn numbered(kind: &str, lines: impl IntoIterator<Item = String>) -> Vec<(String, String)> {
    (1..).zip(lines).map(|(number, line)| (format!("{kind} {number}"), line)).collect()
}
