//! `--version` of both executables: one line, which scripts compare. With `-v` also the commit, and what
//! works here.

use std::path::Path;

use crate::support::*;

/// What stands behind the name of a line.
fn after<'t>(text: &'t str, name: &str) -> &'t str {
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    found.unwrap_or_else(|| panic!("no {name}: {text}"))
}

#[test]
fn the_version_is_one_line_and_with_v_also_the_commit_and_what_works() {
    let host = Host::new();
    for (name, path) in [("evenkeel", EVENKEEL), ("evenkeel-lab", EVENKEEL_LAB)] {
        let printed = |flags: &[&str]| {
            let done = output(host.command(path).args(flags));
            assert!(done.status.success() && done.stderr.is_empty(), "{flags:?}: {done:?}");
            text(&done.stdout)
        };
        let first = format!("{name} {}\n", env!("CARGO_PKG_VERSION"));
        assert_eq!(printed(&["--version"]), first);
        assert_eq!(printed(&["-V"]), first);
        let full = printed(&["--version", "-v"]);
        for flags in [&["-v", "--version"][..], &["-vV"], &["--verbose", "-V"]] {
            assert_eq!(printed(flags), full, "{flags:?}");
        }
        assert!(full.starts_with(&first) && full.lines().count() == 4, "{full}");
        let commit = after(&full, "commit");
        let is_commit = commit.len() == 12 && commit.chars().all(|digit| digit.is_ascii_hexdigit());
        // Without a clone it is not known.
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        assert!(is_commit || (commit == "unknown" && !root.join(".git").exists()), "{full}");
        let expected = match evenkeel_cbinfo::support() {
            Ok(()) => "works".to_owned(),
            Err(why) => format!("does not work: {why}"),
        };
        assert_eq!(after(&full, "BPF accounting"), expected);
        let has_sched_ext = Path::new("/sys/kernel/sched_ext/state").exists();
        let sched_ext = after(&full, "sched_ext");
        assert!(has_sched_ext || sched_ext.contains("this kernel has no sched_ext"), "{full}");
    }
}
