//! `evenkeel run --threads K`: more OpenMP threads than CPUs, so that unequal CPUs can have unequal
//! numbers of them: 3 and 5 where one has 0.6 of the other's capability. This file makes the program's
//! environment: how many threads it starts, and that those sleep that wait. A variable that the user has
//! set otherwise is never overwritten: the command is refused.

use std::ffi::OsString;

use anyhow::{Result, bail};
use evenkeel_host::Threads;
use evenkeel_journal::{affinity, effective_cpuset};
use evenkeel_machine::CpuSet;

use crate::launcher::RANK_VARIABLES;

/// Sets the number of threads; the first of a list is that of the outermost regions.
const COUNT: &str = "OMP_NUM_THREADS";

/// A variable that must not contradict.
struct Rule {
    name: &'static str,
    /// What it is set to where the user has not set it; none: it is left alone.
    value: Option<&'static str>,
    /// Whether it may stay with the user's value, in lower case.
    allows: fn(&str) -> bool,
    why: &'static str,
}

const SLEEP: &str = "with more threads than CPUs, a thread that spins while it waits takes its CPU from \
                     the threads that it waits for";
const FREE: &str = "evenkeel places the threads, and leaves those alone that are bound";
const RULES: &[Rule] = &[
    Rule {
        name: "OMP_WAIT_POLICY",
        value: Some("passive"),
        allows: |value| value == "passive",
        why: SLEEP,
    },
    // libgomp spins for so many rounds before it sleeps, libomp for so many milliseconds.
    Rule { name: "GOMP_SPINCOUNT", value: Some("0"), allows: is_zero, why: SLEEP },
    Rule { name: "KMP_BLOCKTIME", value: Some("0"), allows: is_zero, why: SLEEP },
    Rule { name: "KMP_LIBRARY", value: None, allows: |value| value == "throughput", why: SLEEP },
    Rule { name: "OMP_PROC_BIND", value: Some("false"), allows: is_false, why: FREE },
    Rule { name: "OMP_PLACES", value: None, allows: |_| false, why: FREE },
    Rule { name: "GOMP_CPU_AFFINITY", value: None, allows: |_| false, why: FREE },
    Rule { name: "KMP_AFFINITY", value: None, allows: is_unbound, why: FREE },
    Rule {
        name: "OMP_DYNAMIC",
        value: Some("false"),
        allows: is_false,
        why: "the runtime would start fewer threads than it is told",
    },
];

fn is_zero(value: &str) -> bool {
    ["0", "0ms", "0us"].contains(&value)
}

fn is_false(value: &str) -> bool {
    ["false", "0"].contains(&value)
}

fn is_unbound(value: &str) -> bool {
    value.split(',').any(|word| ["none", "disabled"].contains(&word.trim()))
}

/// The CPUs that a program has which this process starts; those in `chosen`, if there is a choice.
pub fn usable_cpus(chosen: Option<&CpuSet>) -> Result<CpuSet> {
    let own = std::process::id() as i32;
    let (mask, cpuset) = (affinity::get(own)?, effective_cpuset(own));
    // Without sysfs it is not known which CPUs there are.
    let usable = if cpuset.is_empty() { mask } else { mask.intersection(&cpuset) };
    Ok(match chosen {
        Some(chosen) => usable.intersection(chosen),
        None => usable,
    })
}

