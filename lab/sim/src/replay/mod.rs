//! Replays a tape to a scheduler: the same callbacks with the same tasks, and the same answers of
//! kernel functions. Its decisions must be the recorded ones: the DSQ, vruntime and slice of each
//! inserted task, moves, kicks, and results of callbacks.

mod answers;

use std::collections::BTreeMap;
use std::marker::PhantomPinned;
use std::ptr;

use evenkeel_tape::{Callback, Entry, Function, Kind, LAST, Tape, TaskView, VALUES};

use crate::abi::{GroupInitArgs, InitTaskArgs, RawGroup, RawNode, RawTask};
use crate::host_error::HostError;
use crate::mask::Mask;
use crate::native::Instance;
use crate::scheduler::Scheduler;

use answers::FUNCTIONS;

/// Why a tape cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// Entries in an impossible order, such as the end of a callback that has not begun.
    #[error("entry {0} of the tape comes where it cannot: it was damaged, or cut at its beginning")]
    Order(usize),
    /// A callback with a task or a cgroup that the tape has not described.
    #[error("{0}: the tape says nothing of {1}: it was damaged, or cut at its beginning")]
    Unknown(String, String),
    /// The scheduler cannot be loaded.
    #[error(transparent)]
    Host(#[from] HostError),
}

/// The place where the replay differs from the tape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The number of the callback, counted from 0.
    pub callback: usize,
    /// Its name, CPU and time.
    pub place: String,
    /// What the tape says.
    pub recorded: String,
    /// What the scheduler did.
    pub replayed: String,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { callback, place, recorded, replayed } = self;
        write!(f, "callback {callback}, {place}: recorded {recorded}; replayed {replayed}")
    }
}

/// The result of a replay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Callbacks that were replayed.
    pub callbacks: usize,
    /// Calls and results that were compared.
    pub compared: usize,
    /// Callbacks that began while another CPU was in one. They are replayed one after the other.
    pub overlapping: usize,
    /// The first difference, where the replay ended.
    pub difference: Option<Difference>,
}

impl std::fmt::Display for Replayed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { callbacks, compared, overlapping, difference } = self;
        write!(f, "{callbacks} callbacks, {compared} calls and results the same")?;
        if *overlapping > 0 {
            write!(f, "; {overlapping} began while another CPU was in one")?;
        }
        match difference {
            Some(difference) => write!(f, "; then they differ: {difference}"),
            None => Ok(()),
        }
    }
}

/// Replays a tape to the built-in keel, or to another build of it.
///
/// # Errors
/// [`ReplayError::Host`]: the scheduler cannot be loaded. [`ReplayError::Order`],
/// [`ReplayError::Unknown`]: the tape is malformed.
pub fn replay(tape: &Tape, scheduler: &Scheduler) -> Result<Replayed, ReplayError> {
    let (calls, overlapping) = calls(&tape.entries)?;
    let instance = scheduler.load_data(&tape.data, FUNCTIONS)?;
    let mut player = Box::new(Player {
        instance,
        tasks: BTreeMap::new(),
        groups: BTreeMap::new(),
        left: Vec::new(),
        at: String::new(),
        result: Replayed { overlapping, ..Replayed::default() },
        unknown: None,
        _pinned: PhantomPinned,
    });
    for call in calls {
        player.call(call);
        if let Some((place, unknown)) = player.unknown.take() {
            return Err(ReplayError::Unknown(place, unknown));
        }
        if player.result.difference.is_some() {
            break;
        }
        player.result.callbacks += 1;
    }
    Ok(player.result)
}

/// A recorded callback with all that happened in it.
#[derive(Debug)]
struct Call {
    enter: Entry,
    steps: Vec<Step>,
    leave: Entry,
}

/// What happens in a callback.
#[derive(Debug)]
enum Step {
    Entry(Entry),
    /// A nested callback of the same CPU.
    Nested(Call),
}

