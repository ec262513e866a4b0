//! The numbers of a shape: `tasks=8,work=10ms`, with defaults.

use std::collections::BTreeMap;

use crate::program::parse_time;

use super::error::WorkloadError;

/// The numbers of a shape by name.
pub(super) struct Numbers<'a> {
    text: &'a str,
    values: BTreeMap<&'a str, &'a str>,
}

impl<'a> Numbers<'a> {
    pub fn parse(text: &'a str, defaults: &'a str, given: &'a str) -> Result<Self, WorkloadError> {
        let pairs = |list: &'a str| list.split(',').map(|pair| pair.split_once('=').ok_or(pair));
        let mut numbers = Self { text, values: BTreeMap::new() };
        for (name, value) in pairs(defaults).flatten() {
            numbers.values.insert(name, value);
        }
        for pair in pairs(given).filter(|_| !given.is_empty()) {
            let known = || numbers.values.keys().copied().collect::<Vec<_>>().join(", ");
            let (name, value) =
                pair.map_err(|pair| numbers.wrong(format!("\"{pair}\": expected NAME=NUMBER")))?;
            if !numbers.values.contains_key(name) {
                return Err(numbers.wrong(format!("\"{name}\": there are {}", known())));
            }
            numbers.values.insert(name, value);
        }
        Ok(numbers)
    }

    pub fn wrong(&self, rule: String) -> WorkloadError {
        WorkloadError::Shape { text: self.text.to_owned(), rule }
    }

    pub fn text(&self, name: &str) -> &'a str {
        self.values.get(name).copied().unwrap_or_default()
    }

    pub fn count(&self, name: &str, least: u64, most: u64) -> Result<u64, WorkloadError> {
        let value = self.text(name);
        match value.parse::<u64>() {
            Ok(count) if (least..=most).contains(&count) => Ok(count),
            _ => Err(self.wrong(format!("{name}={value}: expected {least} to {most}"))),
        }
    }

    pub fn time(&self, name: &str) -> Result<u64, WorkloadError> {
        let value = self.text(name);
        parse_time(value).ok_or_else(|| {
            self.wrong(format!("{name}={value}: expected a time up to an hour, like 5us or 10ms"))
        })
    }
}
