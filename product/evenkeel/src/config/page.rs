//! The man page evenkeel.toml(5), from the types that a configuration file is read into: an entry that
//! exists is on the page, with the text and the default of its option.

use clap_mangen::roff::{Roff, bold, roman};
use evenkeel_keel::{Knob, Zone};
use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::Config;

/// The file's name in the manual.
pub const NAME: &str = "evenkeel.toml";

/// What each table is for, in the order of the page.
const TABLES: [(&str, &str); 7] = [
    ("run", "How programs are balanced, by evenkeel-run(1) and evenkeel-daemon(1)."),
    ("daemon", "Which programs join the daemon, and its metrics; evenkeel-daemon(1)."),
    ("irq", "What the daemon does about interrupts; evenkeel-irq(1)."),
    ("sched", "The keel; evenkeel-sched(1)."),
    ("zone", "Knobs of the keel's gate, by the names of paper 004; evenkeel-zone(1)."),
    ("ias", "What aggregates under the keel's order ias; evenkeel-ias(1)."),
    ("cluster", "What is kept of jobs of Slurm; evenkeel-cluster(1)."),
];

const DESCRIPTION: &str = "The configuration of evenkeel, in TOML. Each table is named for a command, \
    and each entry for an option, with the same meaning: an option on the command line wins over the \
    user's file, and that over the system's. There are two exceptions. The lists of table daemon are \
    joined; other lists replace each other as a whole. And what the system's file sets to true, the \
    user's cannot set to false, except in table irq; only strict of table sched gives way to \
    max-idle-wait of the user's file. An unknown table or entry is an error. A user's file must belong \
    to that user or to root, and no other user may write to it. --config FILE reads that file in place \
    of both.";

const EXAMPLE: &str = "[run]\ninterval = \"100ms\"\ncpus = \"0-3,8\"\n\n[daemon]\nnames = [\"lmp\"]\n\
    metrics = \"127.0.0.1:9469\"\n";

/// An entry: its name, its values and what it does.
struct Entry {
    name: String,
    values: String,
    text: String,
}

/// The page, as roff.
pub fn page() -> Vec<u8> {
    let mut roff = Roff::new();
    roff.control("TH", [NAME, "5", "", "evenkeel"]);
    roff.control("SH", ["NAME"]);
    roff.text([roman(format!("{NAME} - the configuration of evenkeel"))]);
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([roman("/etc/evenkeel/config.toml")]);
    roff.control("br", []);
    roff.text([roman(
        "$XDG_CONFIG_HOME/evenkeel/config.toml, else ~/.config/evenkeel/config.toml",
    )]);
    roff.control("SH", ["DESCRIPTION"]);
    roff.text([roman(DESCRIPTION)]);
    let schema = schema();
    for (table, what) in TABLES {
        roff.control("SH", [format!("TABLE [{table}]").as_str()]);
        roff.text([roman(what)]);
        let entries = match table {
            "zone" => knobs(),
            _ => entries("", &schema["properties"][table]),
        };
        for Entry { name, values, text } in entries {
            roff.control("TP", []);
            roff.text([bold(name), roman(format!(" = {values}"))]);
            roff.text([roman(text)]);
        }
    }
    roff.control("SH", ["EXAMPLE"]);
    roff.control("nf", []);
    for line in EXAMPLE.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff.control("SH", ["SEE ALSO"]);
    roff.text([bold("evenkeel"), roman("(1), "), bold("evenkeel-config"), roman("(1)")]);
    roff.render().into_bytes()
}

fn schema() -> Value {
    let settings =
        SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<Config>().to_value()
}

/// The entries of a table; those of a table for each name have `NAME` in theirs.
fn entries(prefix: &str, table: &Value) -> Vec<Entry> {
    let fields = table["properties"].as_object().into_iter().flatten();
    let of = |(name, schema): (&String, &Value)| {
        let name = format!("{prefix}{name}");
        let each = &schema["additionalProperties"];
        if each["properties"].is_object() {
            return entries(&format!("{name}.NAME."), each);
        }
        let text = text(schema);
        vec![Entry { name, values: values(schema), text }]
    };
    fields.flat_map(of).collect()
}

