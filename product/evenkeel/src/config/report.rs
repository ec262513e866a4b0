//! `evenkeel config`: whether the configuration files are right, and which values come from them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Error, Result, bail};
use evenkeel_keel::Zone;
use schemars::JsonSchema;
use serde::Serialize;
use toml::{Table, Value};

use super::usable::wrong_in;
use super::{Config, default_files, finish, parse, read, read_default};
use crate::cli::ConfigCommand;

/// The tables of a file, in the order in which they are shown.
const TABLES: [&str; 7] = ["run", "daemon", "irq", "sched", "zone", "ias", "cluster"];

/// A file that was looked at.
struct Source {
    path: PathBuf,
    content: Content,
}

/// What a file holds.
enum Content {
    /// It is not there.
    Absent,
    /// It is not used, or is wrong, for these reasons.
    Wrong(Vec<String>),
    Right(Table),
}

/// A value, and the files that it comes from.
struct Entry {
    value: Value,
    from: Vec<PathBuf>,
}

type Entries = BTreeMap<(usize, String), Entry>;

/// The version of what `config show --json` prints.
pub const FORMAT: u32 = 1;

/// What `config show --json` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Shown {
    /// The version of this document.
    format: u32,
    /// The files that were looked for, the nearest one last.
    files: Vec<ShownFile>,
    /// The values that are set in them.
    values: Vec<ShownValue>,
}

/// A file that was looked for.
#[derive(Debug, Serialize, JsonSchema)]
struct ShownFile {
    path: PathBuf,
    /// Whether it is there.
    exists: bool,
}

/// A value that holds.
#[derive(Debug, Serialize, JsonSchema)]
struct ShownValue {
    /// The table, which is named for the command.
    table: String,
    /// The name of the option.
    key: String,
    /// As the file has it: a text, a number, a truth value or a list.
    #[schemars(with = "serde_json::Value")]
    value: Value,
    /// The files that it comes from; several where lists are joined.
    from: Vec<PathBuf>,
}

/// Checks or shows the configuration. Returns the exit code: 1 where a file is wrong.
///
/// # Errors
/// A file that was named does not exist, or `show` finds a wrong one.
pub fn main(command: &ConfigCommand, asked_for: Option<&Path>) -> Result<i32> {
    match command {
        ConfigCommand::Check(args) => check(&args.files, asked_for),
        ConfigCommand::Show(args) if args.json => {
            let sources = sources(&[], asked_for)?;
            println!("{}", serde_json::to_string_pretty(&Shown::of(&sources)?)?);
            Ok(0)
        }
        ConfigCommand::Show(_) => {
            print!("{}", shown(asked_for)?);
            Ok(0)
        }
    }
}

/// What `evenkeel config show` prints.
///
/// # Errors
/// A file that was named does not exist, or a file is wrong.
pub fn shown(asked_for: Option<&Path>) -> Result<String> {
    show(&sources(&[], asked_for)?)
}

/// The files to look at, the nearest one last: those that are named here, or that of `--config`, or the
/// default ones.
fn sources(named: &[PathBuf], asked_for: Option<&Path>) -> Result<Vec<Source>> {
    let named: Vec<&Path> = named.iter().map(PathBuf::as_path).chain(asked_for).collect();
    if named.is_empty() {
        let of = |path: PathBuf| Source { content: Content::of(&path, read_default), path };
        return Ok(default_files().into_iter().map(of).collect());
    }
    let of = |path: &Path| Source { path: path.to_owned(), content: Content::of(path, read) };
    let sources: Vec<Source> = named.into_iter().map(of).collect();
    match sources.iter().find(|source| matches!(source.content, Content::Absent)) {
        Some(absent) => {
            bail!("{}: the configuration file does not exist", absent.path.display())
        }
        None => Ok(sources),
    }
}

impl Content {
    fn of(path: &Path, read: fn(&Path) -> Result<Option<String>>) -> Self {
        let text = match read(path) {
            Ok(Some(text)) => text,
            Ok(None) => return Self::Absent,
            Err(why) => return Self::Wrong(vec![format!("{why:#}")]),
        };
        match text.parse::<Table>() {
            Ok(table) if parse(&text).is_ok() => Self::Right(table),
            Ok(_) => Self::Wrong(with_path(path, &wrong_entries(text))),
            Err(why) => Self::Wrong(with_path(path, &[why.into()])),
        }
    }
}

fn with_path(path: &Path, wrong: &[Error]) -> Vec<String> {
    wrong
        .iter()
        .map(|why| format!("{}: {}", path.display(), format!("{why:#}").trim_end()))
        .collect()
}

