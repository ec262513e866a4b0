//! The command line as reports show it.

/// The command line as a user would type it: with the name of the program, whatever its file is called
/// and wherever it lies.
pub(crate) fn command_line() -> String {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    std::iter::once("evenkeel-lab".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}
