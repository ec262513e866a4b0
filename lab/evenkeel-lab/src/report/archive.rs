//! The archive of a machine report: a tar file, which every system can open. What is read from one comes
//! from others: only the text of the machine, up to a bound, and no file is written.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};
use evenkeel_machine::Machine;
use tar::{Builder, Header};

/// The file with the machine.
pub const MACHINE: &str = "machine.toml";
/// The longest text of a machine, in bytes: a thousand times that of any preset.
const MAX_MACHINE_BYTES: u64 = 1 << 20;

/// An archive that is being made.
pub struct Archive {
    builder: Builder<Vec<u8>>,
}

impl Archive {
    /// Without files.
    pub fn new() -> Self {
        Self { builder: Builder::new(Vec::new()) }
    }

    /// Adds a file. The archive names no user and no time.
    ///
    /// # Errors
    /// The name is too long.
    pub fn add(&mut self, name: &str, text: &str) -> Result<()> {
        let mut header = Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        self.builder.append_data(&mut header, name, text.as_bytes())?;
        Ok(())
    }

    /// The whole archive.
    ///
    /// # Errors
    /// Never, as it is in memory; the library says so of all that it writes to.
    pub fn finish(self) -> Result<Vec<u8>> {
        Ok(self.builder.into_inner()?)
    }
}

/// The machine in an archive.
///
/// # Errors
/// It is no archive of this kind, or its machine breaks a rule.
pub fn machine(path: &Path) -> Result<Machine> {
    let name = path.display();
    let file = File::open(path).with_context(|| format!("{name}"))?;
    let mut archive = tar::Archive::new(file);
    let entries = archive.entries().with_context(|| format!("{name}: no tar file"))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("{name}: no tar file, or a damaged one"))?;
        if entry.path_bytes().as_ref() != MACHINE.as_bytes() {
            continue;
        }
        if entry.size() > MAX_MACHINE_BYTES {
            bail!("{name}: its {MACHINE} is longer than {MAX_MACHINE_BYTES} bytes");
        }
        let mut text = String::new();
        entry
            .take(MAX_MACHINE_BYTES)
            .read_to_string(&mut text)
            .with_context(|| format!("{name}: {MACHINE}"))?;
        return Ok(Machine::parse_toml(&text, &format!("{name}: {MACHINE}"))?);
    }
    bail!("{name}: there is no {MACHINE} in it: give an archive of evenkeel-lab report")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(files: &[(&str, &str)]) -> tempfile::NamedTempFile {
        let mut archive = Archive::new();
        for (name, text) in files {
            archive.add(name, text).unwrap();
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), archive.finish().unwrap()).unwrap();
        file
    }

    #[test]
    fn the_machine_of_an_archive_is_the_one_that_was_put_in() {
        let machine_there = Machine::preset("hybrid").unwrap();
        let text = machine_there.to_toml();
        let file = written(&[("report.json", "{}"), (MACHINE, &text), ("cg.html", "<p>")]);
        assert_eq!(machine(file.path()).unwrap(), machine_there);
    }

    #[test]
    fn what_is_no_report_is_refused_by_name() {
        let long = " ".repeat(MAX_MACHINE_BYTES as usize + 1);
        for (file, expected) in [
            (written(&[("report.json", "{}")]), "there is no machine.toml in it"),
            (written(&[(MACHINE, "name = ")]), "machine.toml"),
            (written(&[(MACHINE, &long)]), "is longer than"),
        ] {
            let why = format!("{:#}", machine(file.path()).unwrap_err());
            assert!(why.contains(expected) && why.contains(file.path().to_str().unwrap()), "{why}");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![b'x'; 4096]).unwrap();
        assert!(machine(file.path()).is_err());
    }
}
