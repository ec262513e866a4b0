//! Peers: schedulers of other projects, which can be contestants in every guest benchmark. They are a
//! table, peers.txt, which `scripts/peers` reads, too.

use std::path::{Path, PathBuf};

/// The table: name, crate, version, arguments.
static TABLE: &str = include_str!("../peers.txt");

/// A scheduler of another project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its name as a contestant.
    pub name: &'static str,
    /// The crate that it is built from, and its executable's name.
    pub crate_name: &'static str,
    /// The version of that.
    pub version: &'static str,
    /// With which arguments it runs, separated by blanks.
    pub arguments: &'static str,
}

/// All peers.
pub fn all() -> impl Iterator<Item = Peer> {
    TABLE.lines().filter_map(parse)
}

/// A peer by its name.
pub fn find(name: &str) -> Option<Peer> {
    all().find(|peer| peer.name == name)
}

/// A line of the table; `None` for comments and empty lines.
fn parse(line: &'static str) -> Option<Peer> {
    let line = line.split('#').next()?.trim();
    let (name, rest) = line.split_once(char::is_whitespace)?;
    let (crate_name, rest) = rest.trim().split_once(char::is_whitespace)?;
    let (version, arguments) = rest.trim().split_once(char::is_whitespace).unwrap_or((rest, ""));
    Some(Peer { name, crate_name, version: version.trim(), arguments: arguments.trim() })
}

/// Where `scripts/peers` has put a peer.
///
/// # Errors
/// It is not there: says why it could not be built, or that it was never built.
pub fn built(cache: &Path, peer: &Peer) -> Result<PathBuf, String> {
    let Peer { name, crate_name, .. } = peer;
    let dir = cache.join("peers");
    let program = dir.join("bin").join(crate_name);
    if program.exists() {
        return Ok(program);
    }
    Err(match std::fs::read_to_string(dir.join(format!("{crate_name}.error"))) {
        Ok(error) => format!("{name} takes no part, it could not be built: {}", error.trim()),
        Err(_) => format!("{name} takes no part: build it by scripts/peers {name}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_columns() {
        assert_eq!(parse("# name crate version"), None);
        assert_eq!(parse(""), None);
        let lavd = parse("scx_lavd  scx_lavd  1.1.4  --performance --slice-us 5").unwrap();
        assert_eq!((lavd.name, lavd.crate_name, lavd.version), ("scx_lavd", "scx_lavd", "1.1.4"));
        assert_eq!(lavd.arguments, "--performance --slice-us 5");
        assert_eq!(parse("a  b  1.0").unwrap().arguments, "");
    }

    #[test]
    fn the_table_is_whole() {
        let lines = TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        assert_eq!(all().count(), lines.count());
        assert_eq!(find("scx_flash").map(|peer| peer.crate_name), Some("scx_flash"));
        assert_eq!(find("scx_none"), None);
    }

    #[test]
    fn what_is_not_built_says_why() {
        let cache = tempfile::tempdir().unwrap();
        let flash = find("scx_flash").unwrap();
        let peers = cache.path().join("peers");
        std::fs::create_dir_all(peers.join("bin")).unwrap();
        let why = built(cache.path(), &flash).unwrap_err();
        assert!(why.contains("scripts/peers scx_flash"), "{why}");
        std::fs::write(peers.join("scx_flash.error"), "error: no such thing\n").unwrap();
        let why = built(cache.path(), &flash).unwrap_err();
        assert!(why.ends_with("could not be built: error: no such thing"), "{why}");
        std::fs::write(peers.join("bin/scx_flash"), "").unwrap();
        assert_eq!(built(cache.path(), &flash).unwrap(), peers.join("bin/scx_flash"));
    }
}
