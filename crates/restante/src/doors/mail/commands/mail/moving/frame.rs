//! The format between a command and a running server: the length of the JSON in four bytes, the JSON, and the bytes of the messages one
//! after the other.

use bytes::{BufMut, Bytes};
use restante_core::Error;
use serde::{Serialize, de::DeserializeOwned};

/// The longest JSON: the metadata of a batch with many mailboxes for each message.
pub(super) const JSON_BYTES_MAX: usize = 32 << 20;

/// JSON and bytes as one body.
pub(super) fn write(json: &impl Serialize, messages: &[Bytes]) -> Result<Vec<u8>, Error> {
    let json = serde_json::to_vec(json);
    let json = json.map_err(|error| Error::internal(format!("a batch can't be written as JSON: {error}")))?;
    let length = u32::try_from(json.len()).map_err(|_| Error::invalid("a batch has too many mailboxes"))?;
    let bytes: usize = messages.iter().map(Bytes::len).sum();
    let mut body = Vec::with_capacity(4 + json.len() + bytes);
    body.put_u32(length);
    body.extend_from_slice(&json);
    for message in messages {
        body.extend_from_slice(message);
    }
    Ok(body)
}

/// The JSON in a body, and the bytes after it.
pub(super) fn read<T: DeserializeOwned>(mut body: Bytes) -> Result<(T, Bytes), Error> {
    let wrong = |why: &str| Error::invalid(format!("the body is no batch of mail: {why}"));
    let Some((length, _)) = body.split_first_chunk::<4>() else { return Err(wrong("it is too short")) };
    let length = u32::from_be_bytes(*length) as usize;
    if length > JSON_BYTES_MAX || body.len() < 4 + length {
        return Err(wrong("its JSON is too long"));
    }
    let messages = body.split_off(4 + length);
    let json = serde_json::from_slice(body.get(4..).unwrap_or_default());
    Ok((json.map_err(|error| wrong(&error.to_string()))?, messages))
}

/// The messages in the bytes after the JSON, by their lengths.
pub(super) fn messages(mut bytes: Bytes, lengths: impl Iterator<Item = u64>) -> Result<Vec<Bytes>, Error> {
    let wrong = || Error::invalid("the body is no batch of mail: the lengths of its messages are wrong");
    let mut messages = Vec::new();
    for length in lengths {
        let length =
            usize::try_from(length).ok().filter(|length| *length <= bytes.len()).ok_or_else(wrong)?;
        messages.push(bytes.split_to(length));
    }
    if bytes.is_empty() { Ok(messages) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_read_as_it_was_written() {
        let parts = [Bytes::from_static(b"one"), Bytes::new(), Bytes::from_static(b"three")];
        let body = Bytes::from(write(&[3, 0, 5], &parts).unwrap());
        let (lengths, rest) = read::<Vec<u64>>(body.clone()).unwrap();
        assert_eq!(messages(rest.clone(), lengths.into_iter()).unwrap(), parts);
        for wrong in [&[2_u64, 0, 5][..], &[3, 0, 6], &[u64::MAX]] {
            assert!(messages(rest.clone(), wrong.iter().copied()).is_err());
        }
        for cut in 0..body.len() - 8 {
            assert!(read::<Vec<u64>>(body.slice(..cut)).is_err(), "{cut}");
        }
    }
}
