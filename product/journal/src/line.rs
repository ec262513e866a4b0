//! The affinity of an interrupt line: moved, restored, and left alone if another process has changed it
//! since. A line is known by its number and the names of its handlers.
//!
//! The kernel changes an affinity itself if all its CPUs go offline: the line then gets the CPUs that
//! are online, and keeps them when its own come again (`hotplug`). That is not another process's choice.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use evenkeel_machine::CpuSet;

use crate::entry::{Entry, Line, LineEnd};
use crate::hotplug::Cpus;
use crate::session::Session;
use crate::setting::{RestoredSetting, SettingError, is_gone, read_value, write_value};
use crate::task::now_ns;

/// What came of moving a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MovedLine {
    /// It has the affinity.
    Moved,
    /// It had that affinity already.
    Unchanged,
    /// Another process has changed its affinity since this session did: left as it is.
    LetGo {
        /// The affinity that it has.
        found: CpuSet,
    },
    /// The number is free, or is another line's.
    Gone,
}

/// A line of which another process has changed the affinity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetGoLine {
    /// [`Line::number`].
    pub number: u32,
    /// [`Line::name`].
    pub name: String,
    /// The affinity that it has.
    pub found: CpuSet,
}

/// A line that the kernel has moved, because all its CPUs went offline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DisplacedLine {
    /// [`Line::number`].
    pub number: u32,
    /// [`Line::name`].
    pub name: String,
    /// The CPUs that are offline, or were for a moment.
    pub offline: CpuSet,
}

/// The lines that no longer have the affinity that a session set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChangedLines {
    /// Left as another process set them.
    pub let_go: Vec<LetGoLine>,
    /// They have the affinity again that they had before the session moved them.
    pub displaced: Vec<DisplacedLine>,
}

fn affinity_file(root: &Path, number: u32) -> PathBuf {
    root.join(format!("proc/irq/{number}/smp_affinity_list"))
}

/// The line's affinity; `None`: the number is free, or is another line's. A line without a handler is
/// still the same: while its device is down, the kernel keeps the affinity.
fn affinity_of(root: &Path, number: u32, name: &str) -> Result<Option<CpuSet>, SettingError> {
    let read = |file: PathBuf| match read_value(&file) {
        Err(why) if is_gone(&why) => Ok(None),
        value => value.map(Some).map_err(|source| SettingError::Unreadable { file, source }),
    };
    let actions = read(root.join(format!("sys/kernel/irq/{number}/actions")))?;
    if actions.is_none_or(|actions| actions != name && !actions.is_empty()) {
        return Ok(None);
    }
    let file = affinity_file(root, number);
    let Some(list) = read(file.clone())? else { return Ok(None) };
    let cpus: Result<CpuSet, _> = list.parse();
    cpus.map(Some).map_err(|why| SettingError::Unreadable {
        file,
        source: io::Error::new(io::ErrorKind::InvalidData, why.to_string()),
    })
}

impl Line {
    /// The file of its affinity.
    pub fn file(&self) -> PathBuf {
        affinity_file(&self.root, self.number)
    }

    fn affinity(&self) -> Result<Option<CpuSet>, SettingError> {
        affinity_of(&self.root, self.number, &self.name)
    }

    /// Whether the line has the affinity that was set.
    pub(crate) fn is_as_set(&self) -> bool {
        self.affinity().is_ok_and(|found| found.as_ref() == Some(&self.set))
    }

    /// Whether this affinity is what the kernel gave the line when all its CPUs went offline. Where they
    /// are online again, only a comparison with the CPUs of an `earlier` look can tell.
    fn is_displaced(&self, found: &CpuSet, earlier: Option<&Cpus>) -> bool {
        Cpus::read(&self.root).is_some_and(|now| now.explain(found, &self.set, earlier))
    }

    /// Restores the affinity from before the move, if the line still has the one that was set.
    pub(crate) fn restore(&self) -> Result<RestoredSetting, SettingError> {
        self.restore_since(None)
    }

    fn restore_since(&self, earlier: Option<&Cpus>) -> Result<RestoredSetting, SettingError> {
        let Some(found) = self.affinity()? else { return Ok(RestoredSetting::Gone) };
        // Killed between the entry and the change: nothing to do.
        if found == self.before {
            return Ok(RestoredSetting::Restored);
        }
        let is_ours = found == self.set || Some(&found) == self.replaces.as_ref();
        if !is_ours && !self.is_displaced(&found, earlier) {
            return Ok(RestoredSetting::Kept { found: found.to_string() });
        }
        write_value(&self.file(), &self.before.to_string())?;
        Ok(RestoredSetting::Restored)
    }
}

impl Session {
    /// The lines that this session has moved.
    pub fn lines(&self) -> &[Line] {
        self.state.lines()
    }

