//! Configuration files: the flags of a command under the same names, in a table named for the
//! command. A flag on the command line wins over the user's file, and that over the system's file.
//!
//! The user's file is found by HOME, which under sudo may be another user's, and what it says is done
//! with this process's rights. So it must belong to this user or to root, and no other user may write to
//! it. A file that is named by `--config` is the caller's choice, and is read as it is.

pub mod page;
pub mod report;
pub mod usable;

use std::fs::{File, Metadata, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, anyhow, bail};
use evenkeel_journal::path_from_environment;
use evenkeel_keel::{IasSettings, Zone};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::cli::{
    ClusterOptions, DaemonOptions, IrqOptions, RunOptions, SchedOptions, ZoneOptions,
};

/// A whole configuration file.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Config {
    /// Table `[run]`.
    pub run: RunOptions,
    /// Table `[daemon]`.
    pub daemon: DaemonOptions,
    /// Table `[irq]`.
    pub irq: IrqOptions,
    /// Table `[sched]`.
    pub sched: SchedOptions,
    /// Table `[zone]`.
    #[schemars(with = "std::collections::BTreeMap<String, u32>")]
    pub zone: ZoneOptions,
    /// Table `[ias]`.
    pub ias: IasSettings,
    /// Table `[cluster]`.
    pub cluster: ClusterOptions,
}

/// Reads the file of `--config`, or else the system's and the user's file, which need not exist.
///
/// # Errors
/// A file cannot be read, or a field is invalid; the error names file, line and field.
pub fn load(asked_for: Option<&Path>) -> Result<Config> {
    if let Some(path) = asked_for {
        let text = read(path)?.with_context(|| {
            format!("{}: the configuration file does not exist", path.display())
        })?;
        return parse(&text).with_context(|| format!("{}", path.display()));
    }
    default_files().iter().try_fold(Config::default(), |farther, path| {
        Ok(read_if_allowed(path)?.unwrap_or_default().or(farther))
    })
}

/// The system's file and the user's, the nearer one last. They need not exist.
fn default_files() -> Vec<PathBuf> {
    let user = path_from_environment("XDG_CONFIG_HOME")
        .or_else(|| Some(path_from_environment("HOME")?.join(".config")));
    let folders = [Some(PathBuf::from("/etc")), user];
    folders.into_iter().flatten().map(|folder| folder.join("evenkeel/config.toml")).collect()
}

/// The files one by one, the nearest one first: that of `--config`, or the default ones. One that is
/// wrong, or that cannot be read again, as a pipe, is left out.
fn one_by_one(asked_for: Option<&Path>) -> impl Iterator<Item = (PathBuf, Config)> {
    let files = asked_for.map_or_else(default_files, |path| vec![path.to_owned()]);
    let read = if asked_for.is_some() { read } else { read_default };
    files.into_iter().rev().filter(|path| path.is_file()).filter_map(move |path| {
        let config = parse(&read(&path).ok()??).ok()?;
        Some((path, config))
    })
}

/// A default file may be out of reach, since HOME is still that of root after `setpriv`: then it is left
/// out, with a warning.
fn read_if_allowed(path: &Path) -> Result<Option<Config>> {
    let read = read_default(path).and_then(|text| {
        let parsed = text.map(|text| parse(&text)).transpose();
        parsed.with_context(|| format!("{}", path.display()))
    });
    read.or_else(|error| {
        let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        if kind != Some(ErrorKind::PermissionDenied) {
            return Err(error);
        }
        tracing::warn!("{error:#}: this configuration file is not used");
        Ok(None)
    })
}

/// The text of a file, if there is one.
fn read(path: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == ErrorKind::IsADirectory => bail!(
            "{}: it is a directory: give the file in it, like {}",
            path.display(),
            path.join("config.toml").display()
        ),
        Err(error) => Err(error).with_context(|| format!("{}", path.display())),
    }
}

