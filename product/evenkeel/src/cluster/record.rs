//! Job records: what `run` measured of a program of a job of Slurm on one node, kept in a file when the
//! program has ended, and read by `evenkeel cluster report`. There is one for each line that `run`
//! prints. To keep one never fails a job, and nothing of it has to be undone.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use evenkeel_host::{Accounting, CpuSummary, Gain, ProgramStatus, Proven, Summary};
use evenkeel_journal::{effective_cpuset, runtime_dir};
use evenkeel_machine::CpuSet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cli::JobId;
use crate::launcher::{SlurmPlace, slurm_place};
use crate::threads::usable_cpus;

/// A record with all of a large node's CPUs has a tenth of this.
const MOST_BYTES: u64 = 4 << 20;

/// The version of what is in the files.
pub const FORMAT: u32 = 1;
/// The version of this executable.
pub const EVENKEEL: &str = env!("CARGO_PKG_VERSION");
/// So many files are kept on a node, the newest ones. A shared directory is its owner's to clear.
const KEPT: usize = 256;
/// The end of a job waits no longer for the shared directory: its server may not answer for hours.
const SHARED_PATIENCE: Duration = Duration::from_secs(2);
/// Their folder beside the journals.
const FOLDER: &str = "jobs";

/// What was measured of a program of a job on one node.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobRecord {
    /// [`FORMAT`].
    pub format: u32,
    /// The version of the evenkeel that wrote it.
    pub evenkeel: String,
    pub place: SlurmPlace,
    pub measured: Measured,
}

/// The figures of a program, or of the ranks of a step on one node.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Measured {
    /// The program still ran: these are its figures so far.
    pub is_running: bool,
    /// When they were written down, in seconds since 1970.
    pub at_unix_s: u64,
    /// The command and its arguments; of ranks, that of one of them.
    pub command: Vec<String>,
    /// Its exit code (128 + n for signal n); none: it runs.
    pub exit_code: Option<i32>,
    /// From its start to its end, or until now.
    pub elapsed_ns: u64,
    /// The ranks that were balanced together; 0 where none needed it, or where it is not known.
    pub ranks: u32,
    /// The launcher bound each rank to a part of the job's CPUs.
    pub is_bound: bool,
    /// The source of the figures.
    pub accounting: Accounting,
    /// Tasks moved.
    pub moves: u64,
    /// What the moves gained, or the divided loops, as far as it was measured.
    pub gain: Gain,
    /// What came of it, in words.
    pub outcome: String,
    /// The CPUs were unequal, and yet not measured: barriers came too often for moves.
    #[serde(default)]
    pub is_unmeasured: bool,
    /// The CPUs that the program could use; empty where nothing was measured.
    pub cpus: Vec<CpuSummary>,
}

/// The records of a job that were found.
#[derive(Debug, Default)]
pub struct Found {
    pub records: Vec<JobRecord>,
    /// Files that cannot be used, each with the reason.
    pub problems: Vec<String>,
}

/// Keeps what was measured of a program that has ended, if it was part of a job of Slurm: in the
/// directory that the nodes share, or else on this node.
pub fn keep(summary: &Summary, shared: Option<&Path>) {
    let Some(place) = slurm_place(|name| std::env::var(name).ok()) else { return };
    let is_bound = summary.job.as_ref().is_some_and(|job| job.is_bound);
    let record = JobRecord::new(place, Measured::of_run(summary, &cpus_of_job(is_bound)));
    if let Err(why) = record.keep(shared) {
        tracing::warn!("nothing is kept of this job for evenkeel cluster report: {why:#}");
    }
}

/// The CPUs that the job has on this node. Of bound ranks each has other ones, so that only the cpuset
/// tells. Empty where that is not known.
fn cpus_of_job(is_bound: bool) -> CpuSet {
    if is_bound {
        return effective_cpuset(std::process::id() as i32);
    }
    usable_cpus(None).unwrap_or_default()
}

impl JobRecord {
    pub fn new(place: SlurmPlace, measured: Measured) -> Self {
        Self { format: FORMAT, evenkeel: EVENKEEL.to_owned(), place, measured }
    }

    fn keep(&self, shared: Option<&Path>) -> Result<()> {
        if let Some(shared) = shared {
            let (record, folder) = (self.clone(), shared.to_owned());
            let written = done_within(SHARED_PATIENCE, move || record.write(&folder));
            return written.with_context(|| format!("{}", shared.display()));
        }
        let folder = own_folder()?;
        self.write(&folder).with_context(|| format!("{}", folder.display()))?;
        forget_oldest(&folder, KEPT);
        Ok(())
    }

