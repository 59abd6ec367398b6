//! The notation of single settings: the serde representations that several crates need, and constants that are not zero.

/// A constant as a [`NonZero`](std::num::NonZero) number; a zero does not compile.
#[macro_export]
macro_rules! nonzero {
    ($number:expr) => {
        const { ::std::num::NonZero::new($number).expect("a constant that is not zero") }
    };
}

/// A value written as its display text.
pub mod text {
    use std::{fmt::Display, str::FromStr};

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Writes the text.
    pub fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    /// Parses the text.
    pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(Error::custom)
    }
}

/// The same, where an empty text is `None`.
pub mod text_or_empty {
    use std::{fmt::Display, str::FromStr};

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Writes the text.
    pub fn serialize<T: Display, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => serializer.collect_str(value),
            None => serializer.serialize_str(""),
        }
    }

    /// Parses the text.
    pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<T>, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() {
            return Ok(None);
        }
        text.parse().map(Some).map_err(Error::custom)
    }
}

/// A list of values, each written as its display text.
pub mod texts {
    use std::{fmt::Display, str::FromStr};

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Writes the texts.
    pub fn serialize<T: Display, S: Serializer>(values: &[T], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(values.iter().map(ToString::to_string))
    }

    /// Parses the texts.
    pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<T>, D::Error> {
        let texts: Vec<String> = Vec::deserialize(deserializer)?;
        texts.iter().map(|text| text.parse().map_err(Error::custom)).collect()
    }
}

/// A 16-bit number; -1 is `None`, which means any number.
pub mod number_or_any {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Writes the number.
    pub fn serialize<S: Serializer>(value: &Option<u16>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(value.map_or(-1, i64::from))
    }

    /// Reads the number.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u16>, D::Error> {
        let number = i64::deserialize(deserializer)?;
        if number == -1 {
            return Ok(None);
        }
        let outside = |_| Error::custom(format!("{number} is neither -1 (any) nor from 0 to 65535"));
        u16::try_from(number).map(Some).map_err(outside)
    }
}

/// A duration as a number of milliseconds, at least 1.
pub mod milliseconds {
    use std::{num::NonZero, time::Duration};

    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes the number.
    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(duration.as_millis() as u64)
    }

    /// Reads the number.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let number = NonZero::<u64>::deserialize(deserializer)?;
        Ok(Duration::from_millis(number.get()))
    }
}

/// A duration as a number of seconds, at least 1.
pub mod seconds {
    use std::{num::NonZero, time::Duration};

    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes the number.
    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(duration.as_secs())
    }

    /// Reads the number.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let number = NonZero::<u64>::deserialize(deserializer)?;
        Ok(Duration::from_secs(number.get()))
    }
}
