//! Machine files: one readable TOML file that describes a machine, in both directions.
//!
//! CPUs are listed by ranges, and most fields have a default, so a machine with 128 CPUs stays short:
//!
//! ```toml
//! name = "example"
//! offline = "7"                # default: none
//! isolated = "6"               # default: none
//! speed = "given"              # where the capabilities come from; default "given"
//! cores = ["0,4", "1,5"]       # SMT siblings; a CPU not listed is alone in its core
//! llcs = ["0-1,4-5"]           # last-level caches; CPUs not listed share one with their node
//! l2s = ["0,4", "1,5"]         # level-2 caches, where they are known
//! kinds = [                    # every CPU in exactly one; without capability, from the figures
//!   { cpus = "0-1,4-7", capability = 1024, max_freq_khz = 3000000 },
//!   { cpus = "2-3", capability = 512, energy_per_work = 40 },
//! ]
//! nodes = [                    # default: one node with all CPUs
//!   { id = 0, cpus = "0-7", memory_bytes = 17179869184, distances = [10] },
//! ]
//! costs = { switch_ns = 1500 } # for simulations; default: those of `Costs`
//! ```

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::costs::Costs;
use crate::cpuset::CpuSet;
use crate::error::Error;
use crate::groups::Groups;
use crate::machine::{Cpu, LOCAL_DISTANCE, MAX_DISTANCE, Machine, Node};
use crate::speed::{CAPABILITY_SCALE, CoreType, SpeedOrigin, SpeedSource, SpeedSources};

/// The content of a file.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    pub name: String,
    #[serde(default)]
    pub offline: CpuSet,
    #[serde(default)]
    pub isolated: CpuSet,
    pub speed: Option<SpeedOrigin>,
    #[serde(default)]
    pub cores: Vec<CpuSet>,
    #[serde(default)]
    pub llcs: Vec<CpuSet>,
    #[serde(default)]
    pub l2s: Vec<CpuSet>,
    pub kinds: Vec<Kind>,
    #[serde(default)]
    pub nodes: Vec<FileNode>,
    #[serde(default)]
    pub costs: Costs,
}

/// CPUs with the same capability and figures.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Kind {
    pub cpus: CpuSet,
    pub capability: Option<u32>,
    pub cpu_capacity: Option<u32>,
    pub cppc_highest_perf: Option<u32>,
    pub max_freq_khz: Option<u64>,
    pub bogomips: Option<f64>,
    pub core_type: Option<CoreType>,
    pub energy_per_work: Option<u64>,
}

/// A NUMA node.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileNode {
    pub id: u32,
    pub cpus: CpuSet,
    pub memory_bytes: Option<u64>,
    pub distances: Vec<u32>,
}

impl Machine {
    /// Reads a machine file: the fields that [`Machine::to_toml`] writes, of which only `name` and
    /// `kinds` are needed (`src/machine_file.rs` begins with an example of all, and their defaults).
    ///
    /// # Errors
    ///
    /// [`Error::Read`], [`Error::Syntax`] (unknown fields included) and [`Error::Rule`].
    pub fn from_toml(path: &Path) -> Result<Machine, Error> {
        let text = fs::read_to_string(path)
            .map_err(|source| Error::Read { path: path.to_owned(), source })?;
        Self::parse_toml(&text, &path.display().to_string())
    }

    /// Reads the text of a machine file; `file` is what errors call it.
    ///
    /// # Errors
    ///
    /// [`Error::Syntax`] (unknown fields included) and [`Error::Rule`].
    pub fn parse_toml(text: &str, file: &str) -> Result<Machine, Error> {
        let content: File = toml::from_str(text).map_err(|error| Error::Syntax {
            file: file.to_owned(),
            message: error.to_string().trim_end().to_owned(),
        })?;
        machine(file, content)
    }

