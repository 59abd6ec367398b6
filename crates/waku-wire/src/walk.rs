//! Iterates over the fields of one protobuf message without copying them.

/// Why bytes can't be decoded as a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes end inside a field.
    #[error("message ends inside a field")]
    Truncated,
    /// A variable-length number is longer than ten bytes or does not fit into 64 bits.
    #[error("message has a number of more than 64 bits")]
    NumberTooLong,
    /// A field has the number 0, a number above 2^29 - 1, or a wire type that does not exist.
    #[error("message has a field with an impossible key")]
    InvalidKey,
    /// A group is closed that was not opened, or groups are nested too deeply.
    #[error("message has unbalanced or too deeply nested groups")]
    InvalidGroup,
    /// A known field has the wrong type.
    #[error("field {0} has the wrong wire type")]
    WrongType(&'static str),
    /// A text field is not UTF-8.
    #[error("field {0} is not UTF-8")]
    NotUtf8(&'static str),
    /// A required field is absent.
    #[error("field {0} is missing")]
    Missing(&'static str),
    /// A field or the whole message is longer than allowed.
    #[error("{what} of {len} bytes is too long: the limit is {max} bytes")]
    TooLong {
        /// The name of the part.
        what: &'static str,
        /// Its length in bytes.
        len: usize,
        /// The limit.
        max: usize,
    },
}

/// Groups may be nested this deeply in fields that are skipped, as in other protobuf decoders.
const GROUPS_MAX: usize = 100;

/// A field's encoded value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// A value of another type, which no message here uses: it was skipped.
    Other,
}

impl<'a> Value<'a> {
    pub(crate) fn varint(self, field: &'static str) -> Result<u64, WireError> {
        if let Self::Varint(number) = self { Ok(number) } else { Err(WireError::WrongType(field)) }
    }

    pub(crate) fn bytes(self, field: &'static str) -> Result<&'a [u8], WireError> {
        if let Self::Bytes(bytes) = self { Ok(bytes) } else { Err(WireError::WrongType(field)) }
    }

    pub(crate) fn text(self, field: &'static str) -> Result<&'a str, WireError> {
        std::str::from_utf8(self.bytes(field)?).map_err(|_| WireError::NotUtf8(field))
    }
}

/// The bytes that are left to decode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk<'a>(pub(crate) &'a [u8]);

#[derive(Clone, Copy, PartialEq, Eq)]
enum WireType {
    Varint,
    SixtyFourBit,
    LengthDelimited,
    StartGroup,
    EndGroup,
    ThirtyTwoBit,
}

impl<'a> Walk<'a> {
    /// The next field's number and value, or `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<(u32, Value<'a>)>, WireError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let (number, wire_type) = self.key()?;
        let value = match wire_type {
            WireType::StartGroup => self.skip_group(number)?,
            other => self.value(other)?,
        };
        Ok(Some((number, value)))
    }

    fn key(&mut self) -> Result<(u32, WireType), WireError> {
        let key = u32::try_from(self.varint()?).map_err(|_| WireError::InvalidKey)?;
        let number = key >> 3;
        let wire_type = match key & 7 {
            0 => WireType::Varint,
            1 => WireType::SixtyFourBit,
            2 => WireType::LengthDelimited,
            3 => WireType::StartGroup,
            4 => WireType::EndGroup,
            5 => WireType::ThirtyTwoBit,
            _ => return Err(WireError::InvalidKey),
        };
        if number == 0 { Err(WireError::InvalidKey) } else { Ok((number, wire_type)) }
    }

    fn value(&mut self, wire_type: WireType) -> Result<Value<'a>, WireError> {
        match wire_type {
            WireType::Varint => return Ok(Value::Varint(self.varint()?)),
            WireType::LengthDelimited => return Ok(Value::Bytes(self.length_delimited()?)),
            WireType::SixtyFourBit => self.take(8)?,
            WireType::ThirtyTwoBit => self.take(4)?,
            WireType::StartGroup | WireType::EndGroup => return Err(WireError::InvalidGroup),
        };
        Ok(Value::Other)
    }

    /// Skips to the end of the group that began with `number`.
    fn skip_group(&mut self, number: u32) -> Result<Value<'a>, WireError> {
        let mut open = vec![number];
        while let Some(innermost) = open.last() {
            let (number, wire_type) = self.key()?;
            if wire_type == WireType::EndGroup {
                if number != *innermost {
                    return Err(WireError::InvalidGroup);
                }
                open.pop();
                continue;
            }
            if open.len() == GROUPS_MAX {
                return Err(WireError::InvalidGroup);
            }
            if wire_type == WireType::StartGroup {
                open.push(number);
            } else {
                self.value(wire_type)?;
            }
        }
        Ok(Value::Other)
    }

    /// A number of one to ten bytes, seven bits in each, the lowest first.
    #[inline]
    pub(crate) fn varint(&mut self) -> Result<u64, WireError> {
        let mut number = 0_u64;
        for shift in (0..70).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(WireError::Truncated)?;
            self.0 = rest;
            let is_overflow = shift == 63 && *byte > 1;
            if is_overflow {
                return Err(WireError::NumberTooLong);
            }
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(WireError::NumberTooLong)
    }

    /// A length and that many bytes.
    pub(crate) fn length_delimited(&mut self) -> Result<&'a [u8], WireError> {
        let len = self.varint()?;
        self.take(usize::try_from(len).map_err(|_| WireError::Truncated)?)
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(WireError::Truncated)?;
        self.0 = rest;
        Ok(head)
    }
}
