//! What the nodes of a job answer, by way of `srun`: it is read as it comes, so that a terminal tells
//! how many nodes have answered.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, BufReader, Read, pipe};
use std::process::{Command, Output, Stdio};
use std::thread;

use evenkeel_trial::display::Display;

use super::node::Answer;
use crate::terminal::clean;

/// Runs a command that asks the nodes of this list, so many, and reads all that it says. A terminal
/// shows meanwhile which nodes are asked, and how many of them have answered.
///
/// # Errors
/// The command cannot be started, or what it says cannot be read.
pub fn collect(mut command: Command, list: &str, nodes: usize) -> io::Result<Output> {
    let (mut errors, writer) = pipe()?;
    command.stdout(Stdio::piped()).stderr(writer);
    let read_errors = move || -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        errors.read_to_end(&mut text)?;
        Ok(text)
    };
    // Both are read at once: srun would wait for a reader of the other one.
    let errors = thread::Builder::new().name("srun".to_owned()).spawn(read_errors)?;
    let child = command.spawn();
    // It holds the pipe that the thread reads to its end.
    drop(command);
    let mut child = child?;
    let display = Display::counting("nodes");
    let now = format!("asking {}", clean(list));
    let show = |answered: usize| display.step(answered as u64, nodes as u64, &now);
    show(0);
    let stdout = match child.stdout.take() {
        Some(stdout) => read_answers(BufReader::new(stdout), show),
        None => Ok(Vec::new()),
    };
    display.finish();
    let status = child.wait()?;
    let stderr = errors.join().unwrap_or_else(|_| Err(io::Error::other("its reader has ended")))?;
    Ok(Output { status, stdout: stdout?, stderr })
}

/// Reads all lines. `show` gets the number of nodes that have answered, when it changes.
fn read_answers(mut lines: impl BufRead, show: impl Fn(usize)) -> io::Result<Vec<u8>> {
    let mut text: Vec<u8> = Vec::new();
    let mut answered = BTreeSet::new();
    loop {
        let begin = text.len();
        if lines.read_until(b'\n', &mut text)? == 0 {
            return Ok(text);
        }
        // What a prolog of the site prints is no answer.
        let answer = labelled(&text[begin..]).filter(|(_, said)| Answer::begins_in(said));
        if answer.is_some_and(|(task, _)| answered.insert(task)) {
            show(answered.len());
        }
    }
}

/// What each task printed: srun writes the number of the task in front of each line, and of each part of
/// a long one.
pub fn by_task(text: &[u8]) -> BTreeMap<u32, Vec<u8>> {
    let mut tasks: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    for (task, said) in text.split(|byte| *byte == b'\n').filter_map(labelled) {
        tasks.entry(task).or_default().extend(said);
    }
    tasks
}

/// The number of a task, and what it printed in this line.
fn labelled(line: &[u8]) -> Option<(u32, &[u8])> {
    let colon = line.windows(2).position(|pair| pair == b": ")?;
    let task = std::str::from_utf8(&line[..colon]).ok()?.trim().parse().ok()?;
    Some((task, &line[colon + 2..]))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn parts_of_long_lines_are_put_together_for_each_task() {
        let tasks = by_task(b" 0: {\"a\"\n10: {\"b\": \n 0: : 1}\n10: 2}\nsrun: noise\n");
        assert_eq!(tasks[&0], b"{\"a\": 1}");
        assert_eq!(tasks[&10], b"{\"b\": 2}");
        assert_eq!(tasks.len(), 2);
    }

    #[test]
    fn each_node_that_answers_is_counted_once() {
        let text = b"1: modules loaded\n1: {\"format\":1,\n1: \"more\": 2}\n0: {\"format\":1}\n\
                     srun: noise\n1: {\"format\":1} again\n2: usage";
        let shown = RefCell::new(Vec::new());
        let read = read_answers(&text[..], |count| shown.borrow_mut().push(count)).unwrap();
        assert_eq!(read, text);
        assert_eq!(shown.into_inner(), [1, 2]);
    }

    #[test]
    fn all_that_the_command_says_is_read() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo '0: {\"format\":1}'; echo no >&2; exit 3"]);
        let output = collect(command, "n1", 1).unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert_eq!(output.stdout, b"0: {\"format\":1}\n");
        assert_eq!(output.stderr, b"no\n");
        let missing = collect(Command::new("/no/such/srun"), "n1", 1).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
