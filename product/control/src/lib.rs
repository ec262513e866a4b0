//! The control socket: JSON lines between a running evenkeel and the programs that control or watch it.
//!
//! One request per line, one answer per line, in the convention of sched-ext's `scx_stats`, so that its
//! clients can read evenkeel's statistics, too. The user and the process that ask are known from the
//! kernel (peer credentials), never from the request.
//!
//! | file | what it holds |
//! |---|---|
//! | `message` | requests and answers |
//! | `server` | the service's end: everything that clients can fill is bounded |
//! | `shares` | what each user may take of a service: connections, unread answers, time |
//! | `client` | the client's end: sends a request and waits for the answer |
//! | `signals` | the signals that tell a service to end, or to say its state |
//! | `in_time` | reads of /proc that a process can hold up, made so that no service waits for it |
//! | `command_line` | command lines of processes, read in time |
//! | `program` | programs by name, and the processes that run one |
//! | `ias` | paper 003's two calls, for programs that ask a running keel |

mod client;
mod command_line;
mod ias;
mod in_time;
mod message;
mod program;
mod server;
mod shares;
mod signals;

pub use client::{AskError, ask, ask_within};
pub use command_line::command_lines;
pub use ias::{Ias, KEEL_SOCKET, aggregation_request, allocation_request};
pub use in_time::{Late, Lock, guard_reads, read_each_in_time, read_in_time};
pub use message::{Answer, Request};
pub use program::{Instance, Program, instances};
pub use server::{BindError, Peer, Server, remove_dead};
pub use shares::Share;
pub use signals::{END_SIGNALS, ServiceSignals, Told, watch_signals};
