//! What `evenkeel run` publishes of its program: a status file that is written now and then, and what it
//! tells the daemons of the node.

use evenkeel_journal::{TaskError, TaskRef};

use crate::clock::{monotonic_ns, started_ns};
use crate::launch::Launch;
use crate::observe::Accounting;
use crate::options::Options;
use crate::proof::{Gain, Proven};
use crate::status_file::{ProgramStatus, StatusFile};
use crate::tell::{Teller, Tells};
use crate::waits::Waits;

/// How often the status file is written ...
const PUBLISH_EVERY_NS: u64 = 1_000_000_000;
/// ... and how often while no task is moved: to replace a file costs more than a round.
const PUBLISH_AT_REST_NS: u64 = 5_000_000_000;

/// The status of a run, and its file where there can be one.
pub(crate) struct Published {
    pub(crate) status: ProgramStatus,
    file: Option<StatusFile>,
    next_ns: u64,
    teller: Teller,
}

impl Published {
    /// The status of a program that is not observed yet. Nothing is written before
    /// [`Published::write`].
    ///
    /// # Errors
    /// This process is not in /proc.
    pub(crate) fn new(launch: &Launch, options: &Options, root: u32) -> Result<Self, TaskError> {
        let own = TaskRef::own_process()?;
        let file = launch.dir.as_deref().and_then(|dir| {
            StatusFile::create(dir, &own).inspect_err(|why| tracing::debug!("{why}")).ok()
        });
        let status = ProgramStatus {
            balancer: own,
            program: None,
            root,
            user: Some(nix::unistd::geteuid().as_raw()),
            started_ns: TaskRef::of(root as i32).ok().map(|task| started_ns(&task)),
            elapsed_ns: None,
            ended_ns: None,
            command: launch.words(),
            accounting: Accounting::None,
            placement: options.placement,
            dry_run: options.dry_run,
            resting: false,
            intervals: 0,
            moves: 0,
            yielded: 0,
            gain: Gain::default(),
            shares: None,
            cpus: Vec::new(),
            waits: Waits::default(),
            threads: Vec::new(),
            decisions: Vec::new(),
        };
        let tells = Tells { daemons: options.daemons.clone(), step: launch.step.clone() };
        Ok(Self { status, file, next_ns: 0, teller: Teller::new(tells) })
    }

    /// Whether the file is to be written now: not in each round, since writing costs more than deciding.
    pub(crate) fn is_due(&self) -> bool {
        self.file.is_some() && monotonic_ns() >= self.next_ns
    }

    /// Writes the file.
    pub(crate) fn write(&mut self, is_at_rest: bool) {
        let Some(file) = &self.file else { return };
        let pause_ns = if is_at_rest { PUBLISH_AT_REST_NS } else { PUBLISH_EVERY_NS };
        self.next_ns = monotonic_ns() + pause_ns;
        if let Err(why) = file.write(&self.status) {
            tracing::debug!("{why}");
        }
    }

    /// Tells the daemons of this node.
    pub(crate) fn tell(&mut self) {
        let of_shares = self.status.shares.as_ref().map(|shares| &shares.gain);
        let of_shares = of_shares.filter(|gain| gain.proven != Proven::Nothing);
        self.teller.tell(of_shares.unwrap_or(&self.status.gain));
    }

    /// The next [`Published::is_due`] is true: what was written is no longer so.
    pub(crate) fn renew(&mut self) {
        self.next_ns = 0;
    }
}
