//! The text in which the threads of a process wait for each other: that of the synchronisation runtimes
//! that it has mapped, by the names of their files, and by symbols where a runtime is part of the
//! executable or only a few functions of a library wait.
//!
//! Work never lies in the text of these runtimes; a little of what does is no waiting, though: the
//! bookkeeping of dynamic schedules, of tasks and of messages counts as waiting, too.

use std::collections::{BTreeSet, HashMap};
use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;

use evenkeel_control::{Lock, read_in_time};
use object::{Object, ObjectSegment, ObjectSymbol, SymbolKind};

use crate::foreign_file::{self, Bounded};
use crate::layout::MAX_WAIT_RANGES;

/// What a runtime is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// OpenMP by gcc.
    GccOpenMp,
    /// OpenMP by LLVM, or by Intel, whose runtime was its origin.
    LlvmOpenMp,
    /// MPI, and what its libraries communicate by.
    Mpi,
}

/// Files of which all text waits. The name goes on with a version or a variant, not with a letter.
const FILES: &[(&str, Family)] = &[
    ("libgomp", Family::GccOpenMp),
    ("libomp", Family::LlvmOpenMp),
    ("libiomp5", Family::LlvmOpenMp),
    ("libmpi", Family::Mpi),
    ("libmpich", Family::Mpi),
    ("libmpifort", Family::Mpi),
    ("libopen-pal", Family::Mpi),
    ("libopen-rte", Family::Mpi),
    ("libucp", Family::Mpi),
    ("libuct", Family::Mpi),
    ("libucs", Family::Mpi),
    ("libfabric", Family::Mpi),
    ("libpsm2", Family::Mpi),
    // Open MPI's plug-ins; the name goes on with letters.
    ("mca_", Family::Mpi),
];

/// Files with functions that wait, and these functions.
const LIBC: &[&str] = &["libc", "libpthread", "ld-musl"];
const LIBC_FUNCTIONS: &[&str] =
    &["sched_yield", "pthread_spin_lock", "pthread_barrier_wait", "__nptl_barrier_wait"];

/// Runtimes that may be linked into the executable: a function that tells that one is there, and how the
/// names of its functions begin.
const STATIC: &[(&str, Family, &[&str])] = &[
    ("GOMP_parallel", Family::GccOpenMp, &["GOMP_", "gomp_"]),
    ("__kmpc_fork_call", Family::LlvmOpenMp, &["__kmp", "kmp_"]),
    (
        "MPI_Init",
        Family::Mpi,
        &["MPI_", "PMPI_", "MPIR_", "MPID_", "MPIDI_", "MPIDU_", "MPL_", "MPIC_"],
    ),
    ("ompi_mpi_init", Family::Mpi, &["ompi_", "opal_", "mca_", "PMPI_"]),
    ("ucp_worker_progress", Family::Mpi, &["ucp_", "uct_", "ucs_"]),
];

/// What the kernel adds to the name of a file that has been removed.
const DELETED: &str = " (deleted)";
/// What was found is kept for so many files: those that all programs of a machine wait in are far fewer.
const MAX_FILES: usize = 1024;

/// Where a process waits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Text {
    /// Its ranges of addresses, ascending; at most [`MAX_WAIT_RANGES`].
    pub ranges: Vec<Range<u64>>,
    /// The runtimes by which its threads wait: files, and functions that tell of them. Empty: none that
    /// is known, so waiting that spins cannot be told from work.
    pub runtimes: Vec<String>,
}

impl Text {
    /// What the runtimes are for; those that only the user knows have no family.
    pub fn families(&self) -> BTreeSet<Family> {
        self.runtimes.iter().filter_map(|runtime| family_of(runtime)).collect()
    }
}

/// Of a runtime as [`Text::runtimes`] names it.
fn family_of(runtime: &str) -> Option<Family> {
    let file = FILES.iter().find(|(name, _)| begins_with(runtime, name)).map(|file| file.1);
    file.or_else(|| STATIC.iter().find(|(tells, ..)| *tells == runtime).map(|function| function.1))
}

/// Finds the text in which processes wait.
#[derive(Debug, Default)]
pub struct Runtimes {
    extra: Vec<String>,
    /// What was found in the files with symbols; and whether they were read as an executable.
    read: HashMap<(FileId, bool), Found>,
}

