//! Paper 003: Yamada, Kusakabe, "Proposal and Evaluation of APIs for utilizing Inter-Core Time
//! Aggregation Scheduler": its loads, simulated with the keel's own source.
//!
//! The keel itself decides which thread runs when. What that does to caches is the simulator's model,
//! made of the two latencies that the paper gives; it was fitted to nothing. (The default mode and the
//! helper thread are not the paper's: they are judged on machines with measured costs.)
//!
//! | file | the one thing in it |
//! |---|---|
//! | `paper` | what the paper says, as data |
//! | `lab` | machines, contestants, and many simulations |
//! | `spawn` | threads that are created and joined: what bonus 0 changes |
//! | `servers` | table 1: a web server and its database |
//! | `strength` | figure 4: how strongly programs aggregate |
//! | `groups` | figure 5: which CPUs aggregate together |
//! | `exact` | what the bounds of the index cost |
//! | `rounds` | the keel's default mode on all these loads |
//! | `helper` | bonuses that are found while programs run |

mod exact;
mod groups;
mod helper;
mod lab;
mod paper;
mod rounds;
mod servers;
mod spawn;
mod strength;

use super::Paper;
use super::simulated::{Measure, Simulated};
use super::study::Part;
use lab::{Lab, SEEDS};

const TITLE: &str = "Yamada, Kusakabe: Proposal and Evaluation of APIs for utilizing Inter-Core Time \
                     Aggregation Scheduler";

/// All parts, and what makes them.
const PARTS: [(&str, Measure<Lab>); 9] = [
    ("overhead", spawn::measure),
    ("table-1", servers::measure),
    ("figure-4", strength::measure),
    ("figure-5", groups::measure),
    ("stalls", |_| Ok(stalls())),
    ("exact", exact::measure),
    ("rounds", rounds::measure),
    ("helper", helper::measure),
    ("hardware", |_| Ok(hardware())),
];

const SIMULATED: Simulated<Lab> = Simulated {
    number: "003",
    title: TITLE,
    machines: "the paper's four cores with two L2 caches, and two cores with one",
    parts: &PARTS,
    lab: |options| Lab::new(SEEDS, options.quick, options.runs),
};

/// The paper.
pub const PAPER: Paper = Paper {
    number: SIMULATED.number,
    parts: || SIMULATED.names(),
    measure: |chosen, options, so_far| SIMULATED.measure(chosen, options, so_far),
};

/// What needs a processor's counters.
fn stalls() -> Part {
    Part::cannot(
        "stalls",
        "The bars of figure 4: resource stalls",
        "with the execution time the stalls (RESOURCE_STALLS.ANY) fall",
        "bars, without numbers",
        "a simulator has no pipeline that could stall, and neither this machine nor its virtual ones \
         have hardware counters; on hardware: see the last part"
            .into(),
    )
}

/// How to measure what cannot be measured here.
fn hardware() -> Part {
    Part {
        title: "How to repeat it on hardware".into(),
        method: "\
A machine with sched_ext (Linux 6.18 or newer; `evenkeel doctor` says whether it will do), four CPUs or \
more, root, and Debian's `sysbench`. Figure 4 with a bonus of 3x:

```
evenkeel sched --order ias &
time bash -c '
    for program in $(seq 10); do
        sysbench memory --threads=100 --memory-block-size=4M --memory-total-size=10G \\
            --memory-oper=write --memory-scope=global --time=0 run > /dev/null &
    done
    sleep 1    # what is set before a process has become sysbench is not set for sysbench
    for pid in $(jobs -p); do evenkeel ias agg $pid --bonus 3x; done
    wait'
```

Without `evenkeel ias agg` and with `--order fair` it is the keel's baseline; without `evenkeel \
sched`, too, the kernel's own scheduler.

`set_ias_agg PID 1 1 3 0` says the same in the paper's words, `set_ias_agg PID 1 0 10000000 0` is its \
s_10M. Take turns with the contestants, five times at least, and compare run by run.

Figure 5: `set_ias_alloc 0 1 1 1` is case 1, `set_ias_alloc 0 1 2 3` case 2 (on four CPUs of which \
the first two share a cache; `lscpu --extended` shows which do), case 3 the latter with `taskset -c \
0,1` before every other program; blocks by `--memory-block-size`, totals of 5G to 25G in pairs, \
`--bonus 50ms`.

What happened: `evenkeel sched --stats 1` counts switches between address spaces (`space_switch`), \
siblings that were preferred (`aggregate`, `follow`) and waiting tasks that the index of siblings had \
no room for (`window`). The bars: `perf stat -a -e cycles,instructions,cache-misses` around the same, \
with `-e cpu/event=0xa2,umask=0x1/` for RESOURCE_STALLS.ANY on Intel's cores."
            .into(),
        ..Part::default()
    }
}
