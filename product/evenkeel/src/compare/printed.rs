//! Whether a program prints the same in all its runs.
//!
//! Programs print times and rates, which differ from run to run. So what is printed is compared twice:
//! as it is, and with each number replaced by one and the same sign.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufReader, Read};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What one run printed, in short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Printed {
    whole: u64,
    without_numbers: u64,
}

impl Printed {
    /// Of what one run printed, from beginning to end.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(output: impl Read) -> io::Result<Self> {
        let (mut whole, mut masked) = (DefaultHasher::new(), Masked::default());
        for byte in BufReader::new(output).bytes() {
            let byte = byte?;
            byte.hash(&mut whole);
            masked.take(byte);
        }
        Ok(Self { whole: whole.finish(), without_numbers: masked.finish() })
    }
}

/// What is printed, with `0` for each number, its sign and the blanks before it: numbers of different
/// length are padded with different numbers of blanks.
#[derive(Default)]
struct Masked {
    hasher: DefaultHasher,
    is_in_number: bool,
    /// Blanks were read that no other byte has followed yet.
    is_after_blank: bool,
    /// A sign that may begin a number.
    sign: Option<u8>,
    /// A letter, a digit or a bracket that closes: a sign behind it is none of a number.
    is_after_word: bool,
}

impl Masked {
    fn take(&mut self, byte: u8) {
        match byte {
            b'0'..=b'9' => {
                if !self.is_in_number {
                    (self.is_after_blank, self.sign) = (false, None);
                    b'0'.hash(&mut self.hasher);
                }
                self.is_in_number = true;
            }
            b'.' | b'-' | b'+' | b'e' | b'E' if self.is_in_number => {}
            b' ' => {
                if self.sign.is_some() {
                    self.flush();
                }
                (self.is_in_number, self.is_after_blank) = (false, true);
            }
            b'-' | b'+' if self.sign.is_none() && (self.is_after_blank || !self.is_after_word) => {
                self.sign = Some(byte);
            }
            _ => {
                self.flush();
                self.is_in_number = false;
                byte.hash(&mut self.hasher);
            }
        }
        self.is_after_word = byte.is_ascii_alphanumeric() || b"_)]".contains(&byte);
    }

    /// What seemed to belong to a number does not.
    fn flush(&mut self) {
        if std::mem::take(&mut self.is_after_blank) {
            b' '.hash(&mut self.hasher);
        }
        if let Some(sign) = self.sign.take() {
            sign.hash(&mut self.hasher);
        }
    }

    fn finish(mut self) -> u64 {
        self.flush();
        self.hasher.finish()
    }
}

/// How what a contestant's runs printed agrees with the baseline's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Agreement {
    /// Byte for byte.
    Same,
    /// All but the numbers.
    SameButNumbers,
    /// Not.
    Different,
    /// The baseline's runs already differ among themselves.
    Unknown,
}

impl Agreement {
    /// Of what all runs of the baseline and all runs of a contestant printed.
    pub fn of(baseline: &BTreeSet<Printed>, ours: &BTreeSet<Printed>) -> Self {
        let all = || baseline.iter().chain(ours);
        let kinds = |values: BTreeSet<u64>| values.len();
        let masked = |runs: &BTreeSet<Printed>| {
            kinds(runs.iter().map(|printed| printed.without_numbers).collect())
        };
        if kinds(all().map(|printed| printed.whole).collect()) <= 1 {
            Self::Same
        } else if kinds(all().map(|printed| printed.without_numbers).collect()) <= 1 {
            Self::SameButNumbers
        } else if masked(baseline) > 1 {
            Self::Unknown
        } else {
            Self::Different
        }
    }

    /// For a column of the table.
    pub fn words(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::SameButNumbers => "same but numbers",
            Self::Different => "DIFFERENT",
            Self::Unknown => "differs by itself",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(texts: &[&str]) -> BTreeSet<Printed> {
        texts.iter().map(|text| Printed::read(text.as_bytes()).unwrap()).collect()
    }

    #[test]
    fn times_may_differ_and_words_may_not() {
        for (baseline, ours, agreement) in [
            (&["sum 4\n"][..], &["sum 4\n"][..], Agreement::Same),
            (&["took 1.5 s\n", "took 2 s\n"], &["took 1.25e-1 s\n"], Agreement::SameButNumbers),
            (&["took   9 ms\n"], &["took 10 ms\n"], Agreement::SameButNumbers),
            (&["r =  1.2\n"], &["r = -3.4\n"], Agreement::SameButNumbers),
            (&["1.2e-16\n"], &["-3.4e-16\n"], Agreement::SameButNumbers),
            (&["[ 9] x:(1,+2)\n"], &["[10] x:(1,-2)\n"], Agreement::SameButNumbers),
            (&["PASS 1\n"], &["FAIL 1\n"], Agreement::Different),
            (&["a-1\n"], &["a+1\n"], Agreement::Different),
            (&["a - b\n"], &["a + b\n"], Agreement::Different),
            (&["a -\n"], &["a\n"], Agreement::Different),
            (&["PASS 1\n"], &[""], Agreement::Different),
            (&["a\n", "b\n"], &["a\n"], Agreement::Unknown),
        ] {
            assert_eq!(Agreement::of(&runs(baseline), &runs(ours)), agreement, "{ours:?}");
        }
    }
}