/// Groups entries by callback, in the order in which callbacks begin. Also returns how many began while
/// another CPU was in one.
fn calls(entries: &[Entry]) -> Result<(Vec<Call>, usize), ReplayError> {
    let mut done: BTreeMap<usize, Call> = BTreeMap::new();
    let mut open: BTreeMap<u16, Vec<(usize, Entry, Vec<Step>)>> = BTreeMap::new();
    let mut overlapping = 0;
    for (at, entry) in entries.iter().enumerate() {
        let others = open.iter().any(|(cpu, stack)| *cpu != entry.cpu && !stack.is_empty());
        let stack = open.entry(entry.cpu).or_default();
        match Kind::by_number(entry.kind) {
            Some(Kind::Enter) => {
                overlapping += usize::from(others && stack.is_empty());
                stack.push((at, *entry, Vec::new()));
            }
            Some(Kind::Leave) => {
                let (begun, enter, steps) = stack.pop().ok_or(ReplayError::Order(at))?;
                let call = Call { enter, steps, leave: *entry };
                match stack.last_mut() {
                    Some((_, _, outer)) => outer.push(Step::Nested(call)),
                    None => {
                        done.insert(begun, call);
                    }
                }
            }
            Some(Kind::Task | Kind::Call | Kind::Now) => {
                let (_, _, steps) = stack.last_mut().ok_or(ReplayError::Order(at))?;
                steps.push(Step::Entry(*entry));
            }
            None => return Err(ReplayError::Order(at)),
        }
    }
    // A callback that had not ended when the recording did is left out.
    Ok((done.into_values().collect(), overlapping))
}

/// A task as the scheduler sees it.
struct Task {
    raw: RawTask,
    allowed: Mask,
}

struct Group {
    raw: RawGroup,
    node: RawNode,
}

struct Player {
    instance: Instance,
    tasks: BTreeMap<u64, Box<Task>>,
    groups: BTreeMap<u64, Box<Group>>,
    /// The remaining steps of the nested callbacks, the innermost last; each list is reversed.
    left: Vec<Vec<Step>>,
    /// The innermost callback, in words.
    at: String,
    result: Replayed,
    /// A callback and what it needs that the tape has not described.
    unknown: Option<(String, String)>,
    /// The scheduler's calls use the player by its address while it waits for a callback.
    _pinned: PhantomPinned,
}

impl Player {
    fn call(&mut self, call: Call) {
        let Call { enter, mut steps, leave } = call;
        let Some(callback) = Callback::by_number(enter.id) else {
            self.differ(format!("callback {}", enter.id), "no such callback".to_owned());
            return;
        };
        steps.reverse();
        self.left.push(steps);
        let outer = std::mem::replace(
            &mut self.at,
            format!("{callback:?} on CPU {} at {} ns", enter.cpu, enter.values[LAST]),
        );
        let context = ptr::from_mut(self).cast();
        let host = &mut *self.instance.host;
        let outside = (host.cpu, host.now_ns);
        (host.context, host.cpu, host.now_ns) = (context, enter.cpu.into(), enter.values[LAST]);
        self.apply_entries();
        if let Some(unknown) = self.unknown_to(callback, &enter) {
            let place = format!("callback {}, {}", self.result.callbacks, self.at);
            self.unknown.get_or_insert((place, unknown));
        } else {
            let returned = self.enter(callback, &enter);
            self.finish(&leave, returned);
        }
        self.left.pop();
        self.at = outer;
        (self.instance.host.cpu, self.instance.host.now_ns) = outside;
    }

    /// What a callback needs that the tape has not described.
    fn unknown_to(&self, callback: Callback, enter: &Entry) -> Option<String> {
        use Callback::*;
        let [first, second, ..] = enter.values;
        let is_of_task = !matches!(
            callback,
            Dispatch
                | CpuAcquire
                | CpuRelease
                | UpdateIdle
                | CgroupInit
                | CgroupExit
                | CgroupSetWeight
                | Init
        );
        let groups = match callback {
            InitTask => vec![second],
            CgroupExit | CgroupSetWeight => vec![first],
            CgroupMove => vec![first, second],
            _ => Vec::new(),
        };
        if is_of_task && !self.tasks.contains_key(&enter.task) {
            return Some(format!("task {}", enter.task));
        }
        let unknown = groups.into_iter().find(|group| !self.groups.contains_key(group));
        unknown.map(|group| format!("cgroup {group}"))
    }

