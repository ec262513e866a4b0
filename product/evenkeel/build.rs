//! Tells the executables which commit they were built from, for `--version -v`. Where there is no clone
//! of git (a package of sources, an archive), the commit is unknown.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

/// As many digits as tell commits of this project apart.
const DIGITS: usize = 12;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../..");
    let commit = git_folder(&root).and_then(|git| commit(&git));
    let commit = commit.as_deref().and_then(|commit| commit.get(..DIGITS)).unwrap_or("unknown");
    println!("cargo:rustc-env=EVENKEEL_COMMIT={commit}");
    Ok(())
}

/// The folder of git. In a worktree `.git` is a file that names it.
fn git_folder(root: &Path) -> Option<PathBuf> {
    let git = root.join(".git");
    if git.is_dir() {
        return Some(git);
    }
    let text = fs::read_to_string(&git).ok()?;
    Some(root.join(text.trim().strip_prefix("gitdir: ")?))
}

fn commit(git: &Path) -> Option<String> {
    let head = watched(&git.join("HEAD"))?;
    let Some(name) = head.strip_prefix("ref: ") else { return Some(head) };
    // A worktree has its branches in the clone that it belongs to.
    let shared = fs::read_to_string(git.join("commondir"));
    let shared = shared.map_or_else(|_| git.to_owned(), |path| git.join(path.trim()));
    let file = shared.join(name);
    if let Some(commit) = watched(&file) {
        return Some(commit);
    }
    // The branch is among the packed ones until its next commit, which makes its file in this folder.
    // Cargo would take a file that is missing for one that has always changed.
    if let Some(folder) = file.parent().filter(|folder| folder.is_dir()) {
        println!("cargo:rerun-if-changed={}", folder.display());
    }
    let packed = watched(&shared.join("packed-refs"))?;
    let commit = |line: &str| Some(line.strip_suffix(name)?.strip_suffix(' ')?.to_owned());
    packed.lines().find_map(commit)
}

/// The text of a file, a change of which has this run again.
fn watched(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    println!("cargo:rerun-if-changed={}", path.display());
    Some(text.trim().to_owned())
}