    /// Writes the file as a whole, so that a reader never sees a half. Only its user can read it, since
    /// it has a command line.
    fn write(&self, folder: &Path) -> io::Result<()> {
        let SlurmPlace { job, step, node_index, .. } = &self.place;
        let step = step.map_or_else(|| "script".to_owned(), |step| step.to_string());
        // Several programs of a step may end on one node.
        let name = format!("{job}.{step}-{node_index}-{}.json", std::process::id());
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.persist(folder.join(name))?;
        Ok(())
    }
}

/// Does in a thread what a directory may hold up, and waits for it no longer than this. What is not done
/// by then goes on until this process ends.
///
/// # Errors
/// All of the work itself; it is not done in time; there is no thread left for it.
fn done_within<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (sender, receiver) = channel();
    thread::Builder::new().spawn(move || {
        // Without a receiver, nothing waits for the result any more.
        let _ = sender.send(work());
    })?;
    receiver.recv_timeout(patience).unwrap_or_else(|_| {
        let why = format!("the directory does not answer ({} s)", patience.as_secs_f64());
        Err(io::Error::new(io::ErrorKind::TimedOut, why))
    })
}

impl Measured {
    fn of_run(summary: &Summary, cpus: &CpuSet) -> Self {
        let of_shares = summary.shares.as_ref().map(|shares| &shares.gain);
        let of_shares = of_shares.filter(|gain| gain.proven != Proven::Nothing);
        let job = summary.job.clone().unwrap_or_default();
        let is_of_job = |cpu: &&CpuSummary| cpus.is_empty() || cpus.contains(cpu.cpu);
        Self {
            is_running: false,
            at_unix_s: now_unix_s(),
            command: summary.command.clone(),
            exit_code: Some(summary.exit_code),
            elapsed_ns: summary.elapsed_ns,
            ranks: job.ranks,
            is_bound: job.is_bound,
            accounting: summary.accounting,
            moves: summary.moves,
            gain: of_shares.unwrap_or(&summary.gain).clone(),
            outcome: summary.outcome(),
            is_unmeasured: summary.accounting == Accounting::None && summary.rested_ns > 0,
            cpus: summary.cpus.iter().filter(is_of_job).cloned().collect(),
        }
    }

    /// Of a program that runs.
    pub fn so_far(program: &ProgramStatus, cpus: &CpuSet, outcome: String) -> Self {
        let of_shares = program.shares.as_ref().map(|shares| &shares.gain);
        let of_shares = of_shares.filter(|gain| gain.proven != Proven::Nothing);
        let is_of_job = |cpu: &&CpuSummary| cpus.is_empty() || cpus.contains(cpu.cpu);
        Self {
            is_running: true,
            at_unix_s: now_unix_s(),
            command: program.command.clone(),
            exit_code: None,
            elapsed_ns: program.elapsed_ns().unwrap_or_default(),
            ranks: 0,
            is_bound: false,
            accounting: program.accounting,
            moves: program.moves,
            gain: of_shares.unwrap_or(&program.gain).clone(),
            outcome,
            is_unmeasured: program.accounting == Accounting::None && program.resting,
            cpus: program.cpus.iter().filter(is_of_job).cloned().collect(),
        }
    }
}

fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The folder of this node's records, which is created.
fn own_folder() -> Result<PathBuf> {
    let folder = runtime_dir()?.join(FOLDER);
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    made.with_context(|| format!("{}", folder.display()))?;
    Ok(folder)
}

/// The folders in which records of this user lie on this node: where the user had a session, they are in
/// that of the session. What another user made under such a name is left out.
pub fn folders_here() -> Vec<PathBuf> {
    let uid = nix::unistd::geteuid().as_raw();
    let own = runtime_dir().ok().into_iter();
    let mut folders: Vec<PathBuf> =
        own.chain([PathBuf::from(format!("/tmp/evenkeel-{uid}"))]).collect();
    folders.dedup();
    let folders = folders.iter().filter(|folder| is_own(folder, uid));
    folders.map(|folder| folder.join(FOLDER)).filter(|folder| is_own(folder, uid)).collect()
}

fn is_own(folder: &Path, uid: u32) -> bool {
    fs::symlink_metadata(folder).is_ok_and(|found| found.is_dir() && found.uid() == uid)
}

/// Removes the oldest files of a folder, so that this number stays.
fn forget_oldest(folder: &Path, kept: usize) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let aged = |entry: fs::DirEntry| Some((entry.metadata().ok()?.modified().ok()?, entry.path()));
    let mut files: Vec<(SystemTime, PathBuf)> = entries.filter_map(aged).collect();
    files.sort();
    for (_, path) in files.iter().take(files.len().saturating_sub(kept)) {
        let _ = fs::remove_file(path);
    }
}

