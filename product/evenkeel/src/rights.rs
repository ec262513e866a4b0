//! Least privilege: a command that runs as root keeps the capabilities that it needs and gives all
//! others up, for itself and for what it starts. `run` does so once its program runs, which has all
//! its rights. A process without capabilities has none to give up.

use rustix::thread::{
    CapabilitySet, capabilities, capability_is_in_bounding_set,
    remove_capability_from_bounding_set, set_capabilities,
};

use crate::cli::{Command, SaisPart};

/// To read the processes of other users, and to write where they let root write: journals, reports,
/// page-referenced bits.
const OTHERS: CapabilitySet = CapabilitySet::SYS_PTRACE
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::DAC_OVERRIDE);
/// To load BPF programs and to read their maps.
const PROGRAMS: CapabilitySet =
    CapabilitySet::BPF.union(CapabilitySet::PERFMON).union(CapabilitySet::SYS_RESOURCE);
/// To place threads of other users.
const PLACING: CapabilitySet = CapabilitySet::SYS_NICE;
/// To undo what a killed evenkeel left: masks, and the knobs of network devices.
const UNDOING: CapabilitySet = PLACING.union(CapabilitySet::NET_ADMIN);

/// What `run` needs besides its program: also to pass signals on to a program of another user.
pub const OF_RUN: CapabilitySet = OTHERS.union(PROGRAMS).union(PLACING).union(CapabilitySet::KILL);

/// The capabilities that a command needs; `None`: it gives them up itself.
fn of(command: &Command) -> Option<CapabilitySet> {
    Some(match command {
        Command::Daemon(_) => {
            OTHERS.union(PROGRAMS).union(UNDOING).union(CapabilitySet::NET_BIND_SERVICE)
        }
        // A scheduler is attached by CAP_SYS_ADMIN.
        Command::Sched(_) => OTHERS.union(PROGRAMS).union(PLACING).union(CapabilitySet::SYS_ADMIN),
        Command::Sais(args) => match args.part {
            SaisPart::Attach(_) | SaisPart::Serve(_) => OTHERS
                .union(PROGRAMS)
                .union(UNDOING)
                .union(CapabilitySet::SYS_ADMIN)
                .union(CapabilitySet::NET_RAW),
            SaisPart::Status(_) | SaisPart::Explain(_) | SaisPart::Model(_) => {
                CapabilitySet::empty()
            }
        },
        Command::Supervise(_) | Command::Undo(_) => OTHERS.union(UNDOING),
        Command::Join(_)
        | Command::Leave(_)
        | Command::Status(_)
        | Command::Explain(_)
        | Command::Ias(_)
        | Command::Zone(_)
        | Command::Sim(_)
        | Command::Bench(_)
        | Command::Repro(_) => CapabilitySet::empty(),
        // It tries what `run` does.
        Command::Doctor(_) => OTHERS.union(PROGRAMS).union(PLACING),
        // It writes where its user says.
        Command::Generate(_) => CapabilitySet::DAC_OVERRIDE,
        Command::Run(_) | Command::Compare(_) => return None,
    })
}

/// Gives up what the command does not need. Called before any other thread runs: capabilities are a
/// thread's.
pub fn keep_for(command: &Command) {
    if let Some(needed) = of(command) {
        keep(needed);
    }
}

/// Gives up all capabilities but these.
pub fn keep(needed: CapabilitySet) {
    if let Err(why) = try_keep(needed) {
        tracing::warn!("capabilities that are not needed are kept: {why}");
    }
}

fn try_keep(needed: CapabilitySet) -> Result<(), rustix::io::Errno> {
    let mut sets = capabilities(None)?;
    // What is not in the bounding set does not come back by exec. That takes a capability itself.
    if sets.effective.contains(CapabilitySet::SETPCAP) {
        for one in CapabilitySet::all().difference(needed).iter() {
            // The kernel may be older than a capability.
            if capability_is_in_bounding_set(one).unwrap_or(false) {
                remove_capability_from_bounding_set(one)?;
            }
        }
    }
    for set in [&mut sets.effective, &mut sets.permitted, &mut sets.inheritable] {
        *set = set.intersection(needed);
    }
    set_capabilities(None, sets)
}
