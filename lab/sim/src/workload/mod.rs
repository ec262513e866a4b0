//! Workloads by name: a file in rt-app's format (`rtapp`), or a shape and its numbers (`catalogue`
//! lists the shapes, `shapes`, `paper002` and `paper003` make them), and whether a workload fits a
//! machine.

mod catalogue;
mod error;
mod numbers;
pub mod paper002;
mod paper003;
mod rtapp;
mod shapes;

use std::path::Path;

use evenkeel_machine::{Machine, PRESETS};

use crate::mask::MAX_CPUS;
use crate::program::{Op, Workload};

use error::MAX_FILE_BYTES;

pub use catalogue::SHAPES;
pub use error::{MAX_TASKS, WorkloadError};

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

    /// The text of the workload's file; none: it is a shape.
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

    /// The same from a text; `file` is its name in errors.
    ///
    /// # Errors
    /// [`WorkloadError::Field`].
    pub fn parse_rt_app(text: &str, file: &str) -> Result<Self, WorkloadError> {
        rtapp::parse(text, file)
    }

    /// Checks that it fits this machine.
    ///
    /// # Errors
    /// [`WorkloadError::Machine`]: a CPU, node or group that it names does not exist or is offline, or
    /// the machine has too many CPUs.
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
        let homes = self.tasks.iter().filter_map(|task| task.home);
        let needed = homes.max().map_or(0, |home| home as usize + 1);
        if needed > machine.nodes.len() {
            return wrong(format!(
                "needs {needed} nodes or more, and machine {} has {}; {}",
                machine.name,
                machine.nodes.len(),
                self.machine_with(needed)
            ));
        }
        let others = self.higher().map(|thief| thief.cpu);
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

    /// What to do about a machine with less than so many nodes. A workload that names a preset was made
    /// for that one.
    fn machine_with(&self, nodes: usize) -> String {
        let has_them =
            |name: &&str| Machine::preset(name).is_ok_and(|preset| preset.nodes.len() >= nodes);
        let fitting: Vec<&str> = PRESETS.into_iter().filter(has_them).collect();
        let named = fitting.iter().find(|name| self.name.contains(**name));
        match named.or(fitting.first()) {
            Some(name) => format!("try --machine {name}"),
            None => "give a machine file with as many".to_owned(),
        }
    }
}

/// Reads a file, unless it is too large.
fn read(path: &Path) -> Result<String, WorkloadError> {
    let error = |source| WorkloadError::Read { path: path.to_owned(), source };
    let bytes = std::fs::metadata(path).map_err(error)?.len();
    if bytes > MAX_FILE_BYTES {
        return Err(WorkloadError::Size { path: path.to_owned(), bytes });
    }
    std::fs::read_to_string(path).map_err(error)
}
