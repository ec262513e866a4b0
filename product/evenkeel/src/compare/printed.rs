//! Whether a program prints the same in all its runs.
//!
//! Programs print times and rates, which differ from run to run. So what is printed is compared twice:
//! as it is, and with each number replaced by one and the same sign.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufReader, Read};

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
        let (mut whole, mut rest) = (DefaultHasher::new(), DefaultHasher::new());
        let (mut is_in_number, mut is_after_blank) = (false, false);
        for byte in BufReader::new(output).bytes() {
            let byte = byte?;
            byte.hash(&mut whole);
            let is_number = match byte {
                b'0'..=b'9' => true,
                b'.' | b'-' | b'+' | b'e' | b'E' => is_in_number,
                _ => false,
            };
            // Numbers of different length are padded with different numbers of blanks.
            let is_padding = byte == b' ' && is_after_blank;
            if is_number && !is_in_number {
                b'0'.hash(&mut rest);
            } else if !is_number && !is_padding {
                byte.hash(&mut rest);
            }
            (is_in_number, is_after_blank) = (is_number, byte == b' ');
        }
        Ok(Self { whole: whole.finish(), without_numbers: rest.finish() })
    }
}

/// How what a contestant's runs printed agrees with the baseline's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
            Self::Unknown => "always another",
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
            (&["PASS 1\n"], &["FAIL 1\n"], Agreement::Different),
            (&["PASS 1\n"], &[""], Agreement::Different),
            (&["a\n", "b\n"], &["a\n"], Agreement::Unknown),
        ] {
            assert_eq!(Agreement::of(&runs(baseline), &runs(ours)), agreement, "{ours:?}");
        }
    }
}
