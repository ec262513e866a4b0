//! Journals. Each entry that is read can be written, and then is read as the same again. The entries
//! of a dead writer add up to nothing with a thread number below 1, which would mean the caller.

use evenkeel_journal::{Entry, JournalState, parse_entries};

use crate::target::{Target, reason};

const JOURNAL: Target = Target {
    name: "journal",
    words: &[
        "\"header\"",
        "\"pin\"",
        "\"held\"",
        "\"restored\"",
        "\"setting\"",
        "\"setting_closed\"",
        "\"index\":2",
        "\"table\"",
        "\"table_closed\"",
        "\"all\"",
        "{\"mask\":\"1\"}",
        "\"replaces\":null",
        "\"0-8191\"",
        "\"id\":1",
        "4294967295",
        "-2147483648",
    ],
    repair: seal_lines,
    read,
};

/// The start of a line's checksum.
const SUM: &[u8] = b",\"sum\":\"";

/// Gives each line that has a checksum the right one.
fn seal_lines(text: &mut Vec<u8>) {
    let mut sealed = Vec::with_capacity(text.len());
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        let sum_at = line.windows(SUM.len()).rposition(|window| window == SUM);
        match sum_at.and_then(|at| std::str::from_utf8(&line[..at]).ok()) {
            Some(object) => sealed.extend(Entry::seal(object.to_owned()).into_bytes()),
            None => sealed.extend(line),
        }
    }
    *text = sealed;
}

/// Accepted: no line is damaged.
fn read(_: &str, text: &[u8]) -> bool {
    let (mut noted, mut last) = (0, 0);
    let (entries, has_damage) = parse_entries(text, |line, why| {
        reason(why);
        assert!(line > last, "lines are noted in their order");
        (noted, last) = (noted + 1, line);
    });
    assert!(noted > 0 || !has_damage);
    let lines: String = entries.iter().map(|entry| entry.encode().unwrap()).collect();
    let Some(Entry::Header(header)) = entries.first() else {
        // Each entry alone: without a header, a journal counts for nothing.
        for (entry, line) in entries.iter().zip(lines.lines()) {
            assert_eq!(Entry::decode(line.as_bytes()).as_ref(), Ok(entry));
        }
        return false;
    };
    let again = parse_entries(lines.as_bytes(), |line, why| panic!("line {line}: {why}"));
    assert_eq!((&again.0, again.1), (&entries, false));
    let state = JournalState::of_dead_writer(header, &entries);
    for pin in state.pinned() {
        assert!(!pin.set.is_empty() && pin.task.tid > 0 && pin.process.tgid > 0, "{pin:?}");
        assert!(state.has_set_mask(&pin.set));
        assert!(!state.held_by(&pin.process).is_empty());
    }
    let mut files: Vec<_> = state.settings().iter().map(|setting| &setting.file).collect();
    let count = files.len();
    files.sort();
    files.dedup();
    assert_eq!(files.len(), count, "a setting is restored once");
    noted == 0
}

#[test]
fn a_journal_is_read_as_it_would_be_written() {
    JOURNAL.fuzz();
}
