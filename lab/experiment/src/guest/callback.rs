//! What a scheduler's callbacks cost, call by call: lab/bpf/callback.bpf.c around each of them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result};
use bytemuck::{Pod, Zeroable, try_pod_read_unaligned};
use libbpf_rs::btf::types::{Composite, Func, MemberAttr};
use libbpf_rs::btf::{Btf, TypeId};
use libbpf_rs::query::{MapInfoIter, ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{
    Link, MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder, Program, ProgramInput,
};

/// lab/bpf/callback.bpf.c, compiled by build.rs.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/callback.bpf.o"));

/// Its program that does nothing.
const NOTHING: &str = "nothing";
/// How often that is called to learn what measuring takes.
const EMPTY_CALLS: usize = 100;

/// The kernel's table of a scheduler's callbacks.
const OPS: &str = "sched_ext_ops";

/// How often the list of maps is looked through, and what lies between.
const LOOKS: usize = 20;
const LOOK: Duration = Duration::from_millis(10);

/// `LENGTHS` and `LENGTH_STEP_NS` of lab/bpf/callback.h.
const LENGTHS: usize = 512;
const LENGTH_STEP_NS: u64 = 20;

/// `struct callback` of it.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Calls {
    begun_ns: u64,
    calls: u64,
    total_ns: u64,
    interrupted: u64,
    by_length: [u32; LENGTHS],
}

/// What a callback's calls took on all CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cost {
    /// Calls that were measured.
    pub calls: u64,
    /// What these took together, in ns.
    pub total_ns: u64,
    /// Calls during which the emulator executed another CPU: not among the others.
    pub interrupted: u64,
    /// How many of those that were measured took so many steps.
    by_length: [u64; LENGTHS],
}

impl Default for Cost {
    fn default() -> Self {
        Self { calls: 0, total_ns: 0, interrupted: 0, by_length: [0; LENGTHS] }
    }
}

impl Cost {
    /// What one call takes on the average, in ns; `None` if there was none.
    pub fn each_ns(&self) -> Option<f64> {
        (self.calls > 0).then(|| self.total_ns as f64 / self.calls as f64)
    }

    /// What all calls take, in ns; measuring itself has added so much to each. Interrupted calls
    /// are as long as others: the emulator has interrupted them.
    pub fn all_ns(&self, own_ns: f64) -> f64 {
        let each = self.each_ns().map_or(0.0, |each| (each - own_ns).max(0.0));
        each * (self.calls + self.interrupted) as f64
    }

    /// What half of the calls take at most, in ns, to about 20; `None` if there was none.
    pub fn median_ns(&self) -> Option<f64> {
        let mut longer = self.calls.div_ceil(2);
        let steps = self.by_length.iter().position(|calls| {
            let is_there = longer <= *calls;
            longer = longer.saturating_sub(*calls);
            is_there && *calls > 0
        })?;
        Some((steps as f64 + 0.5) * LENGTH_STEP_NS as f64)
    }

    /// The sum of the squares of what each call took, in ns^2; measuring added so much to each.
    pub fn squares_ns2(&self, own_ns: f64) -> f64 {
        let length = |steps: usize| (steps as f64 + 0.5) * LENGTH_STEP_NS as f64 - own_ns;
        let square = |(steps, calls): (usize, &u64)| *calls as f64 * length(steps).max(0.0).powi(2);
        self.by_length.iter().enumerate().map(square).sum()
    }

    fn add(&mut self, calls: &Calls) {
        self.calls += calls.calls;
        self.total_ns += calls.total_ns;
        self.interrupted += calls.interrupted;
        for (all, here) in self.by_length.iter_mut().zip(calls.by_length) {
            *all += u64::from(here);
        }
    }
}

/// Measures one callback as long as it lives.
pub struct Stopwatch {
    object: Object,
    _links: Vec<Link>,
}

