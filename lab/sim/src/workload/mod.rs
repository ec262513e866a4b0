//! Workloads: from files in rt-app's format, and by a shape and its numbers.

mod numbers;
pub mod paper002;
mod paper003;
mod rtapp;
mod shapes;

use std::path::{Path, PathBuf};

use evenkeel_machine::Machine;

use crate::mask::MAX_CPUS;
use crate::program::{MAX_NS, Op, Workload};

pub use shapes::SHAPES;

/// The most tasks of a workload.
pub const MAX_TASKS: usize = 100_000;
/// The largest file that is read.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// What is wrong with a workload.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The file cannot be read.
    #[error("cannot read workload {path}: {source}; shapes are {}", shapes::names())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Too much to be one.
    #[error("workload {path} has {bytes} bytes: at most {MAX_FILE_BYTES} are read")]
    Size {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// A field of a file.
    #[error("{file}:{line}: {field}: {rule}")]
    Field {
        /// The file.
        file: String,
        /// Counted from 1.
        line: usize,
        /// With all that it is in.
        field: String,
        /// What was expected.
        rule: String,
    },
    /// A shape.
    #[error("workload \"{text}\": {rule}")]
    Shape {
        /// As it was given.
        text: String,
        /// What was expected.
        rule: String,
    },
    /// It does not go with the machine.
    #[error("workload {workload}: {rule}")]
    Machine {
        /// Its name.
        workload: String,
        /// What was expected.
        rule: String,
    },
}

impl Workload {
    /// The workload of this name: a shape (see [`SHAPES`]), or else a file in rt-app's format.
    ///
    /// # Errors
    /// [`WorkloadError`]
    pub fn by_name(name: &str, seed: u64) -> Result<Self, WorkloadError> {
        match shapes::parse(name, seed) {
            Some(workload) => workload,
            None => Self::from_rt_app(Path::new(name)),
        }
    }

    /// What is in the file of a workload that is one.
    ///
    /// # Errors
    /// [`WorkloadError::Read`], [`WorkloadError::Size`].
    pub(crate) fn text_of(name: &str) -> Result<Option<String>, WorkloadError> {
        let shape = name.split(':').next();
        if SHAPES.iter().any(|(known, _, _)| shape == Some(known)) {
            return Ok(None);
        }
        read(Path::new(name)).map(Some)
    }

    /// A file in rt-app's format.
    ///
    /// # Errors
    /// [`WorkloadError::Read`], [`WorkloadError::Size`], [`WorkloadError::Field`].
    pub fn from_rt_app(path: &Path) -> Result<Self, WorkloadError> {
        rtapp::parse(&read(path)?, &path.display().to_string())
    }

    /// The text of such a file; `file` is what errors call it.
    ///
    /// # Errors
    /// [`WorkloadError::Field`].
    pub fn parse_rt_app(text: &str, file: &str) -> Result<Self, WorkloadError> {
        rtapp::parse(text, file)
    }

    /// Whether it can run on this machine.
    ///
    /// # Errors
    /// [`WorkloadError::Machine`]: a CPU that it names does not exist or is offline, or there are too
    /// many CPUs.
    pub fn check(&self, machine: &Machine) -> Result<(), WorkloadError> {
        let wrong = |rule| Err(WorkloadError::Machine { workload: self.name.clone(), rule });
        if machine.cpus.iter().any(|cpu| cpu.id as usize >= MAX_CPUS) {
            return wrong(format!("machine {} has more than {MAX_CPUS} CPUs", machine.name));
        }
        let online = machine.online();
        for task in &self.tasks {
            let within_task = task.ops.iter().filter_map(|op| match op {
                Op::Affinity(allowed) => Some(allowed),
                _ => None,
            });
            for allowed in task.allowed.iter().chain(within_task) {
                let named = allowed.to_set();
                if named.intersection(&online).is_empty() {
                    return wrong(format!(
                        "task {} may use CPUs {named}; machine {} has {online}",
                        task.name, machine.name
                    ));
                }
            }
        }
        if let Some(groups) = &self.together
            && let Err(why) = evenkeel_keel::grouped(machine, groups)
        {
            return wrong(why.to_string());
        }
        let nodes = machine.nodes.len();
        if let Some(task) =
            self.tasks.iter().find(|t| t.home.is_some_and(|at| at as usize >= nodes))
        {
            return wrong(format!(
                "the memory of task {} is on node {}; machine {} has {nodes}, from 0",
                task.name,
                task.home.unwrap_or_default(),
                machine.name
            ));
        }
        let others = self.thieves.iter().map(|thief| thief.cpu);
        for cpu in others.chain(self.interrupts.iter().map(|source| source.cpu)) {
            if !online.contains(cpu) {
                return wrong(format!(
                    "CPU {cpu} is not online; machine {} has {online}",
                    machine.name
                ));
            }
        }
        Ok(())
    }
}

/// A file, if it is not too long.
fn read(path: &Path) -> Result<String, WorkloadError> {
    let error = |source| WorkloadError::Read { path: path.to_owned(), source };
    let bytes = std::fs::metadata(path).map_err(error)?.len();
    if bytes > MAX_FILE_BYTES {
        return Err(WorkloadError::Size { path: path.to_owned(), bytes });
    }
    std::fs::read_to_string(path).map_err(error)
}
