//! Where journals lie. An undo acts on what it reads there, as root perhaps, so no other user may have
//! put it there: the directory is no symbolic link, belongs to this user, and no other can write to it.

use std::fs::{DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::file::JournalError;

/// The directory for this user's run-time state: `/run/evenkeel` for root,
/// `$XDG_RUNTIME_DIR/evenkeel` for others, and `/tmp/evenkeel-UID` where that fails.
/// It is created if it does not exist. Journals lie in its subdirectory `journal`.
///
/// # Errors
/// [`JournalError::Directory`] if even the last one cannot be created safely.
pub fn runtime_dir() -> Result<PathBuf, JournalError> {
    let uid = own_uid();
    let mut candidates = Vec::new();
    if uid == 0 {
        candidates.push(PathBuf::from("/run/evenkeel"));
    }
    // Under sudo -E the variable is the caller's: then another user owns the directory.
    if let Some(xdg) = path_from_environment("XDG_RUNTIME_DIR").filter(|path| is_owned(path, uid)) {
        candidates.push(xdg.join("evenkeel"));
    }
    for path in &candidates {
        match ensure_private(path, if uid == 0 { 0o755 } else { 0o700 }) {
            Ok(()) => return Ok(path.clone()),
            Err(error) => tracing::debug!(%error, "trying the next directory"),
        }
    }
    let last = fallback(uid);
    ensure_private(&last, 0o700)?;
    Ok(last)
}

fn fallback(uid: u32) -> PathBuf {
    PathBuf::from(format!("/tmp/evenkeel-{uid}"))
}

/// The directories besides `own` in which a process of this user may have its journal, since it had
/// other variables: one of cron has no `XDG_RUNTIME_DIR`. Those that exist, and that only this user can
/// write to.
pub fn other_runtime_dirs(own: &Path) -> Vec<PathBuf> {
    let uid = own_uid();
    let of_login = PathBuf::from(format!("/run/user/{uid}/evenkeel"));
    let is_other = |path: &PathBuf| path != own && check_is_private(path).is_ok();
    [of_login, fallback(uid)].into_iter().filter(is_other).collect()
}

/// The path that a variable of the environment names; `None` also for a relative one, which would depend
/// on the directory that this process was started in, and where this process has more rights than its
/// caller.
pub fn path_from_environment(variable: &str) -> Option<PathBuf> {
    let value = std::env::var_os(variable).filter(|_| !has_more_rights_than_caller());
    value.map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Whether this process got rights by its executable (set-user-id or file capabilities), which its
/// caller does not have: AT_SECURE of getauxval(3). Then the caller must not choose code or files for
/// it.
pub fn has_more_rights_than_caller() -> bool {
    // SAFETY: takes an integer and reads the auxiliary vector.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Creates (mode 0700, together with `dir`) and checks `dir/journal`.
///
/// # Errors
/// [`JournalError::Directory`].
pub(crate) fn journal_dir(dir: &Path) -> Result<PathBuf, JournalError> {
    ensure_private(dir, if own_uid() == 0 { 0o755 } else { 0o700 })?;
    let path = dir.join("journal");
    ensure_private(&path, 0o700)?;
    Ok(path)
}

/// Has systemd-tmpfiles leave a directory alone while it is open here: what is below `/tmp` and has not
/// changed for days is removed, unless its directory, or one above that, has a lock of flock(2)
/// (tmpfiles.d(5)). False where the lock is taken: systemd-tmpfiles is at work there, or another user
/// is, for which no process may wait. Then it is to be called again.
pub(crate) fn keep_from_ageing(directory: &File) -> bool {
    let locked = directory.try_lock_shared();
    if let Err(why) = &locked {
        tracing::debug!("the directory of the journal is not locked: {why}");
    }
    locked.is_ok()
}

/// The effective user id.
pub(crate) fn own_uid() -> u32 {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

fn is_owned(path: &Path, uid: u32) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir() && meta.uid() == uid)
}

/// Creates the directory if needed, and checks that only this user can write to it.
fn ensure_private(path: &Path, mode: u32) -> Result<(), JournalError> {
    let fail = |why: String| JournalError::Directory { path: path.to_owned(), why };
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(fail(error.to_string())),
    }
    check_is_private(path).map_err(fail)
}

/// Checks that only this user can write to a directory.
///
/// # Errors
/// What is wrong, and what to do.
pub(crate) fn check_is_private(path: &Path) -> Result<(), String> {
    let meta = std::fs::symlink_metadata(path).map_err(|error| error.to_string())?;
    if !meta.is_dir() {
        return Err("it is not a directory; remove it".into());
    }
    if meta.uid() != own_uid() {
        return Err(format!("it belongs to user {}, not to this user; remove it", meta.uid()));
    }
    if meta.mode() & 0o022 != 0 {
        return Err(format!("other users may write to it; run: chmod go-w {}", path.display()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_directory_that_other_users_can_reach_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("evenkeel");
        let made = journal_dir(&base).unwrap();
        assert_eq!(std::fs::metadata(&made).unwrap().mode() & 0o777, 0o700);
        assert_eq!(journal_dir(&base).unwrap(), made);

        std::fs::set_permissions(&made, std::fs::Permissions::from_mode(0o770)).unwrap();
        assert!(journal_dir(&base).unwrap_err().to_string().contains("chmod go-w"));

        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&base, &link).unwrap();
        assert!(journal_dir(&link).unwrap_err().to_string().contains("not a directory"));

        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(journal_dir(&dir.path().join("file")).is_err());
        assert!(journal_dir(&dir.path().join("no/such")).is_err());
    }
}
