//! Files, programs and their libraries as a cpio archive that the kernel unpacks at boot.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use cpio::NewcBuilder;
use cpio::newc::{ModeFileType, trailer};
use lddtree::DependencyAnalyzer;

use crate::{Error, file};

/// This file shows the first process that it runs in a guest of this crate, not in a container.
pub(crate) const MARK: &str = "/evenkeel-vm";

/// Mount points, and directories that programs expect.
const DIRECTORIES: &[&str] =
    &["/dev", "/etc", "/proc", "/root", "/run", "/sys", "/tmp", "/var", "/usr", "/usr/bin"];

/// Device files that are needed before /dev is mounted: name, major and minor number.
const DEVICES: &[(&str, u32, u32)] = &[("/dev/console", 5, 1), ("/dev/null", 1, 3)];

#[derive(Debug, Clone, PartialEq)]
enum Entry {
    Directory,
    Device { major: u32, minor: u32 },
    Copy { of: PathBuf },
    Text(Vec<u8>),
}

/// The files in a guest.
#[derive(Debug, Clone)]
pub struct Initramfs {
    /// By absolute path in the guest. Sorted, so that a directory precedes its entries.
    entries: BTreeMap<PathBuf, Entry>,
}

impl Initramfs {
    /// With `init` as the program of the first process. It must call [`crate::serve`] when
    /// [`crate::is_init`] returns true.
    ///
    /// # Errors
    /// When its libraries cannot be found.
    pub fn new(init: &Path) -> Result<Self, Error> {
        let mut archive = Self { entries: BTreeMap::new() };
        for name in DIRECTORIES {
            archive.entries.insert(PathBuf::from(name), Entry::Directory);
        }
        for (name, major, minor) in DEVICES {
            let device = Entry::Device { major: *major, minor: *minor };
            archive.entries.insert(PathBuf::from(name), device);
        }
        archive.text(MARK, "");
        // For programs that look up their user, and for tests without privilege.
        archive
            .text("/etc/passwd", "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n");
        archive.text("/etc/group", "root:x:0:\nnogroup:x:65534:\n");
        archive.program_as(init, Path::new("/init"))?;
        Ok(archive)
    }

    /// Adds a program under its own path, with its libraries.
    ///
    /// # Errors
    /// When the libraries cannot be found.
    pub fn program(&mut self, path: &Path) -> Result<(), Error> {
        self.program_as(path, path)
    }

    /// Adds a program under another path, with its libraries.
    ///
    /// # Errors
    /// When the libraries cannot be found.
    pub fn program_as(&mut self, program: &Path, path: &Path) -> Result<(), Error> {
        let failed = |why: String| Error::Libraries { program: program.to_owned(), why };
        let tree = DependencyAnalyzer::default()
            .analyze(program)
            .map_err(|error| failed(error.to_string()))?;
        if let Some(interpreter) = tree.interpreter {
            self.copy(Path::new(&interpreter), Path::new(&interpreter));
        }
        for library in tree.libraries.values() {
            let found = library.realpath.as_ref();
            let found = found.ok_or_else(|| failed(format!("{} is missing", library.name)))?;
            self.copy(found, &library.path);
        }
        self.copy(program, path);
        Ok(())
    }

    /// Adds a file with this text.
    pub fn text(&mut self, path: &str, text: &str) {
        self.insert(Path::new(path), Entry::Text(text.into()));
    }

    /// Adds a file of the host under this path.
    pub(crate) fn copy(&mut self, of: &Path, path: &Path) {
        self.insert(path, Entry::Copy { of: of.to_owned() });
    }

    fn insert(&mut self, path: &Path, entry: Entry) {
        for parent in path.ancestors().skip(1).filter(|parent| parent.parent().is_some()) {
            self.entries.entry(parent.to_owned()).or_insert(Entry::Directory);
        }
        self.entries.insert(path.to_owned(), entry);
    }