/// What is wrong in a text of TOML, not only the first: what is told of is put out of sight, in lines
/// that stay, until the rest can be read.
fn wrong_entries(mut text: String) -> Vec<Error> {
    let mut wrong = Vec::new();
    loop {
        let why = match toml::from_str(&text) {
            Ok(config) => {
                let (config, rest) = finish(config);
                wrong.extend(rest);
                wrong.extend(wrong_in(&config, false));
                return wrong;
            }
            Err(why) => why,
        };
        let place = why.span().unwrap_or_default();
        let start = text[..place.start].rfind('\n').map_or(0, |at| at + 1);
        let rest = &text[start..];
        // With the heading of a table, all of the table.
        let end = if rest.trim_start().starts_with('[') {
            rest.find("\n[")
        } else {
            text[place.end..].find('\n').map(|at| place.end + at - start)
        };
        let end = start + end.unwrap_or(rest.len());
        let hidden = text[start..end].replace(|c| c != '\n', " ");
        let is_new = hidden != text[start..end];
        text.replace_range(start..end, &hidden);
        wrong.push(why.into());
        if !is_new {
            return wrong;
        }
    }
}

fn check(named: &[PathBuf], asked_for: Option<&Path>) -> Result<i32> {
    let mut code = 0;
    // The default files are used together, a named one without others.
    let are_together = named.is_empty() && asked_for.is_none();
    let mut farther = Config::default();
    for Source { path, content } in sources(named, asked_for)? {
        let wrong = match content {
            Content::Absent => {
                println!("{}: does not exist", path.display());
                continue;
            }
            Content::Wrong(wrong) => wrong,
            Content::Right(table) => {
                let config = parse(&table.to_string())?.or(std::mem::take(&mut farther));
                let wrong = with_path(&path, &wrong_in(&config, true));
                if are_together && wrong.is_empty() {
                    farther = config;
                }
                wrong
            }
        };
        if wrong.is_empty() {
            println!("{}: is right", path.display());
        } else {
            code = 1;
            println!("{}", wrong.join("\n"));
        }
    }
    Ok(code)
}

/// The configuration as a file: what would have the same effect as all files together, with where each
/// value comes from.
fn show(sources: &[Source]) -> Result<String> {
    let Shown { files, values, .. } = Shown::of(sources)?;
    let mut text = String::new();
    for ShownFile { path, exists } in files {
        let what = if exists { "" } else { ": does not exist" };
        writeln!(text, "# {}{what}", path.display())?;
    }
    let mut last = None;
    for ShownValue { table, key, value, from } in values {
        if last.as_ref() != Some(&table) {
            writeln!(text, "\n[{table}]")?;
            last = Some(table);
        }
        let from: Vec<String> = from.iter().map(|path| path.display().to_string()).collect();
        writeln!(text, "{key} = {value}  # {}", from.join(", "))?;
    }
    Ok(text)
}

impl Shown {
    /// # Errors
    /// A file is wrong.
    fn of(sources: &[Source]) -> Result<Self> {
        let mut files = Vec::new();
        let mut entries = Entries::new();
        for Source { path, content } in sources {
            match content {
                Content::Absent => {}
                Content::Wrong(wrong) => bail!("{}", wrong.join("\n")),
                Content::Right(table) => take_over(&mut entries, path, table),
            }
            files.push(ShownFile {
                path: path.clone(),
                exists: matches!(content, Content::Right(_)),
            });
        }
        let values = entries.into_iter().map(|((table, key), Entry { value, from })| {
            let table = TABLES.get(table).copied().unwrap_or_default().to_owned();
            ShownValue { table, key, value, from }
        });
        Ok(Self { format: FORMAT, files, values: values.collect() })
    }
}

