//! The results as tables, and as pages that are a pure function of the JSON.

use std::fmt::{self, Write as _};

use evenkeel_experiment::cells::Cells;
use evenkeel_experiment::chart::{Chart, Interval};
use evenkeel_experiment::html::{Sheet, prose};
use evenkeel_experiment::measured_at;
use maud::html;

use super::node::Lever;
use super::noises::{MEASURED_FOR, MeasuredNoise};
use super::talk::Talk;
use super::{Cell, Report, Slowdowns};

fn place(cell: &Cell) -> Vec<String> {
    vec![cell.noise.clone(), cell.cpus.to_string(), format!("{} ms", cell.phase_ms)]
}

fn header(more: &[&str]) -> Vec<String> {
    ["noise", "CPUs", "phase"].iter().chain(more).map(|word| (*word).to_owned()).collect()
}

/// What each noise takes.
fn noises(report: &Report) -> Cells {
    let percent = |part: f64| format!("{:.2} %", 100.0 * part);
    let row = |noise: &MeasuredNoise| {
        let told = format!("{} of {} ms", noise.busy_ms, noise.period_ms);
        let took = noise.duty.map_or_else(|| "not measured".to_owned(), percent);
        vec![noise.noise.clone(), told, percent(noise.told_duty()), took]
    };
    Cells {
        header: ["noise", "told", "that is", "took"].map(str::to_owned).to_vec(),
        numbers: vec![1, 2, 3],
        rows: report.noises.iter().map(row).collect(),
    }
}

/// One noisy node: the same for every number of nodes.
fn one(report: &Report) -> Cells {
    let row = |cell: &Cell| {
        let of = |lever| cell.of(lever).map_or(f64::NAN, |slowdowns| slowdowns.one);
        let kernel = of(Lever::Kernel);
        let figures = [
            cell.model.one,
            kernel,
            of(Lever::Threads),
            of(Lever::Work),
            kernel / of(Lever::Threads),
            kernel / of(Lever::Work),
            cell.bound(),
        ];
        let figures = figures.iter().map(|figure| format!("{figure:.3}"));
        place(cell).into_iter().chain(figures).collect()
    };
    let names = ["model", "kernel", "threads", "work", "gain: threads", "gain: work", "bound"];
    Cells {
        header: header(&names),
        numbers: (1..3 + names.len()).collect(),
        rows: report.cells.iter().map(row).collect(),
    }
}

/// What one noisy node costs, in nodes: the part of the job's time in which all others wait.
fn lost(report: &Report) -> Cells {
    let row = |cell: &Cell| {
        let part = |lever| cell.of(lever).map_or(f64::NAN, |slowdowns| 1.0 - 1.0 / slowdowns.one);
        let (without, with) = (part(Lever::Kernel), part(cell.best()));
        let nodes = report.nodes.iter().map(|nodes| {
            let (digits, nodes) = (usize::from(*nodes < 100), f64::from(*nodes));
            format!("{:.digits$} -> {:.digits$}", nodes * without, nodes * with)
        });
        let best = cell.best().name().to_owned();
        let part = format!("{without:.3} -> {with:.3}");
        place(cell).into_iter().chain([best, part]).chain(nodes).collect()
    };
    let mut header = header(&["best lever", "part lost"]);
    header.extend(report.nodes.iter().map(|nodes| format!("of {nodes}")));
    Cells {
        numbers: [1, 2].into_iter().chain(4..header.len()).collect(),
        header,
        rows: report.cells.iter().map(row).collect(),
    }
}

/// The slowdown by the number of nodes, calculated and with each lever.
fn by_nodes(report: &Report, of: fn(&Slowdowns) -> &[f64]) -> Cells {
    let mut rows = Vec::new();
    for cell in &report.cells {
        let models = std::iter::once(("model", &cell.model));
        let levers =
            cell.levers.iter().map(|simulated| (simulated.lever.name(), &simulated.slowdowns));
        for (name, slowdowns) in models.chain(levers) {
            let figures = of(slowdowns).iter().map(|figure| format!("{figure:.3}"));
            rows.push(place(cell).into_iter().chain([name.to_owned()]).chain(figures).collect());
        }
    }
    let mut header = header(&["by"]);
    header.extend(report.nodes.iter().map(|nodes| format!("{nodes} nodes")));
    Cells { numbers: [1, 2].into_iter().chain(4..header.len()).collect(), header, rows }
}

/// For the terminal.
pub fn terminal(report: &Report) -> String {
    format!(
        "one noisy node\n{}\n\nall nodes noisy\n{}\n\n{}",
        one(report).terminal(),
        by_nodes(report, |slowdowns| &slowdowns.all).terminal(),
        talk(&report.talk)
    )
}

