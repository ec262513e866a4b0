//! Files that other users chose, read without harm to the reader: only regular files are opened, opening
//! never waits, and no more is read of a file than may be kept in memory. [`open`] and [`Bounded`] are
//! for `runtimes.rs`, which reads symbols while root's daemon serves all users.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use object::ReadRef;
use object::read::ReadCache;

/// What may be kept of one file, in bytes: half of the memory that the daemon's unit has.
const MAX_KEPT: u64 = 32 << 20;
/// What a piece takes beside its bytes: its places in the cache and in the list of symbols.
const PIECE_BYTES: u64 = 128;

/// Opens a regular file for reading.
///
/// # Errors
/// There is no such file, or it cannot be read at once: a FIFO, a device, a file with a lease.
pub(crate) fn open(path: &str) -> io::Result<File> {
    // A path alone (O_PATH), which never waits: it tells whether this is a regular file.
    let place = File::options().read(true).custom_flags(libc::O_PATH).open(path)?;
    if !place.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no regular file"));
    }
    let again = format!("/proc/self/fd/{}", place.as_raw_fd());
    File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(again)
}

/// The bytes of a file, as long as they are not too many.
pub(crate) struct Bounded {
    cache: ReadCache<File>,
    kept: Cell<u64>,
}

impl Bounded {
    pub(crate) fn new(file: File) -> Self {
        Self { cache: ReadCache::new(file), kept: Cell::new(0) }
    }

    /// Notes that another piece is kept; an error if that is too much of the file.
    fn keep(&self, bytes: u64) -> Result<(), ()> {
        let kept = self.kept.get().saturating_add(bytes).saturating_add(PIECE_BYTES);
        self.kept.set(kept);
        if kept > MAX_KEPT { Err(()) } else { Ok(()) }
    }
}

impl<'a> ReadRef<'a> for &'a Bounded {
    fn len(self) -> Result<u64, ()> {
        (&self.cache).len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        self.keep(size)?;
        (&self.cache).read_bytes_at(offset, size)
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        let bytes = (&self.cache).read_bytes_at_until(range, delimiter)?;
        self.keep(bytes.len() as u64)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn name(path: &Path) -> &str {
        path.to_str().unwrap()
    }

    #[test]
    fn only_a_regular_file_that_can_be_read_at_once_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let (plain, fifo) = (dir.path().join("plain"), dir.path().join("fifo"));
        std::fs::write(&plain, "x").unwrap();
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert!(open(name(&plain)).is_ok());
        // It would wait for a writer.
        for other in [name(&fifo), "/dev/zero", name(dir.path()), "/none"] {
            assert!(open(other).is_err(), "{other}");
        }
    }

    #[test]
    fn a_huge_file_is_not_kept() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 40).unwrap();
        let bounded = Bounded::new(file);
        assert_eq!((&bounded).len(), Ok(1 << 40));
        assert_eq!((&bounded).read_bytes_at(0, 64).map(<[u8]>::len), Ok(64));
        assert!((&bounded).read_bytes_at(64, MAX_KEPT).is_err(), "too much at once");
        assert!((&bounded).read_bytes_at(0, 64).is_err(), "nor more afterwards");
    }

    #[test]
    fn many_small_pieces_are_too_much_as_well() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 40).unwrap();
        let bounded = Bounded::new(file);
        let pieces =
            (0..).take_while(|at| (&bounded).read_bytes_at_until(at * 2..(at + 1) * 2, 0).is_ok());
        assert_eq!(pieces.count() as u64, MAX_KEPT / PIECE_BYTES);
    }
}
