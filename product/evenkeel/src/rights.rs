//! Least privilege: a command that runs as root keeps the capabilities that it needs and gives all
//! others up, for itself and for what it starts. `run` does so once its program runs, which has all
//! its rights. A process without capabilities has none to give up.

use rustix::thread::{
    CapabilitySet, capabilities, capability_is_in_bounding_set,
    remove_capability_from_bounding_set, set_capabilities,
};

use crate::cli::{Command, IrqPart, SaisPart};

/// To read the processes of other users: which file they run, what memory they used.
const READING: CapabilitySet = CapabilitySet::SYS_PTRACE.union(CapabilitySet::DAC_READ_SEARCH);
/// Also to write where they let root write: journals, reports, page-referenced bits.
const OTHERS: CapabilitySet = READING.union(CapabilitySet::DAC_OVERRIDE);
/// To load BPF programs and to read their maps.
const TRACING: CapabilitySet = CapabilitySet::BPF.union(CapabilitySet::PERFMON);
/// Also before Linux 5.11, where maps count as locked memory.
const PROGRAMS: CapabilitySet = TRACING.union(CapabilitySet::SYS_RESOURCE);
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
        // A scheduler is attached by CAP_SYS_ADMIN. It places no thread but its own.
        Command::Sched(_) => READING.union(TRACING).union(CapabilitySet::SYS_ADMIN),
        Command::Sais(args) => match args.part {
            SaisPart::Attach(_) | SaisPart::Serve(_) => OTHERS
                .union(PROGRAMS)
                .union(UNDOING)
                .union(CapabilitySet::SYS_ADMIN)
                .union(CapabilitySet::NET_RAW),
            // To measure what a strip takes in softirqs, in a network namespace of its own.
            SaisPart::Model(_) => {
                PROGRAMS.union(CapabilitySet::SYS_ADMIN).union(CapabilitySet::NET_ADMIN)
            }
            SaisPart::Status(_) | SaisPart::Explain(_) => CapabilitySet::empty(),
        },
        Command::Irq(args) => match args.part {
            // They change nothing.
            IrqPart::Status(_) | IrqPart::Plan(_) => READING.union(PROGRAMS),
            IrqPart::Run(_) | IrqPart::Once(_) => OTHERS.union(PROGRAMS).union(UNDOING),
        },
        Command::Supervise(_) | Command::Undo(_) => OTHERS.union(UNDOING),
        Command::Join(_)
        | Command::Leave(_)
        | Command::Watch(_)
        | Command::Status(_)
        | Command::Explain(_)
        // Without privilege, it loads nothing.
        | Command::Top(_)
        | Command::Ias(_)
        | Command::Zone(_)
        | Command::Sim(_)
        | Command::Bench(_)
        | Command::Repro(_) => CapabilitySet::empty(),
        // It tries what `run` does.
        Command::Doctor(_) | Command::Bugreport(_) => OTHERS.union(PROGRAMS).union(PLACING),
        // On a node it reads the environment of programs that run with more rights.
        Command::Cluster(_) => READING,
        // It compares the namespaces of a container with its own.
        Command::OciHook(_) => CapabilitySet::SYS_PTRACE,
        // They read or write where their user says.
        Command::Config(_) | Command::Generate(_) => CapabilitySet::DAC_OVERRIDE,
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::PathBuf;
    use std::process::Command as Program;

    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    fn unit_path(name: &str) -> PathBuf {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
        root.join("packaging/systemd").join(name)
    }

    /// All words that a unit has for a setting; an empty value clears what stands above it.
    fn words_of(unit: &str, setting: &str) -> BTreeSet<String> {
        let text = std::fs::read_to_string(unit_path(unit)).unwrap();
        let mut words = BTreeSet::new();
        for value in text.lines().filter_map(|line| line.strip_prefix(&format!("{setting}="))) {
            if value.is_empty() {
                words.clear();
            }
            words.extend(value.split_whitespace().map(str::to_owned));
        }
        words
    }

    fn needed(command: &str) -> BTreeSet<String> {
        let command = Cli::try_parse_from(["evenkeel", command]).unwrap().command;
        let names = of(&command).unwrap().iter_names().map(|(name, _)| format!("CAP_{name}"));
        names.collect()
    }

    const DAEMON: &str = "evenkeel.service";
    const KEEL: &str = "evenkeel-keel.service";

    #[test]
    fn each_unit_grants_the_capabilities_that_its_command_keeps_and_no_other() {
        let granted = |unit| words_of(unit, "CapabilityBoundingSet");
        assert_eq!(granted(KEEL), needed("sched"));
        let mut daemon = needed("daemon");
        // Metrics of the service are at a port from 1024 on (docs/guide.md).
        assert!(daemon.remove("CAP_NET_BIND_SERVICE"));
        assert_eq!(granted(DAEMON), daemon);
    }

    #[test]
    fn each_unit_grants_the_paths_sockets_and_system_calls_of_its_features() {
        let grants = |unit, setting, word: &str| words_of(unit, setting).contains(word);
        // Knobs that a killed sais left, and lines that a killed irq run left, set back by the
        // daemon's start.
        for path in ["-/proc/sys/net/core/rps_sock_flow_entries", "-/sys/devices", "-/proc/irq"] {
            assert!(grants(DAEMON, "ReadWritePaths", path), "{path}");
        }
        for family in ["AF_UNIX", "AF_INET", "AF_INET6"] {
            assert!(grants(DAEMON, "RestrictAddressFamilies", family), "{family}");
        }
        assert!(grants(DAEMON, "IPAddressAllow", "localhost"));
        assert!(grants(KEEL, "RestrictAddressFamilies", "AF_UNIX"));
        for unit in [DAEMON, KEEL] {
            for call in ["@system-service", "bpf", "seccomp"] {
                assert!(grants(unit, "SystemCallFilter", call), "{unit}: {call}");
            }
            // Both share it, and each keeps it when the other stops.
            assert!(grants(unit, "RuntimeDirectory", "evenkeel"));
            assert!(grants(unit, "RuntimeDirectoryPreserve", "yes"));
            assert!(!grants(unit, "ProtectProc", "invisible"), "{unit} sees all processes");
        }
        for call in ["landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"] {
            assert!(grants(DAEMON, "SystemCallFilter", call), "the supervisor needs {call}");
        }
        // To sample what followed tasks do. @debug denies it, so it must come after that.
        let unit = std::fs::read_to_string(unit_path(DAEMON)).unwrap();
        let denied = unit.find("~@chown @clock @cpu-emulation @debug");
        assert!(denied.is_some() && denied < unit.find("SystemCallFilter=perf_event_open"));
    }

    #[test]
    fn the_keels_unit_has_room_for_a_descriptor_of_each_address_space() {
        let limit = words_of(KEEL, "LimitNOFILE");
        let limit: usize = limit.first().unwrap().parse().unwrap();
        assert!(limit >= 2 * evenkeel_keel::layout::MAX_SPACES, "{limit}");
    }

    /// By systemd's own measure, at most 2.6.
    #[test]
    fn the_units_expose_little() {
        for unit in [DAEMON, KEEL] {
            let mut command = Program::new("systemd-analyze");
            command.args(["security", "--no-pager", "--offline=true", "--threshold=26"]);
            let Ok(output) = command.arg(unit_path(unit)).output() else {
                evenkeel_skip::skip("the_units_expose_little", "there is no systemd-analyze");
                return;
            };
            let said = String::from_utf8_lossy(&output.stdout);
            let last = said.lines().last().unwrap_or_default();
            assert!(output.status.success(), "{last}{}", String::from_utf8_lossy(&output.stderr));
        }
    }
}
