//! Tells before a program starts whether the library can divide its loops, and why not: from the
//! executable and the libraries that it needs. Libraries that a program loads later, by name, cannot be
//! known from the file; whether a loop was begun is then seen in the page only.

use std::ffi::CString;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use goblin::elf::Elf;
use goblin::elf::header::ET_DYN;
use goblin::elf::sym::Symtab;
use goblin::strtab::Strtab;
use lddtree::DependencyAnalyzer;
use memmap2::Mmap;
use thiserror::Error;

/// What the entry points of static loops begin with.
const ENTRY_POINT: &str = "__kmpc_for_static_init_";

/// The OpenMP runtime of gcc, by the beginning of its file's name.
const GCC_RUNTIME: &str = "libgomp.so";

/// Whether the library can have an effect on a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outlook {
    /// This object (the executable or a library that it needs) begins static loops through LLVM's
    /// runtime.
    Applies(PathBuf),
    /// Neither the executable nor a library that it needs begins such loops; the runtime that it uses
    /// instead. Libraries that are loaded later may.
    Absent {
        /// For example `libgomp.so.1`.
        other_runtime: Option<String>,
    },
    /// The runtime is part of this object: its entry points cannot be replaced.
    StaticRuntime(PathBuf),
    /// The executable has no dynamic linker, so it has no preloaded libraries.
    StaticExecutable,
    /// The executable is for 32 bits or for another processor.
    OtherArchitecture,
    /// The executable changes its user, its group or its capabilities: the dynamic linker ignores
    /// preloaded libraries.
    ChangesPrivilege,
    /// A script: its interpreter decides what runs.
    Script,
    /// No executable that this program knows.
    Unknown,
}

/// Why nothing can be told.
#[derive(Debug, Error)]
#[error("cannot read {}: {source}", path.display())]
pub struct ReadError {
    path: PathBuf,
    source: io::Error,
}

/// What an object has of the entry points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Has {
    Import,
    Definition,
    Nothing,
}

/// Looks at an executable; `path` leads to the file itself.
pub fn inspect(path: &Path) -> Result<Outlook, ReadError> {
    let failed = |source| ReadError { path: path.to_owned(), source };
    let metadata = fs::metadata(path).map_err(failed)?;
    let bytes = map(path).map_err(failed)?;
    if bytes.starts_with(b"#!") {
        return Ok(Outlook::Script);
    }
    let Ok(elf) = Elf::parse(&bytes) else { return Ok(Outlook::Unknown) };
    Ok(look_at(path, &metadata, &elf))
}

fn look_at(path: &Path, metadata: &Metadata, elf: &Elf<'_>) -> Outlook {
    if !is_for_this_machine(elf) {
        return Outlook::OtherArchitecture;
    }
    if elf.interpreter.is_none() {
        return Outlook::StaticExecutable;
    }
    if changes_privilege(path, metadata) {
        return Outlook::ChangesPrivilege;
    }
    match entry_points(elf) {
        Has::Import => return Outlook::Applies(path.to_owned()),
        Has::Definition => return Outlook::StaticRuntime(path.to_owned()),
        Has::Nothing => {}
    }
    let mut other_runtime = None;
    for (name, library) in libraries(path) {
        if name.starts_with(GCC_RUNTIME) {
            other_runtime = Some(name);
        }
        let has =
            map(&library).ok().and_then(|bytes| Some(entry_points(&Elf::parse(&bytes).ok()?)));
        // The runtime itself defines the entry points, and does not call them.
        if has == Some(Has::Import) {
            return Outlook::Applies(library);
        }
    }
    Outlook::Absent { other_runtime }
}

fn map(path: &Path) -> io::Result<Mmap> {
    // SAFETY: the file may change while it is read, as any input may; the parser checks all bounds.
    unsafe { Mmap::map(&File::open(path)?) }
}

/// By comparison with this program's own file.
fn is_for_this_machine(elf: &Elf<'_>) -> bool {
    let own = map(Path::new("/proc/self/exe")).ok();
    let own = own.as_ref().and_then(|bytes| Elf::parse_header(bytes).ok());
    own.is_none_or(|own| {
        (own.e_machine, own.e_ident[4]) == (elf.header.e_machine, elf.header.e_ident[4])
    })
}

fn changes_privilege(path: &Path, metadata: &Metadata) -> bool {
    // SAFETY: the calls have no arguments.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let has = |bit: u32| metadata.mode() & bit != 0;
    has(libc::S_ISUID) && metadata.uid() != uid
        || has(libc::S_ISGID) && metadata.gid() != gid
        || uid != 0 && has_capabilities(path)
}

fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: both texts end with a zero byte; no buffer is given.
    let size = unsafe {
        libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0)
    };
    size > 0
}

fn entry_points(elf: &Elf<'_>) -> Has {
    let dynamic = entry_points_of(&elf.dynsyms, &elf.dynstrtab);
    // An executable with the runtime inside may not export it.
    let is_executable = elf.header.e_type != ET_DYN || elf.interpreter.is_some();
    if dynamic == Has::Nothing && is_executable {
        return entry_points_of(&elf.syms, &elf.strtab);
    }
    dynamic
}

fn entry_points_of(symbols: &Symtab<'_>, names: &Strtab<'_>) -> Has {
    let mut found = symbols.iter().filter(|symbol| {
        let name = names.get_at(symbol.st_name);
        name.is_some_and(|name| name.starts_with(ENTRY_POINT))
    });
    match found.next() {
        Some(symbol) if symbol.is_import() => Has::Import,
        Some(_) => Has::Definition,
        None => Has::Nothing,
    }
}

/// The libraries that an executable needs, directly or through others, as far as they are found.
fn libraries(path: &Path) -> Vec<(String, PathBuf)> {
    let Ok(tree) = DependencyAnalyzer::default().analyze(path) else { return Vec::new() };
    let found = tree.libraries.into_values().filter_map(|it| Some((it.name, it.realpath?)));
    let mut found: Vec<_> = found.collect();
    found.sort();
    found
}

impl std::fmt::Display for Outlook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Applies(object) => {
                write!(f, "{} begins static loops through LLVM's OpenMP runtime", object.display())
            }
            Self::Absent { other_runtime: Some(runtime) } => write!(
                f,
                "the program uses another OpenMP runtime ({runtime}): compile it with clang or flang, \
                 or try --threads"
            ),
            Self::Absent { other_runtime: None } => f.write_str(
                "neither the program nor a library that it needs begins static loops through LLVM's \
                 OpenMP runtime; libraries that it loads later may",
            ),
            Self::StaticRuntime(object) => {
                write!(f, "LLVM's OpenMP runtime is a static part of {}", object.display())
            }
            Self::StaticExecutable => f.write_str("the program is linked statically"),
            Self::OtherArchitecture => f.write_str("the program is for 32 bits or another processor"),
            Self::ChangesPrivilege => {
                f.write_str("the program changes its user, group or capabilities (set-uid)")
            }
            Self::Script => f.write_str("the program is a script: what it starts decides"),
            Self::Unknown => f.write_str("the file is no executable for Linux"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn outlook_of(name: &str, bytes: &[u8]) -> Outlook {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        inspect(&path).unwrap()
    }

    #[test]
    fn a_program_without_openmp_has_no_entry_points() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(inspect(&own).unwrap(), Outlook::Absent { other_runtime: None });
    }

    #[test]
    fn scripts_and_other_files_are_told() {
        assert_eq!(outlook_of("script", b"#!/bin/sh\n"), Outlook::Script);
        assert_eq!(outlook_of("text", b"text"), Outlook::Unknown);
        let own = fs::read("/proc/self/exe").unwrap();
        assert_eq!(outlook_of("cut", &own[..100]), Outlook::Unknown);
        let mut other = own.clone();
        // Another machine: e_machine of 0xfe.
        other[18] = 0xfe;
        assert_eq!(outlook_of("other", &other), Outlook::OtherArchitecture);
        // The header of an executable of 32 bits for x86, and nothing behind it.
        let mut small = [0; 52];
        small[..7].copy_from_slice(b"\x7fELF\x01\x01\x01");
        (small[16], small[18], small[20], small[40]) = (2, 3, 1, 52);
        assert_eq!(outlook_of("small", &small), Outlook::OtherArchitecture);
        let empty = outlook_of("empty", b"");
        assert_eq!(empty, Outlook::Unknown);
    }

    #[test]
    fn a_missing_file_is_an_error_that_names_it() {
        let error = inspect(Path::new("/nonexistent/program")).unwrap_err();
        assert!(error.to_string().starts_with("cannot read /nonexistent/program: "));
    }

    #[test]
    fn a_file_of_another_user_with_the_set_uid_bit_changes_privilege() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        fs::copy("/proc/self/exe", &path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
        // Its own user's bit changes nothing.
        assert_ne!(inspect(&path).unwrap(), Outlook::ChangesPrivilege);
        if std::os::unix::fs::chown(&path, Some(65534), None).is_ok() {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
            assert_eq!(inspect(&path).unwrap(), Outlook::ChangesPrivilege);
        }
    }
}
