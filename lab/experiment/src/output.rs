//! Files that a benchmark writes at its end, tried at its beginning: half an hour of measuring is
//! not lost to a directory that does not exist. `-` is standard output.

use std::fmt::Display;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tempfile::NamedTempFile;

use crate::generated;

/// Names of standard output. A file behind it must not be replaced by another one.
const STDOUT: [&str; 4] = ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"];

/// Where results are committed, from the root of a checkout.
const COMMITTED: &str = "docs/results";

/// Whether a short form, which decides nothing, may write this page.
///
/// # Errors
/// It would be written over results that are committed.
pub fn check_short_form(page: &Path) -> Result<()> {
    let folder = page.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let place = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    ensure!(
        !place.ends_with(COMMITTED),
        "--quick decides nothing and is not written to {}: give another directory",
        folder.display()
    );
    Ok(())
}

/// Whether a file with this name is standard output.
pub fn is_standard_output(path: &Path) -> bool {
    STDOUT.iter().any(|name| path == Path::new(name))
}

/// Prints a line for people, on standard error where one of the outputs is standard output: that has
/// the report then, and nothing else.
pub fn tell<'o>(outputs: impl IntoIterator<Item = &'o Option<Output>>, text: impl Display) {
    if outputs.into_iter().flatten().any(|output| is_standard_output(&output.path)) {
        eprintln!("{text}");
    } else {
        println!("{text}");
    }
}

/// A file to be written. Until then nothing is seen of it.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
}

impl Output {
    /// Prepares to write `path`.
    ///
    /// # Errors
    /// Its directory does not exist or cannot be written.
    pub fn prepare(path: &Path) -> Result<Self> {
        let output = Self { path: path.to_owned() };
        // Not kept: a benchmark that is killed would leave it behind.
        output.temporary()?;
        Ok(output)
    }

    /// Writes it, all or nothing; again in place of what was written before.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, text: &str) -> Result<()> {
        self.write_bytes(text.as_bytes())
    }

    /// The same of what is no text.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_bytes(&self, bytes: &[u8]) -> Result<()> {
        let cannot = || format!("cannot write {}", self.path.display());
        if is_standard_output(&self.path) {
            let mut stdout = std::io::stdout().lock();
            return stdout.write_all(bytes).and_then(|()| stdout.flush()).with_context(cannot);
        }
        match self.temporary()? {
            None => std::fs::write(&self.path, bytes).with_context(cannot),
            Some(mut file) => {
                file.write_all(bytes).with_context(cannot)?;
                // A temporary file is its owner's alone; a report is for all to read.
                let mode = std::fs::Permissions::from_mode(0o644);
                file.as_file().set_permissions(mode).with_context(cannot)?;
                file.persist(&self.path).with_context(cannot)?;
                Ok(())
            }
        }
    }

    /// Writes it as a page, with the foot of generated ones.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn write_page(&self, body: &str) -> Result<()> {
        self.write(&generated::sealed(body))
    }

    /// The command that measures and writes this page, of the command that measured its figures.
    pub fn command(&self, option: &str, measured_by: &str) -> String {
        generated::command_of_page(measured_by, option, &self.path)
    }

    /// Beside the target, to be renamed over it; none for a target that is not a file
    /// (a pipe).
    fn temporary(&self) -> Result<Option<NamedTempFile>> {
        let is_no_file = self.path.exists() && !self.path.is_file();
        if is_no_file || is_standard_output(&self.path) {
            return Ok(None);
        }
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let made = NamedTempFile::new_in(parent.unwrap_or(Path::new("."))).with_context(|| {
            let path = self.path.display();
            format!("cannot write {path}: give a directory that exists and is writable")
        })?;
        Ok(Some(made))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_or_not_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.json");
        let output = Output::prepare(&path).unwrap();
        // Nothing that a benchmark which is killed could leave.
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        output.write("{}").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{}");
        Output::prepare(Path::new("/dev/null")).unwrap().write("{}").unwrap();
        let error = Output::prepare(&directory.path().join("no/such/place")).unwrap_err();
        assert!(format!("{error:#}").contains("give a directory that exists"), "{error:#}");
    }

    #[test]
    fn a_hyphen_is_standard_output_and_no_file() {
        let path = Path::new("-");
        Output::prepare(path).unwrap().write("{}\n").unwrap();
        assert!(!path.exists());
        assert!(is_standard_output(path) && !is_standard_output(Path::new("./-")));
    }
}
