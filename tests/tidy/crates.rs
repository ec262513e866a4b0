//! Dependencies between the crates point one way: the product knows nothing of the laboratory, and
//! in the product a crate depends only on crates below it.

use std::path::Path;
use std::sync::OnceLock;

use cargo_metadata::{Dependency, DependencyKind, Metadata, MetadataCommand, Package};

use crate::project::root;
use crate::report::{Finding, Rule, check};

/// The crates of the product, from the bottom to the top.
const ORDER: &[&str] = &[
    "machine",
    "stats",
    "perfetto",
    "control",
    "journal",
    "cbinfo",
    "capability",
    "trial",
    "shares",
    "shares-preload",
    "host",
    "keel",
    "sais",
    "irq",
    "evenkeel",
];

/// What cargo knows of the workspace's own packages, without those that they depend on.
pub fn metadata() -> &'static Metadata {
    static METADATA: OnceLock<Metadata> = OnceLock::new();
    METADATA.get_or_init(|| {
        let mut command = MetadataCommand::new();
        command.manifest_path(root().join("Cargo.toml")).no_deps();
        command.exec().expect("cargo metadata tells of the workspace")
    })
}

/// A path of cargo's from the root.
pub fn from_root(path: impl AsRef<Path>) -> Option<String> {
    Some(path.as_ref().strip_prefix(root()).ok()?.to_str()?.to_owned())
}

/// A package of the workspace: its folder, and those that it depends on, for tests and builds, too.
struct Crate {
    folder: String,
    dependencies: Vec<String>,
}

fn crate_of(package: &Package) -> Option<Crate> {
    let folder = from_root(package.manifest_path.parent()?)?;
    // A test anywhere may say that it is skipped.
    let is_note = |dependency: &&Dependency| {
        dependency.kind == DependencyKind::Development && dependency.name == "evenkeel-skip"
    };
    let paths = package
        .dependencies
        .iter()
        .filter(|dependency| !is_note(dependency))
        .filter_map(|dependency| dependency.path.as_ref());
    Some(Crate { folder, dependencies: paths.filter_map(from_root).collect() })
}

fn wrong_dependencies(it: &Crate) -> Vec<Finding> {
    let Some(name) = it.folder.strip_prefix("product/") else { return Vec::new() };
    let height = |name: &str| ORDER.iter().position(|crate_name| *crate_name == name);
    let manifest = format!("{}/Cargo.toml", it.folder);
    let finding = |what: String| Finding::new(&manifest, 0, what);
    let Some(own) = height(name) else {
        return vec![finding(format!("{name} has no place in the order of tests/tidy/crates.rs"))];
    };
    let wrong = it.dependencies.iter().filter_map(|dependency| {
        match dependency.strip_prefix("product/") {
            None => Some(format!("a crate of the product depends on {dependency}")),
            // One that is not in the order is reported by itself.
            Some(other) => (height(other)? >= own)
                .then(|| format!("{name} depends on {other}, which is above it")),
        }
    });
    wrong.map(finding).collect()
}

#[test]
fn the_product_does_not_depend_on_the_laboratory_and_dependencies_point_down() {
    let packages = &metadata().packages;
    let findings: Vec<_> =
        packages.iter().filter_map(crate_of).flat_map(|it| wrong_dependencies(&it)).collect();
    check(Rule::Dependency, &findings);
}

#[test]
fn all_crates_of_the_workspace_are_looked_at() {
    let crates: Vec<Crate> = metadata().packages.iter().filter_map(crate_of).collect();
    let of = |folder: &str| crates.iter().find(|it| it.folder == folder).unwrap();
    let top = of("product/evenkeel");
    assert!(top.dependencies.iter().any(|dependency| dependency == "product/host"));
    // Dependencies of tests alone count.
    assert!(of("tests").dependencies.iter().any(|dependency| dependency == "lab/vm"));
}

#[test]
fn a_dependency_upwards_is_found() {
    let wrong = |folder: &str, dependency: &str| {
        let it = Crate { folder: folder.into(), dependencies: vec![dependency.into()] };
        wrong_dependencies(&it).into_iter().map(|finding| finding.what).collect::<Vec<_>>()
    };
    assert!(wrong("product/host", "product/machine").is_empty());
    assert!(wrong("lab/bench", "product/host").is_empty());
    assert!(wrong("tests", "lab/vm").is_empty());
    assert_eq!(wrong("product/host", "product/keel"), ["host depends on keel, which is above it"]);
    assert_eq!(wrong("product/keel", "lab/sim"), ["a crate of the product depends on lab/sim"]);
    assert_eq!(wrong("product/keel", "tests"), ["a crate of the product depends on tests"]);
    assert_eq!(wrong("product/new", "product/machine").len(), 1);
}
