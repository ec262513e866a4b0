//! Invalid flags and configuration files: exit code 2, and an error that names what is wrong, the rule
//! and the remedy. The command is not started.

use crate::support::*;

/// What `evenkeel run FLAGS -- touch FILE` says when it refuses.
fn refusal(host: &Host, flags: &[&str]) -> String {
    let file = host.path("started");
    let run = output(&mut host.run(flags, &["touch", file.to_str().unwrap()]));
    let said = text(&run.stderr);
    assert_eq!(run.status.code(), Some(2), "{flags:?}: {said}");
    assert!(!file.exists(), "{flags:?}: the command was started");
    assert!(run.stdout.is_empty(), "{flags:?}");
    said
}

#[test]
fn invalid_flags_are_refused_with_the_rule_and_the_remedy() {
    let host = Host::new();
    let cases: &[(&[&str], &[&str])] = &[
        (&["--no-such-flag"], &["--no-such-flag", "Usage"]),
        (&["--policy", "best"], &["--policy", "best", "lag, paper"]),
        (&["--policy"], &["--policy"]),
        (&["--placement", "firm"], &["--placement", "firm", "soft, hard"]),
        (&["--accounting", "bpf"], &["--accounting", "bpf", "auto, cbinfo, procfs"]),
        (&["--interval", "0ms"], &["--interval", "0ms", "1ms to 60s"]),
        (&["--interval", "999us"], &["--interval", "999us", "1ms to 60s"]),
        (&["--interval", "61s"], &["--interval", "61s", "1ms to 60s"]),
        (&["--interval", "1h"], &["--interval", "1h", "100ms or 1s"]),
        (&["--interval", "2m"], &["--interval", "2m", "us, ms and s", "60s"]),
        (&["--interval", "abc"], &["--interval", "abc", "100ms or 1s"]),
        (&["--interval", ""], &["--interval", "100ms or 1s"]),
        (&["--interval", "-5ms"], &["-5"]),
        (&["--interval", "99999999999999999999s"], &["--interval", "whole number"]),
        (&["--cpus", "9-1"], &["--cpus", "9-1"]),
        (&["--cpus", "4000"], &["--cpus", "4000", "online: "]),
        (&["--cpus", "9999"], &["--cpus", "9999", "8191"]),
        (&["--cpus", ""], &["--cpus", "at least one CPU"]),
        (&["--cpus", "one"], &["--cpus", "one"]),
        (&["--cpus", "0,,1"], &["--cpus", "not a CPU list"]),
        (&["--cpus", "99999999999"], &["--cpus", "99999999999"]),
        (&["--speed", "ludicrous"], &["--speed", "ludicrous", "calibrated"]),
        (&["--speed", "0=fast"], &["--speed", "fast"]),
        (&["--speed", "0=-1"], &["--speed", "-1"]),
        (&["--speed", "0=nan"], &["--speed", "NaN"]),
        (&["--speed", ""], &["--speed"]),
        (&["--selection", "fifo"], &["--selection", "--policy paper"]),
        (&["--policy", "lag", "--selection", "cache"], &["--selection", "--policy paper"]),
        (&["--shares", "--policy", "paper"], &["--shares", "--policy lag"]),
        (&["--shares", "--prefer", "efficient"], &["--shares", "--prefer efficient"]),
        (&["--policy", "paper", "--prefer", "efficient"], &["--prefer", "--policy lag"]),
        (&["--prefer", "fast"], &["--prefer", "fast", "capable, efficient"]),
        (&["--shares", "--join"], &["--shares", "--join"]),
        (&["--join", "--json", "x"], &["--join", "--json"]),
        (&["--join", "--explain"], &["--join", "--explain"]),
        (&["--join", "--dry-run"], &["--join", "--dry-run"]),
        (&["--shares", "--dry-run"], &["--shares", "--dry-run"]),
        (&["--shares", "--threads", "4"], &["--shares", "--threads"]),
        (&["--move-noise", "--dry-run"], &["--move-noise", "--dry-run"]),
        (&["--threads", "1"], &["--threads", "1", "give 2 to 16"]),
        (&["--threads", "17"], &["--threads", "17", "give 2 to 16"]),
        (&["--threads", "all"], &["--threads", "all", "give 2 to 16"]),
        (&["--config", "/no/such/file"], &["/no/such/file"]),
        (&["--config", "/"], &["it is a directory", "config.toml"]),
        (&["--abort-at", "x"], &["--abort-at"]),
    ];
    for (flags, expected) in cases {
        let said = refusal(&host, flags);
        for word in *expected {
            assert!(said.contains(word), "{flags:?}: \"{word}\" is not in: {said}");
        }
    }
}

#[test]
fn a_speed_for_an_absent_cpu_is_refused() {
    let host = Host::new();
    let said = refusal(&host, &["--speed", "4000=1.0"]);
    assert!(said.contains("--speed") && said.contains("4000"), "{said}");
}

