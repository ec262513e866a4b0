//! Parser fuzzing: a malformed file or text gives a workload, a machine or an error that names what is
//! wrong, and never a panic. The same seed gives the same texts. EVENKEEL_FUZZ sets their number,
//! EVENKEEL_FUZZ_SEED the seed (`make fuzz`: ten million).

#![allow(clippy::unwrap_used)]

use evenkeel_machine::Machine;
use evenkeel_sim::program::Workload;
use evenkeel_sim::{MAX_TASKS, SHAPES};

/// The number of texts by default.
const EXECUTIONS: u64 = 100_000;

const RT_APP: &str = r#"{ "global": { "duration": 2, "default_policy": "SCHED_OTHER" }, "tasks": {
  "a": { "instance": 2, "loop": 3, "run": 2000, "sleep": 1000, "cpus": [0], "priority": -5 },
  "b": { "loop": -1, "lock": "m", "wait": { "ref": "c", "mutex": "m" }, "unlock": "m",
         "timer": { "ref": "unique", "period": 10000 }, "taskgroup": "/x/y" },
  "d": { "phases": { "p": { "loop": 2, "run": 5, "suspend": "a" },
                     "q": { "resume": "a", "fork": "b" } } },
  "e": { "loop": 1, "barrier": "end", "signal": "c", "broad": "c", "yield": "", "runtime": 7 } } }"#;
const MACHINE: &str = r#"name = "example"
offline = "7"
isolated = "6"
cores = ["0,4", "1,5"]
llcs = ["0-1,4-5"]
kinds = [
  { cpus = "0-1,4-7", capability = 1024, max_freq_khz = 3000000 },
  { cpus = "2-3", capability = 512, core_type = "efficient", bogomips = 4.5 },
]
nodes = [
  { id = 0, cpus = "0-3", memory_bytes = 1024, distances = [10, 21] },
  { id = 2, cpus = "4-7", distances = [21, 10] },
]
costs = { switch_ns = 1500, remote_pct = 30 }
"#;
const HWLOC: &str = include_str!("../../../tests/fixtures/machines/hwloc/two-packages.xml");
/// What is inserted: syntax, and numbers at their bounds.
const WORDS: [&str; 24] = [
    "{",
    "}",
    "[",
    "]",
    "\"",
    ",",
    ":",
    "=",
    "<",
    ">",
    "0",
    "-1",
    "1024",
    "8191",
    "8192",
    "65536",
    "4294967296",
    "18446744073709551616",
    "1e999",
    "0-3",
    "3-0",
    "null",
    "us",
    "\u{e9}",
];

/// Each text to begin with, and its reader.
fn corpus() -> Vec<(usize, String)> {
    let mut corpus = vec![(0, RT_APP.to_owned()), (2, MACHINE.to_owned()), (3, HWLOC.to_owned())];
    for (name, numbers, _) in SHAPES {
        let small = numbers.replace("=100,", "=9,").replace("=200", "=9");
        corpus.push((1, format!("{name}:{small}")));
    }
    corpus
}

/// Returns whether the text was accepted. What is accepted must keep the limits.
fn read(reader: usize, text: &str) -> bool {
    match reader {
        0 => taken(Workload::parse_rt_app(text, "fuzz")),
        // Any other text is the name of a file.
        1 if SHAPES.iter().any(|(name, _, _)| text.split(':').next() == Some(name)) => {
            taken(Workload::by_name(text, 1))
        }
        1 => false,
        2 => is_machine(Machine::parse_toml(text, "fuzz")),
        _ => is_machine(Machine::parse_hwloc(text, "fuzz", "fuzz")),
    }
}

fn taken<E: std::fmt::Display>(workload: Result<Workload, E>) -> bool {
    match workload {
        Ok(workload) => {
            assert!(workload.tasks.len() <= MAX_TASKS);
            let _ = workload.check(&Machine::preset("small").unwrap());
            true
        }
        Err(why) => {
            assert!(!why.to_string().is_empty());
            false
        }
    }
}

fn is_machine<E: std::fmt::Display>(machine: Result<Machine, E>) -> bool {
    match machine {
        Ok(machine) => {
            assert!(!machine.online().is_empty());
            assert!(machine.cpus.iter().all(|cpu| (1..=1024).contains(&cpu.capability)));
            true
        }
        Err(why) => {
            assert!(!why.to_string().is_empty());
            false
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound.max(1)
    }

    /// An index in the text where a character begins.
    fn place(&mut self, text: &str) -> usize {
        let at = self.below(text.len() + 1);
        (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default()
    }

    /// A range of it, mostly short.
    fn part(&mut self, text: &str) -> std::ops::Range<usize> {
        let start = self.place(text);
        let most = [4, 16, 200][self.below(3)];
        let end = (start + self.below(most)).min(text.len());
        let end = (start..=end).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(start);
        start..end
    }

    fn malform(&mut self, text: &mut String) {
        match self.below(5) {
            0 => {
                let part = self.part(text);
                text.replace_range(part, "");
            }
            1 => {
                let part = self.part(text);
                let copy = text[part].to_owned();
                let at = self.place(text);
                text.insert_str(at, &copy);
            }
            2 => {
                let part = self.part(text);
                text.replace_range(part, WORDS[self.below(WORDS.len())]);
            }
            3 => {
                // Replaces a digit.
                let start = self.place(text);
                if let Some(at) = text[start..].find(|c: char| c.is_ascii_digit()) {
                    let digit = self.below(10).to_string();
                    text.replace_range(start + at..start + at + 1, &digit);
                }
            }
            _ => text.insert_str(self.place(text), WORDS[self.below(WORDS.len())]),
        }
    }
}

fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(usual)
}

#[test]
fn no_text_breaks_a_reader() {
    let (executions, seed) =
        (setting("EVENKEEL_FUZZ", EXECUTIONS), setting("EVENKEEL_FUZZ_SEED", 1));
    let corpus = corpus();
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut seen = [[0_u64; 2]; 4];
    for execution in 0..executions {
        let (reader, text) = &corpus[random.below(corpus.len())];
        let mut text = text.clone();
        for _ in 0..=random.below(3) {
            random.malform(&mut text);
        }
        let result = std::panic::catch_unwind(|| read(*reader, &text));
        let taken =
            result.unwrap_or_else(|_| panic!("seed {seed}, execution {execution}: {text:?}"));
        seen[*reader][usize::from(taken)] += 1;
    }
    println!("{executions} texts; refused and taken: {seen:?}");
    // Each reader must have both refused and accepted texts.
    for [refused, taken] in seen {
        assert!(
            refused.min(taken) > executions / 200,
            "refused and accepted texts by reader: {seen:?}"
        );
    }
}

#[test]
fn every_text_of_the_corpus_is_accepted() {
    for (reader, text) in corpus() {
        assert!(read(reader, &text), "{text}");
    }
}
