//! How often each interrupt line and each softirq came on each CPU: from the texts of /proc/interrupts
//! and /proc/softirqs, which anyone may read. Nothing is loaded for it. Pure. (What interrupts cost is
//! told by `evenkeel irq`.)

use std::collections::BTreeMap;

use evenkeel_irq::queue_of_handler;
use schemars::JsonSchema;
use serde::Serialize;

/// From here on a counter of the kernel, which has 32 bits, may begin again at 0 before the next
/// reading.
const NEAR_END: u64 = 3 << 30;
/// Until here it has just begun again.
const NEAR_BEGIN: u64 = 1 << 30;
const TURN: u64 = 1 << 32;

/// Which file a line is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// /proc/interrupts.
    Interrupt,
    /// /proc/softirqs.
    Softirq,
}

/// The counters of both files at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    lines: BTreeMap<(Kind, String), Line>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    name: String,
    /// By CPU number.
    counts: BTreeMap<u32, u64>,
}

/// How often one line came.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Rate {
    /// A line or a softirq.
    pub kind: Kind,
    /// Its number, or its abbreviation.
    pub label: String,
    /// Its handlers, or what it is for.
    pub name: String,
    /// The queue of a network device that it is for, as `eth0:3`; none: it is for no queue.
    pub queue: Option<String>,
    /// Times in a second on each CPU, by its number.
    pub per_s: BTreeMap<u32, f64>,
}

impl Rate {
    /// Times in a second on all CPUs.
    pub fn total(&self) -> f64 {
        self.per_s.values().sum()
    }

    /// The CPU where it came most often, if it came.
    pub fn busiest(&self) -> Option<(u32, f64)> {
        let most = self.per_s.iter().max_by(|one, other| one.1.total_cmp(other.1));
        most.map(|(cpu, rate)| (*cpu, *rate)).filter(|(_, rate)| *rate > 0.0)
    }
}

impl Counts {
    /// Reads both texts. A line without a figure for each CPU (`ERR`, `MIS`) is left out.
    pub fn parse(interrupts: &str, softirqs: &str) -> Self {
        let lines = lines(Kind::Interrupt, interrupts).chain(lines(Kind::Softirq, softirqs));
        Self { lines: lines.collect() }
    }

    /// Whether these are the lines and handlers of another reading, whatever they counted.
    pub fn has_lines_of(&self, other: &Self) -> bool {
        let mut pairs = self.lines.iter().zip(&other.lines);
        self.lines.len() == other.lines.len()
            && pairs.all(|((key, line), (other_key, other))| {
                key == other_key && line.name == other.name
            })
    }

    /// The queue of each line that is for one, by the line's number, where `devices` has the network
    /// device of each line.
    pub fn queues(&self, devices: &BTreeMap<u32, String>) -> BTreeMap<String, String> {
        let lines = self.lines.iter().filter(|((kind, _), _)| *kind == Kind::Interrupt);
        let queue = |((_, label), line): (&(Kind, String), &Line)| {
            let device = devices.get(&label.parse::<u32>().ok()?)?;
            Some((label.clone(), format!("{device}:{}", queue_of_handler(&line.name)?)))
        };
        lines.filter_map(queue).collect()
    }

    /// How often each line came in the `seconds` since `earlier`. Lines that never came are left out.
    /// No queue is filled in.
    pub fn since(&self, earlier: &Self, seconds: f64) -> Vec<Rate> {
        let rate = |((kind, label), now): (&(Kind, String), &Line)| {
            let then = earlier.lines.get(&(*kind, label.clone()));
            let per_s = now.counts.iter().map(|(cpu, count)| {
                // A line or a CPU that was not there counts from now on.
                let before = then.and_then(|then| then.counts.get(cpu)).unwrap_or(count);
                (*cpu, difference(*count, *before) as f64 / seconds.max(1e-3))
            });
            Rate {
                kind: *kind,
                label: label.clone(),
                name: now.name.clone(),
                queue: None,
                per_s: per_s.collect(),
            }
        };
        let came =
            |(_, line): &(&(Kind, String), &Line)| line.counts.values().any(|count| *count > 0);
        self.lines.iter().filter(came).map(rate).collect()
    }
}

/// What was counted between two readings of a counter of 32 bits. A driver that was loaded again counts
/// from 0: then nothing is known.
fn difference(now: u64, before: u64) -> u64 {
    match now.checked_sub(before) {
        Some(more) => more,
        None if before >= NEAR_END && now < NEAR_BEGIN => (now + TURN).saturating_sub(before),
        None => 0,
    }
}

fn lines(kind: Kind, text: &str) -> impl Iterator<Item = ((Kind, String), Line)> {
    let mut lines = text.lines();
    let heading = lines.next().unwrap_or_default();
    let cpus: Vec<u32> = heading
        .split_ascii_whitespace()
        .filter_map(|word| word.strip_prefix("CPU")?.parse().ok())
        .collect();
    lines.filter_map(move |line| {
        let (label, rest) = line.split_once(':')?;
        let mut counts = BTreeMap::new();
        let mut rest = rest.trim_start();
        for cpu in &cpus {
            let (word, after) = rest.split_at(rest.find(char::is_whitespace).unwrap_or(rest.len()));
            counts.insert(*cpu, word.parse().ok()?);
            rest = after.trim_start();
        }
        let label = label.trim().to_owned();
        let is_line = label.bytes().all(|byte| byte.is_ascii_digit());
        let name = if is_line { handlers(rest) } else { rest.trim() }.to_owned();
        let is_complete = !label.is_empty() && !counts.is_empty();
        is_complete.then_some(((kind, label), Line { name, counts }))
    })
}

