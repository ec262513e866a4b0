//! What keys do in `evenkeel top`: which pane and row is chosen, how rows are sorted and filtered, what
//! is shown over the tables. A state machine without a terminal. Pure.

use super::table::{Pane, Sorting, Table};

/// So many rows are skipped by a page key.
const PAGE: usize = 10;
/// The longest filter, in characters.
const MAX_FILTER: usize = 60;
/// Said where `l` finds no program.
const L_IS_FOR_PROGRAMS: &str = "l is for a program that is chosen in the pane Programs (2)";

/// A key that was pressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// The arrows.
    Up,
    /// The arrows.
    Down,
    /// The arrows: the pane before.
    Left,
    /// The arrows: the next pane.
    Right,
    /// Page up.
    PageUp,
    /// Page down.
    PageDown,
    /// To the first row.
    Home,
    /// To the last row.
    End,
    /// The next pane.
    Tab,
    /// The pane before.
    BackTab,
    /// Return.
    Enter,
    /// Escape.
    Esc,
    /// The backspace key.
    Backspace,
    /// A character.
    Char(char),
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-Z.
    Suspend,
    /// Ctrl-L.
    Redraw,
}

/// What is to be done after a key, besides drawing anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Draw,
    /// The screen is wrong: draw all of it.
    Redraw,
    /// End.
    Quit,
    /// Give the terminal back and stop, until the shell continues the job.
    Suspend,
    /// Take no more readings.
    Freeze,
    /// Take readings again.
    Thaw,
    /// Have the chosen program only watched, or balanced again.
    Watch,
}

/// What is shown.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Shown {
    /// The tables.
    #[default]
    Tables,
    /// The tables, and a filter is being typed.
    Filter,
    /// A row in full, from this line on.
    Row {
        /// Its key.
        key: String,
        /// The first line that is shown.
        line: usize,
    },
    /// The keys, from this line on.
    Help {
        /// The first line that is shown.
        line: usize,
    },
}

/// What was chosen for one pane.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Choice {
    /// The order of its rows.
    pub sorting: Sorting,
    /// Only rows with this text.
    pub filter: String,
    /// The key of the chosen row, and the place where it was; none: the first row, whichever it is.
    row: Option<(String, usize)>,
}

impl Choice {
    /// The place of the chosen row among those that are shown (`places` of `table`). When the row is
    /// gone, the one that is now where it was.
    pub fn place(&self, table: &Table, places: &[usize]) -> usize {
        let Some((key, place)) = &self.row else { return 0 };
        let has_key = |place: &usize| table.rows[*place].key == *key;
        places.iter().position(has_key).unwrap_or((*place).min(places.len().saturating_sub(1)))
    }
}

/// All that keys change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// The pane that keys are for.
    pub pane: Pane,
    /// What is shown.
    pub shown: Shown,
    /// No readings are taken.
    pub is_frozen: bool,
    /// What was chosen for each pane.
    pub choices: [Choice; Pane::COUNT],
    /// What came of the last key, where that is to be told.
    pub said: String,
}

impl Default for State {
    fn default() -> Self {
        Self {
            pane: Pane::Cpus,
            shown: Shown::Tables,
            is_frozen: false,
            choices: Default::default(),
            said: String::new(),
        }
    }
}

impl State {
    /// What was chosen for a pane.
    pub fn choice(&self, pane: Pane) -> &Choice {
        &self.choices[pane.index()]
    }

