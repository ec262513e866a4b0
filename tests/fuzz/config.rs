//! Configuration files. What is accepted keeps its limits, can be handed on as flags, and is the same
//! whether an empty file lies under it or over it.

use evenkeel::cli::Interval;
use evenkeel::config::{Config, parse};

use crate::target::{Target, no_repair, reason};

const CONFIG: Target = Target {
    name: "config",
    words: &[
        "[run]\n",
        "[daemon]\n",
        "[irq]\n",
        "source-aware",
        "[sched]\n",
        "[zone]\n",
        "[ias]\n",
        "[ias.programs.x]\n",
        "paper",
        "override",
        "100ms",
        "61s",
        "127.0.0.1:0",
        "[::1]:65535",
        "balance_cpus_avg_enable",
        "balance_level",
        "true",
        "3x",
        "strict",
    ],
    repair: no_repair,
    read,
};

fn read(_: &str, text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    let config = match parse(&text) {
        Ok(config) => config,
        Err(why) => {
            reason(why);
            return false;
        }
    };
    if let Some(interval) = config.run.interval {
        assert!((1_000_000..=60_000_000_000).contains(&interval.ns));
        let flag = format!("{}us", interval.ns / 1000);
        assert_eq!(flag.parse::<Interval>(), Ok(interval));
    }
    if let Some(address) = config.daemon.metrics {
        let address = address.address();
        // Other machines can read them only if that was asked for.
        let is_public = text.contains("public:");
        assert!((address.ip().is_loopback() || is_public) && address.port() != 0);
    }
    let flags = config.run.flags();
    assert!(
        flags.len() <= 15 && flags.iter().all(|flag| !flag.is_empty()) || text.contains("\"\"")
    );
    let described = format!("{config:?}");
    let again = || parse(&text).unwrap();
    assert_eq!(format!("{:?}", again().or(Config::default())), described);
    assert_eq!(format!("{:?}", Config::default().or(again())), described);
    true
}

#[test]
fn a_configuration_is_taken_whole_or_refused() {
    CONFIG.fuzz();
}
