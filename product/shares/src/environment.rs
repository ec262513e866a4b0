//! How a program finds the library and the page: two variables of its environment.
//!
//! Both are inherited through shells and launchers (`sh -c`, `mpirun`), so that the program behind
//! them is reached. The first process that has LLVM's OpenMP runtime from its start is that program:
//! the library takes both variables out of that process' environment ([`without_library`]), so its own
//! children see the environment as it was. A program that loads the runtime later (Python) is not
//! recognised in time; its children inherit the variables, and their loops are divided as well.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Names the page.
pub const PAGE_VARIABLE: &str = "EVENKEEL_SHARES";

/// The dynamic linker's list of libraries to load first.
pub const PRELOAD_VARIABLE: &str = "LD_PRELOAD";

/// The library's file name.
pub const LIBRARY: &str = "libevenkeel_shares.so";

/// The longest path of a page, with the zero byte at its end.
const PATH_BYTES: usize = 48;

/// Where the library lies for an executable: beside it (as cargo builds them), or in `../lib/evenkeel`
/// (as they are installed).
pub fn find_library(executable: &Path) -> Option<PathBuf> {
    let folder = executable.parent()?;
    let installed = folder.parent().map(|prefix| prefix.join("lib/evenkeel"));
    let folders = [Some(folder.to_owned()), installed];
    folders.into_iter().flatten().map(|folder| folder.join(LIBRARY)).find(|path| path.is_file())
}

/// The value of `LD_PRELOAD` that adds the library. It comes last: sanitizers must come first, and other
/// tools of the OpenMP runtime keep their turn. Nothing where the path cannot stand in that list.
pub fn with_library(present: Option<&OsStr>, library: &Path) -> Option<OsString> {
    let library = library.as_os_str();
    if library.is_empty()
        || library.as_bytes().iter().any(|byte| is_separator(*byte) || *byte == b'$')
    {
        return None;
    }
    let mut list = present.unwrap_or_default().to_owned();
    if !list.is_empty() {
        list.push(":");
    }
    list.push(library);
    Some(list)
}

/// The value of `LD_PRELOAD` without the library; nothing where none else is in it. The entries that
/// stay, and what separates them, stay as they are.
pub fn without_library(list: &OsStr) -> Option<OsString> {
    let is_library = |entry: &[u8]| {
        let name = entry.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        name == LIBRARY.as_bytes()
    };
    let mut rest: Vec<u8> = Vec::new();
    // With its separator, each entry begins where the last one ended.
    for entry in list.as_bytes().split_inclusive(|byte| is_separator(*byte)) {
        let name = entry.strip_suffix(b":").or(entry.strip_suffix(b" ")).unwrap_or(entry);
        if !is_library(name) {
            rest.extend_from_slice(entry);
        } else if name.len() == entry.len() && rest.last().is_some_and(|byte| is_separator(*byte)) {
            // The library was the last entry: so the separator before it goes, too.
            rest.pop();
        }
    }
    (!rest.is_empty()).then(|| OsString::from_vec(rest))
}

fn is_separator(byte: u8) -> bool {
    byte == b':' || byte == b' '
}

/// The value of the page's variable: where it lies, and its token.
pub(crate) fn page_address(pid: u32, fd: i32, token: u64) -> String {
    format!("/proc/{pid}/fd/{fd}:{token:016x}")
}

/// The inverse of `page_address`: the path, ended by zero bytes, and the token. Called inside of foreign
/// programs: does not allocate or panic.
pub(crate) fn parse_address(value: &[u8]) -> Option<([u8; PATH_BYTES], u64)> {
    let colon = value.iter().rposition(|byte| *byte == b':')?;
    let (path, token) = value.split_at_checked(colon)?;
    let token = token.strip_prefix(b":")?;
    let middle = path.strip_prefix(b"/proc/")?;
    if token.len() != 16
        || !middle.iter().all(|byte| byte.is_ascii_digit() || b"/fd".contains(byte))
    {
        return None;
    }
    let token = u64::from_str_radix(std::str::from_utf8(token).ok()?, 16).ok()?;
    if path.len() >= PATH_BYTES {
        return None;
    }
    let mut buffer = [0; PATH_BYTES];
    buffer.iter_mut().zip(path).for_each(|(to, from)| *to = *from);
    Some((buffer, token))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "/usr/lib/evenkeel/libevenkeel_shares.so";

    fn added(present: Option<&str>) -> Option<OsString> {
        with_library(present.map(OsStr::new), Path::new(PATH))
    }

    #[test]
    fn the_library_lies_beside_the_executable_or_is_installed() {
        let prefix = tempfile::tempdir().unwrap();
        let (bin, lib) = (prefix.path().join("bin"), prefix.path().join("lib/evenkeel"));
        let executable = bin.join("evenkeel");
        assert_eq!(find_library(&executable), None);
        for folder in [lib, bin] {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(LIBRARY), "").unwrap();
            assert_eq!(find_library(&executable), Some(folder.join(LIBRARY)));
        }
    }

    #[test]
    fn the_library_is_added_last_and_taken_out_again() {
        for present in ["/a.so", "/a.so:/b.so", "/a.so /b.so", "a.so::b.so"] {
            let list = added(Some(present)).unwrap();
            assert_eq!(list, OsString::from(format!("{present}:{PATH}")));
            assert_eq!(without_library(&list), Some(OsString::from(present)));
        }
        for absent in [None, Some("")] {
            let list = added(absent).unwrap();
            assert_eq!(list, PATH);
            assert_eq!(without_library(&list), None);
        }
    }

    #[test]
    fn the_library_is_found_wherever_it_stands() {
        let rest =
            |list: &str| without_library(OsStr::new(list)).map(|list| list.into_string().unwrap());
        let library = LIBRARY;
        assert_eq!(rest(&format!("{library}:/b.so")).as_deref(), Some("/b.so"));
        assert_eq!(rest(&format!("/a.so:/x/{library}:/b.so")).as_deref(), Some("/a.so:/b.so"));
        assert_eq!(
            rest(&format!("/a.so:/x/{library}.old")),
            Some(format!("/a.so:/x/{library}.old"))
        );
        assert_eq!(rest("/a.so"), Some("/a.so".into()));
    }

    #[test]
    fn a_path_that_the_dynamic_linker_would_split_is_refused() {
        for path in ["/my programs/lib.so", "/a:b.so", "/$ORIGIN/lib.so", ""] {
            assert_eq!(with_library(None, Path::new(path)), None, "{path}");
        }
    }

    #[test]
    fn an_address_is_read_as_it_was_written() {
        let value = page_address(4_194_304, i32::MAX, u64::MAX - 1);
        let (path, token) = parse_address(value.as_bytes()).unwrap();
        let end = path.iter().position(|byte| *byte == 0).unwrap();
        assert_eq!(&path[..end], b"/proc/4194304/fd/2147483647");
        assert_eq!(token, u64::MAX - 1);
    }

    #[test]
    fn other_texts_are_no_addresses() {
        let long = format!("/proc/{}/fd/1:0123456789abcdef", "1".repeat(60));
        for value in [
            "",
            ":",
            "/proc/1/fd/2",
            "/proc/1/fd/2:12",
            "/proc/1/fd/2:0123456789abcdeg",
            "/dev/1:0123456789abcdef",
            "/proc/../etc:0123456789abcdef",
            "/proc/self/fd/2:0123456789abcdef",
            "/proc/1/fd/2:0123456789abcde\u{e9}",
            &long,
        ] {
            assert!(parse_address(value.as_bytes()).is_none(), "{value}");
        }
    }
}
