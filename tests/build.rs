//! Tells the tests where the executables under test lie: beside this build's other results, whatever
//! profile and target folder it has. `make` builds them before it starts the tests.

use std::env;
use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    // target/PROFILE/build/evenkeel-tests-HASH/out
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let profile = out.ancestors().nth(3).ok_or("OUT_DIR has an unknown layout")?;
    println!("cargo:rustc-env=EVENKEEL={}", profile.join("evenkeel").display());
    let shares = profile.join("libevenkeel_shares.so");
    println!("cargo:rustc-env=EVENKEEL_SHARES_LIBRARY={}", shares.display());
    println!("cargo:rustc-env=EVENKEEL_LAB={}", profile.join("evenkeel-lab").display());
    println!("cargo:rerun-if-changed=build.rs");
    Ok(())
}
