//! The kernel calls the scheduler (kernel: `SCX_CALL_OP`): each callback with its context, and the cost
//! of the searches that it made. Left out: the run time of callbacks themselves, and the kernel's own
//! argument structs, of which the keel reads nothing.

use evenkeel_tape::Callback;

use crate::abi::{GroupInitArgs, InitTaskArgs, RawTask};

use super::schedule::DEFAULT_SLICE_NS;
use super::{Direct, Kernel, LOCAL_ID};

/// What is restored after a callback, because callbacks nest.
pub(super) struct Outside {
    context: *mut std::ffi::c_void,
    cpu: u32,
    direct: Option<u32>,
    scanned: u64,
    within: Option<Callback>,
    call: Option<Call>,
}

/// A callback with its task and its other arguments.
#[derive(Clone, Copy)]
pub(super) struct Call {
    pub callback: Callback,
    pub task: Option<u32>,
    pub arguments: [u64; 5],
}

/// No other arguments.
const NONE: [u64; 5] = [0; 5];

fn of_task(callback: Callback, task: u32, first: u64) -> Call {
    Call { callback, task: Some(task), arguments: [first, 0, 0, 0, 0] }
}

impl Kernel {
    /// From now on the scheduler runs on this CPU, and may call kernel functions.
    #[inline]
    fn enter_callback(&mut self, cpu: u32, direct: Option<u32>, call: Option<Call>) -> Outside {
        let context = (&raw mut *self).cast();
        let host = &mut *self.instance.host;
        let outside = Outside {
            context: host.context,
            cpu: host.cpu,
            direct: self.direct,
            scanned: host.scanned,
            within: self.within,
            call,
        };
        self.within = call.map(|call| call.callback);
        host.context = context;
        host.now_ns = self.now;
        host.cpu = cpu;
        self.direct = direct;
        self.cpus[cpu as usize].callbacks += 1;
        self.record_enter(cpu, call);
        outside
    }

    /// The callback has returned.
    #[inline]
    fn leave_callback(&mut self, outside: Outside, returned: u64) {
        self.record_leave(outside.call, returned);
        let host = &mut *self.instance.host;
        let (cpu, scanned) = (host.cpu, host.scanned - outside.scanned);
        host.context = outside.context;
        host.cpu = outside.cpu;
        host.now_ns = self.now;
        self.direct = outside.direct;
        self.within = outside.within;
        self.cpus[cpu as usize].callbacks -= 1;
        self.spend_on_search(cpu, scanned * self.machine.costs.scan_ns);
    }

    pub(super) fn raw(&mut self, task: u32) -> *mut RawTask {
        &raw mut self.tasks[task as usize].raw
    }

    pub(super) fn call_select_cpu(&mut self, task: u32, prev: u32, flags: u64, cpu: u32) -> u32 {
        let raw = self.raw(task);
        let arguments = [u64::from(prev), flags, 0, 0, 0];
        let call = Call { callback: Callback::SelectCpu, task: Some(task), arguments };
        let call = self.instance.ops.select_cpu.map(|_| call);
        let outside = self.enter_callback(cpu, Some(task), call);
        let Some(callback) = self.instance.ops.select_cpu else {
            // The kernel's default: an idle CPU gets the task directly.
            let found = self.select_cpu_default(task, prev, flags);
            self.leave_callback(outside, 0);
            if found.is_some() {
                let t = &mut self.tasks[task as usize];
                t.raw.slice = DEFAULT_SLICE_NS;
                t.direct = Some(Direct { dsq: LOCAL_ID, vtime: 0, is_ordered: false });
            }
            return found.unwrap_or(prev);
        };
        // SAFETY: of all callbacks: the task lives as long as the kernel, and the scheduler calls kernel
        // functions with the context that was just set.
        let chosen = unsafe { callback(raw, prev as i32, flags) };
        self.leave_callback(outside, chosen as u32 as u64);
        match u32::try_from(chosen) {
            Ok(chosen) if self.topology.has(chosen) => chosen,
            _ => {
                self.end_at_fault(format!("select_cpu chose CPU {chosen}, which does not exist"));
                prev
            }
        }
    }

