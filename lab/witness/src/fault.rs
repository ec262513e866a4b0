//! Makes the kernel end the running `sched_ext` scheduler, as it does when a scheduler is at fault.

use libbpf_rs::{ObjectBuilder, ProgramInput};

use crate::object::{Aligned, Error, bpf};

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/fault.bpf.o")));

/// The message that is reported to the kernel, and that the kernel passes to the scheduler.
pub const FAULT: &str = "a fault made for a test";

/// Reports [`FAULT`]. The kernel takes all tasks back at once; the scheduler's user space learns of it
/// later.
///
/// # Errors
/// Without BTF, `sched_ext` or privilege.
pub fn report_fault() -> Result<(), Error> {
    let object = ObjectBuilder::default()
        .name("fault")
        .and_then(|builder| builder.open_memory(&OBJECT.0))
        .and_then(libbpf_rs::OpenObject::load)
        .map_err(bpf("loading the fault"))?;
    for program in object.progs_mut() {
        program.test_run(ProgramInput::default()).map_err(bpf("reporting a fault"))?;
    }
    Ok(())
}