    /// The key of the chosen row of a pane's table.
    pub fn chosen<'a>(&self, pane: Pane, table: &'a Table) -> Option<&'a str> {
        let places = self.places(pane, table);
        let at = places.get(self.choice(pane).place(table, &places))?;
        Some(&table.rows[*at].key)
    }

    /// The places of the rows of a pane's table that are shown, in their order.
    pub fn places(&self, pane: Pane, table: &Table) -> Vec<usize> {
        let choice = self.choice(pane);
        table.arranged(choice.sorting, &choice.filter)
    }

    /// Takes a key in. `tables` are the tables that are shown.
    pub fn press(&mut self, key: Key, tables: &[Table; Pane::COUNT]) -> Action {
        self.said.clear();
        match key {
            Key::Interrupt => return Action::Quit,
            Key::Suspend => return Action::Suspend,
            Key::Redraw => return Action::Redraw,
            _ => {}
        }
        match &mut self.shown {
            Shown::Filter => self.type_filter(key),
            Shown::Row { line, .. } | Shown::Help { line } => match scrolled(*line, key) {
                Some(moved) => *line = moved,
                None => return self.press_over(key),
            },
            Shown::Tables => return self.press_in_tables(key, tables),
        }
        Action::Draw
    }

    /// A line that is not there cannot be the first that is shown: `view` knows how many there are.
    pub fn limit_line(&mut self, last: usize) {
        if let Shown::Row { line, .. } | Shown::Help { line } = &mut self.shown {
            *line = (*line).min(last);
        }
    }

    /// While something is shown over the tables.
    fn press_over(&mut self, key: Key) -> Action {
        match key {
            Key::Char('q') => return Action::Quit,
            Key::Char(' ') => return self.freeze(),
            Key::Char('?') if !matches!(self.shown, Shown::Help { .. }) => {
                self.shown = Shown::Help { line: 0 };
            }
            Key::Enter | Key::Esc | Key::Backspace | Key::Char('e' | '?') => {
                self.shown = Shown::Tables;
            }
            _ => {}
        }
        Action::Draw
    }

    fn press_in_tables(&mut self, key: Key, tables: &[Table; Pane::COUNT]) -> Action {
        let table = &tables[self.pane.index()];
        let places = self.places(self.pane, table);
        let last = places.len().saturating_sub(1);
        let place = self.choice(self.pane).place(table, &places);
        let choice = &mut self.choices[self.pane.index()];
        let mut choose = |place: usize| {
            let key = places.get(place).map(|at| table.rows[*at].key.clone());
            choice.row = key.map(|key| (key, place));
        };
        match key {
            Key::Up | Key::Char('k') => choose(place.saturating_sub(1)),
            Key::Down | Key::Char('j') => choose((place + 1).min(last)),
            Key::PageUp => choose(place.saturating_sub(PAGE)),
            Key::PageDown => choose((place + PAGE).min(last)),
            Key::Home => choice.row = None,
            Key::End => choose(last),
            Key::Tab | Key::Right => self.pane = self.pane.after(1),
            Key::BackTab | Key::Left => self.pane = self.pane.after(Pane::COUNT - 1),
            Key::Char(digit @ '1'..='5') => {
                self.pane = Pane::ALL[digit as usize - '1' as usize];
            }
            Key::Char('s') => {
                let next = choice.sorting.column.map_or(0, |column| column + 1);
                choice.sorting.column = (next < table.columns.len()).then_some(next);
            }
            Key::Char('r') => choice.sorting.is_reversed = !choice.sorting.is_reversed,
            Key::Char('/') => self.shown = Shown::Filter,
            Key::Esc => choice.filter.clear(),
            Key::Char('e') | Key::Enter => {
                if let Some(at) = places.get(place) {
                    // It stays the chosen one while it is explained, also where rows change places.
                    choose(place);
                    self.shown = Shown::Row { key: table.rows[*at].key.clone(), line: 0 };
                }
            }
            Key::Char('l') if self.pane == Pane::Programs && !places.is_empty() => {
                // It stays the chosen one, also where rows change places.
                choose(place);
                return Action::Watch;
            }
            Key::Char('l') => self.said = L_IS_FOR_PROGRAMS.to_owned(),
            Key::Char(' ') => return self.freeze(),
            Key::Char('?' | 'h') => self.shown = Shown::Help { line: 0 },
            Key::Char('q') => return Action::Quit,
            _ => {}
        }
        Action::Draw
    }

    fn type_filter(&mut self, key: Key) {
        let filter = &mut self.choices[self.pane.index()].filter;
        match key {
            Key::Char(letter) if filter.chars().count() < MAX_FILTER && !letter.is_control() => {
                filter.push(letter);
            }
            Key::Backspace => {
                filter.pop();
            }
            Key::Esc => {
                filter.clear();
                self.shown = Shown::Tables;
            }
            Key::Enter | Key::Tab => self.shown = Shown::Tables,
            _ => {}
        }
    }

    fn freeze(&mut self) -> Action {
        self.is_frozen = !self.is_frozen;
        if self.is_frozen { Action::Freeze } else { Action::Thaw }
    }
}

