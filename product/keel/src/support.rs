//! Whether this kernel and this process can load the keel; the first obstacle, with its remedy.

use std::fs;
use std::path::Path;

use evenkeel_cbinfo::malformed_functions;
use libbpf_rs::PrintLevel;

/// Why the keel cannot run here, each reason with its remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// The kernel has no sched_ext.
    #[error(
        "this kernel has no sched_ext (/sys/kernel/sched_ext is missing): run one from 6.18 on \
         that is built with CONFIG_SCHED_CLASS_EXT=y, or see it in a virtual machine: make demo-vm"
    )]
    NoSchedExt,
    /// The kernel was built without type information.
    #[error(
        "the kernel has no BTF (/sys/kernel/btf/vmlinux is missing): run a kernel built with \
         CONFIG_DEBUG_INFO_BTF=y, as all current distributions ship"
    )]
    NoBtf,
    /// The process may not load schedulers.
    #[error("no privilege to load a scheduler: run as root or with sudo")]
    NoPrivilege,
    /// Another sched_ext scheduler runs; there can be one at a time.
    #[error(
        "another sched_ext scheduler is active: {name}; end that first (systemctl stop scx, \
         systemctl stop scx_loader, or end its process)"
    )]
    Occupied {
        /// Its name, as the kernel has it.
        name: String,
    },
    /// The kernel's type information describes its functions wrongly.
    #[error(
        "this kernel's BTF was made by a pahole older than 1.26, which describes some functions \
         wrongly ({}): no sched_ext scheduler can be loaded; run another build of the kernel",
        .functions.join(", ")
    )]
    MalformedBtf {
        /// The functions that are described wrongly.
        functions: Vec<String>,
    },
}

/// Checks whether the keel can be loaded here and now.
///
/// # Errors
/// The first obstacle.
pub fn support() -> Result<(), Unsupported> {
    support_below(Path::new("/"), nix::unistd::geteuid().is_root())?;
    match malformed_functions() {
        functions if functions.is_empty() => Ok(()),
        functions => Err(Unsupported::MalformedBtf { functions }),
    }
}

fn support_below(root: &Path, is_root: bool) -> Result<(), Unsupported> {
    let sched_ext = root.join("sys/kernel/sched_ext");
    let state = fs::read_to_string(sched_ext.join("state"));
    let Ok(state) = state else { return Err(Unsupported::NoSchedExt) };
    if !root.join("sys/kernel/btf/vmlinux").exists() {
        return Err(Unsupported::NoBtf);
    }
    if !is_root {
        return Err(Unsupported::NoPrivilege);
    }
    if state.trim() != "disabled" {
        let name = fs::read_to_string(sched_ext.join("root/ops"));
        let name = name.map_or_else(|_| "(unnamed)".to_owned(), |name| name.trim().to_owned());
        return Err(Unsupported::Occupied { name });
    }
    Ok(())
}

/// Sends the messages of libbpf to the log at level debug; failures have errors of their own.
pub(crate) fn log_libbpf() {
    libbpf_rs::set_print(Some((PrintLevel::Warn, |_, text| {
        tracing::debug!("libbpf: {}", text.trim_end());
    })));
}

/// Logs how many instructions the verifier checked in each program, which is what loading takes its
/// time for.
pub(crate) fn log_verified() {
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    for program in libbpf_rs::query::ProgInfoIter::default() {
        let name = program.name.to_string_lossy();
        if name.starts_with("keel_") {
            tracing::debug!("{name}: {} instructions verified", program.verified_insns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(state: Option<&str>, ops: Option<&str>, has_btf: bool) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let sys = root.path().join("sys/kernel");
        if let Some(state) = state {
            fs::create_dir_all(sys.join("sched_ext/root")).unwrap();
            fs::write(sys.join("sched_ext/state"), format!("{state}\n")).unwrap();
        }
        if let Some(ops) = ops {
            fs::write(sys.join("sched_ext/root/ops"), format!("{ops}\n")).unwrap();
        }
        if has_btf {
            fs::create_dir_all(sys.join("btf")).unwrap();
            fs::write(sys.join("btf/vmlinux"), "").unwrap();
        }
        root
    }

    #[test]
    fn the_first_obstacle_is_named() {
        let check = |state, ops, has_btf, is_root| {
            support_below(kernel(state, ops, has_btf).path(), is_root)
        };
        assert_eq!(check(None, None, true, true), Err(Unsupported::NoSchedExt));
        assert_eq!(check(Some("disabled"), None, false, true), Err(Unsupported::NoBtf));
        assert_eq!(check(Some("disabled"), None, true, false), Err(Unsupported::NoPrivilege));
        assert_eq!(check(Some("disabled"), None, true, true), Ok(()));
        assert_eq!(
            check(Some("enabled"), Some("scx_flash"), true, true),
            Err(Unsupported::Occupied { name: "scx_flash".into() })
        );
        let unnamed = check(Some("enabling"), None, true, true).unwrap_err().to_string();
        assert!(unnamed.contains("(unnamed)"), "{unnamed}");
    }
}
