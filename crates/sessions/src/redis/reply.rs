//! Decodes the answers of Redis. An answer of an unexpected form is an error.

use redis::Value;

use super::link::LinkError;

fn unexpected() -> LinkError {
    LinkError::refused("unexpected form of an answer: is the prefix used by another program?")
}

pub(super) fn int(value: &Value) -> Result<i64, LinkError> {
    match value {
        Value::Int(number) => Ok(*number),
        _ => Err(unexpected()),
    }
}

pub(super) fn count(value: &Value) -> Result<u64, LinkError> {
    u64::try_from(int(value)?).map_err(|_| unexpected())
}

pub(super) fn bytes(value: &Value) -> Result<&[u8], LinkError> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::SimpleString(text) => Ok(text.as_bytes()),
        _ => Err(unexpected()),
    }
}

pub(super) fn number(value: &Value) -> Result<u64, LinkError> {
    let text = std::str::from_utf8(bytes(value)?).map_err(|_| unexpected())?;
    text.parse().map_err(|_| unexpected())
}

pub(super) fn array(value: &Value) -> Result<&[Value], LinkError> {
    match value {
        Value::Array(values) => Ok(values),
        Value::Nil => Ok(&[]),
        _ => Err(unexpected()),
    }
}

/// The first `N` values of an array, which a later version may extend.
pub(super) fn fields<const N: usize>(value: &Value) -> Result<&[Value; N], LinkError> {
    array(value)?.first_chunk().ok_or_else(unexpected)
}

/// A field of a hash, and its value.
pub(super) type Pair<'a> = (&'a [u8], &'a [u8]);

/// A hash, given as alternating fields and values.
pub(super) fn pairs(value: &Value) -> Result<Vec<Pair<'_>>, LinkError> {
    let (pairs, _) = array(value)?.as_chunks::<2>();
    pairs.iter().map(|[field, value]| Ok((bytes(field)?, bytes(value)?))).collect()
}