    /// The machine as a machine file; [`Machine::from_toml`] gives the same machine again.
    pub fn to_toml(&self) -> String {
        let mut text = format!("name = {}\n", toml::Value::String(self.name.clone()));
        let offline = self.present().difference(&self.online());
        for (field, cpus) in [("offline", offline), ("isolated", self.isolated())] {
            if !cpus.is_empty() {
                line(&mut text, format_args!("{field} = \"{cpus}\""));
            }
        }
        line(&mut text, format_args!("speed = \"{}\"", self.speed));
        let cores = self.groups(|cpu| cpu.core);
        list(&mut text, "cores", cores.values().filter(|cpus| cpus.len() > 1));
        let (llcs, nodes) = (self.groups(|cpu| cpu.llc), self.groups(|cpu| cpu.node));
        if !llcs.values().all(|llc| nodes.values().any(|node| node == llc)) {
            list(&mut text, "llcs", llcs.values());
        }
        let mut l2s: BTreeMap<u32, CpuSet> = BTreeMap::new();
        for (l2, cpu) in self.cpus.iter().filter_map(|cpu| Some((cpu.l2?, cpu.id))) {
            l2s.entry(l2).or_default().insert(cpu);
        }
        list(&mut text, "l2s", l2s.values());
        text.push_str("kinds = [\n");
        for (figures, cpus) in self.kinds() {
            line(&mut text, format_args!("  {{ cpus = \"{cpus}\", {figures} }},"));
        }
        text.push_str("]\nnodes = [\n");
        for Node { id, cpus, memory_bytes, distances } in &self.nodes {
            let memory =
                memory_bytes.map_or(String::new(), |bytes| format!("memory_bytes = {bytes}, "));
            line(
                &mut text,
                format_args!(
                    "  {{ id = {id}, cpus = \"{cpus}\", {memory}distances = {distances:?} }},"
                ),
            );
        }
        text.push_str("]\n");
        let differs = |name: &&&str| self.costs.get(name) != Costs::default().get(name);
        let costs: Vec<String> = Costs::NAMES
            .iter()
            .filter(differs)
            .filter_map(|name| Some(format!("{name} = {}", self.costs.get(name)?)))
            .collect();
        if !costs.is_empty() {
            line(&mut text, format_args!("costs = {{ {} }}", costs.join(", ")));
        }
        text
    }

    fn groups(&self, of: impl Fn(&Cpu) -> u32) -> BTreeMap<u32, CpuSet> {
        let mut groups: BTreeMap<u32, CpuSet> = BTreeMap::new();
        for cpu in &self.cpus {
            groups.entry(of(cpu)).or_default().insert(cpu.id);
        }
        groups
    }

    /// The CPUs by the text of their capability and figures, in the order of the first CPU of each.
    fn kinds(&self) -> Vec<(String, CpuSet)> {
        let mut kinds: Vec<(String, CpuSet)> = Vec::new();
        for cpu in &self.cpus {
            let SpeedSources {
                cpu_capacity,
                cppc_highest_perf,
                max_freq_khz,
                bogomips,
                core_type,
                energy_per_work,
            } = &cpu.sources;
            let core_type = core_type.map(|kind| match kind {
                CoreType::Performance => "\"performance\"",
                CoreType::Efficient => "\"efficient\"",
                CoreType::LowPower => "\"low-power\"",
            });
            let mut figures = format!("capability = {}", cpu.capability);
            for (field, value) in [
                ("cpu_capacity", cpu_capacity.map(|value| value.to_string())),
                ("cppc_highest_perf", cppc_highest_perf.map(|value| value.to_string())),
                ("max_freq_khz", max_freq_khz.map(|value| value.to_string())),
                // Debug keeps the point that makes it a TOML float, and all digits.
                ("bogomips", bogomips.map(|value| format!("{value:?}"))),
                ("core_type", core_type.map(str::to_owned)),
                ("energy_per_work", energy_per_work.map(|value| value.to_string())),
            ] {
                if let Some(value) = value {
                    let _ = write!(figures, ", {field} = {value}"); // writing to a String cannot fail
                }
            }
            match kinds.iter_mut().find(|(known, _)| *known == figures) {
                Some((_, cpus)) => cpus.insert(cpu.id),
                None => kinds.push((figures, [cpu.id].into_iter().collect())),
            }
        }
        kinds
    }
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    let _ = writeln!(text, "{line}"); // writing to a String cannot fail
}

/// An array of CPU lists, several to a line.
fn list<'a>(text: &mut String, field: &str, sets: impl Iterator<Item = &'a CpuSet>) {
    const WIDTH: usize = 96;
    let mut lines = vec![String::from(" ")];
    for set in sets {
        let item = format!(" \"{set}\",");
        match lines.last_mut() {
            Some(last) if last.len() + item.len() <= WIDTH => last.push_str(&item),
            _ => lines.push(format!(" {item}")),
        }
    }
    if lines.iter().any(|line| line != " ") {
        line(text, format_args!("{field} = [\n{}\n]", lines.join("\n")));
    }
}

