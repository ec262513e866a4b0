//! The table of metrics in docs/metrics.md is the product's.

use evenkeel_host::daemon::{MAX_SERIES, table_of_metrics};

use crate::{project, text_of};

const PAGE: &str = "docs/metrics.md";
/// The first line of the table, and what stands behind it.
const BEGIN: &str = "| metric | kind |";

/// `UPDATE_METRICS=1` writes the table instead.
#[test]
fn the_docs_have_the_table_of_metrics() {
    let page = text_of(PAGE);
    let begin = page.find(BEGIN).expect("the table has its head");
    let length = page[begin..].find("\n\n").map_or(page.len() - begin, |end| end + 1);
    let table = &page[begin..begin + length];
    if std::env::var_os("UPDATE_METRICS").is_some() {
        let new = format!("{}{}{}", &page[..begin], table_of_metrics(), &page[begin + length..]);
        std::fs::write(project(PAGE), new).unwrap();
        return;
    }
    assert_eq!(table, table_of_metrics(), "run: UPDATE_METRICS=1 cargo test --test fleet tables");
    assert!(page.contains(&format!("at most {MAX_SERIES} series")), "the bound is documented");
}