/// Reads a file that was not named by the caller, if there is one and it may be trusted.
fn read_default(path: &Path) -> Result<Option<String>> {
    // Without a wait for the other end of a pipe.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = match opened {
        // System users have a HOME of /dev/null, in which no file can be.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        opened => opened.with_context(|| format!("{}", path.display()))?,
    };
    read_trusted(&file).map(Some).with_context(|| format!("{}", path.display()))
}

/// The content of an open file, so that it is the file that was checked.
fn read_trusted(mut file: &File) -> Result<String> {
    // SAFETY: geteuid takes nothing and cannot fail.
    let own_uid = unsafe { libc::geteuid() };
    check_is_trusted(&file.metadata()?, own_uid)?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}

/// Whether what a file says may be done with the rights of user `own_uid`.
///
/// # Errors
/// The rule that the file breaks, and the remedy.
fn check_is_trusted(file: &Metadata, own_uid: u32) -> Result<()> {
    const REMEDY: &str = "or name the file by --config to use it as it is";
    let (owner, mode) = (file.uid(), file.mode() & 0o7777);
    if !file.is_file() {
        bail!("this configuration file is not used: it is no regular file; remove it, {REMEDY}");
    }
    if owner != own_uid && owner != 0 {
        bail!(
            "this configuration file is not used: it belongs to user {owner}, and evenkeel runs as user \
             {own_uid}; set HOME to that of user {own_uid} (sudo -H), {REMEDY}"
        );
    }
    // A user may have a group of its own, which may write to all its files (umask 002).
    let by_others = if own_uid == 0 { 0o022 } else { 0o002 };
    if mode & by_others != 0 {
        bail!(
            "this configuration file is not used: other users may write to it (mode {mode:04o}); run \
             chmod go-w, {REMEDY}"
        );
    }
    Ok(())
}

/// Reads the text of a configuration file.
///
/// # Errors
/// It is no such text, or a field is invalid; the error names line and field.
pub fn parse(text: &str) -> Result<Config> {
    let (config, wrong) = finish(toml::from_str(text)?);
    wrong.into_iter().next().map_or(Ok(config), Err)
}

/// Renames the knobs from any of the paper's spellings to its main names, so that the nearer file wins
/// with any spelling. An unknown name stays. And what is wrong beyond the kinds of values.
fn finish(mut config: Config) -> (Config, Vec<Error>) {
    let mut wrong = Vec::new();
    for (spelling, value) in std::mem::take(&mut config.zone) {
        let name = Zone::name_of(&spelling).map_or_else(|| spelling.clone(), str::to_owned);
        let knob = ZoneOptions::from([(name.clone(), value)]);
        wrong.extend(turn_knobs(&mut Zone::default(), &knob).err());
        if config.zone.contains_key(&name) {
            wrong.push(anyhow!(
                "table [zone]: {name} is set twice, under two spellings: leave one out"
            ));
        }
        config.zone.extend(knob);
    }
    if let Some(folder) = config.cluster.records.as_deref().filter(|path| !path.is_absolute()) {
        wrong.push(anyhow!(
            "table [cluster]: records = \"{}\" depends on where a program is started: give a path that \
             begins with /",
            folder.display()
        ));
    }
    (config, wrong)
}

/// Sets the knobs of table `[zone]`.
///
/// # Errors
/// There is no such knob, or it does not take the value.
pub fn turn_knobs(zone: &mut Zone, knobs: &ZoneOptions) -> Result<()> {
    for (name, value) in knobs {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        zone.set(name, &text).context("table [zone]")?;
    }
    Ok(())
}

impl Config {
    /// The values that are set here and, for the rest, those of `other`.
    pub fn or(self, mut other: Self) -> Self {
        // The level has two names, too: the nearer file wins with either.
        if self.sched.zone.is_some() {
            other.zone.remove(Zone::LEVEL);
        }
        other.zone.extend(self.zone);
        Self {
            run: self.run.or(other.run),
            daemon: self.daemon.or(other.daemon),
            irq: self.irq.or(other.irq),
            sched: self.sched.or(other.sched),
            zone: other.zone,
            ias: self.ias.or(other.ias),
            cluster: self.cluster.or(other.cluster),
        }
    }
}

