//! Configuration files: the flags of a command by the same names, in a table of its name. A flag
//! on the command line wins over the user's file, that over the system's.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::cli::{DaemonOptions, RunOptions};

/// A whole configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Config {
    /// Table `[run]`.
    pub run: RunOptions,
    /// Table `[daemon]`.
    pub daemon: DaemonOptions,
}

/// Reads the file that was asked for, or else the system's and the user's, which need not exist.
///
/// # Errors
/// When a file cannot be read or says something that no flag can say; names file, line and field.
pub fn load(asked_for: Option<&Path>) -> Result<Config> {
    if let Some(path) = asked_for {
        return read(path)?
            .with_context(|| format!("{}: no such configuration file", path.display()));
    }
    let user = std::env::var_os("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".config")))
        .map(|base| base.join("evenkeel/config.toml"));
    let system = read_if_allowed(Path::new("/etc/evenkeel/config.toml"))?.unwrap_or_default();
    let user = user.map(|path| read_if_allowed(&path)).transpose()?.flatten().unwrap_or_default();
    Ok(Config { run: user.run.or(system.run), daemon: user.daemon.or(system.daemon) })
}

/// A file that nobody asked for may be out of reach: HOME still is root's after `setpriv`.
fn read_if_allowed(path: &Path) -> Result<Option<Config>> {
    read(path).or_else(|error| {
        let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        if kind != Some(std::io::ErrorKind::PermissionDenied) {
            return Err(error);
        }
        tracing::warn!("{error:#}: this configuration is not used");
        Ok(None)
    })
}

fn read(path: &Path) -> Result<Option<Config>> {
    match std::fs::read_to_string(path) {
        Ok(text) => match toml::from_str(&text) {
            Ok(config) => Ok(Some(config)),
            Err(error) => bail!("{}: {error}", path.display()),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("{}", path.display())),
    }
}

impl RunOptions {
    /// What is set here, and for the rest what is set in `other`.
    pub fn or(self, other: Self) -> Self {
        Self {
            policy: self.policy.or(other.policy),
            selection: self.selection.or(other.selection),
            interval: self.interval.or(other.interval),
            placement: self.placement.or(other.placement),
            accounting: self.accounting.or(other.accounting),
            cpus: self.cpus.or(other.cpus),
            speed: self.speed.or(other.speed),
            override_user: self.override_user || other.override_user,
        }
    }
}

impl DaemonOptions {
    /// What is set here, and for the rest what is set in `other`; lists are taken together.
    pub fn or(mut self, mut other: Self) -> Self {
        self.names.append(&mut other.names);
        self.cgroups.append(&mut other.cgroups);
        Self { metrics: self.metrics.or(other.metrics), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Interval, PolicyName};

    #[test]
    fn the_same_names_as_the_flags() {
        let text = "[run]\npolicy = \"paper\"\ninterval = \"100ms\"\noverride = true\n";
        let config: Config = toml::from_str(text).unwrap();
        assert_eq!(config.run.policy, Some(PolicyName::Paper));
        assert_eq!(config.run.interval, Some(Interval { ns: 100_000_000 }));
        assert!(config.run.override_user);
        let text = "[daemon]\nnames = [\"lmp\"]\nmetrics = \"127.0.0.1:9469\"\n";
        let config: Config = toml::from_str(text).unwrap();
        assert_eq!(config.daemon.names, ["lmp"]);
        assert_eq!(config.daemon.metrics.map(|address| address.port()), Some(9469));
    }

    #[test]
    fn nonsense_is_named_with_its_place() {
        for (text, expected) in [
            ("[run]\npolcy = \"lag\"", "polcy"),
            ("[run]\npolicy = \"best\"", "best"),
            ("[run]\ninterval = \"fast\"", "fast"),
            ("[run]\ninterval = \"1h\"", "1h"),
            ("[run\n", "line 1"),
            ("[daemon]\nname = [\"a\"]", "name"),
            ("[daemon]\nmetrics = \"everywhere\"", "metrics"),
        ] {
            let error = toml::from_str::<Config>(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
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
