//! What `run --shares` does before the command starts: it finds the library that is preloaded, and looks
//! whether the command's executable can be divided at all. Where it cannot, that is said, with what fits
//! instead, and the command runs as without `--shares`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use evenkeel_capability::{LagParameters, Policy, Preference};
use evenkeel_host::Options;
use evenkeel_shares::environment::{LIBRARY, find_library, with_library};
use evenkeel_shares::executable::{Outlook, inspect};

/// The library to preload into the command; none where it cannot have an effect, and why.
pub enum Prepared {
    /// It is preloaded: into the command, or into what that starts.
    Library(PathBuf),
    /// The command runs as without `--shares`.
    NoEffect(String),
}

/// Finds the library for a command.
///
/// # Errors
/// The library is not installed, or cannot be preloaded from where it is; or how the command is balanced
/// leaves no room for shares.
pub fn prepare(command: &[OsString], options: &Options) -> Result<Prepared> {
    match options.policy {
        Policy::Paper(_) => bail!(
            "--shares needs --policy lag: the paper's policy moves tasks in every interval, and loops \
             are divided where threads stay"
        ),
        Policy::Lag(LagParameters { prefer: Preference::Efficient, .. }) => bail!(
            "--shares contradicts --prefer efficient: loops are divided by what the CPUs have to give; \
             leave one of them out"
        ),
        Policy::Lag(_) => {}
    }
    let executable = std::env::current_exe().context("--shares: this executable's path")?;
    let library = library_of(&executable)?;
    let name = command.first().map(OsString::as_os_str).unwrap_or_default();
    Ok(match find_program(name).and_then(|path| why_no_effect(&path)) {
        Some(why) => Prepared::NoEffect(why),
        None => Prepared::Library(library),
    })
}

/// The library beside this executable, or where it is installed.
fn library_of(executable: &Path) -> Result<PathBuf> {
    let Some(library) = find_library(executable) else {
        let beside = executable.with_file_name(LIBRARY);
        bail!(
            "--shares needs {LIBRARY}, which is neither {} nor in ../lib/evenkeel from there: install \
             it with `make install`, or build it with `make build`",
            beside.display()
        );
    };
    if with_library(None, &library).is_none() {
        bail!(
            "--shares cannot preload {}: a path with a blank, a colon or a dollar sign cannot stand in \
             LD_PRELOAD; install evenkeel elsewhere",
            library.display()
        );
    }
    Ok(library)
}

/// The file of a command, as execvp(3) finds it; none where there is no such file, which is reported
/// when it is started.
fn find_program(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name));
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Why loops of this program cannot be divided, if that is certain. A script or a launcher may start a
/// program with such loops, and so may a program that loads libraries later.
fn why_no_effect(program: &Path) -> Option<String> {
    let outlook = inspect(program).inspect_err(|why| tracing::debug!("{why}")).ok()?;
    let name = program.display();
    let fits = "use --threads 4 instead, or compile it with clang or flang";
    Some(match outlook {
        Outlook::Applies(_) | Outlook::Script | Outlook::Unknown => return None,
        Outlook::Absent { other_runtime: None } => return None,
        Outlook::Absent { other_runtime: Some(runtime) } => format!(
            "{name} uses gcc's OpenMP runtime ({runtime}), which leaves nothing to divide loops by: \
             {fits}"
        ),
        Outlook::StaticRuntime(object) => format!(
            "LLVM's OpenMP runtime is a static part of {}, where no library can come before it: link \
             it with the shared runtime, or use --threads 4 instead",
            object.display()
        ),
        Outlook::StaticExecutable => format!(
            "{name} is linked statically, so no library can be preloaded: link it dynamically, or use \
             --threads 4 instead"
        ),
        Outlook::OtherArchitecture => format!(
            "{name} is for 32 bits or another processor, so the library cannot be preloaded: build it \
             for this one, or use --threads 4 instead"
        ),
        Outlook::ChangesPrivilege => format!(
            "{name} changes its user, group or capabilities, so the dynamic linker preloads nothing: \
             start it as its own user, or use --threads 4 instead"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_host::{AccountingChoice, Placement};

    fn options(policy: Policy) -> Options {
        Options {
            policy,
            placement: Placement::Soft,
            accounting: AccountingChoice::Auto,
            daemons: Vec::new(),
            dry_run: false,
            runtimes: Vec::new(),
            cpus: None,
        }
    }

    #[test]
    fn a_missing_library_is_named_with_the_remedy() {
        let prefix = tempfile::tempdir().unwrap();
        let executable = prefix.path().join("bin/evenkeel");
        let error = library_of(&executable).unwrap_err().to_string();
        let beside = executable.with_file_name(LIBRARY);
        assert!(error.contains(beside.to_str().unwrap()), "{error}");
        assert!(error.contains("../lib/evenkeel") && error.contains("make install"), "{error}");
        let folder = prefix.path().join("lib/evenkeel");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(LIBRARY), "").unwrap();
        std::fs::create_dir_all(prefix.path().join("bin")).unwrap();
        assert_eq!(library_of(&executable).unwrap(), folder.join(LIBRARY));
    }

    #[test]
    fn a_path_that_cannot_be_preloaded_is_an_error() {
        let prefix = tempfile::Builder::new().prefix("my programs").tempdir().unwrap();
        std::fs::write(prefix.path().join(LIBRARY), "").unwrap();
        let error = library_of(&prefix.path().join("evenkeel")).unwrap_err().to_string();
        assert!(error.contains("LD_PRELOAD") && error.contains("my programs"), "{error}");
    }

    #[test]
    fn the_papers_policy_leaves_no_room_for_shares() {
        let paper = Policy::Paper(evenkeel_capability::PaperParameters::default());
        let error = prepare(&["true".into()], &options(paper)).err().unwrap().to_string();
        assert!(error.contains("--policy lag"), "{error}");
    }

    #[test]
    fn a_preference_for_less_energy_leaves_no_room_for_shares() {
        let parameters =
            LagParameters { prefer: Preference::Efficient, ..LagParameters::default() };
        let options = options(Policy::Lag(parameters));
        let error = prepare(&["true".into()], &options).err().unwrap().to_string();
        assert!(error.contains("--prefer efficient"), "{error}");
    }

    #[test]
    fn a_program_is_found_as_execvp_finds_it() {
        assert_eq!(find_program("./x".as_ref()), Some(PathBuf::from("./x")));
        assert!(find_program("sh".as_ref()).is_some_and(|path| path.is_absolute()));
        assert_eq!(find_program("no-such-program".as_ref()), None);
    }

    #[test]
    fn scripts_launchers_and_files_that_are_not_there_have_no_reason() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        std::fs::write(&script, "#!/bin/sh\n").unwrap();
        for program in [&script, Path::new("/bin/sh"), Path::new("/no/such/file")] {
            assert_eq!(why_no_effect(program), None, "{}", program.display());
        }
    }

    #[test]
    fn a_program_of_another_processor_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let other = folder.path().join("other");
        let mut bytes = std::fs::read("/proc/self/exe").unwrap();
        // e_machine of the header.
        bytes[18] = 0xfe;
        std::fs::write(&other, bytes).unwrap();
        let why = why_no_effect(&other).unwrap();
        assert!(why.contains("another processor") && why.contains("--threads 4"), "{why}");
    }
}
