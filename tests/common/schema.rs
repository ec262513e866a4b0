//! Whether what a command printed as JSON is as its schema says. Known are the keywords that our schemas
//! use, and any other one fails the test, so nothing of a schema is passed over.

use evenkeel_lab::schemas::all;
use regex::Regex;
use serde_json::{Map, Value};

/// Fails where the value is not as the schema of this name says.
pub fn check(name: &str, value: &Value) {
    let output = all().find(|output| output.name == name).unwrap();
    if let Some(format) = value.get("format") {
        assert_eq!(*format, output.version, "{name} tells another version than that of its schema");
    }
    let schema = output.schema();
    if let Err(wrong) = check_by(&schema, value) {
        panic!("{name}: {wrong}\n{value:#}");
    }
}

/// What is wrong with a value by a schema.
pub fn check_by(schema: &Value, value: &Value) -> Result<(), String> {
    Checker { definitions: &schema["$defs"] }.check(schema, value, "")
}

struct Checker<'a> {
    definitions: &'a Value,
}

impl Checker<'_> {
    fn check(&self, schema: &Value, value: &Value, place: &str) -> Result<(), String> {
        let Value::Object(rules) = schema else {
            // `true` allows anything.
            return if *schema == Value::Bool(true) {
                Ok(())
            } else {
                Err(format!("{place}: refused"))
            };
        };
        for (rule, told) in rules {
            // It speaks of the names that its neighbours do not.
            let keeps = match (rule.as_str(), told) {
                ("additionalProperties", schema) => {
                    for (name, field) in other_fields(rules, value) {
                        if *schema == Value::Bool(false) {
                            return Err(format!("{place}: {value} does not keep {rule} {told}"));
                        }
                        self.check(schema, field, &format!("{place}/{name}"))?;
                    }
                    true
                }
                _ => self.keeps(rule, told, value, place)?,
            };
            if !keeps {
                return Err(format!("{place}: {value} does not keep {rule} {told}"));
            }
        }
        Ok(())
    }

    /// Whether the value keeps a rule by itself; what is wrong within it is an error.
    fn keeps(&self, rule: &str, told: &Value, value: &Value, place: &str) -> Result<bool, String> {
        let each = |told: &Value| told.as_array().cloned().unwrap_or_default();
        let fits = |schema: &Value| self.check(schema, value, place).is_ok();
        Ok(match rule {
            "$schema" | "$defs" | "title" | "description" | "format" | "default" | "readOnly" => {
                true
            }
            "type" => match told {
                Value::Array(types) => types.iter().any(|one| is_a(one, value)),
                one => is_a(one, value),
            },
            "const" => told == value,
            "enum" => each(told).contains(value),
            "anyOf" => each(told).iter().any(fits),
            "oneOf" => each(told).iter().filter(|schema| fits(schema)).count() == 1,
            "$ref" => {
                let name = told.as_str().and_then(|name| name.strip_prefix("#/$defs/")).unwrap();
                self.check(&self.definitions[name], value, place)?;
                true
            }
            "required" => match value {
                Value::Object(fields) => {
                    each(told).iter().all(|name| fields.contains_key(name.as_str().unwrap()))
                }
                _ => true,
            },
            "properties" => {
                for (name, schema) in told.as_object().unwrap() {
                    if let Some(field) = value.get(name) {
                        self.check(schema, field, &format!("{place}/{name}"))?;
                    }
                }
                true
            }
            // Our tables have names that are numbers, and nothing beside them.
            "patternProperties" => {
                for (name, field) in value.as_object().into_iter().flatten() {
                    for schema in told.as_object().unwrap().values() {
                        self.check(schema, field, &format!("{place}/{name}"))?;
                    }
                }
                true
            }
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    self.check(told, item, &format!("{place}/{index}"))?;
                }
                true
            }
            "prefixItems" => {
                let items = value.as_array().into_iter().flatten().enumerate();
                for ((index, item), schema) in items.zip(each(told)) {
                    self.check(&schema, item, &format!("{place}/{index}"))?;
                }
                true
            }
            "minItems" => {
                value.as_array().is_none_or(|all| all.len() as u64 >= told.as_u64().unwrap())
            }
            "maxItems" => {
                value.as_array().is_none_or(|all| all.len() as u64 <= told.as_u64().unwrap())
            }
            "minimum" => value.as_f64().is_none_or(|number| number >= told.as_f64().unwrap()),
            "maximum" => value.as_f64().is_none_or(|number| number <= told.as_f64().unwrap()),
            other => panic!("{place}: teach the keyword {other} to tests/common/schema.rs"),
        })
    }
}

/// What a schema does not know by its name, as a field or by a pattern.
fn other_fields<'v>(schema: &Map<String, Value>, value: &'v Value) -> Vec<(&'v String, &'v Value)> {
    let rules =
        |rule: &str| schema.get(rule).and_then(Value::as_object).cloned().unwrap_or_default();
    let (fields, patterns) = (rules("properties"), rules("patternProperties"));
    let patterns: Vec<Regex> = patterns.keys().map(|one| Regex::new(one).unwrap()).collect();
    let is_known = |name: &String| {
        fields.contains_key(name) || patterns.iter().any(|pattern| pattern.is_match(name))
    };
    value.as_object().into_iter().flatten().filter(|field| !is_known(field.0)).collect()
}

fn is_a(kind: &Value, value: &Value) -> bool {
    match kind.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("there is no type {other}"),
    }
}
