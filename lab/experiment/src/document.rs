//! A JSON document that tells the version of its schema, as `format`: a reader of a file that was kept
//! for long has nothing else to go by. docs/json.md says what a version promises.

use schemars::JsonSchema;
use serde::Serialize;

/// What a command writes as JSON, with the version of its schema.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Document<'a, T> {
    /// The version of this document.
    format: u32,
    #[serde(flatten)]
    content: &'a T,
}

impl<'a, T: Serialize> Document<'a, T> {
    /// This content, as a document of this version. It must be a structure without a field `format`.
    pub fn new(format: u32, content: &'a T) -> Self {
        Self { format, content }
    }

    /// As JSON in lines, without a line feed at the end.
    ///
    /// # Errors
    /// The content cannot be written as JSON.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Report;

    #[test]
    fn a_document_is_its_content_and_its_version() {
        let report = Report { experiment: "test".into(), ..Report::default() };
        let json = Document::new(7, &report).to_json().unwrap();
        let mut whole: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(whole["format"], 7);
        // What reads the content does not mind the version.
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
        whole.as_object_mut().unwrap().remove("format");
        assert_eq!(whole, serde_json::to_value(&report).unwrap());
    }
}
