//! A target: a reader of texts from outside, its corpus, and the loop that gives it malformed texts.

use std::collections::BTreeMap;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::mutator::Random;

/// The number of texts for each target by default: some seconds for all of them together.
const TEXTS: u64 = 100_000;
/// The longest time for each target by default, in seconds: none.
const SECONDS: u64 = 86_400;
/// How the name of an example begins that must be refused, for example since it broke a reader once.
const REFUSED: &str = "refused-";

/// A reader of texts from outside.
pub struct Target {
    /// The folder of its corpus in `tests/fixtures/fuzz/`.
    pub name: &'static str,
    /// What is inserted besides syntax and numbers: names that the reader knows.
    pub words: &'static [&'static str],
    /// Makes valid again what each change breaks, a checksum, so that the reader looks further.
    pub repair: fn(&mut Vec<u8>),
    /// Reads a text, checks the property of what it accepts, and returns whether it accepts it. The
    /// kind is the extension of the example that the text was made from.
    pub read: fn(kind: &str, text: &[u8]) -> bool,
}

/// For texts without a checksum.
pub fn no_repair(_: &mut Vec<u8>) {}

/// An example.
struct Example {
    path: PathBuf,
    kind: String,
    is_refused: bool,
    text: Vec<u8>,
}

impl Target {
    /// Gives the reader malformed texts. Each kind of text must be both refused and accepted, or the
    /// texts are not malformed in a way that tests anything.
    pub fn fuzz(&self) {
        self.read_corpus();
        let (texts, seed) = (setting("EVENKEEL_FUZZ", TEXTS), setting("EVENKEEL_FUZZ_SEED", 1));
        let end = Instant::now() + Duration::from_secs(setting("EVENKEEL_FUZZ_SECONDS", SECONDS));
        let corpus = self.corpus();
        let mut random = Random::new(seed);
        let mut seen: BTreeMap<&str, [u64; 2]> = BTreeMap::new();
        let mut count = 0;
        while count < texts && (count % 256 != 0 || count == 0 || Instant::now() < end) {
            let example = &corpus[random.below(corpus.len())];
            let text = self.malform(&mut random, example, &corpus);
            let result = catch_unwind(|| (self.read)(&example.kind, &text));
            let is_accepted = result.unwrap_or_else(|_| self.fail(seed, count, example, &text));
            seen.entry(&example.kind).or_default()[usize::from(is_accepted)] += 1;
            count += 1;
        }
        println!("{}: {count} texts; refused and accepted by kind: {seen:?}", self.name);
        for (kind, [refused, accepted]) in seen {
            let least = refused.min(accepted);
            assert!(least > count / 200, "{kind}: {refused} refused, {accepted} accepted");
        }
    }

    fn malform(&self, random: &mut Random, example: &Example, corpus: &[Example]) -> Vec<u8> {
        let mut text = example.text.clone();
        for _ in 0..=random.below(3) {
            let other = &corpus[random.below(corpus.len())];
            random.malform(&mut text, self.words, &other.text);
        }
        if random.below(4) > 0 {
            (self.repair)(&mut text);
        }
        text
    }

    /// Keeps a text that broke the reader.
    fn fail(&self, seed: u64, count: u64, example: &Example, text: &[u8]) -> ! {
        let (name, kind) = (self.name, &example.kind);
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{seed}-{count}.{kind}"));
        fs::write(&path, text).unwrap();
        panic!(
            "{name}, seed {seed}, text {count}, made from {}: {:?}\nkept as {}; add it to the corpus",
            example.path.display(),
            String::from_utf8_lossy(text),
            path.display()
        );
    }

    /// Every example is accepted, but for those that must be refused.
    fn read_corpus(&self) {
        for example in self.corpus() {
            let is_accepted = (self.read)(&example.kind, &example.text);
            let path = example.path.display();
            assert_eq!(is_accepted, !example.is_refused, "is {path} accepted?");
        }
    }

    /// The examples in the order of their names, so that a seed always means the same.
    fn corpus(&self) -> Vec<Example> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/fuzz/").join(self.name);
        let entries = fs::read_dir(&folder).unwrap();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        let example = |path: PathBuf| {
            let bytes = fs::read(&path).unwrap();
            let kind = path.extension().unwrap().to_str().unwrap().to_owned();
            let text =
                if kind == "hex" { from_hex(&String::from_utf8(bytes).unwrap()) } else { bytes };
            let is_refused = path.file_name().unwrap().to_str().unwrap().starts_with(REFUSED);
            Example { path, kind, is_refused, text }
        };
        paths.into_iter().map(example).collect()
    }
}

/// The bytes of pairs of hexadecimal digits. A line's rest behind `#` is a comment.
fn from_hex(text: &str) -> Vec<u8> {
    let codes = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let digits: Vec<u32> = codes.flat_map(str::chars).filter_map(|c| c.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(usual)
}

/// The text of an error, which says something.
pub fn reason(error: impl std::fmt::Display) -> String {
    let text = format!("{error:#}");
    assert!(!text.trim().is_empty(), "an error without a text");
    text
}

#[test]
fn hexadecimal_examples_have_comments() {
    assert_eq!(from_hex("08 00 # a0\n\n45ff\n"), [8, 0, 0x45, 0xff]);
}
