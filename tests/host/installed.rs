//! What `make install` writes, and that `make uninstall` removes all of it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::support::*;

/// The repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// A release of scripts that start the executables under test, which are large.
fn stand_in_release(folder: &Path) {
    fs::create_dir(folder).unwrap();
    for (name, path) in [("evenkeel", EVENKEEL), ("evenkeel-lab", EVENKEEL_LAB)] {
        let script = folder.join(name);
        fs::write(&script, format!("#!/bin/sh\nexec {path} \"$@\"\n")).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::write(folder.join("libevenkeel_shares.so"), "").unwrap();
}

/// `make` with this target, which builds nothing.
fn make(host: &Host, target: &str) {
    let release = host.path("release");
    let mut command = Command::new("make");
    command
        .args(["--no-print-directory", "--silent", "--old-file=release", target])
        .arg(format!("RELEASE={}", release.display()))
        .arg(format!("DESTDIR={}", host.path("tree").display()))
        .current_dir(root());
    // Those of a make that runs the tests.
    ["MAKEFLAGS", "MAKELEVEL", "MFLAGS"].iter().for_each(|name| {
        command.env_remove(name);
    });
    let made = output(&mut command);
    assert!(made.status.success(), "make {target}: {made:?}");
}

/// All files and links below a folder, from there.
fn files(top: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![top.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.symlink_metadata().unwrap().is_dir() {
                folders.push(path);
            } else {
                found.insert(path.strip_prefix(top).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found
}

#[test]
fn pages_and_schemas_are_installed_and_nothing_is_left() {
    let host = Host::new();
    stand_in_release(&host.path("release"));
    let tree = host.path("tree");
    make(&host, "install");
    let installed = files(&tree);
    let below = |path: &str| format!("usr/local/{path}");
    assert!(!installed.contains(&below("share/doc/evenkeel/docs/SUMMARY.md")), "of the site");
    for path in ["bin/evenkeel", "bin/chcb", "lib/evenkeel/libevenkeel_shares.so"] {
        assert!(installed.contains(&below(path)), "{path}: {installed:?}");
    }
    for path in ["share/man/man1/evenkeel-run.1", "share/man/man5/evenkeel.toml.5"] {
        assert!(installed.contains(&below(path)), "{path}: {installed:?}");
    }
    // All pages with what they show and link within docs/, as they are here.
    let mut docs: BTreeSet<String> = files(&root().join("docs"));
    docs.retain(|path| !["SUMMARY.md", "book.toml"].contains(&path.as_str()));
    assert!(docs.contains("guide.md") && docs.contains("schemas/run-2.json"), "{docs:?}");
    for path in &docs {
        let installed = tree.join(below(&format!("share/doc/evenkeel/docs/{path}")));
        let here = root().join("docs").join(path);
        assert_eq!(fs::read(installed).unwrap(), fs::read(here).unwrap(), "{path}");
    }
    assert!(installed.contains(&below("share/doc/evenkeel/README.md")), "{installed:?}");
    make(&host, "uninstall");
    assert_eq!(files(&tree), BTreeSet::new(), "left");
}
