//! The JSON documents of the laboratory that users keep or send in: a schema for each, with a version,
//! beside those of the product. docs/json.md says what is promised of them, and what has no schema.

use evenkeel::schemas::{OUTPUTS as OF_PRODUCT, Output, output, schema};
use evenkeel_bench::make_noise::NoiseReport;
use evenkeel_bench::verify::Verification;

use crate::report::{FORMAT, MachineReport};

/// All of them, by the name of the schema.
pub const OUTPUTS: [Output; 5] = [
    output(
        "bench-report",
        1,
        "evenkeel-lab bench capability --json FILE",
        schema::<evenkeel_experiment::Report>,
    ),
    output("machine-report", FORMAT, "evenkeel-lab report FILE", schema::<MachineReport>),
    output("noise", 1, "evenkeel-lab noise KIND --json FILE", schema::<NoiseReport>),
    output(
        "noise-verify",
        1,
        "evenkeel-lab noise KIND --verify --json FILE",
        schema::<Verification>,
    ),
    output(
        "sim-run",
        1,
        "evenkeel-lab sim run WORKLOAD --json FILE",
        schema::<evenkeel_sim::Report>,
    ),
];

/// Those of the product, and these.
pub fn all() -> impl Iterator<Item = &'static Output> {
    OF_PRODUCT.iter().chain(OUTPUTS.iter())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use serde_json::Value;

    use super::*;

    fn docs() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
    }

    /// `evenkeel-lab generate schemas docs/schemas` writes what was only added, and refuses what needs a
    /// version.
    #[test]
    fn the_schemas_are_those_that_were_released() {
        for output in &OUTPUTS {
            let path = docs().join("schemas").join(output.file_name());
            let text = fs::read_to_string(&path).unwrap_or_else(|why| panic!("{path:?}: {why}"));
            let released: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(
                released,
                output.schema(),
                "{path:?}: evenkeel-lab generate schemas docs/schemas"
            );
        }
        let files = fs::read_dir(docs().join("schemas")).unwrap().count();
        assert_eq!(files, all().count(), "a schema without a command");
    }

    #[test]
    fn each_document_is_on_the_page() {
        let page = fs::read_to_string(docs().join("json.md")).unwrap();
        for output in &OUTPUTS {
            let Output { command, version, .. } = output;
            let file = output.file_name();
            let row = format!("| `{command}` | {version} | [{file}](schemas/{file}) |");
            assert!(page.contains(&row), "{row}");
        }
        assert_eq!(page.matches("](schemas/").count(), all().count());
    }
}