    /// Calls the callback.
    fn enter(&mut self, callback: Callback, enter: &Entry) -> u64 {
        let [first, second, third, fourth, fifth, ..] = enter.values;
        let task = self.task(enter.task);
        let ops = self.instance.ops;
        let cpu = i32::from(enter.cpu);
        if callback == Callback::CgroupInit {
            self.make_group(first, second, third);
        }
        let group = self.group(if callback == Callback::InitTask { second } else { first });
        let other = self.group(second);
        // SAFETY: tasks and groups live as long as the player and never move; the arguments outlive the
        // calls; the caller has set the context.
        unsafe {
            match callback {
                Callback::SelectCpu => {
                    ops.select_cpu.map(|f| f(task, first as i32, second) as u32 as u64)
                }
                Callback::Enqueue => {
                    self.instance.host.in_interrupt = second as u32;
                    ops.enqueue.map(|f| f(task, first)).map(|()| 0)
                }
                Callback::Dispatch => {
                    self.instance.host.awaited_by_higher_class = first as u32;
                    ops.dispatch.map(|f| f(cpu, task)).map(|()| 0)
                }
                Callback::Tick => ops.tick.map(|f| f(task)).map(|()| 0),
                Callback::Running => ops.running.map(|f| f(task)).map(|()| 0),
                Callback::Stopping => ops.stopping.map(|f| f(task, first != 0)).map(|()| 0),
                Callback::Quiescent => ops.quiescent.map(|f| f(task, first)).map(|()| 0),
                Callback::Yield => ops.r#yield.map(|f| f(task, ptr::null_mut()).into()),
                Callback::CpuAcquire => ops.cpu_acquire.map(|f| f(cpu, ptr::null())).map(|()| 0),
                Callback::CpuRelease => ops.cpu_release.map(|f| f(cpu, ptr::null())).map(|()| 0),
                Callback::InitTask => {
                    let args = InitTaskArgs { fork: first != 0, cgroup: group };
                    ops.init_task.map(|f| f(task, &raw const args) as u32 as u64)
                }
                Callback::ExitTask => ops.exit_task.map(|f| f(task, ptr::null())).map(|()| 0),
                Callback::Enable => ops.enable.map(|f| f(task)).map(|()| 0),
                Callback::Disable => ops.disable.map(|f| f(task)).map(|()| 0),
                Callback::CgroupInit => {
                    let args = GroupInitArgs {
                        weight: fourth as u32,
                        bw_period_us: 100_000,
                        bw_quota_us: fifth,
                    };
                    ops.cgroup_init.map(|f| f(group, &raw const args) as u32 as u64)
                }
                Callback::CgroupExit => ops.cgroup_exit.map(|f| f(group)).map(|()| 0),
                Callback::CgroupMove => ops.cgroup_move.map(|f| f(task, group, other)).map(|()| 0),
                Callback::CgroupSetWeight => {
                    ops.cgroup_set_weight.map(|f| f(group, second as u32)).map(|()| 0)
                }
                Callback::UpdateIdle => ops.update_idle.map(|f| f(cpu, first != 0)).map(|()| 0),
                Callback::Init => ops.init.map(|f| f() as u32 as u64),
            }
        }
        .unwrap_or_default()
    }

    /// The callback has returned: no call may remain, and its results must be the recorded ones.
    fn finish(&mut self, leave: &Entry, returned: u64) {
        self.apply_entries();
        let left = self.left.last().and_then(|steps| steps.last());
        if let Some(Step::Entry(call)) = left {
            let recorded = described(call);
            self.differ(recorded, "the end of the callback".to_owned());
        }
        let slice = self.tasks.get(&leave.task).map_or(0, |task| task.raw.slice);
        for (what, recorded, replayed) in
            [("returns", leave.values[0], returned), ("leaves a slice of", leave.values[1], slice)]
        {
            self.result.compared += 1;
            if recorded != replayed {
                self.differ(format!("it {what} {recorded}"), format!("{what} {replayed}"));
            }
        }
    }