/// The first paragraph and the others as one, without the marks of our sources.
fn text(schema: &Value) -> String {
    let text = schema["description"].as_str().unwrap_or_default();
    text.replace("[`", "")
        .replace("`]", "")
        .replace('`', "")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

/// Which values an entry may have.
fn values(schema: &Value) -> String {
    let words = words(schema);
    if !words.is_empty() {
        return words.join(" or ");
    }
    let kinds: Vec<&str> = kinds(schema).into_iter().filter(|kind| *kind != "null").collect();
    let item = || values(&schema["items"]);
    match kinds.as_slice() {
        ["string"] => "text, in quotes".to_owned(),
        ["integer"] => "a whole number".to_owned(),
        ["boolean"] => "true or false".to_owned(),
        ["array"] => format!("a list, each {}", item()),
        _ => "a value".to_owned(),
    }
}

/// The words of an enumeration, in quotes.
fn words(schema: &Value) -> Vec<String> {
    let own = schema["const"].as_str().into_iter();
    let own = own.chain(schema["enum"].as_array().into_iter().flatten().filter_map(Value::as_str));
    let own = own.map(|word| format!("\"{word}\""));
    own.chain(alternatives(schema).flat_map(words)).collect()
}

fn kinds(schema: &Value) -> Vec<&str> {
    let one = schema["type"].as_str().into_iter();
    let many = schema["type"].as_array().into_iter().flatten().filter_map(Value::as_str);
    one.chain(many).chain(alternatives(schema).flat_map(kinds)).collect()
}

fn alternatives(schema: &Value) -> impl Iterator<Item = &Value> {
    ["anyOf", "oneOf"].into_iter().flat_map(|name| schema[name].as_array().into_iter().flatten())
}

/// The knobs of the gate, which are checked by name when the file is read.
fn knobs() -> Vec<Entry> {
    let of = |knob: &Knob| Entry {
        name: knob.name.to_owned(),
        values: format!("a whole number, {} to {}", knob.range.start(), knob.range.end()),
        text: format!("{} [default: {}].", knob.help, knob.default),
    };
    Zone::knobs().iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_entry_is_on_the_page_with_its_values() {
        let page = String::from_utf8(page()).unwrap();
        let has = |line: &str| assert!(page.contains(line), "{line}\n{page}");
        has("\\fBpolicy\\fR = \"lag\" or \"paper\"");
        has("\\fBinterval\\fR = text, in quotes");
        has("Set the balance interval, 1ms to 60s [default: lag adapts");
        has("\\fBrecords\\fR = text, in quotes");
        has("\\fBoverride\\fR = true or false");
        has("\\fBnames\\fR = a list, each text, in quotes");
        has("\\fBslice\\-us\\fR = a whole number");
        has("\\fBprograms.NAME.bonus\\fR = text, in quotes");
        has("\\fBbalance_weight_prize_time\\fR = a whole number, 0 to 3600000");
        has("Give the prize to a task that has used its CPU");
        assert!(!page.contains("a value"), "{page}");
    }

    /// What the page says of several files is what `Config::or` does, for each entry there is.
    #[test]
    fn lists_and_switches_of_two_files_are_put_together_as_the_page_says() {
        assert!(DESCRIPTION.contains("lists of table daemon are joined; other lists replace"));
        assert!(DESCRIPTION.contains("the user's cannot set to false, except in table irq"));
        let schema = schema();
        let (mut lists, mut switches) = (0, 0);
        for (table, _) in TABLES.into_iter().filter(|(table, _)| *table != "zone") {
            for Entry { name, values, .. } in entries("", &schema["properties"][table]) {
                let parse = |value: &str| {
                    super::super::parse(&format!("[{table}]\n{name} = {value}\n")).unwrap()
                };
                let [near, far, both] = match values.as_str() {
                    values if values.starts_with("a list") => {
                        lists += 1;
                        // Cgroups are paths, and names are none.
                        let [a, b] = if name == "cgroups" { ["/a", "/b"] } else { ["a", "b"] };
                        let list = |words: &[&str]| format!("{words:?}");
                        let both = if table == "daemon" { list(&[a, b]) } else { list(&[a]) };
                        [list(&[a]), list(&[b]), both]
                    }
                    "true or false" => {
                        switches += 1;
                        ["false", "true", if table == "irq" { "false" } else { "true" }]
                            .map(str::to_owned)
                    }
                    _ => continue,
                };
                let found = parse(&near).or(parse(&far));
                assert_eq!(format!("{found:?}"), format!("{:?}", parse(&both)), "{table}.{name}");
            }
        }
        assert!(lists >= 3 && switches >= 6, "{lists} lists and {switches} switches were tried");
        let parse = |text| super::super::parse(text).unwrap();
        let waits = parse("[sched]\nmax-idle-wait = \"5ms\"\n");
        assert!(!waits.or(parse("[sched]\nstrict = true\n")).sched.strict);
    }

    /// The tables of the page are those of a file, and its example is one.
    #[test]
    fn the_tables_are_those_of_a_file() {
        let schema = schema();
        let mut tables: Vec<_> = schema["properties"].as_object().unwrap().keys().collect();
        tables.sort();
        let mut known = TABLES.map(|(table, _)| table);
        known.sort_unstable();
        assert_eq!(tables, known);
        super::super::parse(EXAMPLE).unwrap();
    }
}
