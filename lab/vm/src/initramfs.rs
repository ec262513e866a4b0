//! Files, programs and their libraries as a cpio archive that the guest's kernel unpacks at boot. The
//! guest's first process is a program of this crate's user, or systemd, which starts that program as a
//! service.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use cpio::NewcBuilder;
use cpio::newc::{ModeFileType, trailer};
use lddtree::DependencyAnalyzer;

use crate::cache::cache;
use crate::{Error, file};

/// By this file, the first process knows that it runs in a guest of this crate, not in a container.
pub(crate) const MARK: &str = "/evenkeel-vm";

/// Mount points, and directories that programs expect.
const DIRECTORIES: &[&str] =
    &["/dev", "/etc", "/proc", "/root", "/run", "/sys", "/tmp", "/var", "/usr", "/usr/bin"];

/// systemd in the root file system that `scripts/systemd` fetches.
const SYSTEMD: &str = "/usr/lib/systemd/systemd";
/// All that systemd starts by itself: the program that serves the host. Units of tests are started by
/// tests.
const SERVICE: (&str, &str) = (
    "/etc/systemd/system/evenkeel-vm.service",
    "[Unit]\nDescription=Serves the host\n\n[Service]\nExecStart=/init\n\
     Environment=EVENKEEL_VM_SERVICE=1\nStandardOutput=journal+console\n\
     StandardError=journal+console\nTasksMax=infinity\n",
);
const TARGET: (&str, &str) = (
    "/etc/systemd/system/default.target",
    "[Unit]\nDescription=The guest\nRequires=basic.target evenkeel-vm.service\nAfter=basic.target\n",
);

/// Device files that are needed before /dev is mounted: name, major and minor number.
const DEVICES: &[(&str, u32, u32)] = &[("/dev/console", 5, 1), ("/dev/null", 1, 3)];

#[derive(Debug, Clone, PartialEq)]
enum Entry {
    Directory,
    Device { major: u32, minor: u32 },
    Copy { of: PathBuf },
    Link { to: PathBuf },
    Text(Vec<u8>),
}

/// The files in a guest.
#[derive(Debug, Clone)]
pub struct Initramfs {
    /// By absolute path in the guest. Sorted, so that a directory precedes its entries.
    entries: BTreeMap<PathBuf, Entry>,
    /// The program of the first process.
    first: PathBuf,
}

impl Initramfs {
    /// With `init` as the program of the first process. It must call [`crate::serve`] when
    /// [`crate::is_init`] returns true.
    ///
    /// # Errors
    /// When its libraries cannot be found.
    pub fn new(init: &Path) -> Result<Self, Error> {
        let empty = Self { entries: BTreeMap::new(), first: PathBuf::from("/init") };
        empty.fill(init)
    }

    /// With systemd as the first process, from the root file system that `scripts/systemd` has fetched.
    /// It starts `init` as a service, which must call [`crate::serve`] when [`crate::is_init`] returns
    /// true.
    ///
    /// # Errors
    /// There is no such root file system, or it cannot be read, or the libraries of `init` cannot be
    /// found.
    pub fn with_systemd(init: &Path) -> Result<Self, Error> {
        let root = cache().join("systemd");
        if !root.exists() {
            return Err(Error::NoSystemd { root });
        }
        let mut archive = Self { entries: BTreeMap::new(), first: PathBuf::from(SYSTEMD) };
        archive.tree(&root, Path::new("/"))?;
        archive = archive.fill(init)?;
        // An empty machine-id: systemd makes one for each boot.
        for (path, text) in [SERVICE, TARGET, ("/etc/machine-id", "")] {
            archive.text(path, text);
        }
        Ok(archive)
    }

    /// Adds what every guest has.
    fn fill(mut self, init: &Path) -> Result<Self, Error> {
        let archive = &mut self;
        for name in DIRECTORIES {
            archive.insert(Path::new(name), Entry::Directory);
        }
        for (name, major, minor) in DEVICES {
            let device = Entry::Device { major: *major, minor: *minor };
            archive.insert(Path::new(name), device);
        }
        archive.text(MARK, "");
        // For programs that look up their user, and for tests without privilege.
        archive
            .text("/etc/passwd", "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n");
        archive.text("/etc/group", "root:x:0:\nnogroup:x:65534:\n");
        archive.program_as(init, Path::new("/init"))?;
        Ok(self)
    }

