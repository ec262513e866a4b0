//! The keel: one `sched_ext` scheduler whose three questions (which task runs next, when may load
//! be balanced, what is load and where does it go) are answered by exchangeable policies.
//!
//! The scheduler itself is `bpf/keel/keel.bpf.c` and `bpf/keel/`, the policies are `policy/`; this crate
//! loads it, shows what it does, and ends it. The kernel goes back to its own scheduler as soon as
//! the process is gone, however it ends.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `options` | which policies, and their parameters |
//! | `zone` | the knobs of paper 004's gate |
//! | `shield` | which CPUs take only who may run nowhere else |
//! | `ias` | which address spaces and CPUs paper 003's order aggregates |
//! | `ias::options` | how it does so, whoever aggregates |
//! | `ias::auto` | finds by itself how strongly the threads of each program aggregate |
//! | `ias::watch` | what can be seen of a real machine for that |
//! | `ias::bonus` | how far siblings may run ahead, as people write it |
//! | `ias::programs` | programs by name, and the processes that run one |
//! | `ias::groups` | which CPUs aggregate together |
//! | `ias::error` | why they cannot aggregate as somebody wants |
//! | `ias::space` | which address space a process has |
//! | `support` | what this kernel and this process can do |
//! | `topology` | the machine as the keel sees it |
//! | `capability` | what each CPU can do now, less what is taken of it |
//! | `records` | what `bpf/keel/intf.h` lays out |
//! | `image` | what the keel is given before it starts, byte for byte |
//! | `scheduler` | loaded, attached, read, tuned |
//! | `exit` | why it ended |
//! | `statistics` | what it did, in `scx_stats`' convention |
//! | `decisions` | what the gate answered last, and why |
//! | `recorder` | makes a tape of it while it runs |
//! | `tape` | all that it was told and did, to be told to it again |
//! | `service` | runs it in the foreground until it ends |

mod capability;
mod decisions;
mod exit;
mod ias;
mod image;
mod options;
mod parts;
mod recorder;
mod records;
mod scheduler;
mod service;
mod shield;
mod statistics;
mod support;
pub mod tape;
mod topology;
mod zone;

pub use capability::Capabilities;
pub use decisions::Decision;
pub use evenkeel_control::allocation_request;
pub use exit::{Exit, ExitKind};
pub use ias::auto::{Auto, Seen, Tuning, Why};
pub use ias::bonus::Bonus;
pub use ias::error::IasError;
pub use ias::groups::{MAX_ROLE, grouped};
pub use ias::options::{IasOptions, Kick, Window};
pub use ias::programs::{IasSettings, Instance, Preference, Program};
pub use ias::{Aggregation, IasState, Search};
pub use image::Image;
pub use options::{Balance, Capacities, Gate, IdleWait, OptionError, Options, Order, Slice};
pub use parts::Parts;
pub use recorder::RecorderError;
pub use scheduler::{LoadError, Scheduler};
pub use service::{Service, ServiceError, run};
pub use shield::{Shield, ShieldError};
pub use statistics::Statistics;
pub use support::{Unsupported, malformed_functions, support};
pub use topology::TopologyError;
pub use zone::{Level, Zone};
