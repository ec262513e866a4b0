//! The command `repro`.

use std::path::PathBuf;

use clap::Args;
use evenkeel::cli::whole_number;

/// `evenkeel-lab repro`.
#[derive(Debug, Args)]
pub struct ReproArgs {
    /// Repeat this paper: 000 (the capability balancer), 001 (source-aware interrupts), 002 (balancing
    /// by capability on NUMA machines, simulated), 003 (sibling aggregation, simulated), 004 (operation
    /// zones, simulated).
    pub paper: String,
    /// Measure only these parts, like figure-8,table-3 [default: all; about 60 min for 000, 15 min for
    /// 001, some minutes for each of the others].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub parts: Vec<String>,
    /// Run each contestant so often; from 002 on, simulate so many seeds of each case [default: 5; for
    /// 001 6, for 002 32, for 003 10].
    #[arg(long, value_name = "N", value_parser = whole_number::<u16>(2..=100))]
    pub runs: Option<u16>,
    /// Run everything once and briefly, which shows that it works and decides nothing (one or two
    /// minutes).
    #[arg(long, conflicts_with = "runs")]
    pub quick: bool,
    /// Fail with exit code 1 if an aim was missed, and name the aim. Not with --quick: its few runs
    /// decide nothing.
    #[arg(long, conflicts_with = "quick")]
    pub check: bool,
    /// Take the parts that are not measured now from the file of an earlier --json.
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Write everything as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a page with all pictures in it, NNN.html, into this directory.
    #[arg(long, value_name = "DIR")]
    pub html: Option<PathBuf>,
    /// Write the page of docs/results, NNN.md, with the pictures that it shows (SVG) into this
    /// directory.
    #[arg(long, value_name = "DIR")]
    pub docs: Option<PathBuf>,
}