    /// Keeps the first difference only: later ones may be its consequences.
    fn differ(&mut self, recorded: String, replayed: String) {
        let (callback, place) = (self.result.callbacks, self.at.clone());
        let difference = Difference { callback, place, recorded, replayed };
        self.result.difference.get_or_insert(difference);
    }

    /// The scheduler calls a kernel function. Returns the recorded answer and the recorded task.
    fn answer(&mut self, function: Function, task: u64, given: &[u64]) -> (u64, u64) {
        self.apply_entries();
        let mut values = [0; VALUES];
        values[..given.len()].copy_from_slice(given);
        let mut asked = Entry::new(Kind::Call, function as u8, 0, task, values);
        let found = self.left.last_mut().and_then(Vec::pop);
        let Some(Step::Entry(recorded)) = found else {
            self.differ("the end of the callback".to_owned(), described(&asked));
            return (0, 0);
        };
        self.result.compared += 1;
        // Answers are not compared: they come from the tape.
        (asked.cpu, asked.values[LAST]) = (recorded.cpu, recorded.values[LAST]);
        if [Function::IterNext, Function::FindTask].contains(&function) {
            asked.task = recorded.task;
        }
        if asked != recorded {
            self.differ(described(&recorded), described(&asked));
            return (0, 0);
        }
        self.apply_entries();
        (recorded.values[LAST], recorded.task)
    }

    /// Applies all entries up to the next call: descriptions of tasks, the time, and nested callbacks.
    fn apply_entries(&mut self) {
        loop {
            let steps = self.left.last_mut();
            let next = steps.and_then(|steps| {
                steps.pop_if(|step| match step {
                    Step::Entry(entry) => entry.kind != Kind::Call as u8,
                    Step::Nested(_) => true,
                })
            });
            match next {
                Some(Step::Entry(entry)) if entry.kind == Kind::Now as u8 => {
                    self.instance.host.now_ns = entry.values[LAST];
                }
                Some(Step::Entry(entry)) => self.see_task(&entry),
                Some(Step::Nested(call)) => self.call(call),
                None => return,
            }
        }
    }

    /// The tape describes a task as the scheduler saw it.
    fn see_task(&mut self, entry: &Entry) {
        let view = TaskView::from(entry.values);
        let task = self.tasks.entry(entry.task).or_insert_with(|| {
            let raw = RawTask { index: entry.task as u32, ..RawTask::EMPTY };
            Box::new(Task { raw, allowed: Mask::EMPTY })
        });
        task.allowed = Mask::from_word(view.allowed);
        task.raw = RawTask {
            pid: view.pid as i32,
            tgid: view.tgid as i32,
            prio: view.prio.into(),
            on_cpu: view.on_cpu.into(),
            numa_preferred_nid: view.node.into(),
            nr_cpus_allowed: view.allowed_count.into(),
            cpus_ptr: &raw const task.allowed,
            mm: view.space as usize,
            sum_exec_runtime: view.sum_exec_runtime,
            flags: view.flags,
            weight: view.weight,
            slice: view.slice,
            cpu: view.cpu.into(),
            ..task.raw
        };
    }

    fn task(&mut self, number: u64) -> *mut RawTask {
        self.tasks.get_mut(&number).map_or(ptr::null_mut(), |task| &raw mut task.raw)
    }

    fn make_group(&mut self, id: u64, level: u64, parent: u64) {
        let parent = self.group(parent);
        let raw = RawGroup { level: level as i32, kn: ptr::null(), parent };
        let mut group = Box::new(Group { raw, node: RawNode { id } });
        group.raw.kn = &raw const group.node;
        self.groups.insert(id, group);
    }

    fn group(&self, id: u64) -> *const RawGroup {
        self.groups.get(&id).map_or(ptr::null(), |group| &raw const group.raw)
    }
}

/// A call in words.
fn described(entry: &Entry) -> String {
    let name = Function::by_number(entry.id).map_or("?".to_owned(), |f| format!("{f:?}"));
    let given: Vec<String> = entry.values[..LAST].iter().map(ToString::to_string).collect();
    format!("{name} of task {} with {}", entry.task, given.join(", "))
}
