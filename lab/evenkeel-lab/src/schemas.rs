//! The JSON documents of the laboratory: a schema for each, with a version, beside those of the product.
//! docs/json.md says what is promised of them.

use evenkeel::schemas::{OUTPUTS as OF_PRODUCT, Output, output, schema};
use evenkeel_bench::{
    daemon_cost, large_machines, make_noise, plan_cost, refill, scale, startup_cost, verify,
    waiting_cost,
};
use evenkeel_experiment::{Document, REPORT_FORMAT};
use evenkeel_sim::ROW_FORMAT;
use schemars::JsonSchema;
use serde_json::Value;

use crate::report::{FORMAT, MachineReport};
use crate::sim::RUN_FORMAT;

/// All of them, by the name of the schema.
pub const OUTPUTS: [Output; 14] = [
    output(
        "bench-daemon",
        daemon_cost::FORMAT,
        "evenkeel-lab bench daemon --json FILE",
        document::<daemon_cost::Report>,
    ),
    output(
        "bench-large",
        large_machines::FORMAT,
        "evenkeel-lab bench large --json FILE",
        document::<large_machines::Report>,
    ),
    output(
        "bench-plan",
        plan_cost::FORMAT,
        "evenkeel-lab bench plan --json FILE",
        document::<plan_cost::Report>,
    ),
    output(
        "bench-refill",
        refill::FORMAT,
        "evenkeel-lab bench refill --json FILE",
        document::<refill::Report>,
    ),
    output(
        "bench-report",
        REPORT_FORMAT,
        "evenkeel-lab bench capability --json FILE",
        document::<evenkeel_experiment::Report>,
    ),
    output(
        "bench-scale",
        scale::FORMAT,
        "evenkeel-lab bench scale --json FILE",
        document::<scale::Report>,
    ),
    output(
        "bench-startup",
        startup_cost::FORMAT,
        "evenkeel-lab bench startup --json FILE",
        document::<startup_cost::Report>,
    ),
    output(
        "bench-waiting",
        waiting_cost::FORMAT,
        "evenkeel-lab bench waiting --json FILE",
        document::<waiting_cost::Report>,
    ),
    output("machine-report", FORMAT, "evenkeel-lab report FILE", schema::<MachineReport>),
    output(
        "noise",
        make_noise::FORMAT,
        "evenkeel-lab noise KIND --json FILE",
        document::<make_noise::NoiseReport>,
    ),
    output(
        "noise-verify",
        verify::FORMAT,
        "evenkeel-lab noise KIND --verify --json FILE",
        document::<verify::Verification>,
    ),
    output(
        "repro",
        evenkeel_repro::FORMAT,
        "evenkeel-lab repro PAPER --json FILE",
        document::<evenkeel_repro::Study>,
    ),
    output(
        "sim-run",
        RUN_FORMAT,
        "evenkeel-lab sim run WORKLOAD --json FILE",
        document::<evenkeel_sim::Report>,
    ),
    output(
        "sim-sweep",
        ROW_FORMAT,
        "evenkeel-lab sim sweep WORKLOAD --out FILE",
        schema::<evenkeel_sim::Row>,
    ),
];

/// The schema of what is written as a [`Document`] with this content.
fn document<T: JsonSchema + 'static>() -> Value {
    let mut whole = schema::<Document<'static, T>>();
    // What the content says of itself tells more.
    whole["description"] = schema::<T>()["description"].clone();
    whole
}

/// Those of the product, and these.
pub fn all() -> impl Iterator<Item = &'static Output> {
    OF_PRODUCT.iter().chain(OUTPUTS.iter())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use serde_json::json;

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
    fn each_document_is_an_object_that_tells_its_version_and_what_it_is() {
        for output in &OUTPUTS {
            let schema = output.schema();
            assert_eq!(schema["type"], "object", "{}", output.name);
            assert_eq!(schema["properties"]["format"]["type"], "integer", "{}", output.name);
            let required = schema["required"].as_array().unwrap();
            assert!(required.contains(&json!("format")), "{}: {required:?}", output.name);
            assert!(schema["description"].is_string(), "{}", output.name);
        }
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
