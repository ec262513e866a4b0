//! The files of the project: all that git would keep, with their texts.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// What a file is written in, as far as a rule asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Rust,
    C,
    Shell,
    Python,
    Makefile,
    Markdown,
    Image,
    Other,
}

/// A file of the project.
pub struct File {
    /// Its path from the root, with `/`.
    pub path: String,
    pub kind: Kind,
    /// Empty where the file is no text.
    pub text: String,
}

impl File {
    pub fn new(path: &str, text: &str) -> Self {
        Self { path: path.into(), kind: kind_of(path, text), text: text.into() }
    }

    /// The name without its folder.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// The folder without a slash at its end; empty for the root.
    pub fn folder(&self) -> &str {
        self.path.rsplit_once('/').map_or("", |(folder, _)| folder)
    }

    pub fn is_source(&self) -> bool {
        matches!(self.kind, Kind::Rust | Kind::C | Kind::Shell | Kind::Python)
    }

    /// A page that a command writes says so within its first lines.
    pub fn is_generated(&self) -> bool {
        self.kind == Kind::Markdown
            && self.text.lines().take(12).any(|line| line.contains("do not edit"))
    }

    /// Texts of others, and data that programs write: their language is not ours.
    pub fn is_foreign(&self) -> bool {
        self.name() == "LICENSE"
            || self.name() == "Cargo.lock"
            || self.name().starts_with("COPYING")
            || self.path == "lab/sim/tests/decisions.txt"
            || self.path.starts_with("tests/fixtures/") && self.kind == Kind::Other
    }

    /// Every line with its number, from 1.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }
}

fn kind_of(path: &str, text: &str) -> Kind {
    let name = path.rsplit('/').next().unwrap_or(path);
    match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("rs") => Kind::Rust,
        Some("c" | "h") => Kind::C,
        Some("sh") => Kind::Shell,
        Some("py") => Kind::Python,
        Some("md") => Kind::Markdown,
        Some("svg" | "png" | "jpg" | "gif") => Kind::Image,
        _ if name == "Makefile" => Kind::Makefile,
        _ => match text.lines().next().filter(|line| line.starts_with("#!")) {
            Some(line) if line.ends_with("sh") => Kind::Shell,
            Some(line) if line.ends_with("python3") => Kind::Python,
            _ => Kind::Other,
        },
    }
}

/// The root of the workspace.
pub fn root() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned())
}

/// All files that .gitignore does not name, in the order of their paths. New files belong to them before
/// they are added to git.
pub fn files() -> &'static [File] {
    static FILES: OnceLock<Vec<File>> = OnceLock::new();
    FILES.get_or_init(|| {
        let walk = ignore::WalkBuilder::new(root())
            .hidden(false)
            .parents(false)
            .git_global(false)
            .require_git(false)
            .filter_entry(|entry| entry.file_name() != ".git")
            .build();
        let mut files: Vec<File> = walk
            .map(|entry| entry.unwrap())
            .filter(|entry| entry.file_type().is_some_and(|kind| kind.is_file()))
            .map(|entry| {
                let path = entry.path().strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
                let bytes = std::fs::read(entry.path()).unwrap();
                File::new(&path, &String::from_utf8(bytes).unwrap_or_default())
            })
            .collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        files
    })
}

/// The file at a path from the root.
pub fn file(path: &str) -> Option<&'static File> {
    let files = files();
    files.binary_search_by(|file| file.path.as_str().cmp(path)).ok().map(|index| &files[index])
}

/// Whether a path from the root is a file or a folder of the project.
pub fn exists(path: &str) -> bool {
    let folder = format!("{}/", path.trim_end_matches('/'));
    path.is_empty() || file(path).is_some() || files().iter().any(|f| f.path.starts_with(&folder))
}

/// `docs` and `../policy/gate.h` make `policy/gate.h`; nothing for a path that leaves the project.
pub fn join(folder: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[test]
fn the_project_has_its_files_and_not_those_that_git_ignores() {
    assert!(file("README.md").is_some());
    assert!(file("tests/tidy/project.rs").is_some_and(|file| file.kind == Kind::Rust));
    assert!(exists("tests/tidy") && exists("tests/tidy/") && !exists("tests/tid"));
    assert!(files().iter().all(|file| !file.path.starts_with("target/")));
    assert!(files().iter().all(|file| !file.path.starts_with(".git/")));
}

#[test]
fn paths_are_joined_within_the_project() {
    assert_eq!(join("docs", "../policy/gate.h").as_deref(), Some("policy/gate.h"));
    assert_eq!(join("", "docs/./guide.md").as_deref(), Some("docs/guide.md"));
    assert_eq!(join("docs", "../../outside"), None);
}

#[test]
fn a_script_is_known_by_its_first_line() {
    assert_eq!(File::new("scripts/a", "#!/usr/bin/env bash\n").kind, Kind::Shell);
    assert_eq!(File::new("scripts/a", "#!/usr/bin/env python3\n").kind, Kind::Python);
    assert_eq!(File::new("scripts/a", "#!/usr/bin/make -f\n").kind, Kind::Other);
    assert_eq!(File::new("scripts/a", "a table\n").kind, Kind::Other);
}
