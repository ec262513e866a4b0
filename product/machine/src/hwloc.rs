//! Machines from hwloc's XML (`lstopo --of xml`), versions 2.x: the usual form in which descriptions of
//! machines are exchanged. CPUs, cores, caches, NUMA nodes with their memory and distances, and the
//! frequencies of the kinds of CPUs are read. hwloc has no other figure of speed, so CPUs without a
//! frequency are taken as equal.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use roxmltree::{Document, Node, ParsingOptions};

use crate::cpuset::{CpuSet, MAX_CPU};
use crate::error::Error;
use crate::machine::{LOCAL_DISTANCE, Machine, REMOTE_DISTANCE};
use crate::machine_file::{self, File, FileNode, Kind};
use crate::speed::CoreType;

/// The largest file that is read, in bytes: three times that of a machine with 8192 CPUs.
const MAX_BYTES: u64 = 16 << 20;
/// The largest number of XML elements that is read.
const MAX_ELEMENTS: u32 = 1 << 20;
const KHZ_PER_MHZ: u64 = 1000;

impl Machine {
    /// Reads hwloc's XML.
    ///
    /// # Errors
    ///
    /// [`Error::Read`], [`Error::Syntax`] (no XML, or not hwloc's of version 2) and [`Error::Rule`].
    pub fn from_hwloc(path: &Path) -> Result<Machine, Error> {
        let error = |source| Error::Read { path: path.to_owned(), source };
        let file = path.display().to_string();
        let bytes = fs::metadata(path).map_err(error)?.len();
        if bytes > MAX_BYTES {
            let message = format!("has {bytes} bytes: at most {MAX_BYTES} are read");
            return Err(Error::Syntax { file, message });
        }
        let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let text = fs::read_to_string(path).map_err(error)?;
        Self::parse_hwloc(&text, &name.unwrap_or_default(), &file)
    }

    /// Reads the text of such a file; `file` is what errors call it, `name` what the machine is called.
    ///
    /// # Errors
    ///
    /// [`Error::Syntax`] and [`Error::Rule`].
    pub fn parse_hwloc(text: &str, name: &str, file: &str) -> Result<Machine, Error> {
        let syntax = |message: String| Error::Syntax { file: file.to_owned(), message };
        let options = ParsingOptions {
            allow_dtd: true,
            nodes_limit: MAX_ELEMENTS,
            ..ParsingOptions::default()
        };
        let document = Document::parse_with_options(text, options).map_err(|why| {
            syntax(format!("no XML: {why}: expected what `lstopo --of xml` writes"))
        })?;
        let root = document.root_element();
        let version = root.attribute("version").unwrap_or("1");
        if root.tag_name().name() != "topology" || !version.starts_with("2.") {
            return Err(syntax(format!(
                "<{}> version {version}: expected <topology version=\"2.x\">, as `lstopo --of xml` \
                 writes it",
                root.tag_name().name()
            )));
        }
        let reader = Reader { root, file };
        machine_file::machine(file, reader.content(name)?)
    }
}

struct Reader<'a> {
    root: Node<'a, 'a>,
    file: &'a str,
}

impl<'a> Reader<'a> {
    fn wrong(&self, field: &str, rule: impl Into<String>) -> Error {
        Error::Rule { file: self.file.to_owned(), field: field.to_owned(), rule: rule.into() }
    }

    /// As `wrong`, with the line of the object.
    fn wrong_at(&self, object: Node, field: &str, rule: impl Into<String>) -> Error {
        let line = object.document().text_pos_at(object.range().start).row;
        let file = format!("{}:{line}", self.file);
        Error::Rule { file, field: field.to_owned(), rule: rule.into() }
    }

    /// All objects of a type.
    fn objects(&self, kind: &'static str) -> impl Iterator<Item = Node<'a, 'a>> {
        let objects = self.root.descendants().filter(|node| node.has_tag_name("object"));
        objects.filter(move |object| object.attribute("type") == Some(kind))
    }

