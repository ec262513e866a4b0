//! Reads a machine from a sysfs under any root directory: the live one, or a dump of another
//! machine.
//!
//! A file that is missing or cannot be read only means that nothing is known (old kernels, virtual
//! machines, containers, CPUs that are offline); a file that holds what the kernel never writes is
//! an error, because going on would put tasks in wrong places.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::costs::Costs;
use crate::cpuset::{CpuSet, MAX_CPU};
use crate::error::Error;
use crate::groups::Groups;
use crate::machine::{Cpu, LOCAL_DISTANCE, MAX_DISTANCE, Machine, Node, REMOTE_DISTANCE};
use crate::speed::{CAPABILITY_SCALE, CoreType, SpeedOrigin, SpeedSource, SpeedSources};

impl Machine {
    /// Reads `root`/sys/devices/system/{cpu,node} and `root`/proc/{cpuinfo,meminfo}; the live
    /// machine has the root `/`. Capabilities come from [`SpeedSource::Auto`].
    ///
    /// Where nothing is known: a CPU is online, alone in its core, shares its last-level cache with
    /// its package (else with its node), and is in the first node that has CPUs; nodes are
    /// [`REMOTE_DISTANCE`] apart.
    ///
    /// # Errors
    ///
    /// [`Error::NoCpus`] if no CPU is online there, [`Error::Malformed`] for a file that holds what
    /// the kernel never writes.
    pub fn from_sysfs(root: &Path) -> Result<Machine, Error> {
        Sysfs { root }.machine()
    }
}

struct Sysfs<'a> {
    root: &'a Path,
}

