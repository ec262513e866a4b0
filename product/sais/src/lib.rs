//! SAIs, source-aware interrupt scheduling (paper 001): a packet's softirq runs on the core where its
//! task waits for it.
//!
//! The kernel's side is `bpf/sais/sais.bpf.c`, on servers `bpf/sais/sais-serve.bpf.c`, and `bpf/sais/`;
//! this crate attaches it, feeds it, and shows what it does. Nothing on the machine is changed that
//! would outlive the process, however it ends: the programs and maps are held by file descriptors, the
//! kernel threads that do the softirqs belong to a map, and what `--hold` and `--manage-rfs` change is
//! in the journal.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `model` | the paper's analysis, equations (1) to (9) |
//! | `options` | which core a packet goes to, and which cores may be used |
//! | `device` | a network device, and what native XDP would lose on it |
//! | `attachment` | the program on the device |
//! | `cgroup` | the cgroups with sockets that write hints |
//! | `object` | a BPF object of ours in the kernel |
//! | `program` | which of the programs, with which settings |
//! | `layout` | what `bpf/sais/intf.h` lays out |
//! | `changes` | CPUs that go offline and come back |
//! | `steering_error` | why packets are not steered |
//! | `steering` | loaded, attached, fed, read |
//! | `identity` | which thread or process a recorded number means |
//! | `hold` | threads that wait for data stay on their core |
//! | `flow_steering` | the kernel's own steering in the place of ours |
//! | `threads` | the kernel threads that do the softirqs |
//! | `measure` | what fetching and handing over a strip takes on this machine |
//! | `softirq` | what a strip takes in softirqs |
//! | `auto` | whether a connection is worth steering |
//! | `load` | which cores are the least loaded |
//! | `statistics` | what it did |
//! | `cost` | what a packet takes |
//! | `serving` | the server's part: hints go back |
//! | `silent` | peers that send no hints back |
//! | `foreground` | runs a part in the foreground until it ends |
//! | `service`, `serve` | the two parts, as commands |

mod attachment;
mod auto;
mod cgroup;
mod changes;
mod cost;
mod device;
mod flow_steering;
mod foreground;
mod hold;
mod identity;
mod layout;
mod load;
mod measure;
mod model;
mod object;
mod options;
mod program;
mod serve;
mod service;
mod serving;
mod silent;
mod softirq;
mod statistics;
mod steering;
mod steering_error;
mod threads;

pub use attachment::{AttachError, Attachment};
pub use auto::AutoError;
pub use cgroup::{Cgroup, CgroupError};
pub use cost::Trial;
pub use device::{Device, DeviceError};
pub use flow_steering::FlowSteeringError;
pub use hold::{HoldCounts, HoldError};
pub use ipnet::IpNet;
pub use load::LoadError;
pub use measure::{MeasureError, STRIP_BYTES, StripTimes};
pub use model::{Analysis, Case, CaseError, most_requests_per_s};
pub use object::ObjectError;
pub use options::{Mode, OptionError, Options, Policy, Wire, XdpMode};
pub use serve::{ServeError, ServeOptions, serve};
pub use service::{Ending, Service, ServiceError, run, sockets};
pub use serving::{Served, Serving, ServingError};
pub use statistics::{Consumer, Core, Flow, Statistics};
pub use steering::Steering;
pub use steering_error::SteeringError;