/// The machine of a file, which errors call `file`.
///
/// # Errors
/// [`Error::Rule`].
pub(crate) fn machine(file: &str, content: File) -> Result<Machine, Error> {
    Reader { file, content }.machine()
}

/// Checks the rules of a file's content, and builds the machine.
struct Reader<'a> {
    file: &'a str,
    content: File,
}

impl Reader<'_> {
    fn wrong(&self, field: impl Into<String>, rule: impl Into<String>) -> Error {
        Error::Rule { file: self.file.to_owned(), field: field.into(), rule: rule.into() }
    }

    fn machine(&self) -> Result<Machine, Error> {
        let File { name, offline, isolated, speed, cores, llcs, l2s, kinds, nodes, costs } =
            &self.content;
        costs.check(self.file)?;
        let present = self.disjoint("kinds", kinds.iter().map(|kind| &kind.cpus), None)?;
        for (field, cpus) in [("offline", offline), ("isolated", isolated)] {
            self.known(field, cpus, &present)?;
        }
        if present.is_subset(offline) {
            return Err(self.wrong("kinds", "no CPU is online: a machine needs at least one"));
        }
        self.disjoint("cores", cores.iter(), Some(&present))?;
        self.disjoint("llcs", llcs.iter(), Some(&present))?;
        self.disjoint("l2s", l2s.iter(), Some(&present))?;
        let nodes = self.nodes(nodes, &present)?;

        let mut core_groups = Groups::alone(&present);
        cores.iter().for_each(|core| core_groups.join(core));
        let siblings = core_groups.members();
        let mut llc_groups = Groups::alone(&present);
        llcs.iter().for_each(|llc| llc_groups.join(llc));
        let listed: CpuSet = llcs.iter().flat_map(CpuSet::iter).collect();
        nodes.iter().for_each(|node| llc_groups.join(&node.cpus.difference(&listed)));
        for (at, core) in cores.iter().enumerate() {
            if core.iter().any(|cpu| llc_groups.of(cpu) != llc_groups.of(core_groups.of(cpu))) {
                return Err(self.wrong(
                    format!("cores[{at}]"),
                    format!("CPUs {core} do not share one last-level cache: list them in one llcs"),
                ));
            }
        }

        let kind_of = |cpu| kinds.iter().find(|kind| kind.cpus.contains(cpu));
        let cpus = present
            .iter()
            .map(|id| Cpu {
                id,
                online: !offline.contains(id),
                isolated: isolated.contains(id),
                core: core_groups.of(id),
                siblings: siblings.get(&core_groups.of(id)).cloned().unwrap_or_default(),
                llc: llc_groups.of(id),
                l2: l2s.iter().find(|l2| l2.contains(id)).and_then(|l2| l2.iter().next()),
                node: nodes.iter().find(|node| node.cpus.contains(id)).map_or(0, |node| node.id),
                capability: kind_of(id).and_then(|k| k.capability).unwrap_or(CAPABILITY_SCALE),
                sources: kind_of(id).map(sources).unwrap_or_default(),
            })
            .collect();
        let given = self.capability_given()?;
        let origin = speed.unwrap_or(SpeedOrigin::Given);
        let machine = Machine { name: name.clone(), speed: origin, cpus, nodes, costs: *costs };
        if !given {
            if speed.is_some() {
                return Err(self.wrong(
                    "speed",
                    "says where capabilities come from, but no kind has one: leave it out",
                ));
            }
            return machine.with_speed(&SpeedSource::Auto);
        }
        let fastest = machine.cpus.iter().filter(|cpu| cpu.online).map(|cpu| cpu.capability).max();
        if fastest != Some(CAPABILITY_SCALE) {
            return Err(self.wrong(
                "kinds",
                format!("the fastest online CPU needs capability {CAPABILITY_SCALE}: scale them"),
            ));
        }
        Ok(machine)
    }

    /// Whether the kinds have a capability: all or none.
    fn capability_given(&self) -> Result<bool, Error> {
        let kinds = &self.content.kinds;
        for (at, kind) in kinds.iter().enumerate() {
            let field = |name: &str| format!("kinds[{at}].{name}");
            match kind.capability {
                Some(capability) if !(1..=CAPABILITY_SCALE).contains(&capability) => {
                    return Err(self.wrong(
                        field("capability"),
                        format!("{capability} is outside of 1..={CAPABILITY_SCALE}"),
                    ));
                }
                None if kinds.iter().any(|kind| kind.capability.is_some()) => {
                    let rule = "is missing, but other kinds have one: give all or none";
                    return Err(self.wrong(field("capability"), rule));
                }
                _ => {}
            }
            let zero = [
                ("cpu_capacity", kind.cpu_capacity == Some(0)),
                ("cppc_highest_perf", kind.cppc_highest_perf == Some(0)),
                ("max_freq_khz", kind.max_freq_khz == Some(0)),
                ("bogomips", kind.bogomips.is_some_and(|f| !f.is_finite() || f <= 0.0)),
            ];
            if let Some((name, _)) = zero.into_iter().find(|(_, wrong)| *wrong) {
                return Err(self.wrong(field(name), "is not above 0: leave it out if unknown"));
            }
        }
        Ok(kinds.iter().all(|kind| kind.capability.is_some()))
    }

    fn nodes(&self, nodes: &[FileNode], present: &CpuSet) -> Result<Vec<Node>, Error> {
        if nodes.is_empty() {
            let (cpus, distances) = (present.clone(), vec![LOCAL_DISTANCE]);
            return Ok(vec![Node { id: 0, cpus, memory_bytes: None, distances }]);
        }
        let placed = self.disjoint("nodes", nodes.iter().map(|node| &node.cpus), Some(present))?;
        if placed != *present {
            let missing = present.difference(&placed);
            return Err(self.wrong("nodes", format!("CPUs {missing} are in no node: add them")));
        }
        for (at, node) in nodes.iter().enumerate() {
            let field = |name: &str| format!("nodes[{at}].{name}");
            if at.checked_sub(1).and_then(|at| nodes.get(at)).is_some_and(|n| n.id >= node.id) {
                let rule = format!("{} does not ascend: list nodes by id, each once", node.id);
                return Err(self.wrong(field("id"), rule));
            }
            let rule = if node.distances.len() != nodes.len() {
                format!("has {} of {} entries: give one a node", node.distances.len(), nodes.len())
            } else if node.distances.get(at) != Some(&LOCAL_DISTANCE) {
                format!("entry {at} is the node itself and must be {LOCAL_DISTANCE}")
            } else if let Some(wrong) =
                node.distances.iter().find(|d| !(LOCAL_DISTANCE..=MAX_DISTANCE).contains(d))
            {
                format!("{wrong} is outside of {LOCAL_DISTANCE}..={MAX_DISTANCE}")
            } else {
                continue;
            };
            return Err(self.wrong(field("distances"), rule));
        }
        Ok(nodes
            .iter()
            .map(|node| Node {
                id: node.id,
                cpus: node.cpus.clone(),
                memory_bytes: node.memory_bytes,
                distances: node.distances.clone(),
            })
            .collect())
    }

    /// The union of sets that must be within `present` and must not overlap. Only a node may be
    /// empty: it is memory without CPUs.
    fn disjoint<'s>(
        &self,
        field: &str,
        sets: impl Iterator<Item = &'s CpuSet>,
        present: Option<&CpuSet>,
    ) -> Result<CpuSet, Error> {
        let mut all = CpuSet::new();
        for (at, set) in sets.enumerate() {
            let field_at = format!("{field}[{at}]");
            if set.is_empty() && field != "nodes" {
                return Err(self.wrong(field_at, "names no CPU: leave it out"));
            }
            let twice = all.intersection(set);
            if !twice.is_empty() {
                let rule = format!("CPUs {twice} are in an earlier entry too: list each once");
                return Err(self.wrong(field_at, rule));
            }
            if let Some(present) = present {
                self.known(&field_at, set, present)?;
            }
            all = all.union(set);
        }
        Ok(all)
    }

    fn known(&self, field: &str, set: &CpuSet, present: &CpuSet) -> Result<(), Error> {
        let unknown = set.difference(present);
        if unknown.is_empty() {
            return Ok(());
        }
        Err(self.wrong(field, format!("CPUs {unknown} are not in kinds, which list all CPUs")))
    }
}

fn sources(kind: &Kind) -> SpeedSources {
    SpeedSources {
        cpu_capacity: kind.cpu_capacity,
        cppc_highest_perf: kind.cppc_highest_perf,
        max_freq_khz: kind.max_freq_khz,
        bogomips: kind.bogomips,
        core_type: kind.core_type,
        energy_per_work: kind.energy_per_work,
    }
}
