//! Kernels in the cache. `scripts/kernel` fetches them.

use std::ffi::OsStr;
use std::path::PathBuf;

use crate::Error;
use crate::cache::cache;

/// A kernel that can be booted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// Its name in `tests/vm/kernels`: 6.18.
    pub name: String,
    /// The package that it came from, which names the exact build.
    pub package: String,
    /// Its compressed image.
    pub image: PathBuf,
    /// Its build configuration, named as in /boot. Not all packages have it.
    pub config: Option<PathBuf>,
}

impl Kernel {
    /// Looks a kernel up by its name.
    ///
    /// # Errors
    /// [`Error::NoKernel`] if it is not in the cache.
    pub fn find(name: &str) -> Result<Self, Error> {
        Self::find_in(cache(), name)
    }

    fn find_in(cache: PathBuf, name: &str) -> Result<Self, Error> {
        let dir = cache.join("kernels").join(name);
        let image = dir.join("vmlinuz");
        if !image.exists() {
            return Err(Error::NoKernel { name: name.to_owned(), cache: cache.join("kernels") });
        }
        // A kernel that was put there by hand may have no package.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_missing_kernel_names_it_and_its_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let error = Kernel::find_in(dir.path().to_owned(), "6.18").unwrap_err().to_string();
        assert!(error.contains("scripts/kernel 6.18"), "{error}");
    }

    #[test]
    fn a_kernel_is_found_with_or_without_package_and_config() {
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