impl Sysfs<'_> {
    fn machine(&self) -> Result<Machine, Error> {
        let present = self.present()?;
        let online = self.online(&present)?;
        if online.is_empty() {
            return Err(Error::NoCpus { path: self.root.to_owned() });
        }
        let isolated = self.isolated()?;
        let nodes = self.nodes(&present)?;
        let mut cores = Groups::alone(&present);
        for cpu in present.iter() {
            if let Some(siblings) = self.topology(cpu, &["core_cpus", "thread_siblings"])? {
                cores.join(&siblings);
            }
        }
        let siblings = cores.members();
        let mut llcs = Groups::alone(&present);
        siblings.values().for_each(|core| llcs.join(core));
        // An offline CPU has neither caches nor topology: a guess must not drag others together.
        let mut l2s = BTreeMap::new();
        for cpu in online.iter() {
            let caches = self.caches(cpu)?;
            l2s.extend(caches.get(&2).map(|shared| (cpu, shared.clone())));
            llcs.join(&self.llc(cpu, caches, &nodes, &online)?);
        }
        let known: CpuSet = l2s.keys().copied().collect();
        let mut l2_groups = Groups::alone(&known);
        l2s.values().for_each(|shared| l2_groups.join(shared));
        let mut sources = self.sources(&present)?;
        let node_of = |cpu| nodes.iter().find(|node| node.cpus.contains(cpu)).map_or(0, |n| n.id);
        let cpus = present
            .iter()
            .map(|id| Cpu {
                id,
                online: online.contains(id),
                isolated: isolated.contains(id),
                core: cores.of(id),
                siblings: siblings.get(&cores.of(id)).cloned().unwrap_or_default(),
                llc: llcs.of(id),
                l2: known.contains(id).then(|| l2_groups.of(id)),
                node: node_of(id),
                capability: CAPABILITY_SCALE,
                sources: sources.remove(&id).unwrap_or_default(),
            })
            .collect();
        let name = self.root.file_name().map_or("host".into(), |name| name.to_string_lossy());
        Machine {
            name: name.into_owned(),
            speed: SpeedOrigin::Equal,
            cpus,
            nodes,
            costs: Costs::default(),
        }
        .with_speed(&SpeedSource::Auto)
    }

    fn present(&self) -> Result<CpuSet, Error> {
        if let Some(present) = self.cpu_list("sys/devices/system/cpu/present")? {
            return Ok(present);
        }
        // Before 2.6.29 there was no such file.
        Ok(self.numbered("sys/devices/system/cpu", "cpu").into_iter().collect())
    }

    fn online(&self, present: &CpuSet) -> Result<CpuSet, Error> {
        if let Some(online) = self.cpu_list("sys/devices/system/cpu/online")? {
            return Ok(online.intersection(present));
        }
        let mut online = present.clone();
        for cpu in present.iter() {
            // CPU 0 often cannot be unplugged and then has no such file.
            if self.number(&format!("sys/devices/system/cpu/cpu{cpu}/online"))? == Some(0) {
                online.remove(cpu);
            }
        }
        Ok(online)
    }

    fn isolated(&self) -> Result<CpuSet, Error> {
        let path = "sys/devices/system/cpu/isolated";
        // Kernels before 5.3 print a null pointer when there are none.
        if self.read(path).is_some_and(|content| content.starts_with("(null)")) {
            return Ok(CpuSet::new());
        }
        Ok(self.cpu_list(path)?.unwrap_or_default())
    }

    /// The first of the named sets that cpuN/topology has, as list (newer) or mask.
    fn topology(&self, cpu: u32, names: &[&str]) -> Result<Option<CpuSet>, Error> {
        for name in names {
            let path = format!("sys/devices/system/cpu/cpu{cpu}/topology/{name}");
            // The lists are called thread_siblings_list, core_cpus_list, package_cpus_list.
            if let Some(set) = self.cpu_list(&format!("{path}_list"))? {
                return Ok(Some(set));
            }
            if let Some(set) = self.cpu_mask(&path)? {
                return Ok(Some(set));
            }
        }
        Ok(None)
    }

    /// By cache level, the CPUs that share the data cache of that level with `cpu`, itself included.
    fn caches(&self, cpu: u32) -> Result<BTreeMap<u64, CpuSet>, Error> {
        let directory = format!("sys/devices/system/cpu/cpu{cpu}/cache");
        let mut caches = BTreeMap::new();
        for index in self.numbered(&directory, "index") {
            let cache = format!("{directory}/index{index}");
            let holds_data = match self.read(&format!("{cache}/type")) {
                Some(kind) => kind == "Unified" || kind == "Data",
                None => true,
            };
            let Some(level) = self.number(&format!("{cache}/level"))? else { continue };
            if !holds_data || caches.contains_key(&level) {
                continue;
            }
            let shared = match self.cpu_list(&format!("{cache}/shared_cpu_list"))? {
                Some(shared) => Some(shared),
                None => self.cpu_mask(&format!("{cache}/shared_cpu_map"))?,
            };
            if let Some(shared) = shared {
                // Some virtual machines leave the map empty.
                caches.insert(level, shared.union(&[cpu].into_iter().collect()));
            }
        }
        Ok(caches)
    }

    /// The CPUs that share the last-level cache with `cpu`.
    fn llc(
        &self,
        cpu: u32,
        mut caches: BTreeMap<u64, CpuSet>,
        nodes: &[Node],
        online: &CpuSet,
    ) -> Result<CpuSet, Error> {
        if let Some((_, shared)) = caches.pop_last() {
            return Ok(shared);
        }
        // A last-level cache larger than a node would be unusual: the node bounds the guess.
        let node = nodes.iter().find(|node| node.cpus.contains(cpu));
        let node = node.map_or_else(|| online.clone(), |node| node.cpus.intersection(online));
        let package = self.topology(cpu, &["package_cpus", "core_siblings"])?;
        Ok(package.map_or_else(|| node.clone(), |package| package.intersection(&node)))
    }

    fn nodes(&self, present: &CpuSet) -> Result<Vec<Node>, Error> {
        let directory = "sys/devices/system/node";
        let ids = self.numbered(directory, "node");
        if ids.is_empty() {
            let memory_bytes = self.memory("proc/meminfo")?;
            let (cpus, distances) = (present.clone(), vec![LOCAL_DISTANCE]);
            return Ok(vec![Node { id: 0, cpus, memory_bytes, distances }]);
        }
        let mut nodes = Vec::new();
        let mut unplaced = present.clone();
        for &id in &ids {
            let path = format!("{directory}/node{id}");
            let cpus = match self.cpu_list(&format!("{path}/cpulist"))? {
                Some(cpus) => cpus,
                None => self.cpu_mask(&format!("{path}/cpumap"))?.unwrap_or_default(),
            };
            // Some kernels list possible CPUs that are not present; and each CPU counts once.
            let cpus = cpus.intersection(&unplaced);
            unplaced = unplaced.difference(&cpus);
            let memory_bytes = self.memory(&format!("{path}/meminfo"))?;
            nodes.push(Node { id, cpus, memory_bytes, distances: self.distances(&path)? });
        }
        // No node lists offline CPUs, or CPUs of an offline node.
        let first = nodes.iter().position(|node| !node.cpus.is_empty()).unwrap_or(0);
        if let Some(node) = nodes.get_mut(first) {
            node.cpus = node.cpus.union(&unplaced);
        }
        // Firmware can be wrong: like the kernel, drop the whole table if a row is impossible.
        if !nodes.iter().enumerate().all(|(at, node)| is_valid_row(&node.distances, at, ids.len()))
        {
            for (at, node) in nodes.iter_mut().enumerate() {
                node.distances = vec![REMOTE_DISTANCE; ids.len()];
                node.distances[at] = LOCAL_DISTANCE;
            }
        }
        Ok(nodes)
    }

    fn distances(&self, node: &str) -> Result<Vec<u32>, Error> {
        let path = format!("{node}/distance");
        let Some(row) = self.read(&path) else { return Ok(Vec::new()) };
        row.split_whitespace()
            .map(|distance| distance.parse().ok())
            .collect::<Option<Vec<u32>>>()
            .ok_or_else(|| {
                Error::malformed(self.root.join(path), &row, "a row of distances like 10 20")
            })
    }

    /// `MemTotal` of a meminfo in bytes.
    fn memory(&self, path: &str) -> Result<Option<u64>, Error> {
        let Some(meminfo) = self.read(path) else { return Ok(None) };
        let Some(line) = meminfo.lines().find(|line| line.contains("MemTotal:")) else {
            return Ok(None);
        };
        let mut words = line.split_whitespace().skip_while(|word| *word != "MemTotal:").skip(1);
        let bytes = words.next().and_then(|kib| kib.parse::<u64>().ok()?.checked_mul(1024));
        match bytes {
            Some(bytes) if words.next() == Some("kB") => Ok(Some(bytes)),
            _ => Err(Error::malformed(self.root.join(path), line, "like MemTotal: 1024 kB")),
        }
    }

    fn sources(&self, present: &CpuSet) -> Result<BTreeMap<u32, SpeedSources>, Error> {
        let cpuinfo = self.read("proc/cpuinfo").unwrap_or_default();
        let bogomips = bogomips(&cpuinfo);
        let kinds = [
            (CoreType::Performance, self.cpu_list("sys/devices/cpu_core/cpus")?),
            (CoreType::Efficient, self.cpu_list("sys/devices/cpu_atom/cpus")?),
            (CoreType::LowPower, self.cpu_list("sys/devices/cpu_lowpower/cpus")?),
        ];
        // On AMD and Hygon, highest_perf is not a speed: with preferred cores it is a rank (166,
        // 171, ... 255) that tells equal cores apart and would make a symmetric machine look up to
        // a third asymmetric. So it is not even read.
        let is_rank = cpuinfo.contains("AuthenticAMD")
            || cpuinfo.contains("HygonGenuine")
            || self.root.join("sys/devices/system/cpu/amd_pstate").is_dir();
        let energy = self.energy()?;
        let mut sources = BTreeMap::new();
        for cpu in present.iter() {
            let directory = format!("sys/devices/system/cpu/cpu{cpu}");
            let cpu_capacity = self.number_32(&format!("{directory}/cpu_capacity"))?;
            let core_type = kinds
                .iter()
                .find(|(_, cpus)| cpus.as_ref().is_some_and(|cpus| cpus.contains(cpu)))
                .map(|(kind, _)| *kind);
            let highest_perf = match is_rank {
                true => None,
                false => self.number_32(&format!("{directory}/acpi_cppc/highest_perf"))?,
            };
            sources.insert(
                cpu,
                SpeedSources {
                    cpu_capacity,
                    cppc_highest_perf: highest_perf,
                    max_freq_khz: self
                        .number(&format!("{directory}/cpufreq/cpuinfo_max_freq"))?
                        .filter(|khz| *khz > 0),
                    bogomips: bogomips.get(&cpu).copied(),
                    core_type,
                    energy_per_work: energy
                        .get(&cpu)
                        .and_then(|state| state.per_work(cpu_capacity)),
                },
            );
        }
        Ok(sources)
    }

    /// The fastest state of each CPU in the kernel's energy model (kernel doc power/energy-model, which
    /// debugfs shows to root); empty where there is none.
    fn energy(&self) -> Result<BTreeMap<u32, FastestState>, Error> {
        const MODEL: &str = "sys/kernel/debug/energy_model";
        let mut energy = BTreeMap::new();
        for domain in self.entries(MODEL) {
            let domain = format!("{MODEL}/{domain}");
            // A device that is no CPU has no list of CPUs.
            let Some(cpus) = self.cpu_list(&format!("{domain}/cpus"))? else { continue };
            let khz = |name: &String| name.strip_prefix("ps:")?.parse::<u64>().ok();
            let states = self.entries(&domain).into_iter();
            let Some(fastest) = states.filter(|name| khz(name).is_some()).max_by_key(khz) else {
                continue;
            };
            let figure = |name: &str| self.number(&format!("{domain}/{fastest}/{name}"));
            let state = FastestState {
                cost: figure("cost")?,
                has_performance: figure("performance")?.is_some(),
            };
            energy.extend(cpus.iter().map(|cpu| (cpu, state)));
        }
        Ok(energy)
    }

    /// The names of the entries of a directory, in order.
    fn entries(&self, directory: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root.join(directory)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_unstable();
        names
    }

    /// A number of 32 bits; zero means that the firmware does not know.
    fn number_32(&self, path: &str) -> Result<Option<u32>, Error> {
        let Some(value) = self.number(path)?.filter(|value| *value > 0) else { return Ok(None) };
        u32::try_from(value).map(Some).map_err(|_| {
            let found = value.to_string();
            Error::malformed(self.root.join(path), &found, "a number below 2^32")
        })
    }

    fn number(&self, path: &str) -> Result<Option<u64>, Error> {
        let Some(content) = self.read(path).filter(|content| !content.is_empty()) else {
            return Ok(None);
        };
        match content.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(Error::malformed(self.root.join(path), &content, "a number")),
        }
    }

    fn cpu_list(&self, path: &str) -> Result<Option<CpuSet>, Error> {
        let Some(content) = self.read(path) else { return Ok(None) };
        match content.parse() {
            Ok(cpus) => Ok(Some(cpus)),
            Err(_) => {
                Err(Error::malformed(self.root.join(path), &content, "a CPU list like 0-3,8"))
            }
        }
    }

    fn cpu_mask(&self, path: &str) -> Result<Option<CpuSet>, Error> {
        let Some(content) = self.read(path).filter(|content| !content.is_empty()) else {
            return Ok(None);
        };
        match parse_mask(&content) {
            Some(cpus) => Ok(Some(cpus)),
            None => {
                let rule = "a CPU mask like 00000001,ffffffff";
                Err(Error::malformed(self.root.join(path), &content, rule))
            }
        }
    }

    /// The numbers N of the entries `prefix`N of a directory, ascending.
    fn numbered(&self, directory: &str, prefix: &str) -> Vec<u32> {
        let Ok(entries) = fs::read_dir(self.root.join(directory)) else { return Vec::new() };
        let mut numbers: Vec<u32> = entries
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name();
                let digits = name.to_str()?.strip_prefix(prefix)?;
                // "+1" would parse, and "01" would name another directory again.
                let number: u32 = digits.parse().ok()?;
                (number <= MAX_CPU && number.to_string() == digits).then_some(number)
            })
            .collect();
        numbers.sort_unstable();
        numbers
    }

    /// The content of a file without the white space (and the NUL of some old kernels) around it.
    fn read(&self, path: &str) -> Option<String> {
        let path: PathBuf = self.root.join(path);
        // Every failure counts as absence: besides a missing file, attributes answer with ENODEV,
        // ENXIO, EBUSY or EPERM for offline CPUs, missing firmware and in containers.
        let bytes = fs::read(path).ok()?;
        let content = String::from_utf8_lossy(&bytes);
        Some(content.trim_matches(|c: char| c.is_whitespace() || c == '\0').to_owned())
    }
}