    pub(super) fn call_enqueue(&mut self, task: u32, flags: u64, cpu: u32) {
        let Some(callback) = self.instance.ops.enqueue else { return };
        let raw = self.raw(task);
        let in_interrupt = self.instance.host.in_interrupt.into();
        let arguments = [flags, in_interrupt, 0, 0, 0];
        let call = Call { callback: Callback::Enqueue, task: Some(task), arguments };
        let outside = self.enter_callback(cpu, Some(task), Some(call));
        // SAFETY: see call_select_cpu().
        unsafe { callback(raw, flags) };
        self.leave_callback(outside, 0);
    }

    pub(super) fn call_dispatch(&mut self, cpu: u32, prev: Option<u32>) {
        let Some(callback) = self.instance.ops.dispatch else { return };
        self.count_misplaced(cpu);
        let raw = prev.map_or(std::ptr::null_mut(), |prev| self.raw(prev));
        let counts = self.machine.costs.balance_ns > 0;
        let before = if counts { self.instance.attempts(cpu) } else { 0 };
        let c = &self.cpus[cpu as usize];
        let is_awaited = c.curr.is_none() && c.thief.is_none() && !c.thieves.is_empty();
        let arguments = [is_awaited.into(), 0, 0, 0, 0];
        let call = Call { callback: Callback::Dispatch, task: prev, arguments };
        let outside = self.enter_callback(cpu, None, Some(call));
        self.instance.host.awaited_by_higher_class = is_awaited.into();
        // SAFETY: see call_select_cpu().
        unsafe { callback(cpu as i32, raw) };
        self.leave_callback(outside, 0);
        if counts {
            let attempts = self.instance.attempts(cpu).saturating_sub(before);
            self.spend_on_search(cpu, attempts * self.machine.costs.balance_ns);
        }
    }

    pub(super) fn call_tick(&mut self, task: u32, cpu: u32) {
        let callback = self.instance.ops.tick;
        self.call_task(callback, Callback::Tick, task, cpu);
    }

    pub(super) fn call_running(&mut self, task: u32, cpu: u32) {
        self.tasks[task as usize].raw.on_cpu = 1;
        let callback = self.instance.ops.running;
        self.call_task(callback, Callback::Running, task, cpu);
    }

    pub(super) fn call_enable(&mut self, task: u32, cpu: u32) {
        let callback = self.instance.ops.enable;
        self.call_task(callback, Callback::Enable, task, cpu);
    }

    /// The task leaves the scheduler's class.
    pub(super) fn call_disable(&mut self, task: u32, cpu: u32) {
        let callback = self.instance.ops.disable;
        self.call_task(callback, Callback::Disable, task, cpu);
    }

    fn call_task(
        &mut self,
        callback: Option<unsafe extern "C" fn(*mut RawTask)>,
        which: Callback,
        task: u32,
        cpu: u32,
    ) {
        let Some(callback) = callback else { return };
        let raw = self.raw(task);
        let outside = self.enter_callback(cpu, None, Some(of_task(which, task, 0)));
        // SAFETY: see call_select_cpu().
        unsafe { callback(raw) };
        self.leave_callback(outside, 0);
    }

    pub(super) fn call_stopping(&mut self, task: u32, runnable: bool, cpu: u32) {
        self.tasks[task as usize].raw.on_cpu = 0;
        let Some(callback) = self.instance.ops.stopping else { return };
        let raw = self.raw(task);
        let outside = self.enter_callback(
            cpu,
            None,
            Some(of_task(Callback::Stopping, task, runnable.into())),
        );
        // SAFETY: see call_select_cpu().
        unsafe { callback(raw, runnable) };
        self.leave_callback(outside, 0);
    }

