//! Kernels in the cache that `scripts/kernel` fills.

use std::ffi::OsStr;
use std::path::PathBuf;

use crate::{Error, file};

/// A kernel that can be booted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// As `tests/vm/kernels` calls it: 6.18.
    pub name: String,
    /// The package that it came from: the build in full.
    pub package: String,
    /// Its compressed image.
    pub image: PathBuf,
    /// What it was configured with, by the name that it has in /boot; not all packages have it.
    pub config: Option<PathBuf>,
}

impl Kernel {
    /// Looks a kernel up by its name.
    ///
    /// # Errors
    /// [`Error::NoKernel`] when nobody has fetched it.
    pub fn find(name: &str) -> Result<Self, Error> {
        Self::find_in(cache(), name)
    }

    fn find_in(cache: PathBuf, name: &str) -> Result<Self, Error> {
        let dir = cache.join("kernels").join(name);
        let image = dir.join("vmlinuz");
        if !image.exists() {
            return Err(Error::NoKernel { name: name.to_owned(), cache: cache.join("kernels") });
        }
        // Put there by hand, it may have no package.
        let package = std::fs::read_to_string(dir.join("package")).unwrap_or_default();
        let entries = std::fs::read_dir(&dir).into_iter().flatten().flatten();
        let config =
            entries.map(|entry| entry.path()).find(|path| path.file_name().is_some_and(is_config));
        Ok(Self { name: name.to_owned(), package: package.trim().to_owned(), image, config })
    }
}

fn is_config(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b"config-")
}

/// The directory of what is expensive to get and may be thrown away: kernels, peers.
pub fn cache() -> PathBuf {
    let from = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    from("XDG_CACHE_HOME")
        .or_else(|| from("HOME").map(|home| home.join(".cache")))
        .unwrap_or_else(std::env::temp_dir)
        .join("evenkeel")
}

/// Writes a small file of the cache whole or not at all.
pub(crate) fn remember(name: &str, text: &str) -> Result<(), Error> {
    let dir = cache();
    std::fs::create_dir_all(&dir).map_err(file("cannot create", &dir))?;
    let path = dir.join(name);
    let temporary = tempfile::NamedTempFile::new_in(&dir).map_err(file("cannot write to", &dir))?;
    std::fs::write(temporary.path(), text).map_err(file("cannot write", temporary.path()))?;
    temporary.persist(&path).map_err(|error| file("cannot write", &path)(error.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_is_not_there_is_named_with_its_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let error = Kernel::find_in(dir.path().to_owned(), "6.18").unwrap_err().to_string();
        assert!(error.contains("scripts/kernel 6.18"), "{error}");
    }

    #[test]
    fn a_kernel_is_found_with_its_package_or_without() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("kernels/6.18");
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join("vmlinuz"), "").unwrap();
        let find = || Kernel::find_in(dir.path().to_owned(), "6.18").unwrap();
        assert_eq!(find().package, "");
        std::fs::write(place.join("package"), "linux-image-6.18.15\n").unwrap();
        assert_eq!(find().package, "linux-image-6.18.15");
        assert_eq!(find().image, place.join("vmlinuz"));
        assert_eq!(find().config, None);
        let config = place.join("config-6.18.15+deb13-cloud-amd64");
        std::fs::write(&config, "CONFIG_HZ=250\n").unwrap();
        assert_eq!(find().config, Some(config));
    }
}
