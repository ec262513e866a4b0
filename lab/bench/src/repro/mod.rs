//! `evenkeel-lab repro`: the papers' figures and tables, measured again.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `study` | what a reproduction is made of |
//! | `page`, `plot` | a study as Markdown, a panel as SVG |
//! | `simulated` | many simulations, and their figures |
//! | `p000/`, `p001`, `p002/`, `p003/`, `p004/` | the experiments of these papers |

mod p000;
mod p001;
mod p002;
mod p003;
mod p004;
mod page;
mod plot;
mod simulated;
mod study;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

pub use page::page;
pub use plot::svg;
pub use study::{Finding, Panel, Part, Point, Series, Status, Study};

use evenkeel_experiment::interrupt;
use evenkeel_experiment::output::Output;

/// What is asked for.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// evenkeel's own executable.
    pub executable: PathBuf,
    /// Only these parts; all if none is named.
    pub parts: Vec<String>,
    /// Runs of each contestant, if not the usual number.
    pub runs: Option<usize>,
    /// One short run of everything: shows that it works, decides nothing.
    pub quick: bool,
    /// Parts that are not measured now are taken from this JSON file.
    pub from: Option<PathBuf>,
    /// Where to write the study as JSON.
    pub json: Option<PathBuf>,
    /// The directory for the page and its plots.
    pub docs: Option<PathBuf>,
    /// Whether a missed aim is a failure.
    pub check: bool,
    /// The command line, for whoever wants to run it again.
    pub command: String,
}

/// A paper, and what measures it.
pub struct Paper {
    /// Its number.
    pub number: &'static str,
    /// All parts, in the paper's order.
    pub parts: fn() -> Vec<&'static str>,
    /// Measures these parts; the last argument gets the study after each of them, so that nothing is
    /// lost. A part that fails is in it, with the reason. An error: nothing can be measured, or somebody
    /// asked for the end.
    pub measure: Measure,
}

/// See [`Paper`].
type Measure = fn(&[&str], &Options, &mut dyn FnMut(&Study) -> Result<()>) -> Result<Study>;

const PAPERS: [Paper; 5] = [p000::PAPER, p001::PAPER, p002::PAPER, p003::PAPER, p004::PAPER];

impl Paper {
    fn of(number: &str) -> Result<&'static Self> {
        PAPERS.iter().find(|paper| paper.number == number).with_context(|| {
            let known = PAPERS.iter().map(|paper| paper.number).collect::<Vec<_>>().join(", ");
            format!("paper {number:?} cannot be reproduced (yet): choose {known}")
        })
    }

    /// The parts of these names; all of them if there is none.
    fn choose(&self, names: &[String]) -> Result<Vec<&'static str>> {
        let all = (self.parts)();
        if let Some(unknown) = names.iter().find(|name| !all.contains(&name.as_str())) {
            let (number, known) = (self.number, all.join(", "));
            bail!("unknown part {unknown:?} of paper {number}: choose {known}");
        }
        let is_chosen = |id: &&str| names.is_empty() || names.iter().any(|name| name == id);
        Ok(all.into_iter().filter(is_chosen).collect())
    }

    /// The place of a part in the paper.
    fn order(&self, id: &str) -> usize {
        let all = (self.parts)();
        all.iter().position(|other| *other == id).unwrap_or(all.len())
    }
}

/// Measures the paper's parts again, prints what became of them, and writes what was asked for.
/// Returns the exit code: 0 also where something is not reproduced (that is a finding), 1 if a part
/// failed or, if that is to be checked, an aim was missed, 128 + n if signal n ended it.
///
/// # Errors
/// There is no such paper or part, a file cannot be written, or nothing can be measured.
pub fn run(paper: &str, options: &Options) -> Result<i32> {
    let known = Paper::of(paper)?;
    let chosen = known.choose(&options.parts)?;
    let before = options.from.as_deref().map(load).transpose()?;
    if before.as_ref().is_some_and(|study| study.paper != paper) {
        bail!("--from has a study of another paper than {paper}: give one of this");
    }
    let json = options.json.as_deref().map(Output::prepare).transpose()?;
    if let Some(docs) = &options.docs {
        // Half an hour of measuring is not lost to a directory that cannot be written.
        Output::prepare(&docs.join(format!("{paper}.md")))?;
    }
    let _watch = interrupt::watch();
    let whole = |measured: &Study| join(before.clone(), measured.clone(), |id| known.order(id));
    let mut keep = |measured: &Study| match &json {
        Some(output) => output.write(&serde_json::to_string_pretty(&whole(measured))?),
        None => Ok(()),
    };
    let study = match (known.measure)(&chosen, options, &mut keep) {
        _ if interrupt::asked().is_some() => return Ok(interrupt::exit_code()),
        measured => whole(&measured?),
    };
    print!("{}", findings(&study));
    if let Some(docs) = &options.docs {
        write_docs(&study, docs)?;
    }
    let failed = study.parts.iter().filter_map(|part| Some((&part.id, part.failed.as_ref()?)));
    let mut failed: Vec<String> = failed.map(|(id, why)| format!("{id} failed: {why}")).collect();
    if options.check {
        failed.extend(missed(&study));
    }
    for line in &failed {
        eprintln!("{line}");
    }
    Ok(i32::from(!failed.is_empty()))
}

