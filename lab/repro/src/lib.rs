//! `evenkeel-lab repro`: the papers' figures and tables, measured again.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `study` | what a reproduction is made of |
//! | `page`, `plot` | a study as Markdown and as HTML, a panel as SVG |
//! | `simulated` | what the simulated papers share: contestants, sweeps and their figures |
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

pub use study::{FORMAT, Finding, Panel, Part, Point, Series, Status, Study};

use evenkeel_experiment::generated::command_of_page;
use evenkeel_experiment::output::{Output, check_short_form, is_standard_output};
use evenkeel_experiment::{Document, commit, interrupt};

/// What is asked for.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// evenkeel's own executable.
    pub executable: PathBuf,
    /// Only these parts; all if none is named.
    pub parts: Vec<String>,
    /// Runs of each contestant, if not the usual number.
    pub runs: Option<usize>,
    /// One short run of everything: shows that it works, decides nothing. Never written over the
    /// results that are committed.
    pub quick: bool,
    /// Parts that are not measured now are taken from this JSON file.
    pub from: Option<PathBuf>,
    /// Where to write the study as JSON.
    pub json: Option<PathBuf>,
    /// The directory for the Markdown page and the pictures that it shows.
    pub docs: Option<PathBuf>,
    /// The directory for the HTML page with all pictures.
    pub html: Option<PathBuf>,
    /// Whether a missed aim is a failure.
    pub check: bool,
    /// The command line, for a reader who wants to run it again.
    pub command: String,
}

/// A paper, and what measures it.
pub struct Paper {
    /// Its number.
    pub number: &'static str,
    /// All parts, in the paper's order.
    pub parts: fn() -> Vec<&'static str>,
    /// Measures these parts; the last argument gets the study after each of them, so that nothing is
    /// lost. A part that fails is in it, with the reason. An error: nothing can be measured, or the end
    /// was asked for.
    pub measure: Measure,
}

/// See [`Paper`].
type Measure = fn(&[&str], &Options, &mut dyn FnMut(&Study) -> Result<()>) -> Result<Study>;

const PAPERS: [Paper; 5] = [p000::PAPER, p001::PAPER, p002::PAPER, p003::PAPER, p004::PAPER];

/// The papers that can be reproduced, each with its parts.
pub fn papers() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    PAPERS.iter().map(|paper| (paper.number, (paper.parts)()))
}

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

/// Measures the paper's parts again, prints what became of them, and writes the files that were asked
/// for, each of which is named on standard output. Returns the exit code: 0 also where something is not
/// reproduced (that is a finding), 1 if a part failed or, if that is to be checked, an aim was missed,
/// 128 + n if signal n ended it.
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
    let files = Files::prepare(paper, options)?;
    let _watch = interrupt::watch();
    let commit = commit();
    let whole = |measured: &Study| {
        let measured = Study { commit: commit.clone(), ..measured.clone() };
        join(before.clone(), measured, |id| known.order(id))
    };
    let mut keep = |measured: &Study| files.write_json(&whole(measured));
    let study = match (known.measure)(&chosen, options, &mut keep) {
        _ if interrupt::asked().is_some() => return Ok(interrupt::exit_code()),
        measured => whole(&measured?),
    };
    print!("{}", findings(&study, options.quick));
    files.write_pages(&study)?;
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

/// The findings, for the terminal; a table without rows is none. A short form, which decides nothing,
/// says what it measured.
fn findings(study: &Study, is_quick: bool) -> String {
    let measured = study.parts.iter().filter(|part| is_quick && part.failed.is_none());
    let measured: Vec<&str> = measured.map(|part| part.id.as_str()).collect();
    let said = match &measured[..] {
        [] => String::new(),
        names => format!("The short form decides nothing; it measured: {}.\n", names.join(", ")),
    };
    if study.parts.iter().all(|part| part.findings.is_empty()) {
        return said;
    }
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
    format!("{said}{table}\n")
}

/// The files that were asked for. They are tried before measuring: half an hour is not lost to a
/// directory that cannot be written.
struct Files {
    json: Option<(PathBuf, Output)>,
    markdown: Option<(PathBuf, Output)>,
    html: Option<(PathBuf, Output)>,
}

impl Files {
    fn prepare(paper: &str, options: &Options) -> Result<Self> {
        let prepare = |path: PathBuf| Output::prepare(&path).map(|output| (path, output));
        if let Some(docs) = options.docs.as_ref().filter(|_| options.quick) {
            check_short_form(&docs.join(paper))?;
        }
        if options.json.as_deref().is_some_and(is_standard_output) {
            bail!("--json is written anew after each part, so it needs a file: give one");
        }
        let page = |directory: &Option<PathBuf>, ending: &str| {
            let path =
                directory.as_ref().map(|directory| directory.join(format!("{paper}.{ending}")));
            path.map(prepare).transpose()
        };
        Ok(Self {
            json: options.json.clone().map(prepare).transpose()?,
            markdown: page(&options.docs, "md")?,
            html: page(&options.html, "html")?,
        })
    }