#[test]
fn a_missing_command_is_refused() {
    let host = Host::new();
    for arguments in [&["run"][..], &["run", "-q", "--"], &["run", "--policy", "lag"]] {
        let run = output(&mut host.evenkeel(arguments));
        assert_eq!(run.status.code(), Some(2), "{run:?}");
        assert!(text(&run.stderr).contains("<CMD>"), "{run:?}");
    }
    for arguments in [&["walk"][..], &["status", "--loud"], &["explain", "me"], &["undo", "all"]] {
        let run = output(&mut host.evenkeel(arguments));
        assert_eq!(run.status.code(), Some(2), "{run:?}");
        assert!(text(&run.stderr).contains(arguments.last().unwrap()), "{run:?}");
    }
    let run = output(&mut host.evenkeel(["explain", "999999999"]));
    assert_eq!(run.status.code(), Some(2), "{run:?}");
    assert!(text(&run.stderr).contains("evenkeel status"), "{run:?}");
}

#[test]
fn invalid_configuration_files_are_refused_by_line() {
    let host = Host::new();
    let file = host.path("config.toml");
    let cases: &[(&str, &[&str])] = &[
        ("[run]\npolcy = \"lag\"\n", &["line 2", "polcy", "policy"]),
        ("[runs]\n", &["line 1", "runs"]),
        ("[run]\npolicy = \"best\"\n", &["line 2", "best", "lag"]),
        ("[run]\npolicy = 3\n", &["line 2"]),
        ("[run]\ninterval = \"1h\"\n", &["line 2", "1h", "100ms or 1s"]),
        ("[run]\ninterval = 100\n", &["line 2", "interval"]),
        ("[run]\n\noverride = \"yes\"\n", &["line 3"]),
        ("[run]\ncpus = \"9-1\"\n", &["9-1"]),
        ("[run]\nspeed = \"warp\"\n", &["warp"]),
        ("[run]\npolicy = \"lag\"\nselection = \"fifo\"\n", &["selection"]),
        ("[run\n", &["line 1"]),
        // Tables of other commands.
        ("[daemon]\nmetrics = \"0.0.0.0:80\"\n", &["line 2", "not a loopback address"]),
        ("[irq]\nmode = \"hot\"\n", &["line 2", "hot"]),
        ("[sched]\ngate = \"ajar\"\n", &["line 2", "ajar"]),
        ("[sched]\nslice = 3\n", &["line 2", "slice-us"]),
        ("[ias]\nprogram = 3\n", &["line 2", "programs"]),
        ("[zone]\nfoo = 3\n", &["table [zone]", "foo"]),
        ("[zone]\nbalance_level = 99\n", &["table [zone]", "99"]),
        ("[cluster]\nrecords = \"jobs\"\n", &["table [cluster]", "jobs"]),
        ("[run]\npolicy = \"lag\"\npolicy = \"lag\"\n", &["line 3", "policy"]),
        ("\u{0}", &["line 1"]),
    ];
    for (content, expected) in cases {
        std::fs::write(&file, content).unwrap();
        let said = refusal(&host, &["--config", file.to_str().unwrap()]);
        for word in *expected {
            assert!(said.contains(word), "{content:?}: \"{word}\" is not in: {said}");
        }
        let in_flag = expected.iter().any(|word| ["9-1", "warp", "selection"].contains(word));
        assert!(in_flag || said.contains("config.toml"), "{said}");
    }
    std::fs::write(&file, b"\xff\xfe").unwrap();
    let said = refusal(&host, &["--config", file.to_str().unwrap()]);
    assert!(said.contains("config.toml") && said.contains("UTF-8"), "{said}");
    // Commands that use nothing of the file check it as well.
    for command in ["doctor", "status", "explain", "undo"] {
        let words = [command, "--config", file.to_str().unwrap()];
        let run = output(&mut host.evenkeel(words));
        assert_eq!(run.status.code(), Some(2), "{run:?}");
        assert!(text(&run.stderr).contains("UTF-8") && run.stdout.is_empty(), "{run:?}");
    }
    // The user's own file is found without --config.
    let own = host.path("home/.config/evenkeel");
    std::fs::create_dir_all(&own).unwrap();
    std::fs::write(own.join("config.toml"), "[run]\nplacement = \"firm\"\n").unwrap();
    let said = refusal(&host, &[]);
    assert!(said.contains("evenkeel/config.toml") && said.contains("firm"), "{said}");
    // A flag does not excuse a broken file, but wins over a good one.
    std::fs::write(own.join("config.toml"), "[run]\nplacement = \"hard\"\n").unwrap();
    for (flags, expected) in [(&[][..], "hard"), (&["--placement", "soft"], "soft")] {
        let json = host.path("json");
        let flags = [flags, &["-q", "--json", json.to_str().unwrap()]].concat();
        assert!(output(&mut host.run(&flags, &["true"])).status.success());
        let summary: serde_json::Value =
            serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
        assert_eq!(summary["placement"], expected);
    }
}
