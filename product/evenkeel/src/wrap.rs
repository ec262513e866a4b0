//! Breaks a line of text at the width of a terminal. Pure.

use ratatui::text::Span;

/// The text in lines of at most `width` columns of a terminal, broken at blanks where that is possible.
/// What follows a break is indented as its line is.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let indent: String = text.chars().take_while(|letter| *letter == ' ').collect();
    let indent = if indent.len() + 8 > width { String::new() } else { indent };
    let mut lines = Vec::new();
    let (mut line, mut used) = (indent.clone(), indent.len());
    for word in text.split_whitespace() {
        let length = Span::raw(word).width();
        if used > indent.len() {
            if used + 1 + length <= width {
                line.push(' ');
                used += 1;
            } else {
                lines.push(std::mem::replace(&mut line, indent.clone()));
                used = indent.len();
            }
        }
        if used + length <= width {
            line.push_str(word);
            used += length;
            continue;
        }
        // A word that is longer than a line.
        for letter in word.chars() {
            let length = Span::raw(letter.to_string()).width();
            if used + length > width && used > indent.len() {
                lines.push(std::mem::replace(&mut line, indent.clone()));
                used = indent.len();
            }
            line.push(letter);
            used += length;
        }
    }
    lines.push(line);
    lines
}

/// The text with its long lines broken at the width of a terminal, and all others as they are; none: as
/// it is.
pub fn broken(text: &str, width: Option<u16>) -> String {
    let Some(width) = width.map(usize::from) else { return text.to_owned() };
    let mut broken = String::new();
    for line in text.lines() {
        if Span::raw(line).width() <= width {
            broken += line;
        } else {
            broken += &wrapped(line, width).join("\n");
        }
        broken.push('\n');
    }
    broken
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn long_lines_are_broken_at_blanks_and_stay_indented() {
        assert_eq!(wrapped("  one two three four", 11), ["  one two", "  three", "  four"]);
        assert_eq!(wrapped("", 9), [""]);
        assert_eq!(wrapped("abcdefgh xy", 5), ["abcde", "fgh", "xy"]);
        assert_eq!(wrapped("漢字漢字", 5), ["漢字", "漢字"]);
    }

    #[test]
    fn only_long_lines_of_a_terminal_are_broken() {
        let text = "CPU 0    99 %\n  one two three\n";
        assert_eq!(broken(text, None), text);
        assert_eq!(broken(text, Some(80)), text);
        assert_eq!(broken(text, Some(13)), "CPU 0    99 %\n  one two\n  three\n");
    }

    proptest! {
        #[test]
        fn no_line_is_wider_than_the_screen_and_no_word_is_lost(
            text in "[ a-z漢字é]{0,120}", width in 2usize..60,
        ) {
            let lines = wrapped(&text, width);
            for line in &lines {
                prop_assert!(Span::raw(line.as_str()).width() <= width, "{line:?}");
            }
            let letters = |text: &str| text.chars().filter(|letter| *letter != ' ').collect::<String>();
            prop_assert_eq!(letters(&lines.concat()), letters(&text));
        }
    }
}