    fn write_json(&self, study: &Study) -> Result<()> {
        match &self.json {
            Some((_, output)) => output.write(&Document::new(FORMAT, study).to_json()?),
            None => Ok(()),
        }
    }

    /// Writes the pages, and names all files that were written.
    fn write_pages(&self, study: &Study) -> Result<()> {
        let mut written: Vec<PathBuf> = self.json.iter().map(|(path, _)| path.clone()).collect();
        if let Some((path, output)) = &self.html {
            let directory = path.parent().unwrap_or(Path::new("."));
            let command = command_of_page(&study.command, "--html", directory);
            output.write(&page::html(study, &command))?;
            written.push(path.clone());
        }
        if let Some((path, output)) = &self.markdown {
            written.extend(write_pictures(study, &path.with_extension(""))?);
            let directory = path.parent().unwrap_or(Path::new("."));
            let command = command_of_page(&study.command, "--docs", directory);
            output.write_page(&page::markdown(&Study { command, ..study.clone() }))?;
            written.push(path.clone());
        }
        for path in written {
            println!("wrote {}", path.display());
        }
        Ok(())
    }
}

/// Writes the pictures that the Markdown page shows; returns their files.
fn write_pictures(study: &Study, directory: &Path) -> Result<Vec<PathBuf>> {
    let panels = study.parts.iter().flat_map(|part| &part.panels);
    let shown: Vec<&Panel> = panels.filter(|panel| page::is_shown(&study.paper, panel)).collect();
    if !shown.is_empty() {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot make the directory {}", directory.display()))?;
    }
    let write = |panel: &&Panel| -> Result<PathBuf> {
        let path = directory.join(format!("{}.svg", panel.id));
        Output::prepare(&path)?.write(&plot::svg(panel))?;
        Ok(path)
    };
    shown.iter().map(write).collect()
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
    fn a_short_form_says_what_it_measured_and_no_table_is_without_rows() {
        let mut study = study(&[("tables", "Tables"), ("fit", "Fit")]);
        study.parts[1].failed = Some("there is no room".into());
        let measured = "The short form decides nothing; it measured: tables.\n";
        assert_eq!(findings(&study, true), measured);
        assert_eq!(findings(&study, false), "");
        assert!(!page::markdown(&study).contains("What became of it"));
        study.parts[0].findings = vec![Finding::new("cycles", "9", "no counters", Status::Cannot)];
        let said = findings(&study, true);
        assert!(said.starts_with(measured) && said.contains("no counters"), "{said}");
        assert!(page::markdown(&study).contains("| tables | cycles | 9 | no counters |"));
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
    fn no_table_of_a_simulated_paper_is_without_an_a_a_row() {
        let options = Options { quick: true, runs: Some(1), ..Options::default() };
        for paper in [p002::PAPER, p003::PAPER, p004::PAPER] {
            let study = (paper.measure)(&(paper.parts)(), &options, &mut |_| Ok(())).unwrap();
            let panels: Vec<&Panel> = study.parts.iter().flat_map(|part| &part.panels).collect();
            assert!(panels.len() > 10, "{}: {}", paper.number, panels.len());
            for panel in panels {
                let series = panel.series.iter().map(|series| &series.name);
                let is_again = |name: &String| name.contains(" again");
                let has_second_baseline = panel.places.iter().chain(series).any(is_again);
                assert!(has_second_baseline, "{} {}", paper.number, panel.id);
            }
        }
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn files_are_written_only_when_asked_and_with_the_pictures_of_the_list() {
        let mut study = study(&[("figure-11", "Figure 11")]);
        let panel = |id: &str| Panel { id: id.into(), ..Panel::default() };
        study.parts[0].panels = vec![panel("figure-11"), panel("figure-11-more")];
        let directory = tempfile::tempdir().unwrap();
        let write = |options: &Options| {
            let files = Files::prepare("000", options).unwrap();
            files.write_json(&study).unwrap();
            files.write_pages(&study).unwrap();
            names(directory.path())
        };
        let place = Some(directory.path().to_owned());
        assert!(write(&Options::default()).is_empty());
        let html = Options { html: place.clone(), ..Options::default() };
        assert_eq!(write(&html), ["000.html"]);
        let docs = Options { docs: place, ..Options::default() };
        assert_eq!(write(&docs), ["000", "000.html", "000.md"]);
        assert_eq!(names(&directory.path().join("000")), ["figure-11.svg"]);
    }

    #[test]
    fn quick_runs_are_not_written_over_committed_results() {
        let directory = tempfile::tempdir().unwrap();
        let committed = directory.path().join("docs/results");
        std::fs::create_dir_all(&committed).unwrap();
        let options = Options { quick: true, docs: Some(committed.clone()), ..Options::default() };
        let error = run("002", &options).unwrap_err().to_string();
        assert!(error.contains("--quick") && error.contains("another directory"), "{error}");
        assert!(names(&committed).is_empty());
    }
}