/// The fastest state of a CPU, as the energy model has it.
#[derive(Clone, Copy)]
struct FastestState {
    /// `cost`: what the kernel itself compares when it places a task.
    cost: Option<u64>,
    /// It has `performance`, as newer kernels do.
    has_performance: bool,
}

impl FastestState {
    /// The cost of a unit of work. With `performance` the kernel has put the CPU's capacity into the
    /// cost; without, the cost is that of the whole CPU, and is shared by all that it can do.
    fn per_work(self, cpu_capacity: Option<u32>) -> Option<u64> {
        let cost = self.cost.filter(|cost| *cost > 0)?;
        if self.has_performance {
            return Some(cost);
        }
        let scale = u64::from(CAPABILITY_SCALE);
        Some(
            cost.saturating_mul(scale) / u64::from(cpu_capacity.unwrap_or(CAPABILITY_SCALE).max(1)),
        )
    }
}

fn is_valid_row(distances: &[u32], at: usize, nodes: usize) -> bool {
    distances.len() == nodes
        && distances.get(at) == Some(&LOCAL_DISTANCE)
        && distances.iter().all(|distance| (LOCAL_DISTANCE..=MAX_DISTANCE).contains(distance))
}

/// Comma-separated 32-bit words in hexadecimal, the highest CPUs first.
fn parse_mask(mask: &str) -> Option<CpuSet> {
    let mut cpus = CpuSet::new();
    for (word_index, word) in mask.split(',').rev().enumerate() {
        if word.len() > 8 || !word.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let word = u32::from_str_radix(word, 16).ok()?;
        for bit in (0..32).filter(|bit| word & (1 << bit) != 0) {
            let cpu = u32::try_from(word_index).ok()?.checked_mul(32)?.checked_add(bit)?;
            if cpu > MAX_CPU {
                return None;
            }
            cpus.insert(cpu);
        }
    }
    Some(cpus)
}

