//! Programs that a test compiles for itself.

use std::process::Command;

use crate::support::*;

pub struct Compiled {
    pub path: String,
}

impl Compiled {
    /// Compiles with the C compiler that the build needs anyway.
    pub fn compile(host: &Host, source: &str, name: &str, flags: &[&str]) -> Self {
        Self::compile_with("cc", host, source, name, flags)
    }

    /// The same with another compiler.
    pub fn compile_with(
        compiler: &str,
        host: &Host,
        source: &str,
        name: &str,
        flags: &[&str],
    ) -> Self {
        let path = host.path(name).to_str().unwrap().to_owned();
        let mut compiler = Command::new(compiler);
        compiler.args(["-O1", "-Wall", "-o", &path, source]).args(flags);
        let output = compiler.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        Self { path }
    }
}
