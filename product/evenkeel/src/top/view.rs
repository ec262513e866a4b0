//! Draws a reading on a screen of any size. Pure: it writes into a buffer of characters. Meaning is in
//! the text; colours, where there are any, only repeat it.

use std::borrow::Cow;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;

use super::explanation::explain;
use super::keys::{Shown, State};
use super::layout::{GAP, fitting, heights};
use super::model::Model;
use super::table::{Level, Pane, Row, Table};
use crate::terminal::clean;
use crate::wrap::wrapped;

/// Columns at the left for the mark of the chosen pane and row.
const MARK: u16 = 2;
/// Lines above and below the panes.
const HEAD: u16 = 2;
const FOOT: u16 = 1;
/// Behind a text that is cut ...
const MORE: &str = "...";
/// ... where there are this many columns: of fewer, the mark would leave next to nothing.
const LEAST_SHORTENED: usize = 6;

const KEYS: [(&str, &str); 15] = [
    ("Tab, Right", "the next pane"),
    ("Shift-Tab, Left", "the pane before"),
    ("1 to 5", "the pane at that place from the top"),
    ("Up, Down", "choose a row (also j, k, page keys, Home, End)"),
    ("e, Enter", "explain the chosen row; again, or Esc: back"),
    ("l", "in Programs: only watch your own program, or balance it again"),
    ("s", "sort by the next column; after the last one, as they come"),
    ("r", "the other way round"),
    ("/", "only rows with a text; Enter keeps it, Esc removes it"),
    ("Space", "freeze: no more readings; again: go on"),
    ("?", "this help"),
    ("Ctrl-L", "draw the whole screen anew"),
    ("Ctrl-Z", "stop, until the shell's fg"),
    ("q, Ctrl-C", "end"),
    ("", "The mark > is at the chosen pane and row."),
];

/// How things look.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// Whether it has colours.
    pub has_colours: bool,
}

impl Look {
    fn of(self, level: Level) -> Style {
        let colour = match level {
            Level::Plain => None,
            Level::Good => Some(Color::Green),
            Level::Fair => Some(Color::Yellow),
            Level::Poor => Some(Color::Red),
        };
        colour.filter(|_| self.has_colours).map_or(Style::new(), |colour| Style::new().fg(colour))
    }
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn reversed() -> Style {
    Style::new().add_modifier(Modifier::REVERSED)
}

/// Draws all of it. `state` is told how far the text over the tables can be scrolled.
pub fn draw(
    buffer: &mut Buffer,
    model: &Model,
    tables: &[Table; Pane::COUNT],
    state: &mut State,
    look: Look,
) {
    let area = buffer.area;
    let mut pen = Pen { buffer, area };
    if area.height <= HEAD + FOOT {
        pen.panes(area, tables, state, look);
        return;
    }
    pen.head(model, state);
    let body = Rect { y: area.y + HEAD, height: area.height - HEAD - FOOT, ..area };
    match state.shown.clone() {
        Shown::Tables | Shown::Filter => pen.panes(body, tables, state, look),
        Shown::Row { key, line } => {
            let gone = || vec!["It is gone.".to_owned()];
            let text = explain(model, state.pane, &key).unwrap_or_else(gone);
            let heading = format!("{}: the chosen row in full", state.pane.title());
            pen.text(body, &heading, &text, line, state);
        }
        Shown::Help { line } => pen.text(body, "Keys", &help(model), line, state),
    }
    pen.foot(state);
}

/// The keys, and what cannot be seen.
fn help(model: &Model) -> Vec<String> {
    let mut lines: Vec<String> =
        KEYS.iter().map(|(key, what)| format!("  {key:<17}{what}")).collect();
    lines.push(String::new());
    lines.push("What cannot be seen, and why:".to_owned());
    lines.extend(
        model.cpus.why_not_exact.iter().map(|why| format!("  figures are not exact: {why}")),
    );
    lines.extend(model.notes.iter().map(|note| format!("  {note}")));
    lines.push(
        "  Costs of interrupts: evenkeel irq status. Connections: evenkeel sais status.".to_owned(),
    );
    lines.iter().map(|line| clean(line)).collect()
}

/// The text, or as much of it as fits with a mark that there is more.
fn shortened(text: &str, width: usize) -> Cow<'_, str> {
    if width < LEAST_SHORTENED || Span::raw(text).width() <= width {
        return Cow::Borrowed(text);
    }
    let mut used = MORE.len();
    let fits = |letter: &char| {
        used += Span::raw(letter.to_string()).width();
        used <= width
    };
    Cow::Owned(text.chars().take_while(fits).collect::<String>() + MORE)
}

