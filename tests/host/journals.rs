//! What earlier processes left. Journals that are damaged, of another boot, or cannot be written:
//! evenkeel says so, and the program runs. Sockets of killed services.

use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use evenkeel_journal::affinity;
use evenkeel_skip::skip;

use crate::roles::role;
use crate::support::*;
use crate::worker::Worker;

/// A journal as an earlier run left it.
fn put(host: &Host, name: &str, text: &str) -> PathBuf {
    let dir = host.runtime().join("journal");
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(host.runtime()).unwrap();
    let _ = std::fs::DirBuilder::new().mode(0o700).create(&dir);
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// The journal of a run that was killed together with its supervisor, with its threads pinned.
fn left_behind(host: &Host) -> (Worker, PathBuf, String) {
    let flags = [&["-q", "--no-supervisor", "--placement", "hard"], &EAGER[..]].concat();
    let mut worker = Worker::start(host, &flags);
    worker.wait_moved(host, 2);
    worker.kill_evenkeel();
    let path = host.journals().remove(0);
    let text = std::fs::read_to_string(&path).unwrap();
    host.status();
    (worker, path, text)
}

/// A line with its checksum computed anew.
fn summed(line: &str) -> String {
    let (body, _) = line.rsplit_once(",\"sum\":").unwrap();
    let crc = !body.bytes().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            if crc & 1 == 1 { (crc >> 1) ^ 0xEDB8_8320 } else { crc >> 1 }
        })
    });
    format!("{body},\"sum\":\"{crc:08x}\"}}\n")
}

#[test]
fn an_unreadable_journal_is_reported_and_the_program_runs() {
    let host = Host::new();
    for said_by_undo in [false, true] {
        let path = put(&host, "1-1.jsonl", "garbage\nmore garbage\n");
        let mut command = match said_by_undo {
            true => host.evenkeel(["undo"]),
            false => host.run(&[], &["sh", "-c", "exit 4"]),
        };
        let run = output(&mut command);
        let said = text(&run.stderr);
        assert_eq!(run.status.code(), Some(if said_by_undo { 1 } else { 4 }), "{said}");
        assert!(said.contains("/evenkeel/journal/1-1.") && said.contains("taskset"), "{said}");
        // It is reported once.
        only_summary(&output(&mut host.run(&[], &["true"])));
        std::fs::remove_file(path.with_extension("damaged")).unwrap();
    }
}

#[test]
fn a_damaged_line_of_a_journal_is_left_out_and_the_rest_counts() {
    let Some(_) = two_cpus("a_damaged_line_of_a_journal_is_left_out_and_the_rest_counts") else {
        return;
    };
    for said_by_undo in [false, true] {
        let host = Host::new();
        let (worker, path, journal) = left_behind(&host);
        let mut lines: Vec<&str> = journal.lines().collect();
        lines.insert(2, "garbage");
        std::fs::write(&path, lines.join("\n") + "\n").unwrap();
        let mut command = match said_by_undo {
            true => host.evenkeel(["undo"]),
            false => host.run(&[], &["true"]),
        };
        let run = output(&mut command);
        let said = text(&[run.stdout, run.stderr].concat());
        assert!(run.status.success(), "{said}");
        let kept = path.with_extension("damaged");
        let name = kept.file_name().unwrap().to_str().unwrap();
        assert!(said.contains(&format!("/evenkeel/journal/{name}:3: ")), "{said}");
        // The other lines were undone.
        assert!(worker.is_as(&all()));
        std::fs::remove_file(kept).unwrap();
    }
}

