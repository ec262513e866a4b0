//! Reads rt-app's workload format, as its tutorial describes it: JSON with comments. Events have the
//! order of the file; a number behind a name tells events of the same kind apart (`run1`). Duplicate
//! names are kept, as rt-app's front end (workgen) does.
//!
//! Settings that do not concern a model (logs, traces, locked memory, calibration) are ignored.
//! Settings that would change the schedule and are not modelled are errors, so that no result is
//! mistaken for theirs.

use std::collections::BTreeMap;
use std::sync::Arc;

use jsonc_parser::ast::{Object, ObjectProp, Value};
use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};

use crate::mask::{MAX_CPUS, Mask};
use crate::program::{GroupPlan, MAX_NS, Op, TaskPlan, Workload};

use super::error::{MAX_TASKS, WorkloadError};

/// Fields of `global` that do not concern a model.
const GLOBAL_UNUSED: [&str; 13] = [
    "calibration",
    "lock_pages",
    "logdir",
    "log_basename",
    "log_size",
    "ftrace",
    "gnuplot",
    "io_device",
    "mem_buffer_size",
    "cumulative_slack",
    "frag",
    "pi_enabled",
    "default_policy",
];
/// Policies that a fair scheduler schedules.
const POLICIES: [&str; 3] = ["SCHED_OTHER", "SCHED_BATCH", "SCHED_IDLE"];
/// The default weight of a cgroup.
const DEFAULT_WEIGHT: u32 = 100;

type Result<T> = std::result::Result<T, WorkloadError>;

/// A field of the file with its path.
#[derive(Clone)]
struct Field<'f, 'a> {
    path: String,
    property: &'f ObjectProp<'a>,
}

impl<'f, 'a> Field<'f, 'a> {
    fn name(&self) -> &'f str {
        self.property.name.as_str()
    }

    /// The kind of its event: the name without the number.
    fn kind(&self) -> &'f str {
        self.name().trim_end_matches(|c: char| c.is_ascii_digit())
    }
}

/// The state of reading a file.
struct Reader<'t> {
    file: &'t str,
    text: &'t str,
    workload: Workload,
    mutexes: BTreeMap<String, usize>,
    conditions: BTreeMap<String, usize>,
    barriers: BTreeMap<String, usize>,
    timers: BTreeMap<String, usize>,
    groups: BTreeMap<String, usize>,
    /// The forks. Until all threads are known, the number of a fork op is an index into this.
    forks: Vec<Fork>,
    /// The first task of each name.
    names: BTreeMap<String, usize>,
    /// The thread that is being read.
    thread: String,
}

/// A fork event.
struct Fork {
    /// The thread that it starts.
    name: String,
    line: usize,
    path: String,
}

/// A thread without its events.
struct Thread {
    plan: TaskPlan,
    instances: u64,
    loops: i64,
    delay_ns: u64,
}

pub(super) fn parse(text: &str, file: &str) -> Result<Workload> {
    let mut reader = Reader {
        file,
        text,
        workload: Workload { name: file.to_owned(), ..Workload::default() },
        mutexes: BTreeMap::new(),
        conditions: BTreeMap::new(),
        barriers: BTreeMap::new(),
        timers: BTreeMap::new(),
        groups: BTreeMap::new(),
        forks: Vec::new(),
        names: BTreeMap::new(),
        thread: String::new(),
    };
    let whole = with_values(text);
    let parsed = parse_to_ast(&whole, &CollectOptions::default(), &ParseOptions::default());
    let root = parsed.map_err(|error| WorkloadError::Field {
        file: file.to_owned(),
        line: error.line_display(),
        field: "JSON".to_owned(),
        rule: error.kind().to_string(),
    })?;
    let Some(Value::Object(root)) = root.value else {
        return Err(reader.wrong_at(0, "the file", "expected an object with \"tasks\""));
    };
    reader.root(&root)?;
    Ok(reader.workload)
}

