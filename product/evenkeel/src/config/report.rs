//! `evenkeel config`: whether the configuration files are right, and which values come from them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use evenkeel_keel::Zone;
use toml::{Table, Value};

use super::usable::check_all;
use super::{Config, default_files, parse, read, read_default};
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
    /// It is not used, or is wrong, for this reason.
    Wrong(String),
    Right(Table),
}

/// A value, and the files that it comes from.
struct Entry {
    value: Value,
    from: Vec<PathBuf>,
}

type Entries = BTreeMap<(usize, String), Entry>;

/// Checks or shows the configuration. Returns the exit code: 1 where a file is wrong.
///
/// # Errors
/// A file that was named does not exist, or `show` finds a wrong one.
pub fn main(command: &ConfigCommand, asked_for: Option<&Path>) -> Result<i32> {
    match command {
        ConfigCommand::Check(args) => check(&args.files, asked_for),
        ConfigCommand::Show => {
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
            Err(why) => return Self::Wrong(format!("{why:#}")),
        };
        match parse(&text).and_then(|_| Ok(text.parse::<Table>()?)) {
            Ok(table) => Self::Right(table),
            Err(why) => Self::Wrong(format!("{}: {why:#}", path.display())),
        }
    }
}

fn check(named: &[PathBuf], asked_for: Option<&Path>) -> Result<i32> {
    let mut code = 0;
    // The default files are used together, a named one without others.
    let are_together = named.is_empty() && asked_for.is_none();
    let mut farther = Config::default();
    for Source { path, content } in sources(named, asked_for)? {
        let why = match content {
            Content::Absent => {
                println!("{}: does not exist", path.display());
                continue;
            }
            Content::Wrong(why) => Some(why),
            Content::Right(table) => {
                let config = parse(&table.to_string())?.or(std::mem::take(&mut farther));
                let wrong = check_all(&config).err();
                if are_together && wrong.is_none() {
                    farther = config;
                }
                wrong.map(|why| format!("{}: {why:#}", path.display()))
            }
        };
        match why {
            None => println!("{}: is right", path.display()),
            Some(why) => {
                code = 1;
                println!("{why}");
            }
        }
    }
    Ok(code)
}

/// The configuration as a file: what would have the same effect as all files together, with where each
/// value comes from.
fn show(sources: &[Source]) -> Result<String> {
    let mut text = String::new();
    let mut entries = Entries::new();
    for Source { path, content } in sources {
        match content {
            Content::Absent => writeln!(text, "# {}: does not exist", path.display())?,
            Content::Wrong(why) => bail!("{why}"),
            Content::Right(table) => {
                writeln!(text, "# {}", path.display())?;
                take_over(&mut entries, path, table);
            }
        }
    }
    let mut last = None;
    for ((table, key), Entry { value, from }) in entries {
        if last.replace(table) != Some(table) {
            writeln!(text, "\n[{}]", TABLES.get(table).copied().unwrap_or_default())?;
        }
        let from: Vec<String> = from.iter().map(|path| path.display().to_string()).collect();
        writeln!(text, "{key} = {value}  # {}", from.join(", "))?;
    }
    Ok(text)
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
