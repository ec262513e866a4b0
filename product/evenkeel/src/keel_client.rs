//! Requests to the keel that runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use evenkeel_control::{AskError, Request, ask, ask_within};
use evenkeel_journal::runtime_dir;
use evenkeel_keel::layout::SLOTLESS;
use evenkeel_keel::{Decision, IasState, Statistics, UserSpaces};
use serde_json::Value;

use crate::exit::Impossible;

/// The control socket of a keel, below its runtime directory.
pub fn socket(dir: &Path) -> PathBuf {
    dir.join("keel.sock")
}

/// The control socket of the user's own keel if there is one, else of the system's.
fn running() -> PathBuf {
    let own = runtime_dir().map(|dir| socket(&dir)).ok().filter(|path| path.exists());
    own.unwrap_or_else(|| socket(Path::new("/run/evenkeel")))
}

/// Sends a request to the keel that runs. `flags` are the flags of a keel that has what is asked for.
///
/// # Errors
/// No keel runs, or it refuses.
pub fn ask_keel(request: &Request, flags: &str) -> Result<Value> {
    match ask(&running(), request) {
        Err(AskError::NoService { .. }) => {
            let start = format!("evenkeel sched {flags}");
            let how = start.trim_end();
            Err(Impossible(format!("the keel does not run; start it with: {how}")).into())
        }
        answer => Ok(answer?),
    }
}

/// Asks the keel, if it runs.
fn ask_within_if_it_runs(request: &str, patience: Duration) -> Result<Option<Value>, AskError> {
    match ask_within(&running(), &Request::new(request), patience) {
        Err(AskError::NoService { .. }) => Ok(None),
        answer => answer.map(Some),
    }
}

/// The figures of the keel that runs; `None`: no keel runs.
///
/// # Errors
/// It runs and does not answer within `patience`.
pub fn statistics_within(patience: Duration) -> Result<Option<Statistics>> {
    let answer = ask_within_if_it_runs("stats", patience)?;
    Ok(answer.map(serde_json::from_value).transpose()?)
}

/// What its counters mean, by their names.
///
/// # Errors
/// It does not answer within `patience`.
pub fn meanings_within(patience: Duration) -> Result<BTreeMap<String, String>> {
    let answer = ask_within_if_it_runs("stats_meta", patience)?.unwrap_or_default();
    Ok(meanings(&answer))
}

fn meanings(answer: &Value) -> BTreeMap<String, String> {
    let fields = answer["keel"]["fields"].as_object();
    let meaning =
        |(name, field): (&String, &Value)| Some((name.clone(), field["desc"].as_str()?.to_owned()));
    fields.into_iter().flatten().filter_map(meaning).collect()
}

/// The last answers of its gate that this user may see, oldest first.
///
/// # Errors
/// It does not answer within `patience`.
pub fn answers_within(patience: Duration) -> Result<Vec<Decision>> {
    let answer = ask_within_if_it_runs("decisions", patience)?;
    Ok(answer.map(serde_json::from_value).transpose()?.unwrap_or_default())
}

/// A line about the keel that runs; `None`: no keel runs.
///
/// # Errors
/// It runs and does not answer.
pub fn status_line() -> Result<Option<String>> {
    let asked = |request| match ask(&running(), &Request::new(request)) {
        Err(AskError::NoService { .. }) => Ok(None),
        answer => answer.map(Some),
    };
    let (Some(statistics), Some(parameters)) = (asked("stats")?, asked("get")?) else {
        return Ok(None);
    };
    let statistics: Statistics = serde_json::from_value(statistics)?;
    let mut line = format!("The keel schedules: {}", statistics.policies.join("/"));
    for name in ["zone", "shield"] {
        if let Some(value) = parameters[name].as_str() {
            line += &format!(", {name} {value}");
        }
    }
    line.extend(slotless_line(&statistics.counters));
    // Refused where no address space can aggregate.
    if let Ok(answer) = ask(&running(), &Request::new("ias_show")) {
        let state: IasState = serde_json::from_value(answer)?;
        line.extend(state.users.iter().map(|user| format!("\n{}", of_user(user))));
    }
    Ok(Some(line))
}

/// What is said of cgroups deeper or more numerous than the keel tells apart; `None`: there are none.
fn slotless_line(counters: &BTreeMap<String, u64>) -> Option<String> {
    let count = counters.get(SLOTLESS).copied().filter(|count| *count > 0)?;
    Some(format!(
        "\nCgroups that counted as an ancestor (too deep, or beyond a quota): {count} so far"
    ))
}

fn of_user(user: &UserSpaces) -> String {
    let UserSpaces { user, spaces, most_spaces, refused } = user;
    let refused =
        if *refused > 0 { format!(", {refused} refused beyond that") } else { String::new() };
    format!("User {user} at the keel: {spaces} of {most_spaces} address spaces{refused}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meanings_are_read_from_the_answer_and_nothing_else() {
        let answer = serde_json::json!({
            "keel": {"ident": "keel", "fields": {"enqueue": {"desc": "enqueued"}, "odd": 3}}
        });
        assert_eq!(meanings(&answer), [("enqueue".to_owned(), "enqueued".to_owned())].into());
        assert!(meanings(&Value::Null).is_empty());
    }

    #[test]
    fn cgroups_beyond_a_quota_are_told() {
        let line = |count: u64| slotless_line(&[(SLOTLESS.to_owned(), count)].into());
        assert_eq!(line(0), None);
        assert!(line(7).is_some_and(|line| line.ends_with(": 7 so far")));
        assert_eq!(slotless_line(&BTreeMap::new()), None);
    }
}