fn talk(talk: &Talk) -> String {
    let Talk { requests_a_rank, bytes_a_rank, internet_sockets, .. } = talk;
    let Talk { cpus, programs, series, most_series, scrape_bytes, .. } = talk;
    format!(
        "- messages of a rank to the balancer of its node, over its whole life: {requests_a_rank} \
         requests and as many answers by the protocol, measured with {bytes_a_rank:.1} bytes in all, \
         over a socket of the node's file system\n\
         - messages between nodes, and to a controller: none. The balancer of a job has \
         {internet_sockets} sockets of TCP, UDP or raw IP\n\
         - metrics of a node's daemon, only where it is started with `--metrics`: {series} series \
         here, at most {most_series} a node; a scrape here ({cpus} CPUs, {programs} programs at \
         rest) has {scrape_bytes} bytes\n"
    )
}

/// The page.
pub fn page(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_page(&mut text, report);
    text
}

/// The page for a browser.
pub fn html(report: &Report) -> String {
    let Report { machine, commit, command, .. } = report;
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_text(&mut text, report);
    let name =
        "How many times as fast as with the kernel alone: one noisy node with its best lever";
    // Simulated without chance: there is no interval.
    let gain = |cell: &Cell| {
        let of = |lever| cell.of(lever).map_or(f64::NAN, |slowdowns| slowdowns.one);
        let (best, at) = (cell.best(), of(Lever::Kernel) / of(cell.best()));
        let place = format!("{}, {} CPUs, {} ms", cell.noise, cell.cpus, cell.phase_ms);
        let label = format!("{at:.2}x by {}", best.name());
        Interval { name: place, at, ends: [at, at], verdict: None, label }
    };
    let chart = Chart {
        name,
        base: Some((1.0, "the kernel alone")),
        mark: &|gain| format!("{gain:.2}x"),
        intervals: report.cells.iter().map(gain).collect(),
    };
    let body = html! { figure { figcaption { (name) } (chart.markup()) } (prose(&text)) };
    Sheet { title: TITLE, commit, command, machine, disturbance: None, body }.html()
}

const TITLE: &str = "At scale: what noise costs many nodes";

fn write_page(text: &mut String, report: &Report) -> fmt::Result {
    let Report { machine, commit, command, .. } = report;
    writeln!(text, "# {TITLE}\n")?;
    writeln!(text, "{}\n", measured_at(commit, command))?;
    writeln!(text, "{}", machine.markdown())?;
    write_text(text, report)
}

/// All but the head.
fn write_text(text: &mut String, report: &Report) -> fmt::Result {
    let few = report.few;
    writeln!(text, "{INTRO}")?;
    let seconds = MEASURED_FOR.as_secs();
    writeln!(
        text,
        "## The noises\n\nEach was made on a CPU of this machine for {seconds} s, and measured what it \
         took, the way there and back included. The model and the simulation take as much of each of \
         its periods; where it could not be made, what it was told to take.\n"
    )?;
    noises(report).markdown(text)?;
    writeln!(text, "\n## The model\n\n{MODEL}")?;
    writeln!(text, "## One noisy node\n\n{ONE}")?;
    one(report).markdown(text)?;
    writeln!(text, "\n{LOST}")?;
    lost(report).markdown(text)?;
    writeln!(text, "\n## All nodes noisy\n\n{ALL}")?;
    by_nodes(report, |slowdowns| &slowdowns.all).markdown(text)?;
    writeln!(
        text,
        "\n## Few nodes noisy\n\nEach node is noisy with a probability of {few} in each phase. Small \
         jobs seldom meet a noisy node; of many nodes one nearly always is.\n"
    )?;
    by_nodes(report, |slowdowns| &slowdowns.few).markdown(text)?;
    writeln!(text, "\n## What evenkeel says on a node\n\n{TALK}")?;
    writeln!(text, "{}", talk(&report.talk))?;
    writeln!(text, "{CENTRE}")?;
    write!(text, "## How to read it\n\n{READING}")
}

const INTRO: &str = "\
A bulk-synchronous job works in phases: all nodes work, and the phase ends with the slowest of them. This
page says what noise costs such a job on 1 to 10,000 nodes, with the kernel alone and with evenkeel. No
cluster was measured: a node is simulated, and the slowest of many is calculated from its phases. On
real nodes the same noises and the same balancer are measured by [the capability page](capability.md).
";

const MODEL: &str = "\
Noise takes *b* of each period *p* of one CPU. A thread there does the work *L* of a phase in *L* and
*b* for each burst that meets it. If *L* falls into *k* whole free stretches, *k* = floor(*L*/(*p-b*)),
these are *k* or *k*+1 bursts: the time of a node is a random number *X* with the distribution *F*, which
has an end, *L* + *b*(*k*+1).

