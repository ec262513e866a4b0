//! Traces for Perfetto's viewer (ui.perfetto.dev), written packet by packet: the option `--perfetto` of
//! `run`, `irq run` and `sched`, and the simulator write them. Nothing here reads a clock or opens a
//! file.
//!
//! A trace is a row of packets, each with its length in front, so a file to which packets are appended
//! is a trace at every moment. The numbers of messages and fields are those of Perfetto's
//! `protos/perfetto/trace/trace_packet.proto` and of the files that it imports.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `message` | a message of protocol buffers, field by field |
//! | `fields` | the same, read back |
//! | `ftrace` | scheduling events as the kernel's ftrace records them |
//! | `track` | tracks, and the slices, instants and counters on them |
//! | `writer` | a trace that is being written, batch by batch |

mod fields;
mod ftrace;
mod message;
mod track;
mod writer;

pub use fields::{Malformed, Value, fields};
pub use ftrace::{Bundle, PrevState, Task};
pub use message::Message;
pub use track::{Annotation, EventKind, Track, TrackKind, event};
pub use writer::{Counter, Writer};

/// The writer of the packets; any number but 0. A trace of this crate has one writer.
const SEQUENCE: u64 = 1;
/// `TracePacket.trusted_packet_sequence_id`.
const PACKET_SEQUENCE: u32 = 10;
/// `Trace.packet`.
const TRACE_PACKET: u32 = 1;

/// A packet with its length in front, to be appended to a trace.
fn packed(packet: Message) -> Vec<u8> {
    let packet = packet.uint(PACKET_SEQUENCE, SEQUENCE);
    Message::new().message(TRACE_PACKET, packet).into_bytes()
}
