//! What the rules look at in a page: headings, links, images, code, and paragraphs with what they
//! contain.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// A link or the source of an image.
#[derive(Debug, PartialEq, Eq)]
pub struct Link {
    pub line: usize,
    pub target: String,
    pub is_image: bool,
}

/// A fenced or indented block, or code within a line.
#[derive(Debug, PartialEq, Eq)]
pub struct Code {
    /// Where it begins: for a fence the line after it.
    pub line: usize,
    pub text: String,
    pub is_block: bool,
}

/// A paragraph, a table, or an item of a list with all that is in it.
#[derive(Debug, Default)]
pub struct Block {
    /// Each piece of text outside code, with its line.
    pub texts: Vec<(usize, String)>,
    pub links: Vec<String>,
    pub codes: Vec<String>,
}

/// A page, taken apart.
#[derive(Debug, Default)]
pub struct Page {
    pub links: Vec<Link>,
    pub codes: Vec<Code>,
    pub blocks: Vec<Block>,
    /// The anchors that a link may name.
    pub anchors: BTreeSet<String>,
    verbatim: Vec<Range<usize>>,
}

impl Page {
    pub fn read(text: &str) -> Self {
        Reader::new(text).read()
    }

    /// The lines of tables and of code blocks, fences included.
    pub fn verbatim_lines(&self) -> BTreeSet<usize> {
        self.verbatim.iter().cloned().flatten().collect()
    }
}

/// The anchor that GitHub gives to a heading: lower case, no punctuation, hyphens for spaces.
pub fn slug(heading: &str) -> String {
    let keep = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    heading
        .trim()
        .to_lowercase()
        .chars()
        .filter(keep)
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

struct Reader<'a> {
    text: &'a str,
    page: Page,
    /// Where each line begins.
    starts: Vec<usize>,
    /// How many blocks are open, one in the other; the outermost is the one that counts.
    depth: usize,
    heading: Option<String>,
    /// How often a slug was given.
    slugs: BTreeMap<String, usize>,
    code_block: Option<Code>,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Self {
        let after_breaks = text.match_indices('\n').map(|(index, _)| index + 1);
        Self {
            text,
            page: Page::default(),
            starts: std::iter::once(0).chain(after_breaks).collect(),
            depth: 0,
            heading: None,
            slugs: BTreeMap::new(),
            code_block: None,
        }
    }

    fn line(&self, offset: usize) -> usize {
        self.starts.partition_point(|start| *start <= offset)
    }

    fn read(mut self) -> Page {
        let parser = Parser::new_ext(self.text, Options::ENABLE_TABLES);
        for (event, range) in parser.into_offset_iter() {
            let line = self.line(range.start);
            match event {
                Event::Start(tag) => self.start(tag, line, &range),
                Event::End(tag) => self.end(tag),
                Event::Text(text) => self.add_text(line, &text),
                Event::SoftBreak | Event::HardBreak => self.add_text(line, " "),
                Event::Code(text) => self.add_code(line, &text),
                Event::Html(html) | Event::InlineHtml(html) => self.add_html(line, &html),
                _ => {}
            }
        }
        self.page
    }

    fn start(&mut self, tag: Tag<'_>, line: usize, range: &Range<usize>) {
        let lines = line..self.line(range.end.saturating_sub(1)) + 1;
        match tag {
            Tag::Paragraph | Tag::Table(_) | Tag::Item => {
                if matches!(tag, Tag::Table(_)) {
                    self.page.verbatim.push(lines);
                }
                if self.depth == 0 {
                    self.page.blocks.push(Block::default());
                }
                self.depth += 1;
            }
            Tag::Heading { .. } => self.heading = Some(String::new()),
            Tag::CodeBlock(kind) => {
                let fence = usize::from(matches!(kind, CodeBlockKind::Fenced(_)));
                self.page.verbatim.push(lines);
                self.code_block =
                    Some(Code { line: line + fence, text: String::new(), is_block: true });
            }
            Tag::Link { dest_url, .. } => self.add_link(line, &dest_url, false),
            Tag::Image { dest_url, .. } => self.add_link(line, &dest_url, true),
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Paragraph | TagEnd::Table | TagEnd::Item => self.depth -= 1,
            TagEnd::Heading(_) => {
                let slug = slug(&self.heading.take().unwrap_or_default());
                let before = self.slugs.entry(slug.clone()).or_default();
                let anchor = if *before == 0 { slug } else { format!("{slug}-{before}") };
                *before += 1;
                self.page.anchors.insert(anchor);
            }
            TagEnd::CodeBlock => self.page.codes.extend(self.code_block.take()),
            // A cell ends where the next begins: their words must not run together.
            TagEnd::TableCell => self.add_text(0, " "),
            _ => {}
        }
    }

    fn add_text(&mut self, line: usize, text: &str) {
        if let Some(heading) = &mut self.heading {
            heading.push_str(text);
        } else if let Some(code) = &mut self.code_block {
            code.text.push_str(text);
        } else if let Some(block) = self.block() {
            block.texts.push((line, text.into()));
        }
    }

    fn add_code(&mut self, line: usize, text: &str) {
        self.page.codes.push(Code { line, text: text.into(), is_block: false });
        if let Some(heading) = &mut self.heading {
            heading.push_str(text);
        } else if let Some(block) = self.block() {
            block.codes.push(text.into());
            // What stood on both sides of the code does not become one word.
            block.texts.push((line, "\u{fffc}".into()));
        }
    }

    fn add_link(&mut self, line: usize, target: &str, is_image: bool) {
        self.page.links.push(Link { line, target: target.into(), is_image });
        if let Some(block) = self.block() {
            block.links.push(target.into());
        }
    }

    /// `<img src="...">` and `<a id="...">` count like their Markdown.
    fn add_html(&mut self, line: usize, html: &str) {
        for (attribute, is_image) in [("src", true), ("srcset", true), ("href", false)] {
            for target in attributes(html, attribute) {
                self.add_link(line, &target, is_image);
            }
        }
        self.page.anchors.extend(attributes(html, "id"));
        self.page.anchors.extend(attributes(html, "name"));
    }

    fn block(&mut self) -> Option<&mut Block> {
        if self.depth == 0 { None } else { self.page.blocks.last_mut() }
    }
}