impl Reader<'_> {
    fn line(&self, at: usize) -> usize {
        1 + self.text.bytes().take(at).filter(|byte| *byte == b'\n').count()
    }

    fn wrong_at(&self, at: usize, field: &str, rule: impl Into<String>) -> WorkloadError {
        WorkloadError::Field {
            file: self.file.to_owned(),
            line: self.line(at),
            field: field.to_owned(),
            rule: rule.into(),
        }
    }

    fn wrong(&self, field: &Field, rule: impl Into<String>) -> WorkloadError {
        self.wrong_at(field.property.start(), &field.path, rule)
    }

    fn fields<'f, 'a>(&self, path: &str, object: &'f Object<'a>) -> Vec<Field<'f, 'a>> {
        let dot = if path.is_empty() { "" } else { "." };
        let field = |property: &'f ObjectProp<'a>| Field {
            path: format!("{path}{dot}{}", property.name.as_str()),
            property,
        };
        object.properties.iter().map(field).collect()
    }

    fn object<'f, 'a>(&self, field: &Field<'f, 'a>) -> Result<&'f Object<'a>> {
        match &field.property.value {
            Value::Object(object) => Ok(object),
            _ => Err(self.wrong(field, "expected an object")),
        }
    }

    fn text<'f>(&self, field: &Field<'f, '_>) -> Result<&'f str> {
        match &field.property.value {
            Value::StringLit(text) => Ok(text.value.as_ref()),
            _ => Err(self.wrong(field, "expected a string")),
        }
    }

    fn number(&self, field: &Field, least: i64, most: i64) -> Result<i64> {
        let number = match &field.property.value {
            Value::NumberLit(number) => number.value.parse::<i64>().ok(),
            _ => None,
        };
        number
            .filter(|number| (least..=most).contains(number))
            .ok_or_else(|| self.wrong(field, format!("expected a whole number, {least} to {most}")))
    }

    /// A time in microseconds, as ns.
    fn time(&self, field: &Field) -> Result<u64> {
        let us = self.number(field, 0, (MAX_NS / 1000) as i64)?;
        Ok(us as u64 * 1000)
    }

    fn root(&mut self, root: &Object) -> Result<()> {
        let mut tasks = None;
        for field in self.fields("", root) {
            match field.name() {
                "tasks" => tasks = Some(field),
                "global" => self.global(&field)?,
                // Resources are created when events name them.
                "resources" => {}
                _ => {
                    return Err(
                        self.wrong(&field, "is unknown; there are tasks, global, resources")
                    );
                }
            }
        }
        let Some(tasks) = tasks else {
            return Err(self.wrong_at(0, "tasks", "is missing: nothing would happen"));
        };
        for field in self.fields(&tasks.path, self.object(&tasks)?) {
            self.thread(&field)?;
        }
        if self.workload.tasks.is_empty() {
            return Err(self.wrong(&tasks, "is empty: nothing would happen"));
        }
        self.resolve_forks()
    }

    fn global(&mut self, global: &Field) -> Result<()> {
        for field in self.fields(&global.path, self.object(global)?) {
            match field.name() {
                "duration" => {
                    let most = (MAX_NS / 1_000_000_000) as i64;
                    let seconds = self.number(&field, -1, most)?;
                    self.workload.duration_ns = seconds.max(0) as u64 * 1_000_000_000;
                }
                "default_policy" => self.policy(&field)?,
                name if GLOBAL_UNUSED.contains(&name) => {}
                _ => return Err(self.wrong(&field, "is unknown, or not modelled")),
            }
        }
        Ok(())
    }

    fn policy(&self, field: &Field) -> Result<()> {
        let policy = self.text(field)?;
        if POLICIES.contains(&policy) {
            return Ok(());
        }
        Err(self.wrong(
            field,
            format!(
                "{policy} is not modelled: expected one of {}; real-time load is made by --thief",
                POLICIES.join(", ")
            ),
        ))
    }

    fn thread(&mut self, field: &Field) -> Result<()> {
        let mut thread = Thread {
            plan: TaskPlan::new(field.name(), Vec::new()),
            instances: 1,
            loops: -1,
            delay_ns: 0,
        };
        let mut phases = None;
        let mut events = Vec::new();
        for field in self.fields(&field.path, self.object(field)?) {
            match field.name() {
                "phases" => phases = Some(field),
                "instance" => thread.instances = self.number(&field, 0, MAX_TASKS as i64)? as u64,
                "loop" => thread.loops = self.number(&field, -1, i64::MAX)?,
                "delay" => thread.delay_ns = self.time(&field)?,
                "priority" => thread.plan.nice = self.number(&field, -20, 19)? as i32,
                "policy" => self.policy(&field)?,
                "cpus" => thread.plan.allowed = Some(self.cpus(&field)?),
                "taskgroup" => thread.plan.group = self.group(&field)?,
                _ => events.push(field),
            }
        }
        self.thread = field.name().to_owned();
        // rt-app's timer "unique" is private to each thread. Here all timers are.
        self.timers.clear();
        let mut ops = Vec::new();
        match &phases {
            Some(phases) => {
                if let Some(event) = events.first() {
                    return Err(self.wrong(event, "expected within a phase, as there are phases"));
                }
                for phase in self.fields(&phases.path, self.object(phases)?) {
                    self.phase(&phase, &thread.plan, &mut ops)?;
                }
            }
            None => {
                for event in &events {
                    self.event(event, &mut ops)?;
                }
            }
        }
        repeat(&mut ops, 0, thread.loops);
        self.add(field, thread, ops)
    }

    /// A phase: its events, repeated by its loop count, on its CPUs.
    fn phase(&mut self, phase: &Field, plan: &TaskPlan, ops: &mut Vec<Op>) -> Result<()> {
        let fields = self.fields(&phase.path, self.object(phase)?);
        let mut allowed = None;
        let mut loops = 1;
        for field in &fields {
            match field.name() {
                "loop" => loops = self.number(field, -1, i64::MAX)?,
                "cpus" => allowed = Some(self.cpus(field)?),
                _ => {}
            }
        }
        // A phase without CPUs of its own gets the thread's, not those of the phase before.
        match (&allowed, &plan.allowed) {
            (Some(own), _) => ops.push(Op::Affinity(own.clone())),
            (None, Some(thread)) if ops.iter().any(|op| matches!(op, Op::Affinity(_))) => {
                ops.push(Op::Affinity(thread.clone()));
            }
            _ => {}
        }
        let start = ops.len();
        for field in &fields {
            if !matches!(field.name(), "loop" | "cpus") {
                self.event(field, ops)?;
            }
        }
        repeat(ops, start, loops);
        Ok(())
    }

    fn add(&mut self, field: &Field, thread: Thread, ops: Vec<Op>) -> Result<()> {
        let here = self.workload.tasks.len();
        if here as u64 + thread.instances > MAX_TASKS as u64 {
            return Err(self.wrong(field, format!("more than {MAX_TASKS} threads")));
        }
        if thread.instances > 0 {
            self.names.entry(field.name().to_owned()).or_insert(here);
        }
        let ops: Arc<[Op]> = ops.into();
        for instance in 0..thread.instances {
            let name = match thread.instances {
                1 => field.name().to_owned(),
                _ => format!("{}-{instance}", field.name()),
            };
            self.workload.tasks.push(TaskPlan {
                name: name.into(),
                ops: ops.clone(),
                arrives_ns: Some(thread.delay_ns),
                ..thread.plan.clone()
            });
        }
        Ok(())
    }

    fn cpus(&self, field: &Field) -> Result<Arc<Mask>> {
        let rule =
            || self.wrong(field, format!("expected CPU numbers below {MAX_CPUS}, like [0, 2]"));
        let Value::Array(array) = &field.property.value else { return Err(rule()) };
        let mut mask = Mask::EMPTY;
        for element in &array.elements {
            let Value::NumberLit(number) = element else { return Err(rule()) };
            match number.value.parse::<u32>() {
                Ok(cpu) if (cpu as usize) < MAX_CPUS => mask.set(cpu),
                _ => return Err(rule()),
            }
        }
        if mask.count() == 0 { Err(rule()) } else { Ok(Arc::new(mask)) }
    }

    /// A cgroup by its path; its ancestors are created, too.
    fn group(&mut self, field: &Field) -> Result<usize> {
        let path = self.text(field)?;
        let mut parent = 0;
        let mut name = String::new();
        for part in path.split('/').filter(|part| !part.is_empty()) {
            name = format!("{name}/{part}");
            parent = match self.groups.get(&name) {
                Some(group) => *group,
                None => {
                    let plan = GroupPlan { name: name.clone(), weight: DEFAULT_WEIGHT, parent };
                    self.workload.groups.push(plan);
                    let group = self.workload.groups.len();
                    self.groups.insert(name.clone(), group);
                    group
                }
            };
        }
        Ok(parent)
    }

    fn event(&mut self, field: &Field, ops: &mut Vec<Op>) -> Result<()> {
        match field.kind() {
            "run" | "runtime" => ops.push(Op::Run(self.time(field)?)),
            "sleep" => ops.push(Op::Sleep(self.time(field)?)),
            "timer" => {
                let timer = self.timer(field)?;
                ops.push(timer);
            }
            "lock" => ops.push(Op::Lock(self.mutex(field)?)),
            "unlock" => ops.push(Op::Unlock(self.mutex(field)?)),
            "wait" => self.wait(field, ops)?,
            "sync" => {
                let at = ops.len();
                self.wait(field, ops)?;
                let condition = match ops.get(at) {
                    Some(Op::Wait { condition, .. }) => *condition,
                    _ => return Ok(()),
                };
                ops.insert(at, Op::Signal(condition));
            }
            "signal" => {
                let condition = self.condition(self.text(field)?);
                ops.push(Op::Signal(condition));
            }
            "broad" => {
                let condition = self.condition(self.text(field)?);
                ops.push(Op::Broadcast(condition));
            }
            "suspend" => {
                let condition = self.suspended(field)?;
                ops.push(Op::Wait { condition, mutex: None });
            }
            "resume" => {
                let condition = self.suspended(field)?;
                ops.push(Op::Broadcast(condition));
            }
            "barrier" => {
                let barrier = self.barrier(field)?;
                ops.push(Op::Barrier(barrier));
            }
            "yield" => ops.push(Op::Yield),
            "fork" => {
                let name = self.text(field)?.to_owned();
                let line = self.line(field.property.start());
                // An index into `forks` until all threads are known.
                ops.push(Op::Fork(self.forks.len()));
                self.forks.push(Fork { name, line, path: field.path.clone() });
            }
            "mem" | "iorun" => {
                return Err(self.wrong(
                    field,
                    "is not modelled: the time of memory and devices is unknown; use run or sleep",
                ));
            }
            "exec" | "period" | "deadline" | "lock_order" | "resources" => {
                return Err(self.wrong(
                    field,
                    "is of the format before rt-app 1.0; use run, timer, lock and unlock",
                ));
            }
            _ => return Err(self.wrong(field, "is no event of rt-app's that is modelled")),
        }
        Ok(())
    }

    fn timer(&mut self, field: &Field) -> Result<Op> {
        let mut period_ns = None;
        let mut name = "";
        for part in self.fields(&field.path, self.object(field)?) {
            match part.name() {
                "ref" => name = self.text(&part)?,
                "period" => period_ns = Some(self.time(&part)?),
                "mode" if self.text(&part)? == "relative" => {}
                "mode" => {
                    return Err(self.wrong(&part, "expected \"relative\": others are not modelled"));
                }
                _ => return Err(self.wrong(&part, "expected ref, period or mode")),
            }
        }
        let Some(period_ns) = period_ns.filter(|period| *period > 0) else {
            return Err(self.wrong(field, "expected a period of at least 1"));
        };
        let next = self.timers.len();
        let timer = *self.timers.entry(name.to_owned()).or_insert(next);
        Ok(Op::Timer { timer, period_ns })
    }

    /// Waits for a condition, and releases the mutex meanwhile.
    fn wait(&mut self, field: &Field, ops: &mut Vec<Op>) -> Result<()> {
        let (mut condition, mut mutex) = (None, None);
        for part in self.fields(&field.path, self.object(field)?) {
            match part.name() {
                "ref" => condition = Some(self.condition(self.text(&part)?)),
                "mutex" => mutex = Some(self.mutex(&part)?),
                _ => return Err(self.wrong(&part, "expected ref or mutex")),
            }
        }
        let (Some(condition), Some(mutex)) = (condition, mutex) else {
            return Err(self.wrong(field, "expected both ref and mutex"));
        };
        ops.extend([Op::Wait { condition, mutex: Some(mutex) }, Op::Lock(mutex)]);
        Ok(())
    }

    fn mutex(&mut self, field: &Field) -> Result<usize> {
        let next = self.mutexes.len();
        let mutex = *self.mutexes.entry(self.text(field)?.to_owned()).or_insert(next);
        self.workload.mutexes = self.mutexes.len();
        Ok(mutex)
    }

    fn condition(&mut self, name: &str) -> usize {
        let next = self.conditions.len();
        let condition = *self.conditions.entry(name.to_owned()).or_insert(next);
        self.workload.conditions = self.conditions.len();
        condition
    }

    /// The condition of suspend and resume: the given name, or the thread's own.
    fn suspended(&mut self, field: &Field) -> Result<usize> {
        let own = self.thread.clone();
        let name = self.text(field)?;
        Ok(self.condition(if name.is_empty() { &own } else { name }))
    }

    /// A barrier has as many members as events that name it. (Instances of one thread count once, as in
    /// rt-app.)
    fn barrier(&mut self, field: &Field) -> Result<usize> {
        let next = self.barriers.len();
        let barrier = *self.barriers.entry(self.text(field)?.to_owned()).or_insert(next);
        if barrier == self.workload.barriers.len() {
            self.workload.barriers.push(0);
        }
        self.workload.barriers[barrier] += 1;
        Ok(barrier)
    }

    /// Resolves the names of forked threads. A forked thread begins when it is forked.
    fn resolve_forks(&mut self) -> Result<()> {
        let mut children = Vec::new();
        for fork in &self.forks {
            let child = self.names.get(&fork.name).ok_or_else(|| WorkloadError::Field {
                file: self.file.to_owned(),
                line: fork.line,
                field: fork.path.clone(),
                rule: format!("there is no thread \"{}\" of one instance or more", fork.name),
            })?;
            children.push(*child);
        }
        let mut forked = Vec::new();
        for task in &mut self.workload.tasks {
            let is_fork = |op: &Op| matches!(op, Op::Fork(_));
            if !task.ops.iter().any(is_fork) {
                continue;
            }
            let resolved = task.ops.iter().map(|op| match op {
                Op::Fork(number) => Op::Fork(children.get(*number).copied().unwrap_or_default()),
                other => other.clone(),
            });
            task.ops = resolved.collect();
            forked.extend(task.ops.iter().filter_map(|op| match op {
                Op::Fork(child) => Some(*child),
                _ => None,
            }));
        }
        for child in forked {
            if let Some(task) = self.workload.tasks.get_mut(child) {
                task.arrives_ns = None;
            }
        }
        Ok(())
    }
}

/// Adds an empty string to each `"suspend"` and `"yield"` without a value, as rt-app's front end does.
/// Line numbers stay the same.
fn with_values(text: &str) -> String {
    let mut whole = String::with_capacity(text.len());
    let mut rest = text;
    let next = |text: &str| {
        let found = ["\"suspend\"", "\"yield\""].map(|word| Some(text.find(word)? + word.len()));
        found.into_iter().flatten().min()
    };
    while let Some(end) = next(rest) {
        let (done, left) = rest.split_at(end);
        whole.push_str(done);
        if left.trim_start().starts_with([',', '}']) {
            whole.push_str(": \"\"");
        }
        rest = left;
    }
    whole + rest
}

/// Repeats the ops from `start` on `times` times; -1: for ever.
fn repeat(ops: &mut Vec<Op>, start: usize, times: i64) {
    if ops.len() == start {
        return;
    }
    match times {
        ..0 => ops.push(Op::Goto(start)),
        0 => ops.truncate(start),
        1 => {}
        _ => ops.push(Op::Repeat { to: start, times: times as u64 - 1 }),
    }
}