/// The bogomips of each CPU in /proc/cpuinfo. Its layout differs between architectures, so a line
/// that does not fit is skipped and never an error.
fn bogomips(cpuinfo: &str) -> BTreeMap<u32, f64> {
    let mut figures = BTreeMap::new();
    let mut cpu = None;
    for line in cpuinfo.lines() {
        let Some((key, value)) = line.split_once(':') else { continue };
        let (key, value) = (key.trim(), value.trim());
        if key == "processor" {
            cpu = value.parse::<u32>().ok();
        } else if key.eq_ignore_ascii_case("bogomips")
            && let (Some(cpu), Ok(figure)) = (cpu, value.parse::<f64>())
            && figure.is_finite()
            && figure > 0.0
        {
            figures.insert(cpu, figure);
        }
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_mask_is_parsed_or_refused() {
        assert_eq!(parse_mask("f"), Some(CpuSet::first(4)));
        assert_eq!(parse_mask("0001,00000002").unwrap().to_string(), "1,32");
        assert_eq!(parse_mask("00000000,00000000"), Some(CpuSet::new()));
        for wrong in ["", "g", "123456789", "1,,2", "+1", "0x1"] {
            assert_eq!(parse_mask(wrong), None, "{wrong}");
        }
        let beyond = format!("1{}", ",00000000".repeat(256));
        assert_eq!(parse_mask(&beyond), None);
    }

    #[test]
    fn bogomips_are_read_on_several_architectures() {
        let x86 = "processor\t: 0\nbogomips\t: 5387.00\n\nprocessor\t: 1\nbogomips\t: 0.00\n";
        assert_eq!(bogomips(x86), [(0, 5387.0)].into_iter().collect());
        let arm = "Processor\t: ARMv7 rev 4\nprocessor\t: 2\nBogoMIPS\t: 38.40\n";
        assert_eq!(bogomips(arm), [(2, 38.4)].into_iter().collect());
        assert!(bogomips("bogomips per cpu: 3033.00\nprocessor 0: version = FF\n").is_empty());
    }
}
