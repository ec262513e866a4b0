//! `evenkeel-lab bench scale`: what is simulated, and what is measured of a node, in its quick form.

use crate::html::checked_page;
use crate::schema::check;
use crate::support::*;

#[test]
#[ignore = "measures for half a minute: make bench-test"]
fn a_node_is_simulated_and_what_evenkeel_says_on_it_measured() {
    // It makes noise for some seconds.
    let host = Host::alone();
    let file = |name: &str| host.path(name).to_str().unwrap().to_owned();
    let scale = |words: &[&str], page: &str| {
        let (page, html) = (file(page), file("page.html"));
        let words = [&["bench", "scale"], words, &["--markdown", &page, "--html", &html]].concat();
        let done = output(&mut host.evenkeel_lab(&words));
        assert_eq!(done.status.code(), Some(0), "{}{}", text(&done.stdout), text(&done.stderr));
        assert!(checked_page(html.as_ref()).contains("softirq-fine, 2 CPUs, 10 ms"));
        std::fs::read_to_string(page).unwrap()
    };
    let json = file("scale.json");
    let page = scale(&["--quick", "--json", &json], "page");
    let report: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    check("bench-scale", &report);
    assert_eq!(report["cells"].as_array().unwrap().len(), 2);
    let noises = report["noises"].as_array().unwrap();
    assert_eq!(noises.len(), 3, "{report}");
    if is_root() {
        let is_measured = noises.iter().any(|noise| noise["duty"].is_number());
        assert!(is_measured, "none was measured: {report}");
    }
    let talk = |name: &str| report["talk"][name].as_u64().unwrap();
    // The balancer of a job reaches no other machine.
    assert_eq!(talk("internet_sockets"), 0);
    assert_eq!(talk("cpus"), all().len() as u64);
    let (series, most) = (talk("series"), talk("most_series"));
    assert!(0 < series && series <= most, "{report}");
    assert!(page.contains(&format!("{series} series here, at most {most} a node")), "{page}");
    assert!(page.contains("| softirq-fine | 2 | 10 ms |"), "{page}");
    // The page is a function of the file.
    let again = scale(&["--from", &json], "again");
    let tables = |page: &str| page.split_once("\n## ").unwrap().1.to_owned();
    let body = |page: &str| tables(page).rsplit_once("\n<!-- body ").unwrap().0.to_owned();
    assert_eq!(body(&again), body(&page));
}
