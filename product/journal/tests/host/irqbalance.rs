//! irqbalance's list of lines, with a stand-in that speaks its protocol in this process. (Kills in
//! between: `crash`.)

use evenkeel_journal::{
    BanError, Irqbalance, Session, TaskRef, UndoOptions, find_irqbalance, undo,
};

use crate::stand_in::StandIn;
use crate::tools::*;

#[test]
fn a_line_is_added_to_the_list_and_taken_out_again() {
    let dir = directory();
    let stand_in = StandIn::start(dir.path(), [3, 9], usize::MAX);
    let own = std::process::id() as i32;
    let found = find_irqbalance(dir.path());
    assert_eq!(found, [Irqbalance { pid: own, socket: Some(stand_in.socket()) }]);
    let mut session = open(dir.path());
    found[0].check().unwrap();
    for line in [4, 7, 4] {
        session.ban_line(&found[0], line).unwrap();
    }
    // Its own user's.
    session.ban_line(&found[0], 9).unwrap();
    assert_eq!(stand_in.list(), [3, 4, 7, 9]);
    assert_eq!(session.bans().iter().map(|ban| ban.line).collect::<Vec<_>>(), [4, 7]);
    // What others add or take out meanwhile stays so.
    stand_in.set_list([4, 9, 12]);
    let report = session.close();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(
        report.lifted_bans.iter().map(|ban| (ban.pid, ban.line)).collect::<Vec<_>>(),
        [(own, 4)]
    );
    assert_eq!(stand_in.list(), [9, 12]);
    assert!(journals(dir.path()).is_empty());
    // An empty list has a word of its own.
    stand_in.set_list([]);
    let mut session = open(dir.path());
    session.ban_line(&found[0], 4).unwrap();
    assert_eq!(stand_in.list(), [4]);
    drop(session);
    assert!(stand_in.list().is_empty());
}

/// Newer versions read no more than 255 characters of a list.
#[test]
fn a_list_that_is_not_taken_whole_is_set_back_and_refused() {
    let dir = directory();
    let stand_in = StandIn::start(dir.path(), [3, 9], 2);
    let mut session = open(dir.path());
    let irqbalance = &find_irqbalance(dir.path())[0];
    let refused = session.ban_line(irqbalance, 12).unwrap_err();
    assert!(matches!(refused, BanError::NotTaken { line: 12, .. }), "{refused}");
    assert!(refused.to_string().contains("--banirq=12"), "{refused}");
    assert_eq!(stand_in.list(), [3, 9]);
    assert!(session.bans().is_empty());
    assert!(session.close().lifted_bans.is_empty());
}

#[test]
fn a_process_that_does_not_speak_the_protocol_is_refused() {
    let dir = directory();
    let mut session = open(dir.path());
    let pid = std::process::id() as i32;
    let without = Irqbalance { pid, socket: None };
    let refused = session.ban_line(&without, 4).unwrap_err().to_string();
    assert!(refused.contains("no socket") && refused.contains("systemctl stop"), "{refused}");
    let socket = dir.path().join("irqbalance1.sock").to_str().unwrap().to_owned();
    let silent = Irqbalance { pid, socket: Some(socket.clone()) };
    let refused = session.ban_line(&silent, 4).unwrap_err().to_string();
    assert!(refused.starts_with(&socket) && refused.contains("does not answer"), "{refused}");
    // It speaks, but is another process than its socket's name says.
    let stand_in = StandIn::start(dir.path(), [], usize::MAX);
    let sleeper = Sleeper::new();
    let other = Irqbalance { pid: sleeper.task.tid, socket: Some(stand_in.socket()) };
    let refused = session.ban_line(&other, 4).unwrap_err().to_string();
    assert!(refused.contains(&format!("belongs to process {pid}")), "{refused}");
    assert!(stand_in.list().is_empty());
    // One that has ended moves no lines.
    let task = sleeper.task;
    drop(sleeper);
    assert!(!task.is_alive());
    session.ban_line(&other, 4).unwrap();
    assert!(session.bans().is_empty());
}

#[test]
fn a_killed_session_leaves_no_line_in_the_list() {
    let dir = directory();
    let stand_in = StandIn::start(dir.path(), [9], usize::MAX);
    let own = TaskRef::own_process().unwrap();
    let ban = |process: &TaskRef, number: u32| {
        let (process, socket) = (task_json(process), stand_in.socket());
        line(&serde_json::json!({"ban": {
            "process": process, "socket": socket, "line": number, "time_ns": 5
        }}))
    };
    let ended = TaskRef { start_time_ticks: own.start_time_ticks + 1, ..own };
    let undone = |entries: &[String], list: &[u32]| {
        stand_in.set_list(list.iter().copied());
        put(dir.path(), "1-1.jsonl", (line(&header()) + &entries.concat()).as_bytes());
        let report = undo(dir.path(), UndoOptions::default());
        assert!(report.is_clean() && journals(dir.path()).is_empty(), "{report:?}");
        stand_in.list()
    };
    // Killed before and after the request.
    assert_eq!(undone(&[ban(&own, 4)], &[9]), [9]);
    assert_eq!(undone(&[ban(&own, 4)], &[4, 9]), [9]);
    // The list of another irqbalance, which has the same number and socket now.
    assert_eq!(undone(&[ban(&ended, 4)], &[4, 9]), [4, 9]);
    let closed = serde_json::json!({"ban_closed": {
        "process": task_json(&own), "line": 4, "time_ns": 6
    }});
    assert_eq!(undone(&[ban(&own, 4), line(&closed)], &[4, 9]), [4, 9]);
}

#[test]
fn a_line_may_be_moved_again_before_the_end() {
    let dir = directory();
    let stand_in = StandIn::start(dir.path(), [9], usize::MAX);
    let mut session = open(dir.path());
    let irqbalance = &find_irqbalance(dir.path())[0];
    for line in [4, 7] {
        session.ban_line(irqbalance, line).unwrap();
    }
    // The last one is its own user's.
    for line in [4, 9] {
        session.allow_line(line);
    }
    assert_eq!(stand_in.list(), [7, 9]);
    // It cannot be told now.
    stand_in.hide(true);
    session.allow_line(7);
    stand_in.hide(false);
    assert_eq!(stand_in.list(), [7, 9]);
    assert_eq!(session.close().lifted_bans.len(), 1);
    assert_eq!(stand_in.list(), [9]);
}

#[test]
fn a_stopped_irqbalance_is_told_by_the_next_undo() {
    let dir = directory();
    let stand_in = StandIn::start(dir.path(), [], usize::MAX);
    let mut session: Session = open(dir.path());
    session.ban_line(&find_irqbalance(dir.path())[0], 4).unwrap();
    stand_in.hide(true);
    let report = session.close();
    assert_eq!(report.errors.len(), 1, "{report:?}");
    assert!(report.errors[0].to_string().contains("does not answer"), "{report:?}");
    stand_in.hide(false);
    assert_eq!(stand_in.list(), [4]);
    // Its writer, this process, lives.
    let report = undo(dir.path(), UndoOptions { force: true, ..UndoOptions::default() });
    assert!(report.is_clean(), "{report:?}");
    assert!(stand_in.list().is_empty());
    for path in journals(dir.path()) {
        std::fs::remove_file(path).unwrap();
    }
}
