//! What a page of the archive says, as text: its reader sees all of it before it is written, without a
//! browser. Only for pages that this project makes: there, each `<` begins a tag. Pure.

/// Tags after which a line ends.
const ENDS: [&str; 10] =
    ["/p", "/li", "/tr", "/h1", "/h2", "/h3", "/pre", "/figcaption", "/text", "/summary"];

/// The text of a page, without its style and empty lines.
pub fn text_of(page: &str) -> String {
    let body = page.split_once("<body>").map_or(page, |(_, body)| body);
    let mut parts = body.split('<');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (tag, said) = part.split_once('>').unwrap_or((part, ""));
        if ENDS.contains(&tag) {
            text.push('\n');
        } else if matches!(tag, "/td" | "/th") {
            text.push_str("  ");
        }
        if !tag.starts_with("style") {
            text.push_str(said);
        }
    }
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let text = lines.collect::<Vec<_>>().join("\n");
    // The last one first would make a tag of what only names one.
    [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&amp;", "&")]
        .into_iter()
        .fold(text, |text, (name, letter)| text.replace(name, letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_without_a_browser() {
        let page = "<!DOCTYPE html><html><head><title>no</title><style>p { }</style></head><body>\
                    <h1>Is <code>a &lt; b</code> faster?</h1><style>.x { y }</style><table>\
                    <tr><th>name</th><th>n</th></tr><tr><td>run</td><td class=\"number\">7</td></tr>\
                    </table>\n\n<ul><li>&amp;lt; is left</li></ul><pre>compare -- 'a'\n  b</pre></body>";
        assert_eq!(
            text_of(page),
            "Is a < b faster?\nname  n\nrun  7\n&lt; is left\ncompare -- 'a'\nb"
        );
    }

    #[test]
    fn what_is_no_page_is_its_own_text() {
        assert_eq!(text_of(""), "");
        assert_eq!(text_of("words"), "words");
        assert_eq!(text_of("<p"), "");
    }
}