/// Tells a file from all others, also from one that took its place or its inode.
#[derive(Debug, PartialEq, Eq, Hash)]
struct FileId {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

/// Waiting functions in a file.
#[derive(Debug, Clone, Default)]
struct Found {
    /// Ranges of offsets in the file, at most [`MAX_WAIT_RANGES`].
    offsets: Vec<Range<u64>>,
    runtimes: Vec<String>,
}

/// An executable mapping of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mapping {
    addresses: Range<u64>,
    offset: u64,
    path: String,
    /// Another file may have this name now.
    is_deleted: bool,
}

impl Runtimes {
    /// Knows the usual runtimes and `extra`: names of files (with `.so` in them, or an executable's
    /// whole path) and of functions.
    pub fn new(extra: &[String]) -> Self {
        Self { extra: extra.to_vec(), read: HashMap::new() }
    }

    /// Finds where process `tgid` waits, by what it has mapped now.
    ///
    /// # Errors
    /// The process has ended, or its memory map may not be read. `TimedOut`: it cannot be read in time.
    pub fn find(&mut self, tgid: u32) -> io::Result<Text> {
        let (maps, executable) = in_time(tgid, move || {
            let maps = std::fs::read_to_string(format!("/proc/{tgid}/maps"));
            (maps, std::fs::read_link(format!("/proc/{tgid}/exe")))
        })?;
        let maps = maps?;
        let executable = executable.unwrap_or_default().to_string_lossy().into_owned();
        let executable = executable.trim_end_matches(DELETED);
        let mut text = Text::default();
        for mapping in maps.lines().filter_map(Mapping::parse) {
            let file = mapping.file();
            if self.is_named(file, &mapping.path) {
                text.runtimes.push(file.to_owned());
                text.ranges.push(mapping.addresses);
                continue;
            }
            let is_libc = LIBC.iter().any(|name| begins_with(file, name));
            let mut functions: Vec<&str> =
                if is_libc { LIBC_FUNCTIONS.to_vec() } else { Vec::new() };
            functions.extend(self.extra.iter().map(String::as_str));
            let is_executable = mapping.path == executable;
            if functions.is_empty() && !is_executable {
                continue;
            }
            // A library that is gone, or is no ELF file, has no functions that are known.
            let path = match (is_executable, mapping.is_deleted) {
                (true, _) => format!("/proc/{tgid}/exe"),
                // As the process sees it: it may have another root.
                (false, false) => format!("/proc/{tgid}/root{}", mapping.path),
                (false, true) => continue,
            };
            let Ok(file) = in_time(tgid, move || foreign_file::open(&path))? else { continue };
            let Ok(metadata) = file.metadata() else { continue };
            if self.read.len() >= MAX_FILES {
                self.read.clear();
            }
            let id = (FileId::of(&metadata), is_executable);
            let found = self.read.entry(id).or_insert_with(|| {
                read_functions(file, &functions, is_executable).unwrap_or_default()
            });
            text.runtimes.extend(found.runtimes.iter().cloned());
            text.ranges.extend(found.offsets.iter().filter_map(|range| mapping.place(range)));
        }
        text.runtimes.sort();
        text.runtimes.dedup();
        text.ranges = widest(merge(text.ranges));
        Ok(text)
    }

    fn is_named(&self, file: &str, path: &str) -> bool {
        FILES.iter().any(|(name, _)| begins_with(file, name))
            || self.extra.iter().any(|name| name == path || name == file)
    }
}

/// What `read` reads of a process.
fn in_time<T: Send + 'static>(
    tgid: u32,
    read: impl Fn() -> T + Send + Sync + 'static,
) -> io::Result<T> {
    read_in_time(Lock::Memory, tgid as i32, read)
        .map_err(|why| io::Error::new(io::ErrorKind::TimedOut, why))
}

impl FileId {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

impl Mapping {
    /// A line of /proc/PID/maps, if it is text of a file.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let is_text = words.next()?.as_bytes().get(2) == Some(&b'x');
        let hexadecimal = |text| u64::from_str_radix(text, 16).ok();
        let addresses = hexadecimal(start)?..hexadecimal(end)?;
        let offset = hexadecimal(words.next()?)?;
        let path = words.nth(2)?.trim_start();
        let mapping = Self {
            addresses,
            offset,
            path: path.trim_end_matches(DELETED).to_owned(),
            is_deleted: path.ends_with(DELETED),
        };
        (is_text && mapping.path.starts_with('/')).then_some(mapping)
    }