/// The values of an attribute in a piece of HTML.
fn attributes(html: &str, name: &str) -> Vec<String> {
    let pattern = format!("{name}=\"");
    let is_apart = |index: usize| html[..index].ends_with(char::is_whitespace);
    html.match_indices(&pattern)
        .filter(|(index, _)| is_apart(*index))
        .filter_map(|(index, _)| html[index + pattern.len()..].split_once('"'))
        .map(|(value, _)| value.to_owned())
        .collect()
}

#[test]
fn headings_become_anchors_as_github_makes_them() {
    assert_eq!(
        slug("The keel: a scheduler for the whole machine"),
        "the-keel-a-scheduler-for-the-whole-machine"
    );
    assert_eq!(slug("C and `snake_case`, in 2-3 words"), "c-and-snake_case-in-2-3-words");
    let page = Page::read("# One\n\n## One\n\n### Of `x`\n\n<a id=\"own\"></a>\n");
    let anchors: Vec<_> = page.anchors.iter().map(String::as_str).collect();
    assert_eq!(anchors, ["of-x", "one", "one-1", "own"]);
}

#[test]
fn links_images_and_code_have_their_lines() {
    let page = Page::read("a\n[b](c.md)\n\n![d](e.svg) `f`\n\n```\ng\n```\n<img src=\"h.svg\">\n");
    let links: Vec<_> =
        page.links.iter().map(|l| (l.line, l.target.as_str(), l.is_image)).collect();
    assert_eq!(links, [(2, "c.md", false), (4, "e.svg", true), (9, "h.svg", true)]);
    let codes: Vec<_> = page.codes.iter().map(|c| (c.line, c.text.as_str(), c.is_block)).collect();
    assert_eq!(codes, [(4, "f", false), (7, "g\n", true)]);
}

#[test]
fn a_paragraph_a_table_and_an_item_are_one_block_each() {
    let page =
        Page::read("a [b](c)\nd\n\n| e | `f` |\n|---|---|\n| g | h |\n\n- i\n  - j `k`\n- l\n");
    let texts: Vec<String> = page
        .blocks
        .iter()
        .map(|block| block.texts.iter().map(|(_, text)| text.as_str()).collect())
        .collect();
    assert_eq!(texts, ["a b d", "e \u{fffc} g h ", "ij \u{fffc}", "l"]);
    assert_eq!(page.blocks[0].links, ["c"]);
    assert_eq!(page.blocks[1].codes, ["f"]);
    assert_eq!(page.verbatim_lines().into_iter().collect::<Vec<_>>(), [4, 5, 6]);
}