    /// The program of the first process.
    pub(crate) fn first(&self) -> &Path {
        &self.first
    }

    /// Adds all that is below directory `of` of the host, below `path` in the guest.
    fn tree(&mut self, of: &Path, path: &Path) -> Result<(), Error> {
        for entry in std::fs::read_dir(of).map_err(file("cannot read", of))? {
            let entry = entry.map_err(file("cannot read", of))?;
            let (from, to) = (entry.path(), path.join(entry.file_name()));
            let kind = entry.file_type().map_err(file("cannot read", &from))?;
            if kind.is_symlink() {
                let link = std::fs::read_link(&from).map_err(file("cannot read", &from))?;
                self.insert(&to, Entry::Link { to: link });
            } else if kind.is_dir() {
                self.insert(&to, Entry::Directory);
                self.tree(&from, &to)?;
            } else {
                self.copy(&from, &to);
            }
        }
        Ok(())
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

    /// Adds file `of` of the host as `path` in the guest.
    pub fn copy(&mut self, of: &Path, path: &Path) {
        self.insert(path, Entry::Copy { of: of.to_owned() });
    }

    fn insert(&mut self, path: &Path, entry: Entry) {
        let path = self.resolve(path);
        for parent in path.ancestors().skip(1).filter(|parent| parent.parent().is_some()) {
            self.entries.entry(parent.to_owned()).or_insert(Entry::Directory);
        }
        match (self.entries.get(&path), &entry) {
            (Some(Entry::Link { .. }), Entry::Directory) => {}
            _ => drop(self.entries.insert(path, entry)),
        }
    }

    /// The same path without the links of a root that keeps `/lib` and others below `/usr`: what such a
    /// link leads to comes later in the archive than the link.
    fn resolve(&self, path: &Path) -> PathBuf {
        let links = path.ancestors().skip(1).filter_map(|above| match self.entries.get(above) {
            Some(Entry::Link { to }) => Some((above, to)),
            _ => None,
        });
        links.last().map_or_else(
            || path.to_owned(),
            |(above, to)| {
                let rest = path.strip_prefix(above).unwrap_or(path);
                above.parent().unwrap_or(above).join(to).join(rest)
            },
        )
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
                Entry::Link { to } => {
                    let target = to.as_os_str().as_encoded_bytes();
                    let kind = ModeFileType::Symlink;
                    with_content(head.mode(0o777).set_mode_file_type(kind), archive, target, path)?
                }
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
    let head = head.mode(mode).set_mode_file_type(ModeFileType::Regular);
    with_content(head, archive, bytes, path)
}

/// An entry with these bytes; those of a link are the path that it leads to.
fn with_content<W: Write>(
    head: NewcBuilder,
    archive: W,
    bytes: &[u8],
    path: &Path,
) -> Result<W, Error> {
    let too_long = |_| file("cannot write", path)(std::io::ErrorKind::FileTooLarge.into());
    let length = u32::try_from(bytes.len()).map_err(too_long)?;
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
    fn a_root_with_links_is_copied_and_added_to() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("usr/lib")).unwrap();
        std::fs::write(root.join("usr/lib/one"), "1").unwrap();
        std::os::unix::fs::symlink("usr/lib", root.join("lib")).unwrap();
        let first = PathBuf::from("/init");
        let mut archive = Initramfs { entries: BTreeMap::new(), first };
        archive.tree(&root, Path::new("/")).unwrap();
        archive.text("/lib/new/two", "2");
        let path = dir.path().join("initramfs");
        archive.write(&path).unwrap();
        let found = names(&path);
        let names: Vec<_> = found.iter().map(|(name, _, text)| (&name[..], &text[..])).collect();
        let links = [("lib", "usr/lib"), ("usr", ""), ("usr/lib", ""), ("usr/lib/new", "")];
        let files = [("usr/lib/new/two", "2"), ("usr/lib/one", "1")];
        assert_eq!(names, [&links[..], &files[..]].concat());
        assert_eq!(found[0].1 & 0o170000, 0o120000, "no link");
    }

    #[test]
    fn the_error_of_a_missing_program_names_it() {
        let error = Initramfs::new(Path::new("/no/such/program")).unwrap_err().to_string();
        assert!(error.contains("/no/such/program"), "{error}");
    }
}
