//! The modules of a Rust target, file by file, and which module each path in them leads to.
//!
//! It is an approximation by names: what a `use` or a path with `::` names within its own crate is
//! followed through `mod`, `use` and re-exports to the file that defines it. Methods and macros that are
//! found without a path are not seen.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

/// The path of a module from the root of its crate; the root has none.
pub type ModulePath = Vec<String>;

/// How far aliases are followed: a circle of re-exports would have no end.
const MAX_ALIASES: usize = 16;

/// A module: of a file, or within one.
#[derive(Debug, Default)]
pub struct Module {
    pub file: String,
    /// Only compiled for tests.
    pub is_test: bool,
    children: BTreeSet<String>,
    items: BTreeSet<String>,
    /// A name that a `use` brings in, and what it stands for.
    aliases: BTreeMap<String, Vec<String>>,
    /// What `use ...::*` names.
    globs: Vec<Vec<String>>,
    references: Vec<Reference>,
}

/// A path that a module names.
#[derive(Debug)]
pub struct Reference {
    pub path: Vec<String>,
    pub line: usize,
    /// `pub use child::Name`: the module only hands on what its child has.
    is_facade: bool,
}

/// All modules of one target.
#[derive(Debug, Default)]
pub struct Tree {
    pub modules: BTreeMap<ModulePath, Module>,
    /// Files of modules that do not exist: the compiler would complain.
    pub missing: Vec<String>,
}

impl Tree {
    /// Reads a target from its first file on. `read` gives the text of a file.
    pub fn read(root: &str, read: &dyn Fn(&str) -> Option<String>) -> Self {
        let mut tree = Self::default();
        tree.read_file(root, Vec::new(), folder_of(root), false, read);
        tree
    }

    /// `folder` is where the files of child modules lie.
    fn read_file(
        &mut self,
        file: &str,
        path: ModulePath,
        folder: String,
        is_test: bool,
        read: &dyn Fn(&str) -> Option<String>,
    ) {
        let Some(text) = read(file) else {
            self.missing.push(file.into());
            return;
        };
        let Ok(parsed) = syn::parse_file(&text) else {
            self.missing.push(file.into());
            return;
        };
        self.read_items(&parsed.items, file, path, &folder, is_test, read);
    }

    fn read_items(
        &mut self,
        items: &[Item],
        file: &str,
        path: ModulePath,
        folder: &str,
        is_test: bool,
        read: &dyn Fn(&str) -> Option<String>,
    ) {
        let mut module = Module { file: file.into(), is_test, ..Module::default() };
        let is_child = |item: &Item| match item {
            Item::Mod(child) => Some(child.ident.to_string()),
            _ => None,
        };
        module.children = items.iter().filter_map(is_child).collect();
        let mut collector = Collector { module: &mut module };
        for item in items {
            collector.visit_item(item);
        }
        self.modules.insert(path.clone(), module);
        for item in items {
            let Item::Mod(child) = item else { continue };
            let name = child.ident.to_string();
            let child_path = [path.clone(), vec![name.clone()]].concat();
            let is_test = is_test || is_for_tests(&child.attrs);
            let below = format!("{folder}{name}/");
            match (&child.content, path_attribute(&child.attrs)) {
                (Some((_, items)), _) => {
                    self.read_items(items, file, child_path, &below, is_test, read);
                }
                (None, Some(given)) => {
                    let folder = folder_of(file);
                    let file = crate::project::join(&folder, &given).unwrap_or(given);
                    let below = folder_of(&file);
                    self.read_file(&file, child_path, below, is_test, read);
                }
                (None, None) => {
                    let beside = format!("{folder}{name}.rs");
                    let inside = format!("{below}mod.rs");
                    let file = if read(&inside).is_some() { inside } else { beside };
                    self.read_file(&file, child_path, below, is_test, read);
                }
            }
        }
    }

    /// Every reference of a module that leads to a module of this tree.
    pub fn references(&self, from: &ModulePath) -> Vec<(&Reference, &Module)> {
        let Some(module) = self.modules.get(from) else { return Vec::new() };
        let own = module.references.iter().filter(|reference| !reference.is_facade);
        own.filter_map(|reference| {
            let to = self.resolve(from, &reference.path, MAX_ALIASES)?;
            Some((reference, self.modules.get(&to)?))
        })
        .collect()
    }

    /// The module that has what a path names; nothing for another crate's.
    fn resolve(&self, from: &ModulePath, path: &[String], aliases: usize) -> Option<ModulePath> {
        let (first, rest) = path.split_first()?;
        let start = match first.as_str() {
            "crate" => Vec::new(),
            "self" => from.clone(),
            "super" => from[..from.len().checked_sub(1)?].to_vec(),
            _ => return self.walk(from, path, aliases, false),
        };
        match rest.first() {
            Some(next) if next == "super" => self.resolve(&start, rest, aliases),
            Some(_) => self.walk(&start, rest, aliases, true),
            None => Some(start),
        }
    }

