//! Names of this host and of the user that makes a report, which are left out of it.

use nix::sys::utsname::uname;
use nix::unistd::{Uid, User};

/// Names, each with what stands in its place.
#[derive(Debug, Default)]
pub struct Names {
    /// Paths, which are replaced wherever they stand.
    paths: Vec<(String, &'static str)>,
    /// Words, which are replaced as whole words.
    words: Vec<(String, &'static str)>,
}

impl Names {
    /// The host's name with and without its domain, the user's name and home, and the paths in the
    /// environment that hold them.
    pub fn of_this_host() -> Self {
        let mut names = Self::default();
        for variable in ["XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "HOME", "TMPDIR"] {
            names.paths.extend(std::env::var(variable).ok().map(|path| (path, "$DIR")));
        }
        let host = host_name();
        let short = host.split('.').next().unwrap_or_default().to_owned();
        names.words.extend([host, short].map(|name| (name, "$HOST")));
        if let Ok(Some(user)) = User::from_uid(Uid::current()) {
            names.paths.push((user.dir.to_string_lossy().into_owned(), "$DIR"));
            names.words.push((user.name, "$USER"));
        }
        names.paths.retain(|(path, _)| path.len() > 1 && path != "/root" && path != "/tmp");
        // These say nothing, and are words of other meaning, too.
        let says_nothing = |name: &str| ["", "root", "host", "localhost", "linux"].contains(&name);
        names.words.retain(|(name, _)| !says_nothing(name));
        names
    }

    /// The text without these names.
    pub fn left_out(&self, text: &str) -> String {
        let text = self
            .paths
            .iter()
            .fold(text.to_owned(), |text, (path, instead)| text.replace(path.as_str(), instead));
        self.words.iter().fold(text, |text, (word, instead)| replace_word(&text, word, instead))
    }
}

fn host_name() -> String {
    uname().map(|names| names.nodename().to_string_lossy().into_owned()).unwrap_or_default()
}

/// Replaces a word where it is not a part of another one.
fn replace_word(text: &str, word: &str, instead: &str) -> String {
    let is_of_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let mut left = text;
    let mut replaced = String::with_capacity(text.len());
    while let Some(at) = left.find(word) {
        let (before, rest) = left.split_at(at);
        let after = &rest[word.len()..];
        let begins = before.chars().next_back().or_else(|| replaced.chars().next_back());
        let is_whole = !begins.is_some_and(is_of_word) && !after.starts_with(is_of_word);
        replaced += before;
        replaced += if is_whole { instead } else { word };
        left = after;
    }
    replaced + left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_left_out_as_whole_words() {
        let names = Names {
            paths: vec![("/home/ann".to_owned(), "$DIR")],
            words: vec![("node7.lab".to_owned(), "$HOST"), ("ann".to_owned(), "$USER")],
        };
        let text = "ann@node7.lab: /home/ann/run, annex of ann; \"ann\" cann node7.labs";
        let expected = "$USER@$HOST: $DIR/run, annex of $USER; \"$USER\" cann node7.labs";
        assert_eq!(names.left_out(text), expected);
    }

    #[test]
    fn this_host_is_not_named() {
        let names = Names::of_this_host();
        let host = host_name();
        let said = names.left_out(&format!("on {host} now"));
        assert!(
            said == "on $HOST now" || ["localhost", "host", "linux"].contains(&&*host),
            "{said}"
        );
    }
}
