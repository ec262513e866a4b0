//! The JSON that commands print: a schema for each, with a version. `evenkeel-lab generate schemas`
//! writes them, with those of its own documents; docs/schemas holds them as they were released, and
//! docs/json.md says what is promised.
//!
//! Within a version, fields and words are only added. What takes something away or changes a type needs
//! the next version: writing over an older file of the same version is refused then.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use evenkeel_host::{daemon, doctor};
use evenkeel_irq::Event;
use evenkeel_journal::UndoReport;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use crate::config::report;
use crate::{cluster, compare, explain, ias, irq, run, sais, sched, status, top, undo, zone};

/// What a command prints as JSON.
pub struct Output {
    /// The name of its schema.
    pub name: &'static str,
    /// Its version, from 1.
    pub version: u32,
    /// The command.
    pub command: &'static str,
    schema: fn() -> Value,
}

/// All of them, by the name of the schema.
pub const OUTPUTS: [Output; 21] = [
    output(
        "cluster-report",
        cluster::FORMAT,
        "evenkeel cluster report --json",
        schema::<cluster::Report>,
    ),
    output(
        "compare",
        compare::FORMAT,
        "evenkeel compare --json FILE",
        schema::<compare::Comparison>,
    ),
    output("config-show", report::FORMAT, "evenkeel config show --json", schema::<report::Shown>),
    output(
        "daemon-state",
        daemon::STATE_FORMAT,
        "kill -USR1 (evenkeel daemon)",
        schema::<daemon::DaemonState>,
    ),
    output("doctor", doctor::FORMAT, "evenkeel doctor --json", schema::<doctor::Report>),
    output("explain", status::FORMAT, "evenkeel explain --json", schema::<status::Programs>),
    output(
        "explain-keel",
        explain::GATE_FORMAT,
        "evenkeel explain --keel --json",
        schema::<explain::GateAnswers>,
    ),
    output("ias-show", ias::FORMAT, "evenkeel ias show --json", schema::<ias::Shown>),
    output("irq-once", 1, "evenkeel irq once --json", schema::<IrqLine>),
    output("irq-plan", irq::PLAN_FORMAT, "evenkeel irq plan --json", schema::<irq::Planned>),
    output("irq-run", 1, "evenkeel irq run --json", schema::<IrqLine>),
    output("irq-status", irq::STATUS_FORMAT, "evenkeel irq status --json", schema::<irq::Status>),
    output("run", run::FORMAT, "evenkeel run --json FILE", schema::<run::Report<'static>>),
    output(
        "sais-explain",
        sais::EXPLANATION_FORMAT,
        "evenkeel sais explain --json",
        schema::<sais::Explanation>,
    ),
    output("sais-model", sais::MODEL_FORMAT, "evenkeel sais model --json", schema::<sais::Model>),
    output(
        "sais-status",
        sais::STATUS_FORMAT,
        "evenkeel sais status --json",
        schema::<sais::Status>,
    ),
    output(
        "sched-monitor",
        sched::MONITOR_FORMAT,
        "evenkeel sched --monitor SEC --json",
        schema::<sched::Monitored<'static>>,
    ),
    output("status", status::FORMAT, "evenkeel status --json", schema::<status::Programs>),
    output("top", top::FORMAT, "evenkeel top --json", schema::<top::Printed<'static>>),
    output("undo", undo::FORMAT, "evenkeel undo --json", schema::<undo::Undone<'static>>),
    output("zone-get", zone::FORMAT, "evenkeel zone get --json", schema::<zone::Knobs>),
];

/// A line of `irq run` and `irq once`.
#[derive(JsonSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "it describes what two places print")]
enum IrqLine {
    /// What happened in a round.
    Event(Event),
    /// The last line.
    Undone {
        /// What was taken back at the end, or for what else no move stands.
        undone: Box<UndoReport>,
    },
}

/// What a command prints as JSON, and what makes its schema.
pub const fn output(
    name: &'static str,
    version: u32,
    command: &'static str,
    schema: fn() -> Value,
) -> Output {
    Output { name, version, command, schema }
}

impl Output {
    /// The name of the schema's file.
    pub fn file_name(&self) -> String {
        format!("{}-{}.json", self.name, self.version)
    }

    /// The schema, draft 2020-12.
    pub fn schema(&self) -> Value {
        let mut schema = (self.schema)();
        schema["title"] = format!("{}, version {}", self.command, self.version).into();
        tidy(schema)
    }
}

/// The schema of what is printed for this type.
pub fn schema<T: JsonSchema>() -> Value {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    generator.into_root_schema_for::<T>().to_value()
}

/// The same with fields in the order of their names, and with texts for readers without our sources.
fn tidy(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<(String, Value)> = fields.into_iter().collect();
            fields.sort_by(|(one, _), (other, _)| one.cmp(other));
            let fields = fields.into_iter().map(|(name, value)| match value {
                Value::String(text) if name == "description" => {
                    let text = text.replace("[`", "`").replace("`]", "`").replace('\n', " ");
                    (name, text.into())
                }
                value => (name, tidy(value)),
            });
            Value::Object(fields.collect::<Map<_, _>>())
        }
        Value::Array(values) => values.into_iter().map(tidy).collect(),
        value => value,
    }
}

/// Writes the schemas of these outputs into a directory, which is created.
///
/// # Errors
/// A file cannot be read or written or the directory not created, or a file holds a schema of the same
/// version with which this one does not agree.
pub fn write<'a>(directory: &Path, outputs: impl IntoIterator<Item = &'a Output>) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("{}", directory.display()))?;
    for output in outputs {
        let path = directory.join(output.file_name());
        let schema = output.schema();
        if let Ok(text) = fs::read_to_string(&path) {
            let released: Value =
                serde_json::from_str(&text).with_context(|| format!("{}", path.display()))?;
            if let Some(what) = broken(&released, &schema, "") {
                bail!(
                    "{}: {what}: a reader of version {} would not understand that; give it the next \
                     version in schemas.rs, or take the change back",
                    path.display(),
                    output.version
                );
            }
        }
        let text = serde_json::to_string_pretty(&schema)? + "\n";
        fs::write(&path, text).with_context(|| format!("{}", path.display()))?;
    }
    Ok(())
}