fn scrolled(line: usize, key: Key) -> Option<usize> {
    Some(match key {
        Key::Up | Key::Char('k') => line.saturating_sub(1),
        Key::Down | Key::Char('j') => line.saturating_add(1),
        Key::PageUp => line.saturating_sub(PAGE),
        Key::PageDown => line.saturating_add(PAGE),
        Key::Home => 0,
        Key::End => usize::MAX,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::top::sample;
    use crate::top::tables::tables;

    fn two() -> [Table; Pane::COUNT] {
        tables(&sample::model(2))
    }

    fn chosen(state: &State, tables: &[Table; Pane::COUNT]) -> String {
        state.chosen(state.pane, &tables[state.pane.index()]).unwrap().to_owned()
    }

    fn press(state: &mut State, keys: &str) -> Action {
        let tables = two();
        keys.chars().fold(Action::Draw, |_, key| state.press(Key::Char(key), &tables))
    }

    #[test]
    fn the_chosen_row_stays_chosen_when_rows_change_places() {
        let (mut state, mut tables) = (State::default(), two());
        assert_eq!(chosen(&state, &tables), "0");
        state.press(Key::Down, &tables);
        assert_eq!(chosen(&state, &tables), "1");
        tables[0].rows.reverse();
        assert_eq!(chosen(&state, &tables), "1");
        // It is gone: the row that is where it was.
        tables[0].rows.retain(|row| row.key != "1");
        assert_eq!(chosen(&state, &tables), "0");
        for _ in 0..3 {
            state.press(Key::Down, &tables);
        }
        assert_eq!(chosen(&state, &tables), "0");
    }

    #[test]
    fn l_is_for_the_chosen_program_and_says_so_in_other_panes() {
        let mut state = State::default();
        assert_eq!(press(&mut state, "l"), Action::Draw);
        assert!(state.said.contains("in the pane Programs"), "{}", state.said);
        assert_eq!(press(&mut state, "2l"), Action::Watch);
        assert_eq!(state.said, "");
        let none = tables(&crate::top::model::Model::default());
        assert_eq!(state.press(Key::Char('l'), &none), Action::Draw);
        assert_eq!(state.chosen(Pane::Programs, &none[1]), None);
    }

    #[test]
    fn panes_are_chosen_by_tab_arrow_and_number() {
        let (mut state, tables) = (State::default(), two());
        state.press(Key::Tab, &tables);
        assert_eq!(state.pane, Pane::Programs);
        state.press(Key::Left, &tables);
        state.press(Key::BackTab, &tables);
        assert_eq!(state.pane, Pane::Keel);
        press(&mut state, "4");
        assert_eq!(state.pane, Pane::Interrupts);
    }

    #[test]
    fn s_goes_through_the_columns_and_back_to_none() {
        let mut state = State::default();
        let columns = two()[0].columns.len();
        let sorted = |state: &State| state.choice(Pane::Cpus).sorting.column;
        press(&mut state, "s");
        assert_eq!(sorted(&state), Some(0));
        press(&mut state, &"s".repeat(columns));
        assert_eq!(sorted(&state), None);
        press(&mut state, "r");
        assert_eq!(chosen(&state, &two()), "1");
    }

    #[test]
    fn a_filter_is_typed_kept_and_removed() {
        let (mut state, tables) = (State::default(), two());
        press(&mut state, "2/lq");
        // In a filter, q is a letter.
        assert_eq!(state.shown, Shown::Filter);
        state.press(Key::Backspace, &tables);
        press(&mut state, "u");
        state.press(Key::Enter, &tables);
        assert_eq!((&state.shown, chosen(&state, &tables).as_str()), (&Shown::Tables, "1234"));
        assert_eq!(state.places(Pane::Programs, &tables[1]).len(), 1);
        assert_eq!(state.places(Pane::Cpus, &tables[0]).len(), 2);
        state.press(Key::Esc, &tables);
        assert_eq!(state.places(Pane::Programs, &tables[1]).len(), 2);
        press(&mut state, "/xyz");
        state.press(Key::Esc, &tables);
        assert_eq!(state.choice(Pane::Programs).filter, "");
    }

    #[test]
    fn a_row_is_explained_until_it_is_closed() {
        let (mut state, tables) = (State::default(), two());
        state.press(Key::Down, &tables);
        state.press(Key::Enter, &tables);
        assert_eq!(state.shown, Shown::Row { key: "1".to_owned(), line: 0 });
        state.press(Key::Down, &tables);
        state.press(Key::End, &tables);
        state.limit_line(7);
        assert_eq!(state.shown, Shown::Row { key: "1".to_owned(), line: 7 });
        state.press(Key::Esc, &tables);
        assert_eq!(state.shown, Shown::Tables);
        // Without a row there is nothing to explain.
        press(&mut state, "5e");
        assert!(matches!(state.shown, Shown::Row { .. }));
        let mut state = State { pane: Pane::Keel, ..State::default() };
        let none = tables_without_rows();
        assert_eq!(state.press(Key::Enter, &none), Action::Draw);
        assert_eq!(state.shown, Shown::Tables);
    }

    fn tables_without_rows() -> [Table; Pane::COUNT] {
        let mut tables = two();
        tables.iter_mut().for_each(|table| table.rows.clear());
        tables
    }

    #[test]
    fn keys_that_act_act() {
        let mut state = State::default();
        assert_eq!(press(&mut state, " "), Action::Freeze);
        assert_eq!(press(&mut state, " "), Action::Thaw);
        assert_eq!(press(&mut state, "?"), Action::Draw);
        assert_eq!(state.shown, Shown::Help { line: 0 });
        assert_eq!(press(&mut state, " "), Action::Freeze);
        assert_eq!(press(&mut state, "q"), Action::Quit);
        let tables = two();
        for (key, action) in [
            (Key::Interrupt, Action::Quit),
            (Key::Suspend, Action::Suspend),
            (Key::Redraw, Action::Redraw),
        ] {
            for shown in [Shown::Tables, Shown::Filter, Shown::Help { line: 0 }] {
                let mut state = State { shown, ..State::default() };
                assert_eq!(state.press(key, &tables), action);
            }
        }
    }

    fn any_key() -> impl Strategy<Value = Key> {
        use Key::*;
        let named = [
            Up, Down, Left, Right, PageUp, PageDown, Home, End, Tab, BackTab, Enter, Esc, Backspace,
        ];
        prop_oneof![
            prop::sample::select(named.to_vec()),
            "[ sr/ejkq?h1-5xé]".prop_map(|text| Char(text.chars().next().unwrap_or('x'))),
        ]
    }

    proptest! {
        #[test]
        fn whatever_is_pressed_the_chosen_row_is_one_that_is_shown(
            keys in prop::collection::vec((any_key(), 0..3u8), 0..200),
        ) {
            let all = [two(), tables(&sample::model(128)), tables_without_rows()];
            let mut state = State::default();
            for (key, which) in keys {
                let tables = &all[usize::from(which)];
                state.press(key, tables);
                for pane in Pane::ALL {
                    let table = &tables[pane.index()];
                    let places = state.places(pane, table);
                    let place = state.choice(pane).place(table, &places);
                    prop_assert!(places.is_empty() || place < places.len());
                    let column = state.choice(pane).sorting.column;
                    prop_assert!(column.is_none_or(|column| column < 16));
                }
            }
        }
    }
}
