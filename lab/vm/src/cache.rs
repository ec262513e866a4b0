//! The cache directory: what is expensive to get and may be deleted at any time (kernels, QEMU, peers,
//! programs of tests).

use std::path::PathBuf;

use crate::{Error, file};

/// The cache directory.
pub fn cache() -> PathBuf {
    let from = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    from("XDG_CACHE_HOME")
        .or_else(|| from("HOME").map(|home| home.join(".cache")))
        .unwrap_or_else(std::env::temp_dir)
        .join("evenkeel")
}

/// Writes a small file of the cache whole or not at all.
pub(crate) fn write_cached(name: &str, text: &str) -> Result<(), Error> {
    let dir = cache();
    std::fs::create_dir_all(&dir).map_err(file("cannot create", &dir))?;
    let path = dir.join(name);
    let temporary = tempfile::NamedTempFile::new_in(&dir).map_err(file("cannot write to", &dir))?;
    std::fs::write(temporary.path(), text).map_err(file("cannot write", temporary.path()))?;
    temporary.persist(&path).map_err(|error| file("cannot write", &path)(error.error))?;
    Ok(())
}
