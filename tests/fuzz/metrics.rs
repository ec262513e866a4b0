//! Requests of the metrics endpoint. There is one answer to each, of a form that clients understand, and
//! it does not change when more bytes come.

use evenkeel_host::daemon::{Pages, answer_metrics_request};

use crate::target::{Target, no_repair};

const METRICS: Target = Target {
    name: "metrics",
    words: &[
        "GET ",
        "HEAD ",
        "POST ",
        "/metrics",
        "/livez",
        "/readyz",
        " HTTP/1.1",
        "\r\n\r\n",
        "\n\n",
        "Host: x\r\n",
    ],
    repair: no_repair,
    read,
};

/// What the endpoint serves.
const PAGE: &str = "evenkeel_programs 7\n# EOF\n";
const NOT_READY: &str = "no journal";
const STATUSES: [&str; 6] = [
    "200 OK",
    "503 Service Unavailable",
    "400 Bad Request",
    "404 Not Found",
    "405 Method Not Allowed",
    "431 Request Header Fields Too Large",
];

/// Accepted: the figures are served, or a probe is answered.
fn read(_: &str, text: &[u8]) -> bool {
    let pages = Pages { metrics: PAGE.to_owned(), not_ready: Some(NOT_READY.to_owned()) };
    let last = answer_metrics_request(text, true, &pages).unwrap();
    let (status, body) = parts(&last);
    let is_head = text.trim_ascii_start().starts_with(b"HEAD");
    match status.as_str() {
        "200 OK" => assert!([PAGE, "alive\n"].contains(&body.as_str()) || is_head),
        "503 Service Unavailable" => assert!(body.contains(NOT_READY) || is_head),
        _ => assert!(!body.is_empty() || is_head),
    }
    let now = answer_metrics_request(text, false, &pages);
    assert!(now.as_ref().is_none_or(|now| *now == last));
    for length in [text.len() / 4, text.len() / 2, text.len().saturating_sub(1)] {
        let early = answer_metrics_request(&text[..length], false, &pages);
        assert!(early.is_none() || early == now, "the first {length} bytes are answered otherwise");
    }
    now.is_some() && ["200 OK", "503 Service Unavailable"].contains(&status.as_str())
}

/// The status of an answer, and its body.
fn parts(answer: &[u8]) -> (String, String) {
    let text = std::str::from_utf8(answer).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap().strip_prefix("HTTP/1.1 ").unwrap();
    assert!(STATUSES.contains(&status), "{status}");
    let headers: Vec<(&str, &str)> = lines.map(|line| line.split_once(": ").unwrap()).collect();
    let [("Content-Type", _), ("Content-Length", length), ("Connection", "close")] = headers[..]
    else {
        panic!("{head}")
    };
    assert!(body.is_empty() || length.parse() == Ok(body.len()), "{text}");
    (status.to_owned(), body.to_owned())
}

#[test]
fn each_request_has_one_answer() {
    METRICS.fuzz();
}
