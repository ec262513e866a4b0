//! Man pages and shell completions, from the definition of the command line.

use std::fs;

use anyhow::{Context, Result};
use clap_complete::Shell;

use crate::cli::{GenerateArgs, Generated};

/// Writes the man pages or the completions of a command line into a directory, which is created.
///
/// # Errors
/// A file cannot be written.
pub fn main(command: clap::Command, args: &GenerateArgs) -> Result<i32> {
    let directory = &args.directory;
    fs::create_dir_all(directory).with_context(|| format!("{}", directory.display()))?;
    match args.what {
        Generated::Man => clap_mangen::generate_to(command, directory)?,
        Generated::Completions => {
            for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
                clap_complete::generate_to(
                    shell,
                    &mut command.clone(),
                    command.get_name().to_owned(),
                    directory,
                )?;
            }
        }
    }
    Ok(0)
}