impl Stopwatch {
    /// Around this callback (`dispatch`) of the scheduler that is loaded; `None` if it has none.
    ///
    /// # Errors
    /// No scheduler is loaded, or the kernel refuses to show it.
    pub fn around(callback: &str) -> Result<Option<Self>> {
        let Some(callback) = find(callback)? else { return Ok(None) };
        Self::attach(callback.program.as_fd(), &callback.function).map(Some)
    }

    /// Around a function that this callback calls, and that the compiler has not inlined.
    ///
    /// # Errors
    /// As [`Self::around`], or there is no such callback or function.
    pub fn within(callback: &str, function: &str) -> Result<Self> {
        let found = find(callback)?;
        let found = found.with_context(|| format!("the scheduler has no callback {callback}"))?;
        Self::attach(found.program.as_fd(), function)
    }

    fn attach(target: BorrowedFd<'_>, function: &str) -> Result<Self> {
        let cannot =
            || format!("cannot measure {function}: the kernel refuses a program around it");
        let mut open = ObjectBuilder::default().open_memory(OBJECT).with_context(cannot)?;
        for mut program in open.progs_mut() {
            if program.name() == NOTHING {
                program.set_autoload(false);
            } else {
                program
                    .set_attach_target(target.as_raw_fd(), Some(function.to_owned()))
                    .with_context(cannot)?;
            }
        }
        let object = open.load().with_context(cannot)?;
        let around = object.progs_mut().filter(|program| program.name() != NOTHING);
        let links: Result<Vec<Link>, _> = around.map(|program| program.attach_trace()).collect();
        Ok(Self { _links: links.with_context(cannot)?, object })
    }

    /// What measuring itself adds to each call, in ns.
    ///
    /// # Errors
    /// The kernel refuses a program of ours.
    pub fn own_ns() -> Result<f64> {
        let cannot = "cannot measure what measuring takes: the kernel refuses a program";
        let mut open = ObjectBuilder::default().open_memory(OBJECT).context(cannot)?;
        for mut program in open.progs_mut() {
            let is_wanted = program.name() == NOTHING;
            program.set_autoload(is_wanted);
        }
        let object = open.load().context(cannot)?;
        let nothing = object.progs_mut().find(|program| program.name() == NOTHING);
        let nothing = nothing.context(cannot)?;
        let stopwatch = Self::attach(nothing.as_fd(), NOTHING)?;
        for _ in 0..EMPTY_CALLS {
            nothing.test_run(ProgramInput::default()).context(cannot)?;
        }
        stopwatch.cost()?.each_ns().context("nothing was measured around nothing")
    }

    /// What was measured so far.
    ///
    /// # Errors
    /// The kernel does not show it.
    pub fn cost(&self) -> Result<Cost> {
        let map = self.object.maps().next().context("the stopwatch has no map")?;
        let values = map
            .lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)?
            .context("the stopwatch counts nothing")?;
        let mut cost = Cost::default();
        for value in &values {
            let size = size_of::<Calls>();
            let calls: Calls = value
                .get(..size)
                .and_then(|bytes| try_pod_read_unaligned(bytes).ok())
                .context("the stopwatch's records have another size")?;
            cost.add(&calls);
        }
        Ok(cost)
    }
}

/// A loaded program that is a scheduler's callback.
struct Callback {
    program: OwnedFd,
    /// What its source calls it.
    function: String,
}

