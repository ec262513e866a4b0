//! What is measured as a page for a browser: the texts of a Markdown page, with charts, on the page that
//! all reports share. The page loads nothing; so links to other pages of the docs become plain text.

use evenkeel_trial::chart::{Chart, LEGEND};
use evenkeel_trial::page::Page;
use maud::{Markup, PreEscaped, html};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::MachineInfo;

/// A page.
pub struct Sheet<'a> {
    /// Its title and heading.
    pub title: &'a str,
    /// The commit that was measured.
    pub commit: &'a str,
    /// The command that measures and writes the page.
    pub command: &'a str,
    /// Where it was measured.
    pub machine: &'a MachineInfo,
    /// What is to be said of the machine beside that.
    pub disturbance: Option<String>,
    /// All between the head and the foot.
    pub body: Markup,
}

impl Sheet<'_> {
    /// The file's text.
    pub fn html(&self) -> String {
        let machine: Vec<String> =
            self.machine.items().into_iter().chain(self.disturbance.clone()).collect();
        let body = html! {
            p.faint { "Measured at commit " (self.commit) "." }
            (self.body)
        };
        let page = Page {
            title: self.title,
            heading: html! { (self.title) },
            body,
            machine: &machine,
            again: self.command,
            style: "",
        };
        page.html()
    }
}

/// Charts, each under its caption, with what their forms mean. Nothing for none.
pub fn charts(title: &str, charts: &[Chart<'_>]) -> Markup {
    html! {
        @if !charts.is_empty() {
            h2 { (title) }
            p.faint { (LEGEND) }
            @for chart in charts {
                figure { figcaption { (chart.name) } (chart.markup()) }
            }
        }
    }
}

/// A text in Markdown. What is HTML in it is shown as it is written.
pub fn prose(markdown: &str) -> Markup {
    let mut dropped_links = Vec::new();
    let events =
        Parser::new_ext(markdown, Options::ENABLE_TABLES).filter_map(|event| match event {
            Event::Start(Tag::Link { ref dest_url, .. }) => {
                let is_dropped = !dest_url.starts_with("https://");
                dropped_links.push(is_dropped);
                (!is_dropped).then_some(event)
            }
            Event::End(TagEnd::Link) => (!dropped_links.pop().unwrap_or_default()).then_some(event),
            // Of a picture there remains its text.
            Event::Start(Tag::Image { .. }) | Event::End(TagEnd::Image) => None,
            Event::Html(text) | Event::InlineHtml(text) => Some(Event::Text(text)),
            event => Some(event),
        });
    let mut text = String::new();
    pulldown_cmark::html::push_html(&mut text, events);
    // A table that is wider than the screen scrolls by itself.
    let text = text.replace("<table>", "<div class=\"wide\" tabindex=\"0\"><table>");
    PreEscaped(text.replace("</table>", "</table></div>"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_keeps_its_form_and_loses_what_would_need_other_files() {
        let text = prose(
            "*a* `b<c>` [page](other.md) [web](https://example.org) ![alt](x.svg) <i>i</i>\n\n\
             | n |\n| ---: |\n| 1 |\n",
        );
        let text = text.into_string();
        for part in [
            "<em>a</em> <code>b&lt;c&gt;</code> page <a href=\"https://example.org\">web</a> alt ",
            "&lt;i&gt;i&lt;/i&gt;",
            "<div class=\"wide\" tabindex=\"0\"><table>",
            "</table></div>",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(!text.contains("other.md") && !text.contains("x.svg"), "{text}");
    }
}
