//! What a pane of `evenkeel top` shows: columns, rows with a key each, and their order. Text only: how
//! it is drawn is in `view` and `plain`. Pure.

use std::cmp::Ordering;

use crate::terminal::clean;

/// The panes, from top to bottom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pane {
    /// What each CPU gives, and what takes the rest.
    Cpus,
    /// Programs that are balanced.
    Programs,
    /// What was decided last.
    Decisions,
    /// Interrupt lines and softirqs.
    Interrupts,
    /// The counters of the keel.
    Keel,
}

impl Pane {
    /// Their number.
    pub const COUNT: usize = 5;
    /// All of them.
    pub const ALL: [Self; Self::COUNT] =
        [Self::Cpus, Self::Programs, Self::Decisions, Self::Interrupts, Self::Keel];

    /// Its place from the top.
    pub fn index(self) -> usize {
        self as usize
    }

    /// The pane so many places further down, beginning again at the top.
    pub fn after(self, places: usize) -> Self {
        Self::ALL[(self.index() + places) % Self::COUNT]
    }

    /// Its heading.
    pub fn title(self) -> &'static str {
        match self {
            Self::Cpus => "CPUs",
            Self::Programs => "Programs",
            Self::Decisions => "Decisions",
            Self::Interrupts => "Interrupts",
            Self::Keel => "Keel",
        }
    }
}

/// A column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its heading.
    pub title: String,
    /// Its width, in characters of a terminal.
    pub width: u16,
    /// The column takes the width that is left over.
    pub grows: bool,
    /// Its text is at the right: numbers.
    pub is_right: bool,
    /// Where the width is short, columns with the largest figure are left out first; those with 0 last.
    pub rank: u8,
}

impl Column {
    /// A column of numbers.
    pub fn number(title: impl Into<String>, width: u16, rank: u8) -> Self {
        Self { title: title.into(), width, grows: false, is_right: true, rank }
    }

    /// A column of words.
    pub fn words(title: impl Into<String>, width: u16, rank: u8) -> Self {
        Self { title: title.into(), width, grows: false, is_right: false, rank }
    }

    /// The same, and it takes what is left over.
    pub fn growing(self) -> Self {
        Self { grows: true, ..self }
    }
}

/// How good a figure is: a colour where there are colours. The text says it, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Level {
    /// No judgement.
    #[default]
    Plain,
    /// As it should be.
    Good,
    /// Worth a look.
    Fair,
    /// Bad.
    Poor,
}

/// The text of one column in one row, and what it is sorted by.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Cell {
    /// Without control characters.
    pub text: String,
    /// None: sorted by its text.
    pub number: Option<f64>,
    /// How good it is.
    pub level: Level,
}

impl Cell {
    /// Words, from wherever they are: what could break a screen is replaced.
    pub fn words(text: impl AsRef<str>) -> Self {
        Self { text: clean(text.as_ref()), ..Self::default() }
    }

    /// A number as this text.
    pub fn number(number: f64, text: impl AsRef<str>) -> Self {
        Self { number: Some(number), ..Self::words(text) }
    }

    /// A percentage with one decimal.
    pub fn percent(number: f64) -> Self {
        Self::number(number, format!("{number:.1}"))
    }

    /// A number that may be unknown: it is below all others then.
    pub fn maybe(number: Option<f64>, text: impl Fn(f64) -> String) -> Self {
        match number {
            Some(number) => Self::number(number, text(number)),
            None => Self::number(f64::NEG_INFINITY, "?"),
        }
    }

    fn compare(&self, other: &Self) -> Ordering {
        match (self.number, other.number) {
            (Some(one), Some(other)) => one.total_cmp(&other),
            _ => self.text.cmp(&other.text),
        }
    }
}

/// A row.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Row {
    /// What it is about; the same in the next reading, so that a choice stays with it.
    pub key: String,
    /// One for each column.
    pub cells: Vec<Cell>,
}

