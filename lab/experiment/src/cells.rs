//! A table of text, for terminals and for pages, in Markdown and in HTML.

use std::fmt::{self, Write as _};

use comfy_table::{CellAlignment, Table, presets};
use evenkeel_trial::page::table;
use maud::Markup;

/// Cells as text, and which columns are numbers.
#[derive(Debug, Clone)]
pub struct Cells {
    /// Above the columns.
    pub header: Vec<String>,
    /// Columns that are aligned to the right.
    pub numbers: Vec<usize>,
    /// Each as long as the header.
    pub rows: Vec<Vec<String>>,
}

impl Cells {
    /// For a terminal.
    pub fn terminal(self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header(self.header);
        table.add_rows(self.rows);
        for (index, column) in table.column_iter_mut().enumerate() {
            if self.numbers.contains(&index) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.to_string()
    }

    /// For a page.
    ///
    /// # Errors
    /// None, into a String.
    pub fn markdown(&self, text: &mut String) -> fmt::Result {
        writeln!(text, "| {} |", self.header.join(" | "))?;
        let rule = (0..self.header.len())
            .map(|column| if self.numbers.contains(&column) { "---:" } else { "---" });
        writeln!(text, "| {} |", rule.collect::<Vec<_>>().join(" | "))?;
        for row in &self.rows {
            let cells: Vec<String> = row.iter().map(|cell| cell.replace('|', "\\|")).collect();
            writeln!(text, "| {} |", cells.join(" | "))?;
        }
        Ok(())
    }

    /// For a page in HTML.
    pub fn html(self) -> Markup {
        table(&self.header, self.rows, &self.numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_in_a_cell_ends_no_column() {
        let row = vec!["fast|only".to_owned(), "1".to_owned()];
        let header = ["a", "b"].map(str::to_owned).to_vec();
        let cells = Cells { header, numbers: vec![1], rows: vec![row] };
        let mut text = String::new();
        cells.markdown(&mut text).unwrap();
        assert_eq!(text, "| a | b |\n| --- | ---: |\n| fast\\|only | 1 |\n");
    }
}
