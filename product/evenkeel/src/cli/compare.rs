//! Arguments of `evenkeel compare`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::shared::{time, whole_number};

/// The contestants with names that every shell takes as one word, which it offers on Tab.
pub const PLAIN_CONTESTANTS: [&str; 2] = ["pinned", "run"];
/// The default of both times.
const TIME: &str = "10m";

/// `evenkeel compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Compare only these with the kernel alone, for example pinned,run or, in quotes, "run --shares"
    /// [default: all that apply].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub contestants: Vec<String>,
    /// Make this many rounds, 1 to 15 [default: 5, and more where rows are undecided].
    #[arg(long, value_name = "N", value_parser = whole_number::<u8>(1..=15))]
    pub rounds: Option<u8>,
    /// Add no rounds after this time; the first rounds are always made.
    #[arg(long, value_name = "TIME", default_value = TIME, value_parser = time)]
    pub budget: humantime::Duration,
    /// End a run that takes longer than this.
    #[arg(long, value_name = "TIME", default_value = TIME, value_parser = time)]
    pub run_limit: humantime::Duration,
    /// Write the result as JSON to this file, - for standard output.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the result as a page for a browser, which needs no network, to this file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

impl CompareArgs {
    /// The flags with the same meaning. A time that is the default is left out.
    pub fn flags(&self) -> Vec<OsString> {
        let time = |time: humantime::Duration| {
            let text = time.to_string();
            (text != TIME).then(|| text.into())
        };
        let names = (!self.contestants.is_empty()).then(|| self.contestants.join(",").into());
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.into());
        let values: [(&str, Option<OsString>); 6] = [
            ("--contestants", names),
            ("--rounds", self.rounds.map(|rounds| rounds.to_string().into())),
            ("--budget", time(self.budget)),
            ("--run-limit", time(self.run_limit)),
            ("--json", path(&self.json)),
            ("--html", path(&self.html)),
        ];
        values
            .into_iter()
            .filter_map(|(flag, value)| Some([flag.into(), value?]))
            .flatten()
            .collect()
    }
}
