//! The terminal while `evenkeel top` draws on it: its settings are changed here and nowhere else, and
//! given back however the program ends.

use std::io::{self, BufWriter, Stdout, stdout};

use anyhow::{Context, Result};
use ratatui::backend::{Backend, CrosstermBackend};
use ratatui::buffer::Buffer;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::layout::{Position, Rect};

use super::keys::Key;

/// Bytes that are collected before they are written: a whole picture, mostly.
const BUFFER: usize = 1 << 16;

/// The terminal, drawn on. When this is dropped, the terminal is as before.
pub struct Screen {
    backend: CrosstermBackend<BufWriter<Stdout>>,
    /// What it shows now.
    shown: Buffer,
}

impl Screen {
    /// Takes the terminal: no echo, keys one by one, the other screen, no cursor.
    ///
    /// # Errors
    /// It is no terminal, or one that cannot be controlled.
    pub fn take() -> Result<Self> {
        let backend = CrosstermBackend::new(BufWriter::with_capacity(BUFFER, stdout()));
        // From here on, what fails leaves the terminal as it was.
        let mut screen = Self { backend, shown: Buffer::empty(Rect::ZERO) };
        screen.enter()?;
        Ok(screen)
    }

    fn enter(&mut self) -> Result<()> {
        enable_raw_mode()
            .context("the terminal cannot be controlled: print once: evenkeel top --once")?;
        execute!(stdout(), EnterAlternateScreen, Hide)?;
        self.forget();
        Ok(())
    }

    /// Gives the terminal back while `stopped` runs.
    ///
    /// # Errors
    /// It cannot be taken again.
    pub fn lend(&mut self, stopped: impl FnOnce()) -> Result<()> {
        give_back();
        stopped();
        self.enter()
    }

    /// Draws what has changed.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn draw(&mut self, picture: impl FnOnce(&mut Buffer)) -> io::Result<()> {
        let area = Rect::from((Position::ORIGIN, self.backend.size()?));
        if area != self.shown.area {
            self.backend.clear()?;
            self.shown = Buffer::empty(area);
        }
        let mut next = Buffer::empty(area);
        picture(&mut next);
        self.backend.draw(self.shown.diff(&next).into_iter())?;
        self.backend.flush()?;
        self.shown = next;
        Ok(())
    }

    /// The next picture is drawn as a whole.
    pub fn forget(&mut self) {
        self.shown = Buffer::empty(Rect::ZERO);
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// What fails here fails because the terminal is gone.
fn give_back() {
    let _ = execute!(stdout(), Show, LeaveAlternateScreen);
    let _ = disable_raw_mode();
}

/// Whether colours are wanted (<https://no-color.org>).
pub fn has_colours(no_color: Option<std::ffi::OsString>) -> bool {
    no_color.is_none_or(|value| value.is_empty())
}

/// Waits for the next key; `None`: it was another event.
///
/// # Errors
/// The terminal is gone.
pub fn next_key() -> io::Result<Option<Key>> {
    match event::read()? {
        Event::Key(key) => Ok(key_of(key)),
        _ => Ok(None),
    }
}

fn key_of(key: KeyEvent) -> Option<Key> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    let with_control = key.modifiers.contains(KeyModifiers::CONTROL);
    Some(match key.code {
        KeyCode::Char('c') if with_control => Key::Interrupt,
        KeyCode::Char('z') if with_control => Key::Suspend,
        KeyCode::Char('l') if with_control => Key::Redraw,
        KeyCode::Char(_) if with_control || key.modifiers.contains(KeyModifiers::ALT) => {
            return None;
        }
        KeyCode::Char(letter) => Key::Char(letter),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Tab => Key::Tab,
        KeyCode::BackTab => Key::BackTab,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Esc,
        KeyCode::Backspace => Key::Backspace,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_with_control_are_no_letters() {
        let key = |code, modifiers| key_of(KeyEvent::new(code, modifiers));
        let letter = KeyCode::Char('c');
        assert_eq!(key(letter, KeyModifiers::NONE), Some(Key::Char('c')));
        assert_eq!(key(letter, KeyModifiers::CONTROL), Some(Key::Interrupt));
        assert_eq!(key(KeyCode::Char('x'), KeyModifiers::CONTROL), None);
        assert_eq!(key(letter, KeyModifiers::ALT), None);
        assert_eq!(key(KeyCode::BackTab, KeyModifiers::SHIFT), Some(Key::BackTab));
        assert_eq!(key(KeyCode::F(1), KeyModifiers::NONE), None);
        let released = KeyEvent { kind: KeyEventKind::Release, ..letter.into() };
        assert_eq!(key_of(released), None);
    }

    #[test]
    fn colours_are_left_out_where_the_user_says_so() {
        assert!(has_colours(None) && has_colours(Some("".into())));
        assert!(!has_colours(Some("1".into())));
    }
}
