//! A fault of kernels that an old pahole described: functions of sched_ext with one argument too many in
//! the BTF. `evenkeel doctor` reports them, and the keel does not load where there
//! are any.

use std::ffi::OsStr;

use libbpf_rs::btf::types::{Func, FuncProto};
use libbpf_rs::btf::{Btf, BtfKind, TypeId};

use crate::support::redirect_libbpf_log;

/// The functions of sched_ext that the kernel's BTF describes with an argument that the kernel
/// passes by itself (`aux`). Pahole before 1.26 does not hide it, and a program that calls such a
/// function does not load. Empty where the BTF is sound or cannot be read.
pub fn malformed_functions() -> Vec<String> {
    redirect_libbpf_log();
    let Ok(btf) = Btf::from_vmlinux() else { return Vec::new() };
    let mut malformed = Vec::new();
    for id in 1..btf.len() {
        let Some(function) = btf.type_by_id::<Func<'_>>(TypeId::from(id as u32)) else { continue };
        let Some(name) = function.name().and_then(OsStr::to_str) else { continue };
        // The kernel's own variant really has the argument.
        if !name.trim_start_matches('_').starts_with("scx_bpf_") || name.ends_with("_impl") {
            continue;
        }
        let shows_aux = function
            .next_type()
            .filter(|prototype| prototype.kind() == BtfKind::FuncProto)
            .and_then(|prototype| FuncProto::try_from(prototype).ok())
            .is_some_and(|prototype| {
                prototype.iter().any(|parameter| parameter.name == Some(OsStr::new("aux")))
            });
        if shows_aux {
            malformed.push(name.to_owned());
        }
    }
    malformed
}