    fn file(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// The addresses of a range of offsets in the file, as far as it is mapped here.
    fn place(&self, offsets: &Range<u64>) -> Option<Range<u64>> {
        let length = self.addresses.end - self.addresses.start;
        let start = offsets.start.max(self.offset);
        let end = offsets.end.min(self.offset.checked_add(length)?);
        let address = |offset: u64| self.addresses.start + (offset - self.offset);
        (start < end).then(|| address(start)..address(end))
    }
}

/// Whether a file's name is `name`, with a version or a variant after it.
fn begins_with(file: &str, name: &str) -> bool {
    let rest = file.strip_prefix(name);
    rest.is_some_and(|rest| {
        name.ends_with('_') || !rest.starts_with(|next: char| next.is_ascii_alphabetic())
    })
}

/// The functions of a file that wait: those in `functions`, and in an executable those of the runtimes
/// that are part of it. `None` if the file cannot be read, or has more symbols than may be kept.
fn read_functions(file: File, functions: &[&str], is_executable: bool) -> Option<Found> {
    let bounded = Bounded::new(file);
    let file = object::File::parse(&bounded).ok()?;
    let mut symbols: Vec<(Range<u64>, &str)> = file
        .symbols()
        .chain(file.dynamic_symbols())
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition())
        .filter_map(|symbol| {
            let start = symbol.address();
            Some((start..start.checked_add(symbol.size())?, symbol.name().ok()?))
        })
        .collect();
    symbols.sort_unstable_by_key(|(addresses, _)| addresses.start);
    let has = |function: &str| symbols.iter().any(|(_, name)| *name == function);
    let linked: Vec<_> = STATIC.iter().filter(|(tells, ..)| is_executable && has(tells)).collect();
    let waits = |name: &str| {
        functions.contains(&name)
            || linked.iter().any(|(_, _, prefixes)| {
                prefixes.iter().any(|prefix| name.starts_with(prefix) || is_mangled(name, prefix))
            })
    };
    let segments: Vec<_> =
        file.segments().map(|segment| (segment.address(), segment.file_range())).collect();
    let offset_of = |address: u64| {
        segments.iter().find_map(|(start, (offset, size))| {
            let into = address.checked_sub(*start)?;
            (into < *size).then(|| offset + into)
        })
    };
    let offsets = runs(&symbols, waits).into_iter().filter_map(|addresses| {
        let start = offset_of(addresses.start)?;
        Some(start..start + (addresses.end - addresses.start))
    });
    let named = functions.iter().filter(|name| !LIBC_FUNCTIONS.contains(name) && has(name));
    Some(Found {
        offsets: widest(offsets.collect()),
        runtimes: linked
            .iter()
            .map(|(tells, ..)| *tells)
            .chain(named.copied())
            .map(str::to_owned)
            .collect(),
    })
}

/// Whether a C++ name has `prefix` in it: most of LLVM's OpenMP runtime is C++.
fn is_mangled(name: &str, prefix: &str) -> bool {
    name.starts_with("_Z") && prefix.starts_with("__kmp") && name.contains(prefix)
}

/// The functions for which `waits` holds; those that follow each other without another function in
/// between become one range. `symbols` ascend by address, and several may name one function.
fn runs(symbols: &[(Range<u64>, &str)], waits: impl Fn(&str) -> bool) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    let mut goes_on = false;
    for aliases in symbols.chunk_by(|(one, _), (other, _)| one.start == other.start) {
        let start = aliases.first().map_or(0, |(addresses, _)| addresses.start);
        let end = aliases.iter().map(|(addresses, _)| addresses.end).max().unwrap_or(start);
        let is_waiting = aliases.iter().any(|(_, name)| waits(name));
        match runs.last_mut() {
            Some(last) if is_waiting && goes_on => last.end = end.max(last.end),
            _ if is_waiting => runs.push(start..end),
            _ => {}
        }
        goes_on = is_waiting;
    }
    runs.retain(|run| !run.is_empty());
    runs
}