    /// Sets the affinity of interrupt line `number`, which has the handlers `name`, to `set`. `root` is
    /// `/`, or a test's own.
    ///
    /// # Errors
    /// All of [`SettingError`]; the line is not moved then.
    pub fn move_line(
        &mut self,
        root: &Path,
        number: u32,
        name: &str,
        set: &CpuSet,
    ) -> Result<MovedLine, SettingError> {
        let is_it = |line: &&Line| line.root == root && line.number == number;
        let known = self.state.lines().iter().find(is_it).cloned();
        let held = known.clone().filter(|line| line.name == name);
        if known.is_some() && held.is_none() {
            self.end_line(root, number);
        }
        let Some(found) = affinity_of(root, number, name)? else {
            if held.is_some() {
                self.end_line(root, number);
            }
            return Ok(MovedLine::Gone);
        };
        let earlier = self.looks.of(root, number);
        let is_changed = |line: &Line| line.set != found && !line.is_displaced(&found, earlier);
        if held.as_ref().is_some_and(is_changed) {
            self.end_line(root, number);
            return Ok(MovedLine::LetGo { found });
        }
        if found == *set {
            return Ok(MovedLine::Unchanged);
        }
        let line = Line {
            root: root.to_owned(),
            number,
            name: name.to_owned(),
            replaces: held.is_some().then(|| found.clone()),
            before: held.as_ref().map_or(found, |line| line.before.clone()),
            set: set.clone(),
            time_ns: now_ns(),
        };
        let file = line.file();
        self.looks.note(root, set);
        self.write(Entry::Line(line))?;
        if let Err(why) = write_value(&file, &set.to_string()) {
            match held {
                // The line still has the affinity of the move before this one.
                Some(line) => self.write_or_warn(Entry::Line(line)),
                None => self.end_line(root, number),
            }
            return Err(why);
        }
        self.state.confirm_lines();
        self.looks.settle(root, number);
        self.compact_if_large();
        Ok(MovedLine::Moved)
    }

    /// Looks at all lines that this session has moved:
    ///
    /// - If another process has changed a line's affinity since, the line is let go.
    /// - If all CPUs of a line went offline, its affinity from before the move is restored, and it may
    ///   be moved again. Where the kernel refuses that now, for example because those CPUs are offline,
    ///   too, the line is held until the kernel takes it.
    ///
    /// # Errors
    /// [`SettingError::Unreadable`]; that line and those after it are looked at the next time.
    pub fn release_changed_lines(&mut self) -> Result<ChangedLines, SettingError> {
        let mut changed = ChangedLines::default();
        let roots: BTreeSet<&Path> =
            self.state.lines().iter().map(|line| line.root.as_path()).collect();
        // Before the affinities: what happens from here on is seen at the next look.
        let now = self.looks.renew(&roots);
        let earlier = std::mem::replace(&mut self.looks, now);
        let lines = self.state.lines().to_vec();
        for (index, line) in lines.iter().enumerate() {
            let (root, number) = (line.root.as_path(), line.number);
            match self.release_if_changed(line, earlier.of(root, number), &mut changed) {
                Ok(true) => {}
                Ok(false) => self.looks.keep(root, number, &earlier),
                Err(why) => {
                    for left in &lines[index..] {
                        self.looks.keep(&left.root, left.number, &earlier);
                    }
                    return Err(why);
                }
            }
        }
        Ok(changed)
    }

    /// Looks at one line; `earlier` are the CPUs at the look before. False: the kernel refused to
    /// restore its affinity, and the line waits for that.
    fn release_if_changed(
        &mut self,
        line: &Line,
        earlier: Option<&Cpus>,
        changed: &mut ChangedLines,
    ) -> Result<bool, SettingError> {
        let found = line.affinity()?;
        if found.as_ref() == Some(&line.set) {
            return Ok(true);
        }
        let is_displaced = found.as_ref().is_some_and(|found| line.is_displaced(found, earlier));
        if is_displaced {
            match line.restore_since(earlier) {
                Err(SettingError::Refused { .. }) => return Ok(false),
                restored => restored?,
            };
        }
        self.end_line(&line.root, line.number);
        let Line { number, name, set, .. } = line.clone();
        if is_displaced {
            changed.displaced.push(DisplacedLine { number, name, offline: set });
        } else {
            changed.let_go.extend(found.map(|found| LetGoLine { number, name, found }));
        }
        Ok(true)
    }

    fn end_line(&mut self, root: &Path, number: u32) {
        self.looks.settle(root, number);
        let end = LineEnd { root: root.to_owned(), number, time_ns: now_ns() };
        self.write_or_warn(Entry::LineClosed(end));
    }
}
