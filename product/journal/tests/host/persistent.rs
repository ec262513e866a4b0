//! Changes that outlive their writer: no start of evenkeel takes them back, a user's undo does.

use std::fs;
use std::path::Path;

use evenkeel_journal::{
    ChangedTable, MovedLine, Session, SessionOptions, Standing, UndoOptions, undo, undo_earlier,
};

use crate::stand_in::StandIn;
use crate::tools::*;

const ALL_KINDS: UndoOptions = UndoOptions { force: false, persistent: true };

fn value(file: &Path) -> String {
    fs::read_to_string(file).unwrap().trim().to_owned()
}

/// A writer that has ended: journals are named by their writer, and this process lives.
fn as_by_another(dir: &Path, journal: &Path, start: u64) {
    let text = fs::read_to_string(journal).unwrap();
    fs::remove_file(journal).unwrap();
    // The header names this process, too.
    let (_, entries) = text.split_once('\n').unwrap();
    put(dir, &format!("2000000000-{start}.jsonl"), (line(&header()) + entries).as_bytes());
}

fn shift(session: &mut Session, root: &Path, cpus: &str) {
    let moved = session.move_line(root, 7, "eth0", &cpus.parse().unwrap()).unwrap();
    assert_eq!(moved, MovedLine::Moved);
}

#[test]
fn only_a_users_undo_takes_them_back() {
    let dir = directory();
    let root = dir.path();
    let file = put_line(root, 7, "eth0", "0-1");
    let sleeper = Sleeper::new();
    let before = sleeper.mask();
    let stand_in = StandIn::start(root, [9], usize::MAX);
    let mut session = open(root);
    session.ban_line(&evenkeel_journal::find_irqbalance(root)[0], 7).unwrap();
    shift(&mut session, root, "1");
    let cpu = before.iter().next().unwrap();
    session.place(&sleeper.task, cpu).unwrap();
    let journal = session.persist().unwrap();
    as_by_another(root, &journal, 5);
    let stands = || value(&file) == "1" && sleeper.mask() == just(cpu) && stand_in.list() == [7, 9];
    assert!(stands());

    undo_earlier(root);
    let report = undo(root, UndoOptions::default());
    assert!(report.is_clean() && report.persistent.len() == 1, "{report:?}");
    assert!(stands());
    let standing = Standing::read(root);
    assert_eq!(standing.lines.len(), 1);
    assert_eq!((standing.lines[0].before.clone(), standing.lines[0].number), (all_of("0-1"), 7));
    // On a machine with one CPU, its own mask was that CPU.
    assert_eq!(standing.pins.len(), usize::from(before.len() > 1));

    let report = undo(root, ALL_KINDS);
    assert!(report.is_clean() && report.persistent.is_empty(), "{report:?}");
    assert_eq!((value(&file), sleeper.mask(), stand_in.list()), ("0-1".into(), before, vec![9]));
    assert!(journals(root).is_empty());
    assert_eq!(Standing::read(root), Standing::default());
}

fn all_of(list: &str) -> evenkeel_machine::CpuSet {
    list.parse().unwrap()
}

#[test]
fn later_changes_are_undone_before_earlier_ones() {
    // By name, the later one comes last, or first.
    for (first, second) in [(5, 6), (99, 100)] {
        let dir = directory();
        let root = dir.path();
        let file = put_line(root, 7, "eth0", "0-1");
        for (cpus, start) in [("1", first), ("0", second)] {
            let mut session = open(root);
            shift(&mut session, root, cpus);
            as_by_another(root, &session.persist().unwrap(), start);
        }
        let standing = Standing::read(root).lines;
        assert_eq!(standing.len(), 1);
        assert_eq!((&standing[0].before, &standing[0].set), (&all_of("0-1"), &all_of("0")));
        let report = undo(root, ALL_KINDS);
        assert!(report.is_clean() && report.kept_settings.is_empty(), "{report:?}");
        assert_eq!(value(&file), "0-1");
    }
}

