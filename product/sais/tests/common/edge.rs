//! The parser that the kernel runs, compiled natively, on packets that end where readable memory ends: a
//! read past the end is a fault. The tests of packets and the project's fuzzing use it.

use std::ops::Range;
use std::ptr;

/// `enum parse_result`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    Tcp(Packet),
    Other,
    Malformed,
}

/// `struct sais_read` of native/parse.c.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Packet {
    pub remote: [u8; 16],
    pub local: [u8; 16],
    pub remote_port: [u8; 2],
    pub local_port: [u8; 2],
    pub hint: u64,
    /// As it stands in the packet.
    pub sequence: [u8; 4],
    /// `enum hint_result`.
    pub has_hint: u32,
    pub options: [u16; 2],
}

pub const ABSENT: u32 = 0;
pub const FOUND: u32 = 1;
pub const MALFORMED: u32 = 2;

#[link(name = "sais_parse", kind = "static")]
unsafe extern "C" {
    fn sais_parse(data: *const u8, end: *const u8, packet: *mut Packet) -> i32;
    fn sais_is_paper_header(header: *const u8) -> bool;
}

/// Memory that ends where all that may be read ends: what lies behind it is a fault.
pub struct Edge {
    base: *mut u8,
}

const PAGE: usize = 4096;

impl Edge {
    pub fn new() -> Self {
        let (read, write) = (libc::PROT_READ, libc::PROT_WRITE);
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(ptr::null_mut(), 2 * PAGE, read | write, kind, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let base = base.cast::<u8>();
        // SAFETY: the second page of that mapping.
        assert_eq!(unsafe { libc::mprotect(base.add(PAGE).cast(), PAGE, libc::PROT_NONE) }, 0);
        Self { base }
    }

    /// What the parser finds in a packet.
    pub fn parse(&self, bytes: &[u8]) -> Found {
        let mut packet = Packet::default();
        let Range { start, end } = self.put(bytes);
        // SAFETY: the function reads nothing but these bytes, or a fault ends the process.
        let result = unsafe { sais_parse(start, end, &mut packet) };
        match result {
            0 => Found::Tcp(packet),
            1 => Found::Other,
            2 => Found::Malformed,
            other => panic!("{other} is no result"),
        }
    }

    /// Whether a header of IPv4, with one word of options, is that of the paper's wire format.
    pub fn is_paper_header(&self, header: &[u8; 24]) -> bool {
        // SAFETY: as many bytes as the function reads.
        unsafe { sais_is_paper_header(self.put(header).start) }
    }

    /// Copies bytes before the edge.
    fn put(&self, bytes: &[u8]) -> Range<*const u8> {
        assert!(bytes.len() <= PAGE);
        // SAFETY: the bytes fit into the first page.
        unsafe {
            let end = self.base.add(PAGE);
            let start = end.sub(bytes.len());
            ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len());
            start.cast_const()..end.cast_const()
        }
    }
}

impl Drop for Edge {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped.
        unsafe { libc::munmap(self.base.cast(), 2 * PAGE) };
    }
}