impl ClusterOptions {
    /// The values that are set here and, for the rest, those of `other`.
    pub fn or(self, other: Self) -> Self {
        Self { records: self.records.or(other.records) }
    }
}

impl RunOptions {
    /// The values that are set here and, for the rest, those of `other`.
    pub fn or(self, other: Self) -> Self {
        Self {
            policy: self.policy.or(other.policy),
            selection: self.selection.or(other.selection),
            interval: self.interval.or(other.interval),
            prefer: self.prefer.or(other.prefer),
            placement: self.placement.or(other.placement),
            accounting: self.accounting.or(other.accounting),
            runtimes: self.runtimes.or(other.runtimes),
            cpus: self.cpus.or(other.cpus),
            speed: self.speed.or(other.speed),
            override_user: self.override_user || other.override_user,
        }
    }
}

impl DaemonOptions {
    /// The values that are set here and, for the rest, those of `other`; lists are joined.
    pub fn or(mut self, mut other: Self) -> Self {
        self.names.append(&mut other.names);
        self.cgroups.append(&mut other.cgroups);
        Self { metrics: self.metrics.or(other.metrics), ..self }
    }
}

impl IrqOptions {
    /// The values that are set here and, for the rest, those of `other`.
    pub fn or(self, other: Self) -> Self {
        Self {
            mode: self.mode.or(other.mode),
            interval: self.interval.or(other.interval),
            take_over: self.take_over.or(other.take_over),
        }
    }
}

impl SchedOptions {
    /// The values that are set here and, for the rest, those of `other`.
    pub fn or(self, other: Self) -> Self {
        // Two options set one value: the nearer one wins.
        let waits = self.strict || self.max_idle_wait.is_some();
        Self {
            order: self.order.or(other.order),
            gate: self.gate.or(other.gate),
            balance: self.balance.or(other.balance),
            parts: self.parts.or(other.parts),
            slice_us: self.slice_us.or(other.slice_us),
            capacity: self.capacity.or(other.capacity),
            static_capacity: self.static_capacity || other.static_capacity,
            ias_mode: self.ias_mode.or(other.ias_mode),
            ias_turn: self.ias_turn.or(other.ias_turn),
            ias_window: self.ias_window.or(other.ias_window),
            ias_kick: self.ias_kick.or(other.ias_kick),
            ias_auto: self.ias_auto || other.ias_auto,
            zone: self.zone.or(other.zone),
            compact: self.compact || other.compact,
            shield: self.shield.or(other.shield),
            max_idle_wait: if waits { self.max_idle_wait } else { other.max_idle_wait },
            strict: if waits { self.strict } else { other.strict },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{CommandName, Interval, IrqMode, PolicyName, RoundTime};

    #[test]
    fn options_have_the_names_of_the_flags() {
        let text = "[run]\npolicy = \"paper\"\ninterval = \"100ms\"\noverride = true\n";
        let config: Config = toml::from_str(text).unwrap();
        assert_eq!(config.run.policy, Some(PolicyName::Paper));
        assert_eq!(config.run.interval, Some(Interval { ns: 100_000_000 }));
        assert!(config.run.override_user);
        let text = "[daemon]\nnames = [\"lmp\"]\nmetrics = \"127.0.0.1:9469\"\n";
        let config: Config = toml::from_str(text).unwrap();
        assert_eq!(config.daemon.names, [CommandName("lmp".to_owned())]);
        assert_eq!(config.daemon.metrics.map(|metrics| metrics.address().port()), Some(9469));
    }

    #[test]
    fn names_of_commands_have_no_directory() {
        for name in ["", "/usr/bin/lmp"] {
            let text = format!("[daemon]\nnames = [\"{name}\"]\n");
            let said = toml::from_str::<Config>(&text).unwrap_err().to_string();
            assert!(said.contains("without its directory"), "{said}");
        }
    }

    #[test]
    fn a_file_that_another_user_can_write_is_not_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        std::fs::write(&path, "").unwrap();
        let own = path.metadata().unwrap().uid();
        let judge = |mode: u32, uid: u32| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(&path, mode).unwrap();
            check_is_trusted(&path.metadata().unwrap(), uid).map_err(|why| why.to_string())
        };
        assert_eq!(judge(0o644, own), Ok(()));
        let why = judge(0o646, own).unwrap_err();
        assert!(why.contains("(mode 0646)") && why.contains("chmod go-w"), "{why}");
        // A file of root's is trusted by every user, and one of another user by none.
        let other = judge(0o644, own + 1);
        assert_eq!(other.is_ok(), own == 0, "{other:?}");
        if own == 0 {
            assert!(judge(0o664, 0).is_err());
        } else {
            assert_eq!(judge(0o664, own), Ok(()));
            assert!(other.unwrap_err().contains("it belongs to user"));
        }
        let why = check_is_trusted(&dir.path().metadata().unwrap(), own).unwrap_err().to_string();
        assert!(why.contains("no regular file"), "{why}");
    }

