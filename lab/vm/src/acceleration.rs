//! How the guest's instructions are executed, as QEMU's arguments.

/// How the guest's instructions are executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acceleration {
    /// By the host's CPU.
    Kvm,
    /// By QEMU's translator, one thread of the host for each CPU of the guest.
    Emulation,
    /// By QEMU's translator in one thread, where each instruction takes one nanosecond of the guest's
    /// time: the guest's clock is a count of instructions.
    Counting,
}

impl Acceleration {
    pub(crate) fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Kvm => &["-accel", "kvm", "-cpu", "host"],
            Self::Emulation => &["-accel", "tcg,thread=multi", "-cpu", "max"],
            Self::Counting => &[
                "-accel",
                "tcg,thread=single",
                "-icount",
                "shift=0,sleep=off",
                "-rtc",
                "clock=vm",
                "-cpu",
                "max",
            ],
        }
    }
}
