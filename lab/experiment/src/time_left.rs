//! The time that is left, in words, for lines that stay on the screen.

use std::time::Duration;

/// About this long: to a second below 90 s, else to a minute.
pub fn words(left: Duration) -> String {
    match left.as_secs_f64() {
        seconds if seconds < 90.0 => format!("{seconds:.0} s"),
        seconds => format!("{:.0} min", seconds / 60.0),
    }
}

/// As long again for each that is left as those took that are done; `None`: nothing is done yet.
pub fn estimate(elapsed: Duration, done: usize, planned: usize) -> Option<Duration> {
    let each_s = (done > 0).then(|| elapsed.as_secs_f64() / done as f64)?;
    Some(Duration::from_secs_f64(each_s * planned.saturating_sub(done) as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_takes_as_long_for_each_as_what_is_done() {
        let left = |done| estimate(Duration::from_secs(60), done, 8).map(words);
        assert_eq!(left(0), None);
        assert_eq!(left(2).as_deref(), Some("3 min"));
        assert_eq!(left(6).as_deref(), Some("20 s"));
        assert_eq!(left(9).as_deref(), Some("0 s"));
    }
}