    #[test]
    fn a_directory_in_place_of_a_file_is_told() {
        let why = load(Some(Path::new("/tmp"))).unwrap_err().to_string();
        assert_eq!(why, "/tmp: it is a directory: give the file in it, like /tmp/config.toml");
    }

    #[test]
    fn options_of_the_keel_have_the_names_of_the_flags() {
        let text = "[sched]\ngate = \"zone\"\nslice-us = 2000\nzone = \"warm-high\"\nstrict = true\n\
                    shield = \"2-3\"\ncapacity = \"0-1=512\"\n[zone]\n\
                    balance_level = 2\nbal_cpus_avg_enable = 1\n";
        let config: Config = toml::from_str(text).unwrap();
        assert_eq!(config.sched.gate.map(|gate| gate.to_string()), Some("zone".to_owned()));
        assert_eq!(config.sched.slice_us.map(|slice| slice.us()), Some(2_000));
        assert!(config.sched.strict);
        assert_eq!(config.sched.shield.as_ref().map(ToString::to_string), Some("2-3".to_owned()));
        assert_eq!(config.zone["balance_level"].as_integer(), Some(2));
        let near = SchedOptions { max_idle_wait: "5ms".parse().ok(), ..Default::default() };
        let both = near.or(config.sched);
        assert_eq!(both.max_idle_wait.map(|wait| wait.to_string()), Some("5ms".to_owned()));
        assert!(!both.strict, "the nearer option wins");
        assert_eq!(both.zone.map(|level| level.to_string()), Some("warm-high".to_owned()));
    }

    #[test]
    fn all_spellings_of_a_knob_are_the_same_knob() {
        let config = |text: &str| parse(text).unwrap();
        let system = || config("[zone]\nbalance_level = 2\nbalance_cpus_avg_enable = 0\n");
        let both = config("[zone]\nbal_cpus_avg_enable = 1\n").or(system());
        assert_eq!(both.zone["bal_cpus_avg_enable"].as_integer(), Some(1), "{:?}", both.zone);
        assert_eq!((both.zone.len(), both.zone["balance_level"].as_integer()), (2, Some(2)));
        let both = config("[sched]\nzone = \"hot\"\n").or(system());
        assert!(!both.zone.contains_key("balance_level"), "the system's level: {:?}", both.zone);
        let why = parse("[zone]\nbalance_cpus_avg_enable = 0\nbal_cpus_avg_enable = 1\n");
        assert!(format!("{:#}", why.unwrap_err()).contains("set twice"));
    }