    /// Follows names from a module. One that the module does not have is taken for its own if the module
    /// was named (a macro may have made it), and for another crate's otherwise.
    fn walk(
        &self,
        at: &ModulePath,
        path: &[String],
        aliases: usize,
        named: bool,
    ) -> Option<ModulePath> {
        let module = self.modules.get(at)?;
        let Some((first, rest)) = path.split_first() else { return Some(at.clone()) };
        if module.children.contains(first) {
            let child = [at.clone(), vec![first.clone()]].concat();
            return self.walk(&child, rest, aliases, true);
        }
        if module.items.contains(first) {
            return Some(at.clone());
        }
        let aliases = aliases.checked_sub(1)?;
        if let Some(target) = module.aliases.get(first) {
            let whole = [target.as_slice(), rest].concat();
            // `use name;` of another crate must not lead to itself.
            return if *target == [first.clone()] {
                None
            } else {
                self.resolve(at, &whole, aliases)
            };
        }
        for glob in &module.globs {
            let Some(from) = self.resolve(at, glob, aliases) else { continue };
            let has = self.modules.get(&from).is_some_and(|module| module.has(first));
            if has && from != *at {
                return self.walk(&from, path, aliases, true);
            }
        }
        named.then(|| at.clone())
    }
}

impl Module {
    fn has(&self, name: &str) -> bool {
        self.children.contains(name) || self.items.contains(name) || self.aliases.contains_key(name)
    }
}

/// The folder of a file with a slash at its end, or nothing.
fn folder_of(file: &str) -> String {
    file.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"))
}

/// `#[cfg(test)]` or `#[test]`.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_test = |tokens: &TokenStream| tokens.to_string() == "test";
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg")
                && attribute.meta.require_list().is_ok_and(|list| is_test(&list.tokens))
    })
}

fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    let attribute = attributes.iter().find(|attribute| attribute.path().is_ident("path"))?;
    let syn::Expr::Lit(literal) = &attribute.meta.require_name_value().ok()?.value else {
        return None;
    };
    let syn::Lit::Str(text) = &literal.lit else { return None };
    Some(text.value())
}

/// Collects names and paths of one module; modules within it are read by themselves.
struct Collector<'a> {
    module: &'a mut Module,
}

impl Collector<'_> {
    fn refer(&mut self, path: Vec<String>, line: usize, is_facade: bool) {
        self.module.references.push(Reference { path, line, is_facade });
    }

    /// A path counts if it begins at the crate, at this module or at one of its children; any other
    /// first name was brought in by a `use`, which counts itself.
    fn refer_if_within(&mut self, path: Vec<String>, line: usize) {
        let is_within = path.len() > 1
            && (matches!(path[0].as_str(), "crate" | "super" | "self")
                || self.module.children.contains(&path[0]));
        if is_within {
            self.refer(path, line, false);
        }
    }

    fn add_use(&mut self, tree: &UseTree, before: &[String], is_handed_on: bool) {
        let with = |name: String| [before, &[name]].concat();
        let (path, alias, line) = match tree {
            UseTree::Path(path) => {
                let before = with(path.ident.to_string());
                return self.add_use(&path.tree, &before, is_handed_on);
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_use(tree, before, is_handed_on);
                }
                return;
            }
            UseTree::Name(name) if name.ident == "self" => {
                let alias = before.last().cloned().unwrap_or_default();
                (before.to_vec(), Some(alias), name.ident.span().start().line)
            }
            UseTree::Name(name) => {
                let alias = name.ident.to_string();
                (with(alias.clone()), Some(alias), name.ident.span().start().line)
            }
            UseTree::Rename(rename) => {
                let alias = rename.rename.to_string();
                (with(rename.ident.to_string()), Some(alias), rename.ident.span().start().line)
            }
            UseTree::Glob(glob) => (before.to_vec(), None, glob.star_token.span.start().line),
        };
        let first = path.iter().find(|name| *name != "self");
        let of_child = first.is_some_and(|first| self.module.children.contains(first));
        match alias {
            Some(alias) => {
                self.module.aliases.insert(alias, path.clone());
            }
            None => self.module.globs.push(path.clone()),
        }
        self.refer(path, line, is_handed_on && of_child);
    }

    /// Paths in the arguments of a macro.
    fn scan_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let (mut line, mut colons) = (0, 0);
        for token in tokens {
            match &token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.refer_if_within(std::mem::take(&mut path), line);
                        line = ident.span().start().line;
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' && !path.is_empty() => {
                    colons += 1
                }
                _ => {
                    self.refer_if_within(std::mem::take(&mut path), line);
                    colons = 0;
                }
            }
            if let TokenTree::Group(group) = token {
                self.scan_tokens(group.stream());
            }
        }
        self.refer_if_within(path, line);
    }
}