- **One noisy node.** The other nodes take *L*, and the job takes max(*L*, *X*) = *X* whether there are
  two nodes or 10,000. Phases follow each other at once, so that the mean of *X* is *L*/(1-*b/p*). What
  grows with the number of nodes is what is lost: all of them wait.
- **N noisy nodes** that are independent of each other. The phase ends with the slowest:
  P(max <= t) = F(t)^N, so that its mean is the integral of 1 - F(t)^N. Since F has an end, the maximum
  does not grow with log N, as it does for noise without a bound (Gumbel's distribution). How fast it
  comes near the end depends on what is left of *L* after its whole free stretches, *r* = *L* mod
  (*p-b*). A phase that begins when less than *r* is left of a free stretch meets *k*+1 whole bursts and
  takes the longest time there is, so that this time has a probability of its own, *a* = *r*/*p*. The
  probability that no node takes it is (1-*a*)^N, and the mean's distance to the end falls at least as
  fast as that, like a geometric series. Only where *L* is hardly longer than a whole number of free
  stretches is *a* next to nothing; as long as *a* N is, too, the distance falls like 1/N (Weibull's
  distribution). Where phases are much longer than *p*, each node meets about the same number
  of bursts, and N hardly matters; where they are as short as *p*, nearly every phase of a large job
  meets the worst case.
- **Each node noisy with probability q.** A node's distribution is then 1 - q + q F(t), from *L* on. With
  N nodes no phase is without noise but with probability (1-q)^N.
";

const ONE: &str = "\
How many times as long as without noise a phase takes; the same for every number of nodes. *model* and
*kernel* are without evenkeel, calculated and simulated; *threads* is `evenkeel run`, *work* is
`evenkeel run --shares`. *gain* is how many times as fast as with *kernel* the job is with it, and
*bound* the most that any balancing within the node can give: *kernel* times the part of all the node's
CPUs that the noise leaves.
";

const LOST: &str = "\
What the one node costs: the part of its time that the whole job loses, and so many nodes' worth of it,
without evenkeel -> with the lever that is best there.
";

const ALL: &str = "\
How many times as long as without noise a phase takes, by the number of nodes. *model* is calculated for
the kernel alone; *kernel*, *threads* and *work* are the slowest of so many nodes, calculated in the same
way from the phases of a simulated one.
";

const TALK: &str = "\
Measured with the executables of this commit on this machine, but for the number of messages, which the
protocol sets, and the most series, which the daemon does. Nothing here depends on the number of nodes.
The balancer of a job also tells its node's daemon, where one runs, what is known of its gain, for [the
metrics](../metrics.md): a request with an answer each time, which is not counted here.
";

const CENTRE: &str = "\
Slurm's controller sees nothing of it: a step with `--evenkeel` makes the same requests as one without,
which a test with a real controller checks (tests/cluster/controller.rs). Nothing gathers all the time
what nodes found: each prints its own line, and keeps its records. `evenkeel cluster report` asks the
nodes of one job, when its user wants to know, by one `srun` of a task on each, and leaves nothing
running. So no component is central, and none has to be as large as the machine
([why](../adr/0012-no-central-component.md)).
";

const READING: &str = "\
- The noises are those that [the capability page](capability.md) makes on a real machine, with the same
  names. Each burst is as long as the measured ones on average: a longer one now and then is not seen.
  The node's first CPU has the noise, and the node has as many threads as CPUs.
- *kernel* is simulated with the keel's plain policies in place of the kernel's own scheduler. Threads
  sleep at barriers. A real-time task (fifo-sleep) lets the thread that it preempts be pulled by a CPU
  that is idle already, which the model leaves out: there the kernel alone is better than calculated.
- *threads* is the product's own balancer (`product/capability`) on exact figures. What it costs itself
  is left out; the capability page measures that. *work* has the weights of the product's own code,
  threads that stay on their CPUs, and loops that can be divided at any point.
- *threads* and *work* are shown as if they were always in force. `evenkeel run` measures what a lever
  gains, and takes back one that loses.
- The mean of a job's phases is calculated from the phases of one simulated node, some hundred or
  thousand of them, as the model's is from *F*: each node takes any of them with the same probability,
  and nothing is drawn. What is rarer than one of them is not seen, though it is in the model, and the
  mean of one node is as exact as that many phases are.
- Phases before the balancer has found the noise are left out. Where a node's noise comes and goes
  faster than that, nothing is gained, and nothing is on this page.
- Nodes are alike, and the network takes no time. A job that waits for its network loses a smaller part
  to noise.
";
