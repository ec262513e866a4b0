//! The mutator: deletes, copies, replaces and inserts parts of a text, and joins it with another one.

use std::ops::Range;

/// What is inserted into any text: syntax, and numbers at their bounds.
const WORDS: [&str; 28] = [
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
    "\n",
    "\r\n",
    "\0",
    "\\u0000",
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

/// A sequence that its seed determines (xorshift).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound.max(1)
    }

    /// A range of the text, mostly short.
    fn part(&mut self, text: &[u8]) -> Range<usize> {
        let start = self.below(text.len() + 1);
        let most = [4, 16, 200][self.below(3)];
        start..(start + self.below(most)).min(text.len())
    }

    /// One of the target's words, or of those for any text.
    fn word(&mut self, words: &[&'static str]) -> &'static str {
        if words.is_empty() || self.below(3) > 0 {
            WORDS[self.below(WORDS.len())]
        } else {
            words[self.below(words.len())]
        }
    }

    /// Makes one change. `words` are the target's own, `other` is another text of its corpus.
    pub fn malform(&mut self, text: &mut Vec<u8>, words: &[&'static str], other: &[u8]) {
        match self.below(15) {
            0..=2 => {
                let part = self.part(text);
                text.drain(part);
            }
            3..=5 => {
                let part = self.part(text);
                let copy = text[part].to_vec();
                let at = self.below(text.len() + 1);
                text.splice(at..at, copy);
            }
            6..=7 => {
                let (part, word) = (self.part(text), self.word(words));
                text.splice(part, word.bytes());
            }
            8..=9 => {
                let start = self.below(text.len() + 1);
                if let Some(at) = text[start..].iter().position(u8::is_ascii_digit) {
                    text[start + at] = b'0' + self.below(10) as u8;
                }
            }
            10..=11 => {
                let (at, word) = (self.below(text.len() + 1), self.word(words));
                text.splice(at..at, word.bytes());
            }
            12..=13 => {
                let at = self.below(text.len());
                let byte = self.below(256) as u8;
                if let Some(place) = text.get_mut(at) {
                    *place = byte;
                }
            }
            _ => {
                text.truncate(self.below(text.len() + 1));
                text.extend(&other[self.below(other.len() + 1)..]);
            }
        }
    }
}

#[test]
fn the_seed_determines_all_changes() {
    let texts = |seed: u64| -> Vec<Vec<u8>> {
        let mut random = Random::new(seed);
        let mut malformed = || {
            let mut text = b"a text of 30 bytes, or so it is".to_vec();
            random.malform(&mut text, &["word"], b"another text");
            text
        };
        (0..1000).map(|_| malformed()).collect()
    };
    assert_eq!(texts(7), texts(7));
    assert_ne!(texts(7), texts(8));
    let original = &b"a text of 30 bytes, or so it is"[..];
    assert!(texts(7).iter().filter(|text| *text != original).count() > 700);
}
