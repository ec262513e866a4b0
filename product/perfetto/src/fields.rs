//! Messages of protocol buffers, read back: the fields of one, in their order. For what looks at a trace
//! that was written, as tests do.

use crate::message::{BYTES, FIXED64, VARINT};

/// The value of a field, as far as its wire type tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// A number of variable length.
    Number(u64),
    /// Eight bytes: a `double`.
    Eight([u8; 8]),
    /// A text, or a message.
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    /// The number; 0 for another type.
    pub fn number(self) -> u64 {
        if let Self::Number(number) = self { number } else { 0 }
    }

    /// The `double`; 0 for another type.
    pub fn double(self) -> f64 {
        if let Self::Eight(bytes) = self { f64::from_le_bytes(bytes) } else { 0.0 }
    }

    /// The bytes; empty for another type.
    pub fn bytes(self) -> &'a [u8] {
        if let Self::Bytes(bytes) = self { bytes } else { &[] }
    }
}

/// The bytes are no message, or only a part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// The fields of a message, each with its number.
///
/// # Errors
/// The message ends within a field, or a field has a wire type that [`crate::Message`] does not write.
pub fn fields(mut bytes: &[u8]) -> Result<Vec<(u32, Value<'_>)>, Malformed> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let field = u32::try_from(key >> 3).map_err(|_| Malformed)?;
        let value = match key & 7 {
            VARINT => Value::Number(varint(&mut bytes)?),
            FIXED64 => {
                let (eight, rest) = bytes.split_first_chunk().ok_or(Malformed)?;
                bytes = rest;
                Value::Eight(*eight)
            }
            BYTES => {
                let length = usize::try_from(varint(&mut bytes)?).map_err(|_| Malformed)?;
                let (content, rest) = bytes.split_at_checked(length).ok_or(Malformed)?;
                bytes = rest;
                Value::Bytes(content)
            }
            _ => return Err(Malformed),
        };
        found.push((field, value));
    }
    Ok(found)
}

fn varint(bytes: &mut &[u8]) -> Result<u64, Malformed> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first().ok_or(Malformed)?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Malformed)
}