/// What texts a schema has for people.
const TEXTS: [&str; 2] = ["description", "title"];
/// Lists of fields and types: the first one may be new.
const LISTS: [&str; 3] = ["$defs", "properties", "required"];

/// What a reader of `released` would not understand in what has the schema `now`, and where; `None`:
/// it understands all.
fn broken(released: &Value, now: &Value, place: &str) -> Option<String> {
    match (released, now) {
        (Value::Object(before), Value::Object(after)) => {
            let is_text =
                |name: &String, value: &Value| TEXTS.contains(&name.as_str()) && value.is_string();
            let parts = before.iter().filter(|(name, value)| !is_text(name, value));
            let mut changes = parts.map(|(name, value)| {
                let place = format!("{place}/{name}");
                match after.get(name) {
                    Some(other) => broken(value, other, &place),
                    None => Some(format!("{place} is gone")),
                }
            });
            changes.find_map(|change| change).or_else(|| {
                // Names of fields and types; anywhere else it is a rule that was not there before.
                let is_names = ["/properties", "/$defs"].iter().any(|end| place.ends_with(end));
                let is_rule = |(name, value): &(&String, &Value)| {
                    !is_names
                        && !before.contains_key(*name)
                        && !is_text(name, value)
                        && !LISTS.contains(&name.as_str())
                };
                after.iter().find(is_rule).map(|(name, _)| format!("{place}/{name} is new"))
            })
        }
        // Words and alternatives may be added; a type must stay as it is.
        (Value::Array(before), Value::Array(after)) if !place.ends_with("/type") => {
            let is_gone =
                |value: &&Value| !after.iter().any(|other| broken(value, other, place).is_none());
            before.iter().find(is_gone).map(|value| format!("{place}: {value} is gone"))
        }
        (before, after) => (before != after).then(|| format!("{place}: {before} became {after}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn docs() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
    }

    /// With another schema under the version of a released one, this fails: `evenkeel generate schemas
    /// docs/schemas` writes what was only added, and refuses what needs a version.
    #[test]
    fn the_schemas_are_those_that_were_released() {
        for output in &OUTPUTS {
            let path = docs().join("schemas").join(output.file_name());
            let text = fs::read_to_string(&path).unwrap_or_else(|why| panic!("{path:?}: {why}"));
            let released: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(broken(&released, &output.schema(), ""), None, "{path:?}");
            assert_eq!(
                released,
                output.schema(),
                "{path:?}: evenkeel generate schemas docs/schemas"
            );
        }
    }

    /// A reader would have to know what stands at which place, and nothing could be added.
    #[test]
    fn what_belongs_together_has_names() {
        fn has_tuple(schema: &Value) -> bool {
            match schema {
                Value::Object(fields) => {
                    fields.contains_key("prefixItems") || fields.values().any(has_tuple)
                }
                Value::Array(values) => values.iter().any(has_tuple),
                _ => false,
            }
        }
        for output in &OUTPUTS {
            assert!(!has_tuple(&output.schema()), "{}", output.name);
        }
    }

    /// A reader of a file that was kept for long has nothing else to go by. `irq run` and `irq once`
    /// print lines: what happened, one by one.
    #[test]
    fn each_document_is_an_object_that_tells_its_version() {
        for output in
            OUTPUTS.iter().filter(|output| !["irq-once", "irq-run"].contains(&output.name))
        {
            let schema = output.schema();
            assert_eq!(schema["type"], "object", "{}", output.name);
            assert_eq!(schema["properties"]["format"]["type"], "integer", "{}", output.name);
            let required = schema["required"].as_array().unwrap();
            assert!(required.contains(&json!("format")), "{}: {required:?}", output.name);
        }
    }

    #[test]
    fn each_output_is_on_the_page() {
        let page = fs::read_to_string(docs().join("json.md")).unwrap();
        for output in &OUTPUTS {
            let Output { command, version, .. } = output;
            let file = output.file_name();
            let row = format!("| `{command}` | {version} | [{file}](schemas/{file}) |");
            assert!(page.contains(&row), "{row}");
        }
    }

    #[test]
    fn additions_keep_a_version_and_nothing_else_does() {
        let field = |of: Value| json!({"type": "object", "properties": of, "required": ["a"]});
        let released = field(json!({"a": {"type": "integer", "description": "old"}}));
        let same = |now: &Value| broken(&released, now, "");
        assert_eq!(same(&released), None);
        let more = json!({"a": {"type": "integer", "description": "new"}, "b": {"type": "string"}});
        assert_eq!(same(&field(more)), None);
        let gone = same(&field(json!({"b": {"type": "integer"}})));
        assert_eq!(gone.as_deref(), Some("/properties/a is gone"));
        let null = same(&field(json!({"a": {"type": ["integer", "null"]}})));
        assert_eq!(
            null.as_deref(),
            Some(r#"/properties/a/type: "integer" became ["integer","null"]"#)
        );
        let narrow = same(&field(json!({"a": {"type": "integer", "maximum": 3}})));
        assert_eq!(narrow.as_deref(), Some("/properties/a/maximum is new"));
        let mut optional = released.clone();
        optional["required"] = json!([]);
        assert_eq!(same(&optional).as_deref(), Some(r#"/required: "a" is gone"#));
        // Words.
        let words =
            |words: Value| broken(&json!({"enum": ["x", "y"]}), &json!({"enum": words}), "");
        assert_eq!(words(json!(["x", "z", "y"])), None);
        assert_eq!(words(json!(["x"])).as_deref(), Some(r#"/enum: "y" is gone"#));
        // A type that may be null or a number must stay so.
        let (one, other) = (json!({"type": ["integer", "null"]}), json!({"type": ["null"]}));
        assert!(broken(&one, &other, "").is_some());
    }

    #[test]
    fn a_change_without_its_version_is_not_written_over_the_released_schema() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), &OUTPUTS).unwrap();
        write(directory.path(), &OUTPUTS).unwrap();
        let path = directory.path().join(OUTPUTS[0].file_name());
        let mut released = OUTPUTS[0].schema();
        released["properties"]["a_field_that_was_there"] = json!({"type": "string"});
        fs::write(&path, released.to_string()).unwrap();
        let why = write(directory.path(), &OUTPUTS).unwrap_err().to_string();
        assert!(why.contains("a_field_that_was_there is gone"), "{why}");
        assert!(why.contains("the next version"), "{why}");
        assert_eq!(fs::read_to_string(&path).unwrap(), released.to_string());
    }
}