    fn content(&self, name: &str) -> Result<File, Error> {
        let mut cpus = CpuSet::new();
        let mut cores: BTreeMap<usize, CpuSet> = BTreeMap::new();
        let mut caches: BTreeMap<usize, CpuSet> = BTreeMap::new();
        let mut l2s: BTreeMap<usize, CpuSet> = BTreeMap::new();
        for unit in self.objects("PU") {
            let cpu = self.number(unit, "PU", "os_index")?;
            if cpu > MAX_CPU {
                return Err(self.wrong("PU os_index", format!("{cpu} is above {}", MAX_CPU)));
            }
            cpus.insert(cpu);
            let kinds = || unit.ancestors().filter(|one| one.has_tag_name("object"));
            if let Some(core) = kinds().find(|one| one.attribute("type") == Some("Core")) {
                cores.entry(position(core)).or_default().insert(cpu);
            }
            // The outermost cache is the last level.
            if let Some(cache) = kinds().filter(is_cache).last() {
                caches.entry(position(cache)).or_default().insert(cpu);
            }
            if let Some(l2) = kinds().find(|one| one.attribute("type") == Some("L2Cache")) {
                l2s.entry(position(l2)).or_default().insert(cpu);
            }
        }
        if cpus.is_empty() {
            return Err(self.wrong("topology", "has no object of type PU: a machine needs a CPU"));
        }
        Ok(File {
            name: name.to_owned(),
            cores: cores.into_values().filter(|core| core.len() > 1).collect(),
            llcs: caches.into_values().collect(),
            l2s: l2s.into_values().collect(),
            kinds: self.kinds(&cpus)?,
            nodes: self.nodes(&cpus)?,
            ..File::default()
        })
    }

    fn kinds(&self, cpus: &CpuSet) -> Result<Vec<Kind>, Error> {
        let mut kinds = Vec::new();
        let mut rest = cpus.clone();
        for kind in self.root.children().filter(|node| node.has_tag_name("cpukind")) {
            let info = |name| {
                let of = |node: &Node| node.attribute("name") == Some(name);
                kind.children().find(of).and_then(|node| node.attribute("value"))
            };
            // A CPU without an object is offline. A CPU that an earlier kind has stays in that kind.
            let here = self.cpu_set(kind, "cpukind")?.intersection(&rest);
            rest = rest.difference(&here);
            if here.is_empty() {
                continue;
            }
            let mhz: Option<u64> = info("FrequencyMaxMHz").and_then(|mhz| mhz.parse().ok());
            kinds.push(Kind {
                cpus: here,
                max_freq_khz: mhz.and_then(|mhz| mhz.checked_mul(KHZ_PER_MHZ)),
                core_type: match info("CoreType") {
                    Some("IntelCore") => Some(CoreType::Performance),
                    Some("IntelAtom") => Some(CoreType::Efficient),
                    _ => None,
                },
                ..Kind::default()
            });
        }
        if !rest.is_empty() {
            kinds.push(Kind { cpus: rest, ..Kind::default() });
        }
        Ok(kinds)
    }

    fn nodes(&self, cpus: &CpuSet) -> Result<Vec<FileNode>, Error> {
        let mut nodes = Vec::new();
        let mut rest = cpus.clone();
        for node in self.objects("NUMANode") {
            // Where two kinds of memory are near the same CPUs, the CPUs belong to the first node.
            let here = self.cpu_set(node, "NUMANode")?.intersection(&rest);
            rest = rest.difference(&here);
            nodes.push(FileNode {
                id: self.number(node, "NUMANode", "os_index")?,
                cpus: here,
                memory_bytes: node.attribute("local_memory").and_then(|bytes| bytes.parse().ok()),
                distances: Vec::new(),
            });
        }
        if !rest.is_empty() && !nodes.is_empty() {
            return Err(self.wrong("NUMANode cpuset", format!("CPUs {rest} are in no node")));
        }
        nodes.sort_by_key(|node| node.id);
        let distances = self.distances()?;
        let ids: Vec<u32> = nodes.iter().map(|node| node.id).collect();
        for node in &mut nodes {
            let usual = |to: u32| if to == node.id { LOCAL_DISTANCE } else { REMOTE_DISTANCE };
            let to = |to: &u32| distances.get(&(node.id, *to)).copied().unwrap_or(usual(*to));
            node.distances = ids.iter().map(to).collect();
        }
        Ok(nodes)
    }