    /// Writes the archive.
    ///
    /// # Errors
    /// When a file cannot be read, or the archive cannot be written.
    pub(crate) fn write(&self, path: &Path) -> Result<(), Error> {
        let archive = File::create(path).map_err(file("cannot write", path))?;
        let mut archive = BufWriter::new(archive);
        for (number, (name, entry)) in (1..).zip(&self.entries) {
            // The kernel expects names relative to the root.
            let name = name.strip_prefix("/").unwrap_or(name).to_string_lossy();
            let head = NewcBuilder::new(&name).ino(number).nlink(1);
            let nothing = |head: NewcBuilder, archive| head.write(archive, 0).finish();
            archive = match entry {
                Entry::Directory => {
                    nothing(head.mode(0o755).set_mode_file_type(ModeFileType::Directory), archive)
                        .map_err(file("cannot write", path))?
                }
                Entry::Device { major, minor } => nothing(
                    head.mode(0o666)
                        .set_mode_file_type(ModeFileType::Char)
                        .rdev_major(*major)
                        .rdev_minor(*minor),
                    archive,
                )
                .map_err(file("cannot write", path))?,
                Entry::Text(text) => regular(head, archive, 0o644, text, path)?,
                Entry::Copy { of } => {
                    let mode = of.metadata().map_err(file("cannot read", of))?;
                    let bytes = std::fs::read(of).map_err(file("cannot read", of))?;
                    regular(head, archive, mode.permissions().mode() & 0o777, &bytes, path)?
                }
            };
        }
        let mut archive = trailer(archive).map_err(file("cannot write", path))?;
        archive.flush().map_err(file("cannot write", path))
    }
}

fn regular<W: Write>(
    head: NewcBuilder,
    archive: W,
    mode: u32,
    bytes: &[u8],
    path: &Path,
) -> Result<W, Error> {
    let too_long = |_| file("cannot write", path)(std::io::ErrorKind::FileTooLarge.into());
    let length = u32::try_from(bytes.len()).map_err(too_long)?;
    let head = head.mode(mode).set_mode_file_type(ModeFileType::Regular);
    let mut entry = head.write(archive, length);
    entry.write_all(bytes).and_then(|()| entry.finish()).map_err(file("cannot write", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn names(archive: &Path) -> Vec<(String, u32, String)> {
        let mut from = File::open(archive).unwrap();
        let mut found = Vec::new();
        loop {
            let mut reader = cpio::NewcReader::new(from).unwrap();
            if reader.entry().is_trailer() {
                return found;
            }
            let mut text = Vec::new();
            reader.read_to_end(&mut text).unwrap();
            let entry = reader.entry();
            let text = String::from_utf8_lossy(&text).into_owned();
            found.push((entry.name().to_owned(), entry.mode(), text));
            from = reader.finish().unwrap();
        }
    }

    #[test]
    fn a_program_brings_its_libraries_and_their_directories() {
        let dir = tempfile::tempdir().unwrap();
        let own = std::env::current_exe().unwrap();
        let mut archive = Initramfs::new(&own).unwrap();
        archive.text("/some/where/note", "words");
        let path = dir.path().join("initramfs");
        archive.write(&path).unwrap();
        let names = names(&path);
        let place = |name: &str| names.iter().position(|(found, ..)| found == name);

        assert!(names.iter().any(|(name, ..)| name.contains("libc.so")), "{names:?}");
        assert!(names.iter().any(|(name, ..)| name.contains("ld-linux")), "no interpreter");
        let note = place("some/where/note").unwrap();
        assert_eq!(names[note].2, "words");
        assert!(place("some").unwrap() < place("some/where").unwrap());
        assert!(place("some/where").unwrap() < note);
        let (_, mode, _) = &names[place("init").unwrap()];
        assert_eq!(mode & 0o170111, 0o100111, "init is an executable file");
        let (_, mode, _) = &names[place("dev/console").unwrap()];
        assert_eq!(mode & 0o170000, 0o020000, "the console is a device");
    }

    #[test]
    fn the_error_of_a_missing_program_names_it() {
        let error = Initramfs::new(Path::new("/no/such/program")).unwrap_err().to_string();
        assert!(error.contains("/no/such/program"), "{error}");
    }
}