/// The content of a pane.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Table {
    /// Behind the heading.
    pub about: String,
    /// From left to right.
    pub columns: Vec<Column>,
    /// In the order that they have unless another one is asked for.
    pub rows: Vec<Row>,
    /// Said where there is no row.
    pub empty: String,
}

/// An order of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sorting {
    /// By this column; none: as they come.
    pub column: Option<usize>,
    /// The other way round than usual: numbers from the largest down, words from A on.
    pub is_reversed: bool,
}

impl Table {
    /// The places of the rows that contain `filter` (in any case of letters), in this order.
    pub fn arranged(&self, sorting: Sorting, filter: &str) -> Vec<usize> {
        let wanted = filter.to_lowercase();
        let is_wanted = |row: &Row| {
            wanted.is_empty()
                || row.cells.iter().any(|cell| cell.text.to_lowercase().contains(&wanted))
        };
        let mut places: Vec<usize> =
            (0..self.rows.len()).filter(|place| is_wanted(&self.rows[*place])).collect();
        if let Some(column) = sorting.column {
            let cell = |place: &usize| self.rows[*place].cells.get(column);
            places.sort_by(|one, other| match (cell(one), cell(other)) {
                (Some(one), Some(other)) if one.number.is_some() => other.compare(one),
                (Some(one), Some(other)) => one.compare(other),
                _ => Ordering::Equal,
            });
        }
        if sorting.is_reversed {
            places.reverse();
        }
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let row = |key: &str, number: Option<f64>| Row {
            key: key.to_owned(),
            cells: vec![Cell::words(key), Cell::maybe(number, |number| format!("{number}"))],
        };
        Table {
            columns: vec![Column::words("name", 4, 0), Column::number("load", 4, 0)],
            rows: vec![row("lu", Some(3.0)), row("ep", None), row("Sp", Some(20.0))],
            ..Table::default()
        }
    }

    fn keys(sorting: Sorting, filter: &str) -> Vec<String> {
        let table = table();
        let places = table.arranged(sorting, filter);
        places.into_iter().map(|place| table.rows[place].key.clone()).collect()
    }

    #[test]
    fn rows_are_sorted_by_number_not_by_text() {
        let by = |column, is_reversed| Sorting { column, is_reversed };
        assert_eq!(keys(by(None, false), ""), ["lu", "ep", "Sp"]);
        assert_eq!(keys(by(None, true), ""), ["Sp", "ep", "lu"]);
        // The largest first, the unknown one last.
        assert_eq!(keys(by(Some(1), false), ""), ["Sp", "lu", "ep"]);
        assert_eq!(keys(by(Some(1), true), ""), ["ep", "lu", "Sp"]);
        assert_eq!(keys(by(Some(0), false), ""), ["Sp", "ep", "lu"]);
        // A column that is not there changes nothing.
        assert_eq!(keys(by(Some(7), false), ""), ["lu", "ep", "Sp"]);
    }

    #[test]
    fn a_filter_takes_rows_in_any_case_of_letters() {
        assert_eq!(keys(Sorting::default(), "P"), ["ep", "Sp"]);
        assert_eq!(keys(Sorting::default(), "20"), ["Sp"]);
        assert!(keys(Sorting::default(), "bt").is_empty());
    }

    #[test]
    fn what_could_break_a_screen_is_replaced() {
        assert_eq!(clean("a\u{1b}[2Jb\nc\u{202e}d\u{200b}\u{9b}"), "a?[2Jb?c?d??");
        assert_eq!(clean("größe 漢字 👍"), "größe 漢字 👍");
    }

    #[test]
    fn panes_follow_each_other_in_a_ring() {
        assert_eq!(Pane::Cpus.after(1), Pane::Programs);
        assert_eq!(Pane::Keel.after(1), Pane::Cpus);
        assert_eq!(Pane::Cpus.after(Pane::COUNT - 1), Pane::Keel);
        assert!(Pane::ALL.iter().enumerate().all(|(place, pane)| pane.index() == place));
    }
}