    /// The firmware's distances between nodes, by their numbers.
    fn distances(&self) -> Result<BTreeMap<(u32, u32), u32>, Error> {
        let is_latency = |node: &Node| {
            node.has_tag_name("distances2")
                && node.attribute("type") == Some("NUMANode")
                && node.attribute("name") == Some("NUMALatency")
        };
        let mut distances = BTreeMap::new();
        let Some(matrix) = self.root.children().find(is_latency) else { return Ok(distances) };
        let numbers = |tag: &'static str| -> Result<Vec<u32>, Error> {
            let parts = matrix.children().filter(|node| node.has_tag_name(tag));
            let words = parts.filter_map(|part| part.text()).flat_map(str::split_whitespace);
            words
                .map(|word| {
                    let rule = || format!("\"{word}\" is not a number of 32 bits");
                    word.parse().map_err(|_| self.wrong(&format!("distances2 {tag}"), rule()))
                })
                .collect()
        };
        let (nodes, values) = (numbers("indexes")?, numbers("u64values")?);
        if nodes.is_empty() || values.len() != nodes.len() * nodes.len() {
            let rule = format!(
                "{} values for {} nodes: expected one for each pair",
                values.len(),
                nodes.len()
            );
            return Err(self.wrong("distances2 u64values", rule));
        }
        for (from, row) in nodes.iter().zip(values.chunks(nodes.len())) {
            distances.extend(nodes.iter().zip(row).map(|(to, value)| ((*from, *to), *value)));
        }
        Ok(distances)
    }

    fn number(&self, object: Node, kind: &str, name: &str) -> Result<u32, Error> {
        let text = object.attribute(name).unwrap_or_default();
        let rule = || format!("\"{text}\" is not a number: expected the kernel's");
        text.parse().map_err(|_| self.wrong_at(object, &format!("{kind} {name}"), rule()))
    }

    /// The attribute `cpuset`: words of 32 bits, the highest first, like `0x0000000f,0xffffffff`.
    fn cpu_set(&self, object: Node, kind: &str) -> Result<CpuSet, Error> {
        const WORD_BITS: u32 = 32;
        const MAX_WORDS: usize = (MAX_CPU / WORD_BITS) as usize + 1;
        let text = object.attribute("cpuset").unwrap_or_default();
        let wrong = || {
            let rule =
                format!("\"{text}\" is not a mask: expected words like 0x0000000f,0xffffffff");
            self.wrong_at(object, &format!("{kind} cpuset"), rule)
        };
        let mut cpus = CpuSet::new();
        if text.is_empty() {
            return Ok(cpus);
        }
        for (at, word) in text.rsplit(',').enumerate() {
            let digits = word.strip_prefix("0x").unwrap_or(word);
            let bits = match u32::from_str_radix(digits, 16) {
                _ if digits.is_empty() => 0,
                Ok(bits) if at < MAX_WORDS => bits,
                _ => return Err(wrong()),
            };
            let first = at as u32 * WORD_BITS;
            for bit in (0..WORD_BITS).filter(|bit| bits & 1 << bit != 0) {
                cpus.insert(first + bit);
            }
        }
        Ok(cpus)
    }
}

/// Identifies an object: its position in the text.
fn position(object: Node) -> usize {
    object.range().start
}

/// Whether it is a data cache of level 2 or more. (Level 1 belongs to a core.)
fn is_cache(object: &Node) -> bool {
    matches!(object.attribute("type"), Some("L2Cache" | "L3Cache" | "L4Cache" | "L5Cache"))
}
