//! Interrupts as a lever, on a virtual card with many queues.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `stage` | a client whose card has queues, and a server that chooses them |

pub mod stage;
