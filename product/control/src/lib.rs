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
//! | `command_line` | command lines of processes, read so that no user can hold it up |
//! | `program` | programs by name, and the processes that run one |
//! | `ias` | paper 003's two calls, for programs that ask a running keel |

mod client;
mod command_line;
mod ias;
mod message;
mod program;
mod server;
mod shares;
mod signals;

pub use client::{AskError, ask, ask_within};
pub use command_line::command_lines;
pub use ias::{Ias, KEEL_SOCKET, aggregation_request, allocation_request};
pub use message::{Answer, Request};
pub use program::{Instance, Program, instances};
pub use server::{BindError, Peer, Server, remove_dead};
pub use shares::Share;
pub use signals::{END_SIGNALS, ServiceSignals, Told, watch_signals};