/// The names of the handlers, which follow the controller, its number for the line, and the trigger:
/// `IO-APIC   4-edge      ttyS0`, `GICv3  25 Level     vgic`.
fn handlers(text: &str) -> &str {
    let mut rest = text.trim();
    while let Some((word, after)) = rest.split_once(char::is_whitespace) {
        rest = after.trim_start();
        let word = word.to_ascii_lowercase();
        if ["edge", "level", "fasteoi"].iter().any(|trigger| word.ends_with(trigger)) {
            return rest;
        }
    }
    // No trigger: the last word.
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    // CPU 1 is offline.
    const INTERRUPTS: &str = "           CPU0       CPU2
  4:          0         14  IO-APIC   4-edge      ttyS0
 36:        100     503805 PCI-MSIX-0000:00:02.0   1-edge      virtio1-req.0, other name
 37:          0          0 PCI-MSIX-0000:00:03.0   0-edge      virtio2-config
 38:          7          7     GICv3  25 Level     vgic
 39:          7          7     dummy  thing
LOC:   12912318    3785669   Local timer interrupts
ERR:          0
";
    const SOFTIRQS: &str = "                    CPU0       CPU2
          HI:          0          0
      NET_RX:    3971741    3512290
";

    fn rates(interrupts: &str, softirqs: &str) -> Vec<Rate> {
        let then = Counts::parse(INTERRUPTS, SOFTIRQS);
        Counts::parse(interrupts, softirqs).since(&then, 2.0)
    }

    fn find<'r>(rates: &'r [Rate], label: &str) -> &'r Rate {
        rates.iter().find(|rate| rate.label == label).unwrap()
    }

    #[test]
    fn lines_have_the_names_of_their_handlers() {
        let rates = rates(INTERRUPTS, SOFTIRQS);
        let names: Vec<(&str, &str)> =
            rates.iter().map(|rate| (rate.label.as_str(), rate.name.as_str())).collect();
        assert_eq!(
            names,
            [
                ("36", "virtio1-req.0, other name"),
                ("38", "vgic"),
                ("39", "thing"),
                ("4", "ttyS0"),
                ("LOC", "Local timer interrupts"),
                ("NET_RX", ""),
            ]
        );
        assert!(rates.iter().all(|rate| rate.total() == 0.0 && rate.busiest().is_none()));
    }

    #[test]
    fn rates_belong_to_the_cpu_of_the_heading() {
        let interrupts = INTERRUPTS.replace("503805", "503905").replace("12912318", "12912320");
        let softirqs = SOFTIRQS.replace("3512290", "3512690");
        let rates = rates(&interrupts, &softirqs);
        assert_eq!(find(&rates, "36").per_s, [(0, 0.0), (2, 50.0)].into());
        assert_eq!(find(&rates, "LOC").busiest(), Some((0, 1.0)));
        let received = find(&rates, "NET_RX");
        assert_eq!((received.kind, received.total()), (Kind::Softirq, 200.0));
    }

    #[test]
    fn what_begins_anew_counts_for_nothing_and_what_is_full_goes_on() {
        assert_eq!(difference(5, 9), 0);
        assert_eq!(difference(4, TURN - 6), 10);
        assert_eq!(difference(9, 5), 4);
        // A CPU that came online has no earlier figure.
        let more = "   CPU0 CPU2 CPU3\n36: 100 503805 9 chip 1-edge virtio1-req.0\n";
        assert_eq!(find(&rates(more, ""), "36").total(), 0.0);
    }

    #[test]
    fn a_line_of_a_network_device_has_the_queue_that_its_name_ends_with() {
        let counts = |interrupts: &str| Counts::parse(interrupts, SOFTIRQS);
        let text = "   CPU0 CPU2
36: 1 1 PCI-MSIX-0000:00:02.0 1-edge virtio1-req.0
40: 1 1 PCI-MSIX-0000:00:03.0 0-edge virtio2-config
41: 1 1 PCI-MSIX-0000:00:03.0 4-edge virtio2-input.3
LOC: 5 5 Local timer interrupts
";
        let devices = [(40, "eth0".to_owned()), (41, "eth0".to_owned())].into();
        // The first one is a disk's: its number is not that of a queue of a network device.
        let queues = [("41".to_owned(), "eth0:3".to_owned())].into();
        assert_eq!(counts(text).queues(&devices), queues);
        // Counting changes no line; another handler on the same line does, and so does one line less.
        let is_same = |other: &str| counts(text).has_lines_of(&counts(other));
        assert!(is_same(&text.replace(" 1 1 ", " 7 9 ")));
        assert!(!is_same(&text.replace("input.3", "input.4")));
        assert!(!is_same(text.split_once("41:").unwrap().0));
    }

    #[test]
    fn malformed_text_gives_no_lines() {
        for text in ["", "CPU0\n", "CPU0 CPU1\n1: 5\n2: x y\n: 1 2\nno colon\n", "\n1: 2 3 name\n"]
        {
            let counts = Counts::parse(text, text);
            assert_eq!(counts, Counts::default(), "{text:?}");
        }
    }
}