/// The same addresses in ascending ranges that do not touch.
fn merge(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// The widest ranges, as many as a process may have.
fn widest(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| std::cmp::Reverse(range.end - range.start));
    ranges.truncate(MAX_WAIT_RANGES);
    ranges.sort_unstable_by_key(|range| range.start);
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_text_of_files_counts() {
        let mapping = Mapping::parse(
            "7f00000a1000-7f00000b2000 r-xp 00001000 08:01 1234                       /usr/lib/a b.so",
        );
        let mapping = mapping.unwrap();
        assert_eq!(mapping.addresses, 0x7f00_000a_1000..0x7f00_000b_2000);
        assert_eq!((mapping.offset, mapping.file(), mapping.is_deleted), (0x1000, "a b.so", false));
        let gone = Mapping::parse("1000-2000 r-xp 00000000 08:01 7 /usr/lib/libgomp.so (deleted)");
        let gone = gone.unwrap();
        assert_eq!((gone.file(), gone.is_deleted), ("libgomp.so", true));
        for other in [
            "1000-2000 r--p 00000000 08:01 7 /usr/lib/libgomp.so",
            "1000-2000 r-xp 00000000 00:00 0 [vdso]",
            "1000-2000 r-xp 00000000 00:00 0 ",
            "1000-2000 rwxp 00000000 00:00 0",
            "",
            "x",
        ] {
            assert_eq!(Mapping::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_name_goes_on_with_a_version() {
        let known = |file| FILES.iter().any(|(name, _)| begins_with(file, name));
        for file in [
            "libgomp.so.1.0.0",
            "libgomp-a34b3233.so.1",
            "libomp.so.5",
            "libiomp5.so",
            "libmpi_mpifh.so.40",
            "libuct_ib.so.0",
            "mca_btl_vader.so",
        ] {
            assert!(known(file), "{file}");
        }
        for file in ["libgompx.so", "libompitrace.so", "libc.so.6", "libm.so.6", "mylibgomp.so"] {
            assert!(!known(file), "{file}");
        }
    }

    #[test]
    fn runtimes_have_families() {
        for (runtime, family) in [
            ("libgomp.so.1.0.0", Some(Family::GccOpenMp)),
            ("GOMP_parallel", Some(Family::GccOpenMp)),
            ("libomp.so.5", Some(Family::LlvmOpenMp)),
            ("libiomp5.so", Some(Family::LlvmOpenMp)),
            ("__kmpc_fork_call", Some(Family::LlvmOpenMp)),
            ("libmpi.so.40", Some(Family::Mpi)),
            ("ompi_mpi_init", Some(Family::Mpi)),
            ("libmyspin.so", None),
            ("my_barrier", None),
        ] {
            assert_eq!(family_of(runtime), family, "{runtime}");
        }
    }

    #[test]
    fn functions_in_a_row_are_one_range_and_no_other_function_is_in_it() {
        let symbols = [
            (0..8, "main"),
            (16..20, "gomp_a"),
            (16..24, "gomp_a_alias"),
            (32..40, "gomp_b"),
            (40..41, "work"),
            (48..50, "gomp_c"),
            (64..64, "gomp_empty"),
            (80..90, "work_too"),
        ];
        let found = runs(&symbols, |name| name.starts_with("gomp_"));
        assert_eq!(found, [16..40, 48..64]);
    }

    #[test]
    fn offsets_become_addresses_where_they_are_mapped() {
        let line = "5000-7000 r-xp 00001000 08:01 7 /bin/x";
        let mapping = Mapping::parse(line).unwrap();
        assert_eq!(mapping.place(&(0x1100..0x1200)), Some(0x5100..0x5200));
        assert_eq!(mapping.place(&(0x800..0x1010)), Some(0x5000..0x5010));
        assert_eq!(mapping.place(&(0x2ff0..0x9000)), Some(0x6ff0..0x7000));
        assert_eq!(mapping.place(&(0x3000..0x3010)), None);
    }

    #[test]
    fn the_widest_ranges_stay() {
        let ranges = (0..40u64).map(|at| at * 100..at * 100 + at + 1).collect();
        let kept = widest(merge(ranges));
        assert_eq!(kept.len(), MAX_WAIT_RANGES);
        assert_eq!((kept[0].clone(), kept[15].clone()), (2400..2425, 3900..3940));
        assert_eq!(merge(vec![5..7, 1..3, 2..5, 9..10]), [1..7, 9..10]);
    }
}