#[test]
fn what_another_process_changed_since_does_not_stand() {
    let dir = directory();
    let root = dir.path();
    let file = put_line(root, 7, "eth0", "0-2");
    let mut session = open(root);
    shift(&mut session, root, "1");
    as_by_another(root, &session.persist().unwrap(), 5);
    // An administrator's choice, upon which it is moved again.
    fs::write(&file, "0\n").unwrap();
    assert_eq!(Standing::read(root).lines, []);
    let mut session = open(root);
    shift(&mut session, root, "2");
    as_by_another(root, &session.persist().unwrap(), 6);
    assert_eq!(Standing::read(root).lines[0].before, all_of("0"));
    let report = undo(root, ALL_KINDS);
    assert_eq!(report.kept_settings.len(), 1, "{report:?}");
    assert_eq!(value(&file), "0");
}

#[test]
fn what_a_living_writer_moves_is_not_undone_below_it() {
    let dir = directory();
    let root = dir.path();
    let file = put_line(root, 7, "eth0", "0-1");
    let mut session = open(root);
    shift(&mut session, root, "1");
    as_by_another(root, &session.persist().unwrap(), 5);
    let mut session = open(root);
    shift(&mut session, root, "0");
    let report = undo(root, ALL_KINDS);
    assert!(report.errors[0].to_string().contains("by a living process, too"), "{report:?}");
    assert_eq!(value(&file), "0");
    assert!(session.close().is_clean());
    assert_eq!(value(&file), "1");
    assert!(undo(root, ALL_KINDS).is_clean());
    assert_eq!(value(&file), "0-1");
}

#[test]
fn a_session_that_cannot_say_so_takes_everything_back() {
    let dir = directory();
    let root = dir.path();
    let file = put_line(root, 7, "eth0", "0-1");
    let mut session = Session::open(root, SessionOptions::default()).unwrap();
    shift(&mut session, root, "1");
    fs::remove_file(session.journal_path()).unwrap();
    let why = session.persist().unwrap_err().to_string();
    assert!(why.contains("removed while in use"), "{why}");
    assert_eq!(value(&file), "0-1");
}

/// Of two journals, and of a living writer above them, by three names.
#[test]
fn what_belongs_to_a_network_device_is_known_by_its_number() {
    let dir = directory();
    let root = dir.path();
    let table_of = |name: &str| root.join("ethtool").join(name);
    let rename = |from: &str, to: &str| {
        fs::rename(table_of(from), table_of(to)).unwrap();
        rename_device(root, from, to)
    };
    let change = |session: &mut Session, device: &str, queues: [u32; 2], cpus: &str| {
        let changed = session.change_table(root, device, &queues).unwrap();
        assert_eq!(changed, ChangedTable::Changed);
        assert!(session.change_setting(&send_queue(root, device), cpus).unwrap());
    };
    put_table(root, "eth0", "0 1");
    put_send_queue(root, "eth0", 2, "1");
    let mut session = open(root);
    change(&mut session, "eth0", [1, 1], "2");
    as_by_another(root, &session.persist().unwrap(), 5);
    rename("eth0", "lan0");
    let mut session = open(root);
    change(&mut session, "lan0", [0, 0], "4");
    as_by_another(root, &session.persist().unwrap(), 6);
    let file = rename("lan0", "lan1");
    let standing = Standing::read(root);
    assert_eq!((standing.tables.len(), standing.settings.len()), (1, 1), "{standing:?}");
    let (both, setting) = (&standing.tables[0], &standing.settings[0]);
    assert_eq!((&both.before[..], &both.set[..]), (&[0, 1][..], &[0, 0][..]));
    assert_eq!((&setting.file, &setting.before[..], &setting.set[..]), (&file, "1", "4"));

    let mut above = open(root);
    change(&mut above, "lan1", [1, 0], "8");
    let report = undo(root, ALL_KINDS);
    assert_eq!(report.errors.len(), 2, "{report:?}");
    assert!(report.errors.iter().all(|why| why.to_string().contains("by a living process, too")));
    assert!(above.close().is_clean());
    let now = || (table(&table_of("lan1")), value(&file));
    assert_eq!(now(), (vec![0, 0], "4".to_owned()));
    let report = undo(root, ALL_KINDS);
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(now(), (vec![0, 1], "1".to_owned()));
    assert!(journals(root).is_empty());
}