impl<'ast> Visit<'ast> for Collector<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let (name, attributes) = match item {
            Item::Const(it) => (Some(&it.ident), &it.attrs),
            Item::Enum(it) => (Some(&it.ident), &it.attrs),
            Item::Fn(it) => (Some(&it.sig.ident), &it.attrs),
            Item::Macro(it) => (it.ident.as_ref(), &it.attrs),
            Item::Static(it) => (Some(&it.ident), &it.attrs),
            Item::Struct(it) => (Some(&it.ident), &it.attrs),
            Item::Trait(it) => (Some(&it.ident), &it.attrs),
            Item::Type(it) => (Some(&it.ident), &it.attrs),
            Item::Union(it) => (Some(&it.ident), &it.attrs),
            Item::Use(it) => (None, &it.attrs),
            Item::Impl(it) => (None, &it.attrs),
            // Read by itself.
            Item::Mod(_) => return,
            _ => return visit::visit_item(self, item),
        };
        if !is_for_tests(attributes) {
            self.module.items.extend(name.map(ToString::to_string));
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let is_handed_on = !matches!(item.vis, Visibility::Inherited);
        self.add_use(&item.tree, &[], is_handed_on);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.refer_if_within(names, path.span().start().line);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.scan_tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }

    /// `pub(super)` ties nothing.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}
}

#[cfg(test)]
pub fn tree_of(files: &[(&str, &str)]) -> Tree {
    let read = |path: &str| {
        files.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned())
    };
    Tree::read(files[0].0, &read)
}

#[cfg(test)]
fn leads_to(tree: &Tree, from: &str) -> Vec<String> {
    let path: ModulePath =
        from.split("::").filter(|part| !part.is_empty()).map(Into::into).collect();
    tree.references(&path).iter().map(|(_, module)| module.file.clone()).collect()
}

#[test]
fn files_are_found_beside_inside_and_by_their_given_path() {
    let tree = tree_of(&[
        ("src/lib.rs", "mod a; mod b; #[path = \"../other/c.rs\"] mod c; mod gone;"),
        ("src/a.rs", "mod deep; #[cfg(test)] mod tests {}"),
        ("src/a/deep.rs", ""),
        ("src/b/mod.rs", "mod low; mod inline { mod far; }"),
        ("src/b/low.rs", ""),
        ("src/b/inline/far.rs", ""),
        ("other/c.rs", ""),
    ]);
    let files: BTreeSet<_> = tree.modules.values().map(|module| module.file.as_str()).collect();
    assert_eq!(files.len(), 7);
    assert_eq!(tree.missing, ["src/gone.rs"]);
    let is_test = |path: &[&str]| {
        let path: ModulePath = path.iter().map(|part| (*part).into()).collect();
        tree.modules[&path].is_test
    };
    assert!(is_test(&["a", "tests"]) && !is_test(&["a", "deep"]));
}

#[test]
fn a_path_leads_to_the_file_that_defines_its_item() {
    let tree = tree_of(&[
        ("src/lib.rs", "mod a; mod b; pub use a::A; pub struct Own;"),
        ("src/a.rs", "pub struct A; mod deep; pub use deep::*;"),
        ("src/a/deep.rs", "pub struct Deep; pub fn f() { super::A; }"),
        (
            "src/b.rs",
            "use crate::{A, Own, a::Deep}; use std::fmt; fn g() -> fmt::Result { crate::a::f() }",
        ),
    ]);
    assert_eq!(leads_to(&tree, "b"), ["src/a.rs", "src/lib.rs", "src/a/deep.rs", "src/a/deep.rs"]);
    assert_eq!(leads_to(&tree, "a::deep"), ["src/a.rs"]);
    // What a module hands on of its children ties it to none of them.
    assert_eq!(leads_to(&tree, ""), [] as [&str; 0]);
    assert_eq!(leads_to(&tree, "a"), [] as [&str; 0]);
}

#[test]
fn paths_count_in_macros_and_calls_but_not_in_tests_and_visibilities() {
    let tree = tree_of(&[
        ("src/lib.rs", "mod a; mod b; fn f() { println!(\"{}\", a::X); }"),
        ("src/a.rs", "pub const X: u8 = 1; pub(super) fn g() {} #[test] fn t() { crate::b::y(); }"),
        ("src/b.rs", "#[cfg(test)] mod tests { use super::y; } pub fn y() {}"),
    ]);
    assert_eq!(leads_to(&tree, ""), ["src/a.rs"]);
    assert_eq!(leads_to(&tree, "a"), [] as [&str; 0]);
    assert_eq!(leads_to(&tree, "b"), [] as [&str; 0]);
}