/// This callback of the scheduler that was loaded last; `None` if it has none.
///
/// The kernel tells: to user space, a struct_ops map shows its struct with the ids of programs in
/// place of pointers to functions. So no scheduler's names need to be known.
fn find(callback: &str) -> Result<Option<Callback>> {
    let kernel = Btf::from_vmlinux().context("the kernel does not describe its types")?;
    let ops = kernel.type_by_name::<Composite<'_>>(OPS).context("the kernel has no sched_ext")?;
    let place = member_offset(&ops, callback)
        .with_context(|| format!("the kernel's schedulers have no callback {callback}"))?;
    let newest = || {
        let maps = MapInfoIter::default().filter(|map| map.ty == MapType::StructOps);
        let maps = maps.filter_map(|map| Some((map.id, data_offset(&kernel, &map)?)));
        maps.max_by_key(|(id, _)| *id)
    };
    // The list ends early where a map before it goes meanwhile, as those of the last stopwatch do.
    let found = (0..LOOKS).find_map(|_| {
        newest().or_else(|| {
            std::thread::sleep(LOOK);
            None
        })
    });
    let (map, data) = found.context("no scheduler is loaded")?;
    let value = MapHandle::from_map_id(map)?
        .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)?
        .context("the scheduler has no callbacks")?;
    let id = value.get(data + place..).and_then(|bytes| bytes.first_chunk::<8>());
    let id = id.map_or(0, |bytes| u64::from_ne_bytes(*bytes)) as u32;
    if id == 0 {
        return Ok(None);
    }
    let function = function_of(id)
        .with_context(|| format!("the kernel does not name the program of {callback}"))?;
    Ok(Some(Callback { program: Program::fd_from_id(id)?, function }))
}

/// Where the scheduler's callbacks begin in the value of a map, in bytes; `None` for a map of
/// something else than a scheduler.
fn data_offset(kernel: &Btf<'_>, map: &libbpf_rs::query::MapInfo) -> Option<usize> {
    let id = TypeId::from(map.btf_vmlinux_value_type_id);
    let value = kernel.type_by_id::<Composite<'_>>(id)?;
    let is_ours = value.name()?.to_str()?.ends_with(OPS);
    is_ours.then(|| member_offset(&value, "data")).flatten()
}

/// Where a member lies in a struct, in bytes.
fn member_offset(of: &Composite<'_>, name: &str) -> Option<usize> {
    let member = of.iter().find(|member| member.name.is_some_and(|one| one == name))?;
    match member.attr {
        MemberAttr::Normal { offset } => Some(offset as usize / 8),
        MemberAttr::BitField { .. } => None,
    }
}

/// What the source of a program calls its function.
fn function_of(id: u32) -> Option<String> {
    let options = ProgInfoQueryOptions::default().include_func_info(true);
    let info = ProgInfoIter::with_query_opts(options).find(|info| info.id == id)?;
    let entry = info.func_info.iter().find(|function| function.insn_off == 0)?;
    let types = Btf::from_prog_id(id).ok()?;
    let function = types.type_by_id::<Func<'_>>(TypeId::from(entry.type_id))?;
    Some(function.name()?.to_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_of_nothing_is_none() {
        assert_eq!(Cost::default().each_ns(), None);
        assert_eq!(Cost { calls: 4, total_ns: 10, ..Cost::default() }.each_ns(), Some(2.5));
    }

    #[test]
    fn the_median_is_of_all_cpus_and_not_moved_by_few_long_calls() {
        assert_eq!(Cost::default().median_ns(), None);
        let mut cost = Cost::default();
        for (step, times) in [(25, 3), (30, 2), (511, 1)] {
            let mut calls = Calls::zeroed();
            calls.calls = u64::from(times);
            calls.by_length[step] = times;
            cost.add(&calls);
        }
        assert_eq!((cost.calls, cost.median_ns()), (6, Some(510.0)));
        cost.by_length[30] += 2;
        cost.calls += 2;
        assert_eq!(cost.median_ns(), Some(610.0));
    }

    #[test]
    fn calls_that_were_interrupted_count() {
        let cost = Cost { calls: 3, total_ns: 3000, interrupted: 1, ..Cost::default() };
        assert_eq!(cost.all_ns(100.0), 3600.0);
        assert_eq!(Cost::default().all_ns(100.0), 0.0);
    }

    #[test]
    fn squares_are_of_what_is_left_without_measuring() {
        let mut cost = Cost::default();
        (cost.by_length[0], cost.by_length[5]) = (3, 2);
        assert_eq!(cost.squares_ns2(0.0), 3.0 * 100.0 + 2.0 * 110.0 * 110.0);
        assert_eq!(cost.squares_ns2(60.0), 2.0 * 50.0 * 50.0);
    }
}
