//! The control socket: JSON lines between a running evenkeel and who steers or watches it.
//!
//! One request a line, one answer a line, in the convention of sched-ext's `scx_stats`, so that its
//! clients can read our statistics, too. Who asks is known by the kernel's word for it (peer
//! credentials), never by his own.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `message` | requests and answers |
//! | `server` | the socket's end in a service: bounded in all that others can fill |
//! | `client` | asking |
//! | `ias` | what programs ask of a keel: paper 003's two calls |

mod client;
mod ias;
mod message;
mod server;

pub use client::{AskError, ask};
pub use ias::{Ias, KEEL_SOCKET, aggregation_request, allocation_request};
pub use message::{Answer, Request};
pub use server::{BindError, Peer, Server};