/// Reads the records of a job in a directory.
///
/// # Errors
/// The directory cannot be read. Single files that cannot be used are among the problems.
pub fn read(folder: &Path, job: &JobId) -> io::Result<Found> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder)?.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    let mut found = Found::default();
    for path in paths {
        match read_file(&path, job) {
            Ok(record) => found.records.extend(record),
            Err(why) => found.problems.push(format!("{}: {why}", path.display())),
        }
    }
    Ok(found)
}

/// What a regular file holds that user `own_uid` may believe; `None`: it is another kind of file, or of
/// another user. A directory that is shared may hold anything: a pipe that blocks its reader, a file
/// that does not fit into memory, or a record under the number of another user's job. Root reads those
/// of all users.
///
/// # Errors
/// It cannot be read, or is larger than any record.
fn read_regular(path: &Path, own_uid: u32) -> io::Result<Option<Vec<u8>>> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = match File::options().read(true).custom_flags(flags).open(path) {
        // A link, or a socket.
        Err(why) if [Some(libc::ELOOP), Some(libc::ENXIO)].contains(&why.raw_os_error()) => {
            return Ok(None);
        }
        file => file?,
    };
    let metadata = file.metadata()?;
    let is_foreign = own_uid != 0 && metadata.uid() != own_uid;
    if !metadata.is_file() || is_foreign {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(io::Error::other(format!(
            "it has more than {MOST_BYTES} bytes, as no record has"
        )));
    }
    Ok(Some(bytes))
}

/// The record in a file, if it is one of this job.
fn read_file(path: &Path, job: &JobId) -> Result<Option<JobRecord>, String> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_named = name.split_once('.').is_some_and(|(number, _)| number == job.as_str());
    // A shared directory may hold those of many jobs. The number of a task of an array is not known.
    if !is_named && !job.is_of_array() {
        return Ok(None);
    }
    let parsed = match read_regular(path, nix::unistd::geteuid().as_raw()) {
        Ok(None) => return Ok(None),
        Ok(Some(bytes)) => Ok(bytes),
        Err(why) => Err(why.to_string()),
    };
    let parsed = parsed
        .and_then(|bytes| serde_json::from_slice::<Value>(&bytes).map_err(|why| not_whole(&why)));
    let value = match parsed {
        Ok(value) => value,
        Err(why) if is_named => return Err(why),
        // What is in it is not known to concern the job.
        Err(_) => return Ok(None),
    };
    let place = &value["place"];
    let number = place["job"].as_u64().and_then(|number| u32::try_from(number).ok());
    let is_of_job = number.is_some_and(|number| job.is(number, place["array_task"].as_str()));
    if !is_of_job && !is_named {
        return Ok(None);
    }
    JobRecord::from_value(value).map(|record| is_of_job.then_some(record))
}

impl JobRecord {
    /// The record that a value is.
    ///
    /// # Errors
    /// It is none, or one of another version; says what to do.
    pub fn from_value(value: Value) -> Result<Self, String> {
        check_format(&value)?;
        serde_json::from_value(value).map_err(|why| not_whole(&why))
    }
}

/// # Errors
/// The value is of another version.
pub fn check_format(value: &Value) -> Result<(), String> {
    match value["format"].as_u64() {
        Some(format) if format == u64::from(FORMAT) => Ok(()),
        Some(format) => Err(format!(
            "written by evenkeel {} in format {format}, and evenkeel {EVENKEEL} reads format {FORMAT}: \
             install one version on all nodes",
            value["evenkeel"].as_str().unwrap_or("of another version"),
        )),
        None => Err("it is no record of a job: it has no format".to_owned()),
    }
}

