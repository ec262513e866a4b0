//! The sockets that killed services left: of the daemon, of jobs, of the keel, of `sais`, and of runs.
//! `undo` and a daemon that starts remove them. A socket behind which a process listens stays.

use std::path::Path;

use evenkeel_control::remove_dead;
use evenkeel_host::status_folder;

/// Removes them from the user's directory and from that of runs. All sockets there are ours.
pub fn remove_dead_sockets(dir: &Path) {
    for folder in [dir.to_owned(), status_folder(dir)] {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "sock") {
                remove_dead(&path);
            }
        }
    }
}
