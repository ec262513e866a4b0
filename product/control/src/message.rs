//! Requests and answers, one JSON object per line:
//!
//! ```text
//! {"req":"join","args":{"pid":1234}}
//! {"errno":0,"args":{"resp":{"program":7}}}
//! {"errno":1,"args":{"resp":"process 1 is the system's first process: ..."}}
//! ```

use nix::errno::Errno;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The longest line, in bytes, that is read as a request.
pub(crate) const MAX_REQUEST_BYTES: usize = 64 * 1024;

/// A request to a service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// The request's name.
    pub req: String,
    /// Its arguments by name.
    #[serde(default)]
    pub args: Map<String, Value>,
}

impl Request {
    /// A request without arguments.
    pub fn new(name: &str) -> Self {
        Self { req: name.to_owned(), args: Map::new() }
    }

    /// Decodes a line as a service reads it.
    ///
    /// # Errors
    /// The line is no request: the refusal to answer it with.
    pub fn decode(line: &[u8]) -> Result<Self, Answer> {
        serde_json::from_slice(line).map_err(|why| {
            Answer::refused(
                Errno::EINVAL,
                format!("not a request like {{\"req\":\"status\",\"args\":{{}}}}: {why}"),
            )
        })
    }

    /// The line, with its line feed.
    pub fn encode(&self) -> Vec<u8> {
        encode_line(self)
    }

    /// Adds an argument.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.args.insert(name.to_owned(), value.into());
        self
    }
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// 0, or an error number of errno(3).
    pub errno: i32,
    /// `resp`: the result, or why the request is refused.
    pub args: Map<String, Value>,
}

impl Answer {
    /// A result.
    pub fn ok(result: impl Into<Value>) -> Self {
        Self::new(0, result.into())
    }

    /// A refusal: what is refused, why, and what to do.
    pub fn refused(errno: Errno, why: impl std::fmt::Display) -> Self {
        Self::new(errno as i32, Value::String(why.to_string()))
    }

    fn new(errno: i32, resp: Value) -> Self {
        Self { errno, args: std::iter::once(("resp".to_owned(), resp)).collect() }
    }

    /// Decodes a line as a client reads it.
    ///
    /// # Errors
    /// The line is no answer.
    pub fn decode(line: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(line)
    }

    /// The line, with its line feed.
    pub fn encode(&self) -> Vec<u8> {
        encode_line(self)
    }

    /// The result.
    ///
    /// # Errors
    /// The request was refused: the error number and the reason.
    pub fn into_result(mut self) -> Result<Value, (i32, String)> {
        let resp = self.args.remove("resp").unwrap_or_default();
        match (self.errno, resp) {
            (0, resp) => Ok(resp),
            (errno, Value::String(why)) => Err((errno, why)),
            (errno, other) => Err((errno, other.to_string())),
        }
    }
}

/// Encodes a message as a line. Cannot fail: all that these types hold has a JSON form.
fn encode_line(message: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(message).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn messages_follow_the_convention_of_scx_stats() {
        let request: Request =
            serde_json::from_str(r#"{"req":"stats","args":{"target":"top"}}"#).unwrap();
        assert_eq!(request, Request::new("stats").with("target", "top"));
        let request: Request = serde_json::from_str(r#"{"req":"stats"}"#).unwrap();
        assert_eq!(request, Request::new("stats"));
        assert_eq!(
            serde_json::to_value(Answer::ok(json!({"a": 1}))).unwrap(),
            json!({"errno": 0, "args": {"resp": {"a": 1}}})
        );
    }

    #[test]
    fn a_refusal_keeps_its_reason() {
        let refused = Answer::refused(Errno::EPERM, "not yours");
        assert_eq!(refused.clone().into_result(), Err((Errno::EPERM as i32, "not yours".into())));
        assert_eq!(Answer::ok(3).into_result(), Ok(json!(3)));
        let bytes = refused.encode();
        assert_eq!(bytes.iter().filter(|byte| **byte == b'\n').count(), 1);
    }
}
