//! The keel: one `sched_ext` scheduler that answers three questions (which task runs next, when load
//! may be balanced, what load is and where it goes) by exchangeable policies.
//!
//! The scheduler itself is `bpf/keel/`, the policies are `policy/`. This crate loads the keel, tunes
//! it, shows what it does, and ends it. When this process ends, for whatever reason, the kernel returns
//! to its own scheduler.
//!
//! | file | what it holds |
//! |---|---|
//! | `service` | the keel in the foreground, from its first load to its end |
//! | `scheduler` | the keel in the kernel: load, attach, tune, read |
//! | `initial_data` | what the keel is given before it starts, byte for byte |
//! | `layout` | the structs and limits of `bpf/keel/intf.h` |
//! | `options` | how the keel runs: policies and parameters |
//! | `slice` | the slice of a task, and how times are written |
//! | `option_error` | why a value cannot be an option |
//! | `policies` | the three questions and their policies |
//! | `parts` | the parts of the balance policy `capability` |
//! | `zone` | the knobs of the gate policy `zone` (paper 004) |
//! | `shield` | CPUs that run only the tasks pinned there |
//! | `topology` | the machine as the keel sees it |
//! | `capability` | each CPU's capability: its speed less what noise takes |
//! | `support` | what this kernel and this process can do |
//! | `exit` | why the keel ended |
//! | `observed` | what an observer in the same process is told |
//! | `statistics` | counters and the state of CPUs, in the convention of `scx_stats` |
//! | `decisions` | the gate's last verdicts and their reasons |
//! | `visible` | which tasks a client may be told about |
//! | `ias` | which address spaces and CPUs the order `ias` aggregates (paper 003) |
//! | `ias::aggregation` | how strongly an address space aggregates |
//! | `ias::settings` | what a configuration says of that |
//! | `ias::rights` | what root and other users may set |
//! | `ias::options` | parameters of the order `ias` |
//! | `ias::bonus` | how far siblings may run ahead, as users write it |
//! | `ias::groups` | which CPUs aggregate together |
//! | `ias::space` | which address space a process has |
//! | `ias::auto` | finds how strongly the threads of each program aggregate |
//! | `ias::watch` | what `auto` sees of a real machine |
//! | `ias::quota` | how many address spaces each user may have |
//! | `ias::given` | which processes requests have set |
//! | `ias::error` | why an aggregation was refused |

mod capability;
mod decisions;
mod exit;
mod ias;
mod initial_data;
pub mod layout;
mod observed;
mod option_error;
mod options;
mod parts;
mod policies;
mod scheduler;
mod service;
mod shield;
mod slice;
mod statistics;
mod support;
mod topology;
mod visible;
mod zone;

pub use capability::Capabilities;
pub use decisions::Decision;
pub use evenkeel_control::{Instance, Program, allocation_request};
pub use exit::{Exit, ExitKind};
pub use ias::aggregation::Aggregation;
pub use ias::auto::{Auto, Seen, Tuning, Why};
pub use ias::bonus::Bonus;
pub use ias::error::IasError;
pub use ias::groups::{MAX_ROLE, allocation, default_roles, grouped, roles_of_request};
pub use ias::options::{IasOptions, Kick, Mode, Turn, Window};
pub use ias::quota::UserSpaces;
pub use ias::rights::{Rights, USER_BONUS_NS, USER_TURN_NS};
pub use ias::settings::{IasSettings, Preference};
pub use ias::{IasState, Search};
pub use initial_data::InitialData;
pub use observed::Observed;
pub use option_error::OptionError;
pub use options::{Capacities, IdleWait, Options};
pub use parts::Parts;
pub use policies::{Balance, Gate, Order};
pub use scheduler::{LoadError, Scheduler};
pub use service::{Service, ServiceError, argument_text, run};
pub use shield::{Shield, ShieldError};
pub use slice::Slice;
pub use statistics::{CpuStatistics, Statistics};
pub use support::{Unsupported, support};
pub use topology::TopologyError;
pub use zone::{Knob, Level, Zone};
