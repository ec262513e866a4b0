//! Why the keel ended, by the kernel's report. The service decides by it whether to load the keel again.

use std::fmt;

use crate::layout::EXIT_PARTS;

/// The kernel's `SCX_ECODE_ACT_RESTART`: the loader is asked to load the scheduler again after hotplug.
const RESTART: u64 = 1 << 48;
/// `SCX_EXIT_UNREG`: this kind and those above it are ends without a fault.
const UNREGISTERED: u32 = 64;
/// `SCX_EXIT_SYSRQ`.
const SYSRQ: u32 = 67;
/// `SCX_EXIT_ERROR`: this kind and those above it are faults.
const ERROR: u32 = 1024;

/// The kind of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitKind {
    /// The loader ended it.
    Unloaded,
    /// Hotplug ended it: it should be loaded again.
    Restart,
    /// SysRq-S ended it.
    SysRq,
    /// The kernel ended it because of a fault.
    Fault,
}

/// The end of a scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// The kind of the end.
    pub kind: ExitKind,
    /// The kernel's reason.
    pub reason: String,
    /// The kernel's details of that reason; may be empty.
    pub message: String,
    /// The kernel's dump of CPUs and tasks after a fault.
    pub dump: String,
}

impl Exit {
    /// Reads `struct keel_exit`; `None` while the keel schedules, or if the bytes have another layout.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut parts = Vec::new();
        let mut rest = bytes;
        for length in EXIT_PARTS {
            let (part, others) = rest.split_at_checked(length)?;
            parts.push(part);
            rest = others;
        }
        let [code, kind, reason, message, dump] = parts[..] else { return None };
        let code = u64::from_ne_bytes(code.try_into().ok()?);
        let kind = u32::from_ne_bytes(kind.get(..4)?.try_into().ok()?);
        let kind = match kind {
            0 => return None,
            ERROR.. => ExitKind::Fault,
            SYSRQ => ExitKind::SysRq,
            UNREGISTERED.. if code & RESTART != 0 => ExitKind::Restart,
            _ => ExitKind::Unloaded,
        };
        Some(Self { kind, reason: text(reason), message: text(message), dump: text(dump) })
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)?;
        if !self.message.is_empty() {
            write!(f, " ({})", self.message)?;
        }
        Ok(())
    }
}

/// The C string in a buffer.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(kind: u32, code: u64) -> Vec<u8> {
        let mut bytes = vec![0; EXIT_PARTS.iter().sum()];
        bytes[..8].copy_from_slice(&code.to_ne_bytes());
        bytes[8..12].copy_from_slice(&kind.to_ne_bytes());
        bytes[16..21].copy_from_slice(b"stall");
        bytes[144..149].copy_from_slice(b"task\xff");
        bytes
    }

    #[test]
    fn kinds_of_ends() {
        let kind = |kind, code| Exit::from_bytes(&report(kind, code)).map(|exit| exit.kind);
        assert_eq!(kind(0, 0), None);
        assert_eq!(kind(64, 0), Some(ExitKind::Unloaded));
        assert_eq!(kind(66, RESTART | 1 << 32), Some(ExitKind::Restart));
        assert_eq!(kind(67, 0), Some(ExitKind::SysRq));
        assert_eq!(kind(1024, RESTART), Some(ExitKind::Fault));
        assert_eq!(kind(1026, 0), Some(ExitKind::Fault));
    }

    #[test]
    fn reason_and_message_are_shown() {
        let exit = Exit::from_bytes(&report(1026, 0)).unwrap();
        assert_eq!(exit.to_string(), "stall (task\u{fffd})");
        assert_eq!(exit.dump, "");
        assert_eq!(Exit::from_bytes(&[1; 20]), None);
    }
}