/// Adds the values of a nearer file, by the rules of `Config::or`.
fn take_over(entries: &mut Entries, path: &Path, nearer: &Table) {
    for (number, name) in TABLES.iter().enumerate() {
        let Some(Value::Table(table)) = nearer.get(*name) else { continue };
        for (key, value) in table {
            let key = match *name {
                "zone" => Zone::name_of(key).map_or_else(|| key.clone(), str::to_owned),
                _ => key.clone(),
            };
            match (*name, key.as_str()) {
                // Two options set one value: the nearer one wins.
                ("sched", "strict") => {
                    entries.remove(&(number, "max-idle-wait".to_owned()));
                }
                ("sched", "max-idle-wait") => {
                    entries.remove(&(number, "strict".to_owned()));
                }
                ("sched", "zone") => {
                    entries
                        .retain(|(table, key), _| TABLES[*table] != "zone" || key != Zone::LEVEL);
                }
                _ => {}
            }
            let place = (number, key);
            let (value, mut from) = match (entries.remove(&place), value) {
                // Lists are joined, the nearer one first; what one file turns on, none turns off,
                // except for interrupts.
                (Some(farther), Value::Array(list)) if *name == "daemon" => {
                    let more = farther.value.as_array().into_iter().flatten();
                    (Value::Array(list.iter().chain(more).cloned().collect()), farther.from)
                }
                (Some(farther), Value::Boolean(false))
                    if *name != "irq" && farther.value == Value::Boolean(true) =>
                {
                    entries.insert(place, farther);
                    continue;
                }
                (_, value) => (value.clone(), Vec::new()),
            };
            from.push(path.to_owned());
            entries.insert(place, Entry { value, from });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.into(), content: Content::Right(text.parse().unwrap()) }
    }

    #[test]
    fn what_is_shown_has_the_same_effect_as_all_files_together() {
        let system = "[run]\npolicy = \"paper\"\noverride = true\n\
             [daemon]\nnames = [\"far\"]\nmetrics = \"127.0.0.1:9469\"\n\
             [irq]\nmode = \"level\"\ntake-over = true\n\
             [sched]\nmax-idle-wait = \"5ms\"\nslice-us = 3000\nias-auto = true\n\
             [zone]\nbalance_level = 2\nbalance_cpus_avg_enable = 0\n[ias]\n\
             [cluster]\nrecords = \"/far\"\n";
        for user in [
            "",
            "[run]\npolicy = \"lag\"\noverride = false\ncpus = \"0-1\"\n",
            "[daemon]\nnames = [\"near\"]\ncgroups = [\"/a\"]\n[sched]\nstrict = true\n",
            "[cluster]\nrecords = \"/near\"\n",
            "[sched]\nzone = \"hot\"\n[zone]\nbal_cpus_avg_enable = 1\n",
            "[irq]\nmode = \"off\"\ninterval = \"9s\"\ntake-over = false\n",
        ] {
            let text = show(&[source("/system", system), source("/user", user)]).unwrap();
            let together = parse(user).unwrap().or(parse(system).unwrap());
            let shown = parse(&text).unwrap();
            assert_eq!(format!("{shown:?}"), format!("{together:?}"), "{text}");
        }
    }

    #[test]
    fn each_value_has_its_file() {
        let sources = [
            Source { path: "/none".into(), content: Content::Absent },
            source("/system", "[daemon]\nnames = [\"far\"]\n[run]\ncpus = \"0\"\n"),
            source("/user", "[daemon]\nnames = [\"near\"]\n[run]\ncpus = \"1\"\n"),
        ];
        let text = show(&sources).unwrap();
        for line in [
            "# /none: does not exist\n# /system\n# /user\n",
            "[run]\ncpus = \"1\"  # /user\n",
            "[daemon]\nnames = [\"near\", \"far\"]  # /system, /user\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn all_that_is_wrong_is_named() {
        let text = "[run]\nspeed = \"warp\"\nfoo = 3\ncpus = \"x\"\n[what]\na = 1\nb = 2\n\
             [zone]\nbar = 1\nbalance_level = 77\n[cluster]\nrecords = \"near\"\n";
        let wrong = wrong_entries(text.to_owned());
        let wrong: Vec<String> = wrong.iter().map(|why| format!("{why:#}")).collect();
        for words in [
            "line 3, column 1",
            "unknown field `what`",
            "\"bar\": there is no such knob",
            "balance_level \"77\"",
            "table [cluster]: records = \"near\"",
            "table [run]: cpus: \"x\"",
            "table [run]: speed: speed \"warp\"",
        ] {
            assert_eq!(wrong.iter().filter(|why| why.contains(words)).count(), 1, "{wrong:?}");
        }
        assert_eq!(wrong.len(), 7, "{wrong:?}");
    }

    #[test]
    fn files_are_right_or_wrong_and_named_ones_exist() {
        let dir = tempfile::tempdir().unwrap();
        let [right, wrong, absent] = ["right", "wrong", "absent"].map(|name| dir.path().join(name));
        std::fs::write(&right, "[run]\npolicy = \"lag\"\n").unwrap();
        std::fs::write(&wrong, "[run]\npolicy = \"best\"\n").unwrap();
        let of_no_use = dir.path().join("of-no-use");
        std::fs::write(&of_no_use, "[run]\nselection = \"cache\"\n").unwrap();
        let check = |files: &[&PathBuf]| {
            check(&files.iter().map(|path| (*path).clone()).collect::<Vec<_>>(), None)
        };
        assert_eq!(check(&[&right]).unwrap(), 0);
        assert_eq!(check(&[&right, &wrong]).unwrap(), 1);
        assert_eq!(check(&[&of_no_use]).unwrap(), 1);
        assert!(check(&[&absent]).unwrap_err().to_string().contains("does not exist"));
        let why = show(&sources(&[wrong], None).unwrap()).unwrap_err().to_string();
        assert!(why.contains("wrong: ") && why.contains("best"), "{why}");
    }
}
