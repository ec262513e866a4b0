//! Files that hold command lines, which no other user may read: replaced as a whole, so that a reader
//! never sees a half, and with mode 0600 from the start.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// The extension of a file until it is whole.
const HALF_WRITTEN: &str = "new";

/// Whether [`replace`] has not finished this file, or was killed before it could.
pub(crate) fn is_half_written(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == HALF_WRITTEN)
}

/// Replaces the file. Its directory must be one that no other user can write to.
///
/// # Errors
/// It cannot be written; the old file stays then.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = path.with_extension(HALF_WRITTEN);
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?.write_all(content)?;
    fs::rename(&new, path)
}

/// Creates a folder that no other user can read, if there is none.
///
/// # Errors
/// It cannot be created.
pub(crate) fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn no_other_user_can_read_what_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("run");
        create_folder(&folder).unwrap();
        let path = folder.join("7.json");
        // Left by an evenkeel that was killed, or by an older one.
        for left in [&path, &path.with_extension("new")] {
            fs::write(left, "old").unwrap();
        }
        for content in ["first", "second"] {
            replace(&path, content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        }
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    }
}