    pub(super) fn call_quiescent(&mut self, task: u32, flags: u64, cpu: u32) {
        let Some(callback) = self.instance.ops.quiescent else { return };
        let raw = self.raw(task);
        let outside =
            self.enter_callback(cpu, None, Some(of_task(Callback::Quiescent, task, flags)));
        // SAFETY: see call_select_cpu().
        unsafe { callback(raw, flags) };
        self.leave_callback(outside, 0);
    }

    pub(super) fn call_yield(&mut self, task: u32, cpu: u32) {
        let Some(callback) = self.instance.ops.r#yield else {
            self.tasks[task as usize].raw.slice = 0;
            return;
        };
        let raw = self.raw(task);
        let outside = self.enter_callback(cpu, None, Some(of_task(Callback::Yield, task, 0)));
        // SAFETY: see call_select_cpu().
        let yielded = unsafe { callback(raw, std::ptr::null_mut()) };
        self.leave_callback(outside, yielded.into());
    }

    /// cpu_release: a higher class has taken the CPU; cpu_acquire: it has released the CPU.
    pub(super) fn call_higher_class(&mut self, cpu: u32, takes: bool) {
        let ops = &self.instance.ops;
        let Some(callback) = (if takes { ops.cpu_release } else { ops.cpu_acquire }) else {
            return;
        };
        let which = if takes { Callback::CpuRelease } else { Callback::CpuAcquire };
        let call = Call { callback: which, task: None, arguments: NONE };
        let outside = self.enter_callback(cpu, None, Some(call));
        // SAFETY: see call_select_cpu(); native/kernel.h does not define the struct of the arguments.
        unsafe { callback(cpu as i32, std::ptr::null()) };
        self.leave_callback(outside, 0);
    }

    /// The CPU begins or ceases to idle.
    pub(super) fn call_update_idle(&mut self, cpu: u32, idle: bool) {
        let Some(callback) = self.instance.ops.update_idle else { return };
        let arguments = [idle.into(), 0, 0, 0, 0];
        let call = Call { callback: Callback::UpdateIdle, task: None, arguments };
        let outside = self.enter_callback(cpu, None, Some(call));
        // SAFETY: see call_select_cpu().
        unsafe { callback(cpu as i32, idle) };
        self.leave_callback(outside, 0);
    }

    /// Returns whether the scheduler accepts the task.
    pub(super) fn call_init_task(&mut self, task: u32, fork: bool, cpu: u32) -> bool {
        let Some(callback) = self.instance.ops.init_task else { return true };
        self.lockup.progress();
        let group = self.tasks[task as usize].group;
        let args = InitTaskArgs { fork, cgroup: &raw const *self.groups[group].raw };
        let raw = self.raw(task);
        let arguments = [fork.into(), self.group_id(group), 0, 0, 0];
        let call = Call { callback: Callback::InitTask, task: Some(task), arguments };
        let outside = self.enter_callback(cpu, None, Some(call));
        // SAFETY: see call_select_cpu(); the arguments outlive the call.
        let refused = unsafe { callback(raw, &raw const args) };
        self.leave_callback(outside, refused as u32 as u64);
        refused == 0
    }

    /// A task is always enabled here, so it is disabled first.
    pub(super) fn call_exit_task(&mut self, task: u32, cpu: u32) {
        self.call_disable(task, cpu);
        let Some(callback) = self.instance.ops.exit_task else { return };
        let raw = self.raw(task);
        let outside = self.enter_callback(cpu, None, Some(of_task(Callback::ExitTask, task, 0)));
        // SAFETY: see call_select_cpu(); native/kernel.h does not define the struct of the arguments.
        unsafe { callback(raw, std::ptr::null()) };
        self.leave_callback(outside, 0);
    }

    pub(super) fn call_init(&mut self) -> i32 {
        let Some(callback) = self.instance.ops.init else { return 0 };
        let call = Call { callback: Callback::Init, task: None, arguments: NONE };
        let outside = self.enter_callback(0, None, Some(call));
        // SAFETY: see call_select_cpu().
        let error = unsafe { callback() };
        self.leave_callback(outside, error as u32 as u64);
        error
    }

    /// A cgroup's id.
    fn group_id(&self, group: usize) -> u64 {
        self.groups[group].node.id
    }

    pub(super) fn call_group_init(&mut self, group: usize) -> i32 {
        let Some(callback) = self.instance.ops.cgroup_init else { return 0 };
        let raw = &raw const *self.groups[group].raw;
        let args = GroupInitArgs {
            weight: self.groups[group].weight,
            bw_period_us: 100_000,
            bw_quota_us: u64::MAX,
        };
        let GroupInitArgs { weight, bw_quota_us, .. } = args;
        let parent = self.groups[group].parent.map_or(0, |parent| self.group_id(parent));
        let level = self.groups[group].raw.level as u64;
        let arguments = [self.group_id(group), level, parent, weight.into(), bw_quota_us];
        let call = Call { callback: Callback::CgroupInit, task: None, arguments };
        let outside = self.enter_callback(0, None, Some(call));
        // SAFETY: see call_select_cpu(); groups live as long as the kernel.
        let error = unsafe { callback(raw, &raw const args) };
        self.leave_callback(outside, error as u32 as u64);
        error
    }

    pub(super) fn call_group_exit(&mut self, group: usize) {
        let Some(callback) = self.instance.ops.cgroup_exit else { return };
        let raw = &raw const *self.groups[group].raw;
        let arguments = [self.group_id(group), 0, 0, 0, 0];
        let call = Call { callback: Callback::CgroupExit, task: None, arguments };
        let outside = self.enter_callback(0, None, Some(call));
        // SAFETY: see call_select_cpu(); groups live as long as the kernel.
        unsafe { callback(raw) };
        self.leave_callback(outside, 0);
    }

    pub(super) fn call_group_move(&mut self, task: u32, from: usize, to: usize, cpu: u32) {
        let Some(callback) = self.instance.ops.cgroup_move else { return };
        let arguments = [self.group_id(from), self.group_id(to), 0, 0, 0];
        let call = Call { callback: Callback::CgroupMove, task: Some(task), arguments };
        let (from, to) = (&raw const *self.groups[from].raw, &raw const *self.groups[to].raw);
        let raw = self.raw(task);
        let outside = self.enter_callback(cpu, None, Some(call));
        // SAFETY: see call_select_cpu(); groups live as long as the kernel.
        unsafe { callback(raw, from, to) };
        self.leave_callback(outside, 0);
    }

    pub(super) fn call_group_weight(&mut self, group: usize, weight: u32) {
        let Some(callback) = self.instance.ops.cgroup_set_weight else { return };
        let raw = &raw const *self.groups[group].raw;
        let arguments = [self.group_id(group), weight.into(), 0, 0, 0];
        let call = Call { callback: Callback::CgroupSetWeight, task: None, arguments };
        let outside = self.enter_callback(0, None, Some(call));
        // SAFETY: see call_select_cpu(); groups live as long as the kernel.
        unsafe { callback(raw, weight) };
        self.leave_callback(outside, 0);
    }

    /// The scheduler dumps its state, CPU by CPU and task by task.
    pub(super) fn call_dump(&mut self) {
        self.instance.host.hazards = 0;
        let ops = self.instance.ops;
        let now = self.now;
        let outside = self.enter_callback(0, None, None);
        // SAFETY: see call_select_cpu(); the time outlives the calls.
        unsafe {
            if let Some(callback) = ops.dump {
                callback(&raw const now);
            }
            for cpu in (0..self.cpus.len() as u32).filter(|cpu| self.online.has(*cpu)) {
                let idles = self.idle.has(cpu);
                if let Some(callback) = ops.dump_cpu {
                    callback(&raw const now, cpu as i32, idles);
                }
            }
            for task in 0..self.tasks.len() as u32 {
                if let (Some(callback), super::Life::Waits) =
                    (ops.dump_task, self.tasks[task as usize].life)
                {
                    let raw = self.raw(task);
                    callback(&raw const now, raw);
                }
            }
        }
        self.leave_callback(outside, 0);
    }
}
