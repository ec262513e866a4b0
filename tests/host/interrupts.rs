//! `evenkeel irq` and `evenkeel run --move-noise` where nothing may be moved. (Lines are moved in guests
//! only: `interrupts` in tests/vm.)

use crate::support::*;

/// `evenkeel` with these words, as the user `nobody`: what it says, and its exit code.
fn refusal(host: &Host, words: &[&str]) -> (String, Option<i32>) {
    let mut command = if is_root() { as_nobody(host, words) } else { host.evenkeel(words) };
    let refused = output(&mut command);
    assert!(refused.stdout.is_empty(), "{words:?}: {refused:?}");
    (text(&refused.stderr), refused.status.code())
}

#[test]
fn only_root_moves_interrupts() {
    let host = Host::new();
    let wanted = "evenkeel: only root may move interrupts: run it as root\n".to_owned();
    for words in [&["run"][..], &["run", "--take-over"], &["once"], &["once", "--watch", "60s"]] {
        let words = [&["irq"], words].concat();
        assert_eq!(refusal(&host, &words), (wanted.clone(), Some(3)), "{words:?}");
    }
}

#[test]
fn a_program_is_not_started_if_its_noise_cannot_be_moved() {
    let host = Host::new();
    let file = host.path("home/started");
    let file = file.to_str().unwrap();
    let (said, code) = refusal(&host, &["run", "--move-noise", "--", "touch", file]);
    let wanted = "evenkeel: --move-noise: only root may move interrupts: run it as root; or leave \
                  --move-noise out\n";
    assert_eq!((&said[..], code), (wanted, Some(2)));
    assert!(!std::path::Path::new(file).exists(), "the program was started");
}