fn not_whole(why: &serde_json::Error) -> String {
    format!("it is no whole record of a job: {why}; remove it")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(job: u32, array_task: Option<&str>) -> JobRecord {
        let place = SlurmPlace {
            job,
            array_task: array_task.map(str::to_owned),
            step: Some(0),
            restarts: 0,
            node: "n1".to_owned(),
            node_index: 0,
            nodes: 1,
            node_list: "n1".to_owned(),
        };
        let measured = serde_json::from_value(serde_json::json!({
            "is_running": false, "at_unix_s": 1, "command": ["app"], "exit_code": 0, "elapsed_ns": 9,
            "ranks": 2, "is_bound": false, "accounting": "none", "moves": 0,
            "gain": Gain::default(), "outcome": "no moves", "cpus": [],
        }));
        JobRecord::new(place, measured.unwrap())
    }

    fn job(text: &str) -> JobId {
        text.parse().unwrap()
    }

    #[test]
    fn a_job_finds_its_own_records_and_no_user_but_its_own_reads_them() {
        let dir = tempfile::tempdir().unwrap();
        record(77, None).write(dir.path()).unwrap();
        record(78, Some("70_3")).write(dir.path()).unwrap();
        fs::write(dir.path().join("notes.json"), "no record").unwrap();
        for (name, number) in [("77", 77), ("78", 78), ("70_3", 78)] {
            let found = read(dir.path(), &job(name)).unwrap();
            assert!(found.problems.is_empty(), "{found:?}");
            assert_eq!(found.records.len(), 1, "{name}");
            assert_eq!(found.records[0].place.job, number);
        }
        let none = read(dir.path(), &job("7")).unwrap();
        assert!(none.records.is_empty() && none.problems.is_empty(), "{none:?}");
        let file = dir.path().join(format!("77.0-0-{}.json", std::process::id()));
        assert_eq!(fs::metadata(file).unwrap().mode() & 0o777, 0o600);
        assert!(read(&dir.path().join("absent"), &job("77")).is_err());
    }

    #[test]
    fn a_record_that_cannot_be_used_is_named_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let mut other = serde_json::to_value(record(77, None)).unwrap();
        other["format"] = 2.into();
        other["evenkeel"] = "99.0.0".into();
        let mut half = serde_json::to_value(record(77, None)).unwrap();
        half["measured"].as_object_mut().unwrap().remove("gain");
        let cases = [
            (other.to_string(), "written by evenkeel 99.0.0 in format 2, and evenkeel "),
            (half.to_string(), "no whole record of a job: missing field `gain`"),
            ("{\"format\": 1,".to_owned(), "no whole record of a job"),
            ("[]".to_owned(), "it has no format"),
        ];
        let path = dir.path().join("77.0-0-1.json");
        for (text, expected) in cases {
            fs::write(&path, text).unwrap();
            let found = read(dir.path(), &job("77")).unwrap();
            assert!(found.records.is_empty(), "{found:?}");
            let why = &found.problems[..];
            assert!(why.len() == 1 && why[0].contains(expected), "{why:?}");
            assert!(why[0].starts_with(path.to_str().unwrap()), "{why:?}");
        }
    }

    #[test]
    fn what_no_record_can_be_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("77.0-0-1.json");
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        let found = read(dir.path(), &job("77")).unwrap();
        assert!(found.problems[0].contains("it has more than 4194304 bytes"), "{found:?}");
        // A pipe would block its reader, and a link may lead anywhere.
        fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRUSR).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("77.0-0-2.json")).unwrap();
        let found = read(dir.path(), &job("77")).unwrap();
        assert!(found.records.is_empty() && found.problems.is_empty(), "{found:?}");
    }

    #[test]
    fn a_record_of_another_user_is_believed_by_root_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("77.0-0-1.json");
        fs::write(&path, "{}").unwrap();
        let owner = fs::metadata(&path).unwrap().uid();
        for (reader, is_read) in [(owner, true), (owner + 1, false), (0, true)] {
            let found = read_regular(&path, reader).unwrap();
            assert_eq!(found.is_some(), is_read, "owner {owner}, reader {reader}");
        }
    }

    #[test]
    fn a_directory_that_does_not_answer_is_not_waited_for() {
        let (answer, hangs) = channel::<()>();
        let work = move || hangs.recv().map_err(io::Error::other);
        let why = done_within(Duration::from_millis(5), work).unwrap_err();
        assert_eq!(why.kind(), io::ErrorKind::TimedOut);
        assert_eq!(why.to_string(), "the directory does not answer (0.005 s)");
        drop(answer);
        assert_eq!(done_within(Duration::from_secs(60), || Ok(7)).unwrap(), 7);
        let failed = done_within(Duration::from_secs(60), || {
            Err::<(), _>(io::Error::from(io::ErrorKind::StorageFull))
        });
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn the_newest_records_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["b", "a", "c"];
        for (age_s, name) in names.iter().enumerate() {
            let file = fs::File::create(dir.path().join(name)).unwrap();
            let at = UNIX_EPOCH + std::time::Duration::from_secs(1000 - age_s as u64);
            file.set_modified(at).unwrap();
        }
        forget_oldest(dir.path(), 2);
        assert!(!dir.path().join("c").exists());
        assert!(dir.path().join("a").exists() && dir.path().join("b").exists());
    }
}
