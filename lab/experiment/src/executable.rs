//! The two executables: the product, which is measured, and the laboratory's own, which measures.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Where the product lies in a guest: beside `/init`, which is the laboratory's executable there.
pub(crate) const IN_GUEST: &str = "/evenkeel";

/// The product: `evenkeel` beside the laboratory's executable.
///
/// # Errors
/// There is none.
pub fn product() -> Result<PathBuf> {
    let product = own()?.with_file_name("evenkeel");
    ensure!(
        product.is_file(),
        "{}: not there; evenkeel-lab measures the evenkeel beside it (make build builds both)",
        product.display()
    );
    Ok(product)
}

/// The laboratory's own executable.
///
/// # Errors
/// The kernel does not say which file it is.
pub fn own() -> Result<PathBuf> {
    std::env::current_exe().context("cannot find this program's file")
}

/// The command that takes back what `journal` names when this process is killed: the product's, which
/// knows how (an [`evenkeel_journal::SupervisorCommand`]).
pub fn supervisor(journal: &Path) -> Option<(PathBuf, Vec<OsString>)> {
    let product = product().ok()?;
    Some((product, vec!["supervise".into(), journal.into()]))
}

/// Both executables as a guest sees them, for [`evenkeel_vm::Initramfs`].
///
/// # Errors
/// One is missing, or its libraries are.
pub fn initramfs() -> Result<evenkeel_vm::Initramfs> {
    let mut initramfs = evenkeel_vm::Initramfs::new(&own()?)?;
    initramfs.program_as(&product()?, Path::new(IN_GUEST))?;
    Ok(initramfs)
}