/// The aims that were missed.
fn missed(study: &Study) -> Vec<String> {
    let of_part = |part: &Part| {
        let missed = part.findings.iter().filter(|finding| finding.status == Status::Missed);
        let line = |one: &Finding| {
            format!("{} missed: {}: {}; wanted: {}", part.id, one.claim, one.ours, one.paper)
        };
        missed.map(line).collect::<Vec<_>>()
    };
    study.parts.iter().flat_map(of_part).collect()
}

fn load(path: &Path) -> Result<Study> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&bytes).with_context(|| {
        format!("{} is not what `evenkeel-lab repro --json` writes; measure anew", path.display())
    })
}

/// The newer study, with those parts of the older one that it lacks.
fn join(before: Option<Study>, now: Study, order: impl Fn(&str) -> usize) -> Study {
    let mut study = now;
    for part in before.into_iter().flat_map(|study| study.parts) {
        if study.parts.iter().all(|other| other.id != part.id) {
            study.parts.push(part);
        }
    }
    study.parts.sort_by_key(|part| order(&part.id));
    study
}

/// The findings, for the terminal.
fn findings(study: &Study) -> String {
    let mut table = comfy_table::Table::new();
    table
        .load_style(comfy_table::presets::UTF8_HORIZONTAL_ONLY)
        .set_content_arrangement(comfy_table::ContentArrangement::Dynamic)
        .set_header(["part", "claim", "paper or aim", "here", "bound", "status"]);
    for part in &study.parts {
        for one in &part.findings {
            let status = one.status.name();
            table.add_row([&part.id, &one.claim, &one.paper, &one.ours, &one.bound, status]);
        }
    }
    format!("{table}\n")
}

fn write_docs(study: &Study, docs: &Path) -> Result<()> {
    let pictures = docs.join(&study.paper);
    std::fs::create_dir_all(&pictures)
        .with_context(|| format!("cannot make the directory {}", pictures.display()))?;
    for panel in study.parts.iter().flat_map(|part| &part.panels) {
        Output::prepare(&pictures.join(format!("{}.svg", panel.id)))?.write(&svg(panel)?)?;
    }
    Output::prepare(&docs.join(format!("{}.md", study.paper)))?.write(&page(study))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn study(parts: &[(&str, &str)]) -> Study {
        let part = |(id, title): &(&str, &str)| Part {
            id: (*id).into(),
            title: (*title).into(),
            ..Part::default()
        };
        Study { paper: "000".into(), parts: parts.iter().map(part).collect(), ..Study::default() }
    }

    #[test]
    fn parts_measured_anew_replace_the_old_ones() {
        let before = study(&[("figure-6", "old"), ("figure-8", "old"), ("table-3", "old")]);
        let now = study(&[("figure-8", "new")]);
        let joined = join(Some(before), now, |id| p000::PAPER.order(id));
        let titles: Vec<(&str, &str)> =
            joined.parts.iter().map(|part| (part.id.as_str(), part.title.as_str())).collect();
        assert_eq!(titles, [("figure-6", "old"), ("figure-8", "new"), ("table-3", "old")]);
    }

    #[test]
    fn unknown_papers_and_parts_are_refused_before_anything_runs() {
        let error = run("9", &Options::default()).unwrap_err().to_string();
        assert!(error.contains("choose 000, 001, 002"), "{error}");
        let options = Options { parts: vec!["figure-99".into()], ..Options::default() };
        let error = run("000", &options).unwrap_err().to_string();
        assert!(error.contains("figure-99") && error.contains("figure-8"), "{error}");
    }

    #[test]
    fn a_missed_aim_is_named_and_an_unreproduced_claim_is_not() {
        let finding = |claim: &str, status| Finding {
            claim: claim.into(),
            paper: "9 %".into(),
            ours: "3 %".into(),
            bound: "-".into(),
            status,
        };
        let mut study = study(&[("tables", "Tables")]);
        study.parts[0].findings = vec![
            finding("theirs", Status::NotReproduced),
            finding("ours", Status::Missed),
            finding("others", Status::Reached),
        ];
        assert_eq!(missed(&study), ["tables missed: ours: 3 %; wanted: 9 %"]);
    }

    #[test]
    fn docs_have_a_picture_for_each_panel() {
        let directory = tempfile::tempdir().unwrap();
        let mut study = study(&[("figure-8", "Figure 8")]);
        let panel = Panel { id: "figure-8-x".into(), ..Panel::default() };
        study.parts[0].panels.push(panel);
        write_docs(&study, directory.path()).unwrap();
        assert!(directory.path().join("000.md").exists());
        assert!(directory.path().join("000/figure-8-x.svg").exists());
    }
}