#[test]
fn a_journal_of_another_boot_changes_nothing() {
    let Some((x, _)) = two_cpus("a_journal_of_another_boot_changes_nothing") else { return };
    for said_by_undo in [false, true] {
        let host = Host::new();
        let (worker, path, journal) = left_behind(&host);
        let here = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let elsewhere = journal.replace(here.trim(), "00000000-0000-0000-0000-000000000000");
        assert_ne!(journal, elsewhere);
        std::fs::remove_file(&path).unwrap();
        put(&host, "1-1.jsonl", &elsewhere.lines().map(summed).collect::<String>());
        // Its thread numbers may belong to other threads by now.
        let tid = worker.threads[0];
        affinity::set(tid, &just(x)).unwrap();
        let mut command = match said_by_undo {
            true => host.evenkeel(["undo"]),
            false => host.run(&["-v"], &["true"]),
        };
        let run = output(&mut command);
        let said = text(&[run.stdout, run.stderr].concat());
        assert!(run.status.success() && said.contains("1-1.jsonl"), "{said}");
        assert!(said.contains("earlier boot"), "{said}");
        assert!(host.journals().is_empty());
        assert_eq!(mask(tid), just(x));
    }
}

/// A process of cron has other variables than one of a login.
#[test]
fn a_journal_in_another_directory_of_the_user_is_undone_too() {
    let test = "a_journal_in_another_directory_of_the_user_is_undone_too";
    let Some(_) = two_cpus(test) else { return };
    if !is_root() {
        return skip(test, "only root's commands see a /run of the test's own");
    }
    for said_by_undo in [false, true] {
        let host = Host::new();
        let (worker, _, _) = left_behind(&host);
        let login = host.path("run/user/0");
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&login).unwrap();
        std::fs::rename(host.runtime(), login.join("evenkeel")).unwrap();
        let mut command = match said_by_undo {
            true => host.evenkeel(["undo"]),
            false => host.run(&[], &["sleep", "0.1"]),
        };
        assert!(output(&mut command).status.success());
        assert!(worker.is_as(&all()));
        let left = std::fs::read_dir(login.join("evenkeel/journal")).unwrap();
        assert_eq!(left.count(), 0);
    }
}

/// As at the end of a login, which takes its folder with it.
#[test]
fn without_its_journal_a_run_gives_all_cpus_back_and_moves_nothing() {
    let test = "without_its_journal_a_run_gives_all_cpus_back_and_moves_nothing";
    let Some(_) = two_cpus(test) else { return };
    let host = Host::new();
    let flags = [&["-q", "--placement", "hard"], &EAGER[..]].concat();
    let mut worker = Worker::start(&host, &flags);
    worker.wait_moved(&host, 2);
    std::fs::remove_dir_all(host.runtime().join("journal")).unwrap();
    wait_for("all CPUs", || worker.is_as(&all()));
    worker.kill_evenkeel();
    host.status();
    assert!(worker.is_as(&all()), "nothing would take that back");
}

/// As the epilog of a batch system asks after each job: what an administrator lets stand is no job's.
#[test]
fn an_undo_of_what_was_killed_leaves_what_stands() {
    let Some(_) = two_cpus("an_undo_of_what_was_killed_leaves_what_stands") else { return };
    let host = Host::new();
    let (worker, path, journal) = left_behind(&host);
    let says = |words: &[&str]| {
        let done = output(&mut host.evenkeel(words));
        assert!(done.status.success() && done.stderr.is_empty(), "{words:?}: {done:?}");
        text(&done.stdout)
    };
    // As `irq once` ends.
    let stands = journal.clone() + &summed("{\"persistent\":{\"time_ns\":1},\"sum\":\"\"}");
    std::fs::write(&path, stands).unwrap();
    assert_eq!(says(&["undo", "--killed"]), "Nothing to undo.\n");
    assert!(!worker.is_as(&all()) && path.exists());
    std::fs::write(&path, journal).unwrap();
    assert!(says(&["undo", "--killed"]).ends_with(" CPUs again.\n"));
    assert!(worker.is_as(&all()) && host.journals().is_empty());
}