    /// Whichever command reads the file.
    #[test]
    fn a_knob_that_does_not_exist_or_does_not_turn_so_far_is_refused() {
        for (text, word) in [
            ("[zone]\nfoo = 3\n", "foo"),
            ("[zone]\nbalance_level = \"foo\"\n", "foo"),
            ("[zone]\nbalance_level = 99\n", "99"),
        ] {
            let why = format!("{:#}", parse(text).unwrap_err());
            assert!(why.starts_with("table [zone]: ") && why.contains(word), "{text}: {why}");
        }
    }

    #[test]
    fn errors_name_the_invalid_value() {
        for (text, expected) in [
            ("[run]\npolcy = \"lag\"", "polcy"),
            ("[run]\npolicy = \"best\"", "best"),
            ("[run]\ninterval = \"fast\"", "fast"),
            ("[run]\ninterval = \"1h\"", "1h"),
            ("[run\n", "line 1"),
            ("[daemon]\nmetrics = \"0.0.0.0:80\"", "not a loopback address"),
            ("[daemon]\nmetrics = \"127.0.0.1:0\"", "choose a port"),
            ("[daemon]\nmetrics = \"here\"", "127.0.0.1:9469"),
            ("[irq]\nmode = \"hot\"", "hot"),
            ("[irq]\ninterval = \"10ms\"", "give 1s to 60s"),
            ("[irq]\ntake-over = 1", "take-over"),
            ("[sched]\ngate = \"ajar\"", "ajar"),
            ("[sched]\nslice-us = 1", "slice \"1\""),
            ("[sched]\nshield = \"3-2\"", "runs backwards"),
            ("[sched]\nmax-idle-wait = \"10\"", "wait \"10\""),
            ("[daemon]\nname = [\"a\"]", "name"),
            ("[daemon]\ncgroups = [\"hpc.slice\"]", "\"hpc.slice\" is not a cgroup"),
            ("[daemon]\ncgroups = [\"/\"]", "the root cgroup holds all processes"),
            ("[daemon]\nmetrics = \"everywhere\"", "metrics"),
        ] {
            let error = toml::from_str::<Config>(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn records_are_kept_at_the_same_place_wherever_a_program_starts() {
        let records = |text: &str| parse(text).map(|config| config.cluster.records);
        let path = records("[cluster]\nrecords = \"/shared/evenkeel\"\n").unwrap();
        assert_eq!(path.as_deref(), Some(Path::new("/shared/evenkeel")));
        let why = records("[cluster]\nrecords = \"jobs\"\n").unwrap_err().to_string();
        assert!(why.contains("records = \"jobs\"") && why.contains("begins with /"), "{why}");
    }

    #[test]
    fn interrupts_are_moved_by_what_the_table_says() {
        let config = |text: &str| toml::from_str::<Config>(text).unwrap().irq;
        let system = config("[irq]\nmode = \"source-aware\"\ninterval = \"2s\"\n");
        assert_eq!(system.mode, Some(IrqMode::SourceAware));
        assert_eq!(system.interval, Some(RoundTime(Interval { ns: 2_000_000_000 })));
        assert_eq!(system.aim().map(|aim| aim.to_string()), Some("source-aware".to_owned()));
        let off = config("[irq]\nmode = \"off\"\n").or(system.clone());
        assert_eq!((off.aim(), off.interval), (None, system.interval));
        assert_eq!(config("").aim(), None);
        let take_over = config("[irq]\ntake-over = true\nmode = \"level\"\n").or(system);
        assert!(take_over.takes_over() && take_over.mode == Some(IrqMode::Level));
        // The nearer file can switch it off.
        assert!(!config("[irq]\ntake-over = false\n").or(take_over).takes_over());
    }

    #[test]
    fn the_nearer_setting_wins() {
        let near = RunOptions { policy: Some(PolicyName::Lag), ..Default::default() };
        let far = RunOptions {
            policy: Some(PolicyName::Paper),
            cpus: Some("0-1".into()),
            ..Default::default()
        };
        let both = near.or(far);
        assert_eq!((both.policy, both.cpus.as_deref()), (Some(PolicyName::Lag), Some("0-1")));
    }
}
