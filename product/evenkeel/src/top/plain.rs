//! A reading as plain text, for pipes, files, screen readers and terminals that cannot draw. Pure.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, ContentArrangement, Table as Text, presets};

use super::model::Model;
use super::table::{Pane, Table};
use crate::terminal::clean;
use crate::wrap::broken;

/// Rows of interrupts that are printed: those that come most often.
const INTERRUPTS: usize = 20;

/// All panes, one below the other: no bars, no colours, a heading for each. On a terminal of so many
/// columns long lines are broken; in a pipe or a file each row is a line.
pub fn text(model: &Model, tables: &[Table; Pane::COUNT], width: Option<u16>) -> String {
    let mut sentences = vec![format!("evenkeel top on {}", clean(&model.host))];
    if let Some(figures) = &model.cpus.figures {
        sentences.push(figures.verdict.clone());
        sentences.extend(figures.remarks.iter().cloned());
    }
    if let Some(why) = &model.cpus.why_not_exact {
        sentences.push(format!("Not exact, because: {}", clean(why)));
    }
    sentences.extend(model.notes.iter().map(|note| format!("Note: {}", clean(note))));
    let mut text = broken(&(sentences.join("\n") + "\n"), width);
    for (pane, table) in Pane::ALL.into_iter().zip(tables) {
        let about = match table.about.as_str() {
            "" => String::new(),
            about => format!(" ({about})"),
        };
        // Writing into a string cannot fail.
        let _ = writeln!(text, "\n{}{about}:", pane.title());
        text += &rows(pane, table, width);
    }
    text
}

fn rows(pane: Pane, table: &Table, width: Option<u16>) -> String {
    let is_shown = |row: &&super::table::Row| {
        let of_interrupts = pane == Pane::Interrupts;
        let rate = row.cells.get(2).and_then(|cell| cell.number).unwrap_or(0.0);
        !of_interrupts || rate > 0.0
    };
    let most = if pane == Pane::Interrupts { INTERRUPTS } else { usize::MAX };
    let mut shown = table.rows.iter().filter(is_shown).take(most).peekable();
    if shown.peek().is_none() {
        let why = if table.rows.is_empty() { table.empty.as_str() } else { "None came." };
        return format!("{why}\n");
    }
    // The bar says nothing that the number beside it does not say.
    let columns: Vec<usize> =
        (0..table.columns.len()).filter(|at| !table.columns[*at].title.is_empty()).collect();
    let mut text = Text::new();
    text.load_style(presets::NOTHING);
    if let Some(width) = width {
        text.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
    text.set_header(columns.iter().map(|at| &table.columns[*at].title));
    for row in shown {
        text.add_row(columns.iter().map(|at| &row.cells[*at].text));
    }
    for (place, at) in columns.iter().enumerate() {
        if let Some(column) = text.column_mut(place).filter(|_| table.columns[*at].is_right) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    text.trim_fmt() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::sample;
    use crate::top::tables::tables;

    fn printed(model: &Model) -> String {
        text(model, &tables(model), None)
    }

    #[test]
    fn every_pane_is_printed_with_its_heading() {
        let text = printed(&sample::model(2));
        for line in [
            "evenkeel top on ship",
            "CPUs (in % of 1.0 s, from /proc):",
            "Programs (threads' time in %):",
            "Decisions (the newest first):",
            "Keel (fair/zone/count):",
            "Note: a daemon does not answer",
            "Not exact, because: no privilege to load BPF programs",
        ] {
            assert!(text.lines().any(|printed| printed == line), "{line}: {text}");
        }
        // A CPU by words that a program splits at blanks; no bar.
        let words = |key: &str| {
            let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            lines.find(|words| words.first() == Some(&key)).unwrap()
        };
        assert_eq!(
            words("1"),
            ["1", "50.0", "1.0", "40.0", "?", "9.0", "30.0", "20.0", "?", "1.00"]
        );
        assert_eq!(words("1234")[..4], ["1234", "./lu", "-n", "4"]);
        assert!(!text.contains('#') && !text.contains('\u{1b}'), "{text}");
        // What did not come is left out.
        assert!(!text.contains("virtio1-config"), "{text}");
    }

    #[test]
    fn a_line_is_printed_with_its_queue() {
        let text = printed(&sample::model_with_queue());
        let line = text.lines().find(|line| line.contains("virtio2-input.3")).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words, ["36", "virtio2-input.3", "50", "CPU", "0", "eth0:3", "50", "0"]);
    }

    #[test]
    fn lines_are_broken_at_the_width_of_a_terminal_only() {
        let mut model = sample::model(2);
        model.cpus.figures.as_mut().unwrap().remarks = vec!["more of it ".repeat(20)];
        model.programs[0].status.command = vec!["program ".repeat(20)];
        let tables = tables(&model);
        let widest = |text: &str| text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest(&text(&model, &tables, None)) > 150);
        let narrow = text(&model, &tables, Some(80));
        assert!(widest(&narrow) <= 80, "{narrow}");
    }

    #[test]
    fn empty_panes_say_so() {
        let text = printed(&Model { at_ns: 1, ..Model::default() });
        assert!(text.contains("No program runs under evenkeel."), "{text}");
        let mut model = sample::model(2);
        model.interrupts.iter_mut().flatten().for_each(|rate| rate.per_s.clear());
        assert!(printed(&model).contains("None came."));
    }

    #[test]
    fn control_characters_are_not_printed() {
        let mut model = sample::model(2);
        model.programs[0].status.command = vec!["a\u{1b}]0;title\u{7}\r".to_owned()];
        model.host = "h\u{1b}c".to_owned();
        let text = printed(&model);
        assert!(text.chars().all(|letter| letter == '\n' || !letter.is_control()), "{text:?}");
    }
}