struct Pen<'b> {
    buffer: &'b mut Buffer,
    area: Rect,
}

impl Pen<'_> {
    /// Text in one line, cut where the width ends.
    fn put(&mut self, (x, y): (u16, u16), width: u16, text: &str, style: Style) {
        let is_inside = x < self.area.right() && y < self.area.bottom();
        if is_inside && width > 0 {
            self.buffer.set_stringn(x, y, text, usize::from(width), style);
        }
    }

    /// The same over the whole width, with the style up to the end of the line.
    fn bar(&mut self, y: u16, text: &str, style: Style) {
        let Rect { x, width, .. } = self.area;
        let line = Rect { x, y, width, height: 1 }.intersection(self.area);
        self.put((x, y), width, text, style);
        self.buffer.set_style(line, style);
    }

    fn head(&mut self, model: &Model, state: &State) {
        let mut parts = vec!["evenkeel top".to_owned(), clean(&model.host)];
        if state.is_frozen {
            parts.push("FROZEN".to_owned());
        }
        match &model.cpus.figures {
            Some(figures) => parts.push(format!("figures: {}", figures.accounting)),
            None => parts.push("reading ...".to_owned()),
        }
        match model.notes.len() {
            0 => {}
            1 => parts.push("1 note: ?".to_owned()),
            more => parts.push(format!("{more} notes: ?")),
        }
        self.bar(self.area.y, &parts.join("   "), bold());
        let verdict = model.cpus.figures.as_ref().map_or("", |figures| figures.verdict.as_str());
        let verdict = shortened(verdict, usize::from(self.area.width));
        self.bar(self.area.y + 1, &verdict, Style::new());
    }

    fn foot(&mut self, state: &State) {
        let text = match &state.shown {
            Shown::Filter => {
                let filter = &state.choice(state.pane).filter;
                format!("Only {} with: {filter}_  Enter keep  Esc remove", state.pane.title())
            }
            Shown::Tables if !state.said.is_empty() => clean(&state.said),
            Shown::Tables => {
                // 80 columns have no place for all keys.
                let rest = match (state.pane, state.is_frozen) {
                    // Only there `l` does something.
                    (Pane::Programs, true) => "l watch  / filter  Space go on",
                    (Pane::Programs, false) => "l watch  s sort  / filter",
                    (_, true) => "s sort  / filter  Space go on",
                    (_, false) => "s sort  / filter  Space freeze",
                };
                format!("q quit  ? help  Tab pane  Up/Down row  e explain  {rest}")
            }
            Shown::Row { .. } | Shown::Help { .. } => {
                let space = if state.is_frozen { "go on" } else { "freeze" };
                format!("Esc back  Up/Down scroll  Space {space}  q quit")
            }
        };
        self.bar(self.area.bottom().saturating_sub(1), &text, reversed());
    }

    fn panes(&mut self, body: Rect, tables: &[Table; Pane::COUNT], state: &State, look: Look) {
        let wanted = Pane::ALL.map(|pane| {
            let rows = state.places(pane, &tables[pane.index()]).len();
            u16::try_from(rows.max(1)).unwrap_or(u16::MAX - 2).saturating_add(2)
        });
        let mut y = body.y;
        for (pane, height) in Pane::ALL.into_iter().zip(heights(body.height, &wanted, state.pane)) {
            if height > 0 {
                let place = Rect { y, height, ..body };
                self.pane(place, pane, &tables[pane.index()], state, look);
                y += height;
            }
        }
    }

    fn pane(&mut self, place: Rect, pane: Pane, table: &Table, state: &State, look: Look) {
        let choice = state.choice(pane);
        let places = state.places(pane, table);
        let is_chosen = pane == state.pane;
        let rows = usize::from(place.height.saturating_sub(2));
        let chosen = choice.place(table, &places);
        let first = chosen.saturating_sub(rows.saturating_sub(1));
        let mut heading = format!("{} {}", if is_chosen { ">" } else { " " }, pane.title());
        if places.len() > rows && rows > 0 {
            let last = (first + rows).min(places.len());
            heading += &format!(" {}-{last} of {}", first + 1, places.len());
        }
        let sorted = choice.sorting.column.and_then(|column| table.columns.get(column));
        if let Some(column) = sorted {
            let title = if column.title.is_empty() { "bar" } else { column.title.as_str() };
            heading += &format!(", by {title}");
        }
        if choice.sorting.is_reversed {
            heading += ", reversed";
        }
        if !choice.filter.is_empty() {
            heading += &format!(", only \"{}\"", choice.filter);
        }
        if !table.about.is_empty() {
            heading += &format!("  ({})", table.about);
        }
        self.bar(place.y, &heading, if is_chosen { bold().patch(reversed()) } else { bold() });
        let columns = fitting(&table.columns, place.width.saturating_sub(MARK));
        if place.height > 1 {
            let titles =
                columns.iter().map(|(at, width)| (*at, *width, &*table.columns[*at].title));
            let underlined = Style::new().add_modifier(Modifier::UNDERLINED);
            self.cells(place, place.y + 1, table, titles.map(|title| (title, underlined)));
        }
        if places.is_empty() && rows > 0 {
            let is_filtered = !table.rows.is_empty() || !choice.filter.is_empty();
            let why = if is_filtered { "No row has that text." } else { table.empty.as_str() };
            self.put(
                (place.x + MARK, place.y + 2),
                place.width.saturating_sub(MARK),
                why,
                Style::new(),
            );
        }
        for (y, (number, at)) in
            (place.y + 2..place.bottom()).zip(places.iter().enumerate().skip(first))
        {
            let is_chosen = is_chosen && number == chosen;
            self.row((place, y), table, &table.rows[*at], &columns, is_chosen, look);
        }
    }

    fn row(
        &mut self,
        (place, y): (Rect, u16),
        table: &Table,
        row: &Row,
        columns: &[(usize, u16)],
        is_chosen: bool,
        look: Look,
    ) {
        if is_chosen {
            self.put((place.x, y), MARK, ">", bold());
        }
        let cells = columns.iter().filter_map(|(at, width)| {
            let cell = row.cells.get(*at)?;
            let style = if is_chosen { bold() } else { Style::new() };
            Some(((*at, *width, cell.text.as_str()), style.patch(look.of(cell.level))))
        });
        self.cells(place, y, table, cells);
    }

    /// Texts in their columns.
    fn cells<'t>(
        &mut self,
        place: Rect,
        y: u16,
        table: &Table,
        cells: impl Iterator<Item = ((usize, u16, &'t str), Style)>,
    ) {
        let mut x = place.x.saturating_add(MARK);
        for ((at, width, text), style) in cells {
            // A part of a number would be another number.
            let is_right = table.columns[at].is_right;
            let shown =
                if is_right { Cow::Borrowed(text) } else { shortened(text, usize::from(width)) };
            let text: &str = &shown;
            let length = Span::raw(text).width();
            let blank = usize::from(width).saturating_sub(length) as u16;
            let indent = if is_right { blank } else { 0 };
            self.put((x + indent, y), width - indent, text, style);
            x = x.saturating_add(width + GAP);
        }
    }

    /// Lines of text instead of the tables, from line `first` on.
    fn text(
        &mut self,
        body: Rect,
        heading: &str,
        text: &[String],
        first: usize,
        state: &mut State,
    ) {
        self.bar(body.y, heading, bold().patch(reversed()));
        let width = usize::from(body.width.max(1));
        let lines: Vec<String> = text.iter().flat_map(|line| wrapped(line, width)).collect();
        let shown = usize::from(body.height.saturating_sub(1));
        let last = lines.len().saturating_sub(shown);
        state.limit_line(last);
        let lines = lines.iter().skip(first.min(last));
        for (y, line) in (body.y + 1..body.bottom()).zip(lines) {
            self.put((body.x, y), body.width, line, Style::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::top::keys::Key;
    use crate::top::sample;
    use crate::top::tables::tables;

    const PLAIN: Look = Look { has_colours: false };
    const COLOURED: Look = Look { has_colours: true };

    fn buffer(size: (u16, u16), model: &Model, state: &mut State, look: Look) -> Buffer {
        let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
        let tables = tables(model);
        terminal.draw(|frame| draw(frame.buffer_mut(), model, &tables, state, look)).unwrap();
        terminal.backend().buffer().clone()
    }

    fn lines_of(buffer: &Buffer) -> Vec<String> {
        let line = |y| {
            let cell = |x| buffer[(x, y)].symbol();
            (0..buffer.area.width).map(cell).collect::<String>().trim_end().to_owned()
        };
        (0..buffer.area.height).map(line).collect()
    }

    fn lines(size: (u16, u16), model: &Model, keys: &[Key]) -> Vec<String> {
        let mut state = State::default();
        for key in keys {
            state.press(*key, &tables(model));
        }
        lines_of(&buffer(size, model, &mut state, PLAIN))
    }

    #[test]
    fn a_terminal_of_80_by_24_shows_every_pane() {
        let lines = lines((80, 24), &sample::model(2), &[]);
        assert_eq!(lines[0], "evenkeel top   ship   figures: /proc   1 note: ?");
        assert!(lines[1].starts_with("CPU 1 loses 40 % to softirqs"), "{lines:#?}");
        assert!(lines[2].starts_with("> CPUs  (in % of 1.0 s, from /proc)"), "{lines:#?}");
        assert_eq!(
            lines[3..6],
            [
                "   CPU left %              irq softirq    RT steal tasks  idle runnable speed",
                ">    0   99.0 ##########   1.0     0.0     ?   0.0  79.0  20.0        ?  1.00",
                "     1   50.0 #####-----   1.0    40.0     ?   9.0  30.0  20.0        ?  1.00",
            ]
        );
        assert!(lines[6].starts_with("  Programs  (threads' time in %)"), "{lines:#?}");
        let program =
            "     1234 ./lu -n 4     2    70    10     5    15 threads 1.27x 1.23-1.29     42";
        assert_eq!(lines[8], program);
        for title in ["Decisions", "Interrupts", "Keel"] {
            assert!(lines.iter().any(|line| line.starts_with(&format!("  {title}"))), "{lines:#?}");
        }
        assert!(lines[23].starts_with("q quit  ? help"), "{lines:#?}");
    }

    #[test]
    fn a_large_terminal_shows_all_rows() {
        let lines = lines((200, 60), &sample::model(2), &[]);
        let has = |text: &str| lines.iter().any(|line| line.contains(text));
        assert!(
            has("virtio1-config") && has("Tasks that were enqueued") && has("sleep 9"),
            "{lines:#?}"
        );
    }

    #[test]
    fn of_128_cpus_the_chosen_one_is_shown_and_where_it_is() {
        let model = sample::model(128);
        let lines = lines((80, 24), &model, &[Key::End]);
        assert!(lines[2].starts_with("> CPUs 122-128 of 128"), "{lines:#?}");
        assert!(lines.iter().any(|line| line.starts_with(">  127")), "{lines:#?}");
        let lines = self::lines((80, 24), &model, &[Key::Tab]);
        assert!(lines[2].starts_with("  CPUs 1-"), "{lines:#?}");
    }

    #[test]
    fn an_empty_machine_says_what_is_missing() {
        let lines = lines((80, 24), &Model { at_ns: 1, ..Model::default() }, &[]);
        let has = |text: &str| lines.iter().any(|line| line.contains(text));
        assert!(has("reading ...") && has("No program runs under evenkeel"), "{lines:#?}");
        assert!(has("Nothing was decided yet.") && has("The keel does not run"), "{lines:#?}");
    }

    #[test]
    fn explanations_and_help_are_scrolled_to_their_end_and_no_further() {
        let mut state = State { pane: Pane::Programs, ..State::default() };
        let (model, mut text) = (sample::model(2), String::new());
        state.press(Key::Enter, &tables(&model));
        for _ in 0..40 {
            text += &lines_of(&buffer((40, 8), &model, &mut state, PLAIN)).join("\n");
            state.press(Key::Down, &tables(&model));
        }
        assert!(text.contains("thread 1236: on a CPU 80 %"), "{text}");
        let last = lines_of(&buffer((40, 8), &model, &mut state, PLAIN));
        assert_eq!(last[6], "    the same, within 1 %", "{last:#?}");
        let help = lines((80, 24), &model, &[Key::Char('?')]);
        assert!(help.iter().any(|line| line.contains("draw the whole screen anew")), "{help:#?}");
        assert!(help.iter().any(|line| line.contains("a daemon does not answer")), "{help:#?}");
    }

    #[test]
    fn what_is_chosen_sorted_filtered_and_frozen_is_told_in_words() {
        let model = sample::model(2);
        let keys = [Key::Char('s'), Key::Char('s'), Key::Char('r'), Key::Char(' ')];
        let lines = lines((80, 24), &model, &keys);
        assert!(lines[0].contains("FROZEN"), "{lines:#?}");
        assert!(lines[2].starts_with("> CPUs, by left %, reversed"), "{lines:#?}");
        assert!(lines[4].starts_with(">    1   50.0"), "{lines:#?}");
        let keys = [Key::Tab, Key::Char('/'), Key::Char('z')];
        let lines = self::lines((80, 24), &model, &keys);
        assert!(lines[23].starts_with("Only Programs with: z_"), "{lines:#?}");
        assert!(lines.iter().any(|line| line.contains("No row has that text.")), "{lines:#?}");
    }

    #[test]
    fn what_is_cut_has_a_mark() {
        assert_eq!(shortened("no moves needed", 15), "no moves needed");
        assert_eq!(shortened("no moves needed", 10), "no move...");
        assert_eq!(shortened("漢字漢字", 7), "漢字...");
        assert_eq!(shortened("softirq", 5), "softirq");
        let mut model = sample::model(2);
        model.cpus.figures.as_mut().unwrap().verdict = "CPU 0 ".repeat(20);
        let lines = lines((60, 24), &model, &[Key::Char('3')]);
        assert!(lines[1].ends_with("..."), "{lines:#?}");
        let decision = lines.iter().find(|line| line.contains("no moves needed")).unwrap();
        assert!(decision.ends_with("..."), "{lines:#?}");
    }

    #[test]
    fn the_foot_says_what_space_does_now() {
        let foot = |keys: &[Key]| lines((80, 24), &sample::model(2), keys).pop().unwrap();
        let space = Key::Char(' ');
        assert!(foot(&[]).ends_with("Space freeze"));
        for pane in ['1', '2', '3', '4', '5'].map(Key::Char) {
            assert!(foot(&[pane, space]).ends_with("Space go on"));
        }
        assert!(foot(&[Key::Char('?'), space]).contains("Space go on"));
        assert!(foot(&[Key::Char('l')]).contains("in the pane Programs"));
    }

    #[test]
    fn without_colours_the_text_is_the_same() {
        let model = sample::model(2);
        let plain = buffer((80, 24), &model, &mut State::default(), PLAIN);
        let coloured = buffer((80, 24), &model, &mut State::default(), COLOURED);
        assert_eq!(lines_of(&plain), lines_of(&coloured));
        let colours = |buffer: &Buffer| {
            buffer
                .content
                .iter()
                .filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
                .count()
        };
        assert_eq!(colours(&plain), 0);
        assert!(colours(&coloured) > 0);
    }

    #[test]
    fn names_of_programs_do_not_break_the_screen() {
        let mut model = sample::model(2);
        let [one, other, ..] = &mut model.programs[..] else { panic!("two programs") };
        one.status.command = vec!["a\u{1b}[2J\r\n\tb\u{202e}".to_owned(), "漢字かな".repeat(40)];
        other.status.command = vec!["👨\u{200d}👩\u{200d}👧 e\u{301}\u{301} \u{0}".to_owned()];
        let shown = buffer((80, 24), &model, &mut State::default(), PLAIN);
        let harmful = |cell: &ratatui::buffer::Cell| cell.symbol().chars().any(char::is_control);
        assert!(!shown.content.iter().any(harmful));
        // What is right of the name is where it is for any name.
        let gain = |y: u16| (0..15).map(|x| shown[(58 + x, y)].symbol()).collect::<String>();
        assert_eq!(gain(8), "1.27x 1.23-1.29", "{:#?}", lines_of(&shown));
    }

    proptest! {
        #[test]
        fn every_size_and_every_state_is_drawn(
            width in 1u16..130, height in 1u16..50, cpus in 0u32..20,
            pane in 0usize..5, shown in 0u8..4, line in 0usize..90, name in "\\PC{0,12}",
        ) {
            let mut model = sample::model(cpus);
            model.programs[0].status.command = vec![name.clone()];
            let tables = tables(&model);
            let pane = Pane::ALL[pane];
            let row = tables[pane.index()].rows.first().map_or(name, |row| row.key.clone());
            let shown = match shown {
                0 => Shown::Tables,
                1 => Shown::Filter,
                2 => Shown::Row { key: row, line },
                _ => Shown::Help { line },
            };
            let mut state = State { pane, shown, ..State::default() };
            let drawn = buffer((width, height), &model, &mut state, COLOURED);
            prop_assert_eq!(drawn.area.as_size(), (width, height).into());
            // What does not change is not written again: the second picture is the first.
            let again = buffer((width, height), &model, &mut state, COLOURED);
            prop_assert_eq!(drawn, again);
        }
    }
}