/// slurmd logs what it prints, and the user chooses the names of the files that it reads.
#[test]
fn the_epilog_prints_little_of_a_user_and_no_line_without_its_prefix() {
    if !needs_root("the_epilog_prints_little_of_a_user_and_no_line_without_its_prefix") {
        return;
    }
    let host = Host::new();
    let runtime = host.path(&format!("run/user/{NOBODY}"));
    let journals = runtime.join("evenkeel/journal");
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(&journals).unwrap();
    for dir in [&runtime, &runtime.join("evenkeel"), &journals] {
        std::os::unix::fs::chown(dir, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    // No journal is a directory: each is reported.
    for number in 0..200 {
        let name = format!("{number}\nforged\u{1b}{}.jsonl", "\n".repeat(200));
        std::fs::create_dir(journals.join(name)).unwrap();
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/slurm/epilog");
    let mut epilog = host.command(script);
    epilog.env("EVENKEEL", EVENKEEL).env("SLURM_JOB_UID", NOBODY.to_string());
    let done = output(epilog.env("SLURM_JOB_ID", "7"));
    let said = text(&done.stdout);
    assert!(done.status.success(), "{done:?}");
    assert!(said.contains("evenkeel: job 7: forged?\n"), "{said}");
    assert!(said.len() <= 8192, "{} bytes: {said}", said.len());
    assert!(said.lines().all(|line| line.starts_with("evenkeel: job 7: ")), "{said}");
    assert!(said.bytes().all(|byte| byte == b'\n' || (b' '..=b'~').contains(&byte)), "{said}");
}

/// Of each kind of service, with one of a `run`.
#[test]
fn sockets_that_killed_services_left_are_removed_by_undo_and_live_ones_stay() {
    let host = Host::new();
    host.undo();
    std::fs::DirBuilder::new().mode(0o700).create(host.runtime().join("run")).unwrap();
    let kinds = ["job-1-", "sais-1-", "sais-serve-", "keel", "daemon", "run/77"];
    for kind in kinds {
        let [dead, live] = ["2", "3"].map(|end| host.runtime().join(format!("{kind}{end}.sock")));
        drop(UnixListener::bind(&dead).unwrap());
        let listener = UnixListener::bind(&live).unwrap();
        host.undo();
        assert!(!dead.exists(), "{kind}: a dead socket stays");
        assert!(live.exists(), "{kind}: a socket behind which a process listens is gone");
        drop(listener);
        host.undo();
        assert!(!live.exists(), "{kind}");
    }
}

/// As the user `nobody`, in a runtime directory that cannot be written.
#[test]
fn without_a_journal_no_task_is_moved() {
    if !needs_root("without_a_journal_no_task_is_moved")
        || two_cpus("without_a_journal_no_task_is_moved").is_none()
    {
        return;
    }
    let host = Host::new();
    let flags = [&["run"], &EAGER[..], &["--"], &role("worker")[..]].concat();
    let mut command = as_nobody(&host, &flags);
    std::fs::create_dir(host.runtime()).unwrap();
    std::os::unix::fs::chown(host.runtime(), Some(NOBODY), Some(NOBODY)).unwrap();
    std::fs::set_permissions(host.runtime(), PermissionsExt::from_mode(0o500)).unwrap();
    command.stderr(std::process::Stdio::piped());
    let mut worker = Worker::start_by(&mut command, 2);
    let mut stderr = worker.evenkeel.stderr.take().unwrap();
    // By their processor time, the threads ran for long enough to be moved.
    wait_for("some work", || ticks(worker.threads[0]) > 50 && ticks(worker.threads[1]) > 50);
    assert!(worker.is_as(&all()));
    assert_eq!(worker.ask("spawn nproc", "printed"), all().iter().count().to_string());
    worker.let_end();
    assert!(ended(&mut worker.evenkeel).success());
    let mut said = String::new();
    std::io::Read::read_to_string(&mut stderr, &mut said).unwrap();
    assert!(said.contains("/evenkeel/journal"), "{said}");
    assert!(said.contains("tasks are not moved, only observed"), "{said}");
    assert!(said.contains("evenkeel: no moves") || !said.contains("; moved tasks"), "{said}");
}

/// Processor time of a thread.
fn ticks(tid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{tid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}