/// `per_cpu` threads for each of `cpus`, and the variables that tell the program. `present` gives the
/// variables of this process.
///
/// # Errors
/// There is one CPU only, this process is a rank of MPI, or a variable contradicts.
pub fn environment(
    per_cpu: u8,
    cpus: &CpuSet,
    present: impl Fn(&str) -> Option<OsString>,
) -> Result<(Threads, Vec<(String, String)>)> {
    let given = |name: &str| {
        let value = present(name)?.to_string_lossy().trim().to_ascii_lowercase();
        (!value.is_empty()).then_some(value)
    };
    if let Some(rank) = RANK_VARIABLES.iter().find(|name| given(name).is_some()) {
        bail!(
            "--threads is for OpenMP, and this is a rank of an MPI program ({rank} is set): leave it \
             out, and have the launcher start {per_cpu} ranks for each CPU instead"
        );
    }
    if cpus.len() < 2 {
        bail!(
            "--threads spreads threads over CPUs, and the program may use CPU {cpus} only: leave it \
             out, or give the program more CPUs (its mask, its cpuset, --cpus)"
        );
    }
    let threads =
        Threads { per_cpu: u32::from(per_cpu), asked: u32::from(per_cpu) * cpus.len() as u32 };
    let asked = threads.asked;
    let contradicts = |name: &str, value: &str, why: &str| {
        anyhow::anyhow!(
            "--threads {per_cpu} contradicts {name}={value}: {why}; unset {name}, or leave \
                         --threads out"
        )
    };
    let mut variables = Vec::new();
    match given(COUNT) {
        None => variables.push((COUNT.to_owned(), asked.to_string())),
        Some(list) => {
            let outermost = list.split(',').next().unwrap_or_default().trim();
            if outermost != asked.to_string() {
                let why = format!("it stands for {asked} threads, on CPUs {cpus}");
                return Err(contradicts(COUNT, &list, &why));
            }
        }
    }
    for name in ["OMP_THREAD_LIMIT", "KMP_DEVICE_THREAD_LIMIT"] {
        let Some(limit) = given(name) else { continue };
        if limit.parse().is_ok_and(|limit: u32| limit < asked) {
            let why = format!("it stands for {asked} threads, on CPUs {cpus}");
            return Err(contradicts(name, &limit, &why));
        }
    }
    for rule in RULES {
        match (given(rule.name), rule.value) {
            (Some(value), _) if !(rule.allows)(&value) => {
                return Err(contradicts(rule.name, &value, rule.why));
            }
            (None, Some(value)) => variables.push((rule.name.to_owned(), value.to_owned())),
            _ => {}
        }
    }
    Ok((threads, variables))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of threads and the variables; for two CPUs, where the user has set these.
    fn four(present: &[(&str, &str)]) -> Result<(u32, Vec<(String, String)>), String> {
        let value = |name: &str| {
            let found = present.iter().find(|(present, _)| *present == name);
            found.map(|(_, value)| OsString::from(value))
        };
        environment(4, &CpuSet::first(2), value)
            .map(|(threads, variables)| (threads.asked, variables))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn threads_are_counted_and_those_that_wait_sleep() {
        let (asked, variables) = four(&[]).unwrap();
        assert_eq!(asked, 8);
        let variables: Vec<String> =
            variables.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(
            variables,
            [
                "OMP_NUM_THREADS=8",
                "OMP_WAIT_POLICY=passive",
                "GOMP_SPINCOUNT=0",
                "KMP_BLOCKTIME=0",
                "OMP_PROC_BIND=false",
                "OMP_DYNAMIC=false",
            ]
        );
    }

    #[test]
    fn what_the_user_set_stays_where_it_means_the_same() {
        for (name, value) in [
            ("OMP_NUM_THREADS", "8"),
            ("OMP_NUM_THREADS", " 8 , 2"),
            ("OMP_WAIT_POLICY", "PASSIVE"),
            ("KMP_BLOCKTIME", "0ms"),
            ("OMP_PROC_BIND", "FALSE"),
        ] {
            let (asked, variables) = four(&[(name, value)]).unwrap();
            assert_eq!((asked, variables.len()), (8, 5), "{name}={value}");
            assert!(variables.iter().all(|(set, _)| set != name), "{name}={value}");
        }
        for (name, value) in [
            ("OMP_NUM_THREADS", ""),
            ("OMP_THREAD_LIMIT", "8"),
            ("KMP_AFFINITY", "verbose,none"),
            ("KMP_LIBRARY", "throughput"),
        ] {
            assert_eq!(four(&[(name, value)]).unwrap().1.len(), 6, "{name}={value}");
        }
    }

    #[test]
    fn a_variable_that_contradicts_is_named_with_the_remedy() {
        for (name, value) in [
            ("OMP_NUM_THREADS", "2"),
            ("OMP_NUM_THREADS", "2,8"),
            ("OMP_NUM_THREADS", "many"),
            ("OMP_THREAD_LIMIT", "4"),
            ("OMP_WAIT_POLICY", "active"),
            ("GOMP_SPINCOUNT", "infinity"),
            ("KMP_BLOCKTIME", "200"),
            ("KMP_LIBRARY", "turnaround"),
            ("OMP_PROC_BIND", "close"),
            ("OMP_PLACES", "cores"),
            ("GOMP_CPU_AFFINITY", "0-1"),
            ("KMP_AFFINITY", "compact"),
            ("OMP_DYNAMIC", "true"),
        ] {
            let error = four(&[(name, value)]).unwrap_err();
            let named = format!("--threads 4 contradicts {name}={value}: ");
            let remedy = format!("; unset {name}, or leave --threads out");
            assert!(error.starts_with(&named) && error.ends_with(&remedy), "{error}");
        }
    }

    #[test]
    fn a_rank_and_a_single_cpu_are_refused() {
        let error = four(&[("PMI_RANK", "0")]).unwrap_err();
        assert!(error.contains("4 ranks for each CPU"), "{error}");
        let one: CpuSet = [3].into_iter().collect();
        let error = environment(4, &one, |_| None).unwrap_err().to_string();
        assert!(error.contains("may use CPU 3 only"), "{error}");
    }
}
