//! Command lines of processes, for services that serve all users: no user can hold up the reading
//! (`in_time.rs`).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;

use crate::in_time::{Lock, read_each_in_time};

/// The longest part of a command line that is read: its user chooses the length, and all users share the
/// service's memory.
const MAX_BYTES: u64 = 4096;

/// The most words that are kept of one: a word takes more memory than its bytes.
const MAX_WORDS: usize = 256;

/// The command lines of these processes: the beginning of each, as words. A process that has none (a
/// kernel thread, one that has ended), or with a command line that cannot be read in time, is left out.
/// By the time of the answer another process may have the number.
pub fn command_lines(pids: &[i32]) -> BTreeMap<i32, Vec<String>> {
    judge_command_lines(pids, Some)
}

/// What `judge` makes of the word that each of these processes was started with. The words themselves
/// are not kept: all processes of a machine may be asked for.
pub(crate) fn judge_first_words<T: Send + 'static>(
    pids: &[i32],
    judge: impl Fn(&str) -> Option<T> + Send + Sync + 'static,
) -> BTreeMap<i32, T> {
    judge_command_lines(pids, move |words| judge(words.first()?))
}

fn judge_command_lines<T: Send + 'static>(
    pids: &[i32],
    judge: impl Fn(Vec<String>) -> Option<T> + Send + Sync + 'static,
) -> BTreeMap<i32, T> {
    let found = read_each_in_time(Lock::Memory, pids, move |pid| judge(words_of(pid)?));
    found.into_iter().filter_map(|(pid, judged)| Some((pid, judged?))).collect()
}

/// The words of one command line; `None`: there are none. This may wait for ever.
fn words_of(pid: i32) -> Option<Vec<String>> {
    let mut text = Vec::new();
    let file = File::open(format!("/proc/{pid}/cmdline")).ok()?;
    file.take(MAX_BYTES).read_to_end(&mut text).ok()?;
    let words = text.split(|byte| *byte == 0).filter(|word| !word.is_empty()).take(MAX_WORDS);
    let words: Vec<String> = words.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    (!words.is_empty()).then_some(words)
}
