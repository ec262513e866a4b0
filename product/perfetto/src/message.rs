//! A message of protocol buffers, written field by field in the order of the calls. The encoding is
//! that of version 3: a key of field number and wire type, then the value.

/// Wire types: a number of variable length, eight bytes, and bytes with their length in front.
pub(crate) const VARINT: u64 = 0;
pub(crate) const FIXED64: u64 = 1;
pub(crate) const BYTES: u64 = 2;

/// A message that is being written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message(Vec<u8>);

impl Message {
    /// A message without fields.
    pub fn new() -> Self {
        Self::default()
    }

    /// With a field of type `uint32`, `uint64`, `bool` or an enumeration.
    #[must_use]
    pub fn uint(mut self, field: u32, value: u64) -> Self {
        self.key(field, VARINT);
        self.varint(value);
        self
    }

    /// With a field of type `double`.
    #[must_use]
    pub fn double(mut self, field: u32, value: f64) -> Self {
        self.key(field, FIXED64);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// With a field of type `string`.
    #[must_use]
    pub fn text(self, field: u32, value: &str) -> Self {
        self.bytes(field, value.as_bytes())
    }

    /// With a field that is a message itself.
    #[must_use]
    pub fn message(self, field: u32, value: Self) -> Self {
        self.bytes(field, &value.0)
    }

    /// The message as bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    fn bytes(mut self, field: u32, value: &[u8]) -> Self {
        self.key(field, BYTES);
        self.varint(value.len() as u64);
        self.0.extend(value);
        self
    }

    fn key(&mut self, field: u32, wire_type: u64) {
        self.varint((u64::from(field) << 3) | wire_type);
    }

    /// Seven bits a byte, the lowest first; the highest bit says that more follow.
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::{Value, fields};
    use proptest::prelude::*;

    /// The examples of the documentation of protocol buffers' encoding.
    #[test]
    fn messages_have_the_documented_encoding() {
        assert_eq!(Message::new().uint(1, 150).into_bytes(), [0x08, 0x96, 0x01]);
        let text = Message::new().text(2, "testing").into_bytes();
        assert_eq!(text, *b"\x12\x07testing");
        let inner = Message::new().uint(1, 150);
        assert_eq!(Message::new().message(3, inner).into_bytes(), [0x1a, 3, 0x08, 0x96, 1]);
        let largest = Message::new().uint(1, u64::MAX).into_bytes();
        assert_eq!(largest, [&[0x08][..], &[0xff; 9], &[0x01]].concat());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            field in 1u32..1 << 29, number: u64, double: f64, text: String,
        ) {
            let message = Message::new()
                .uint(field, number)
                .double(field, double)
                .text(field, &text);
            let bytes = message.into_bytes();
            let read = fields(&bytes).unwrap();
            prop_assert_eq!(read[0], (field, Value::Number(number)));
            prop_assert_eq!(read[1], (field, Value::Eight(double.to_le_bytes())));
            prop_assert_eq!(read[2], (field, Value::Bytes(text.as_bytes())));
            // No part of it is taken for the whole.
            for end in 0..bytes.len() {
                let part = fields(&bytes[..end]);
                prop_assert!(part.is_err() || part.is_ok_and(|part| part.len() < 3));
            }
        }
    }
}
