//! The arguments of a call: each is taken by its name and type, and an argument that nothing has taken is an error (RFC 8620 §3.6.2).

use std::io::Write;

use restante_directory::Access;
use restante_mail_wire::header::Date;
use restante_records::AccountId;
use serde_json::{Map, Value};

use super::{Context, Creations, Id, MethodError};

/// The largest `UnsignedInt`, and `Int` in both directions (RFC 8620 §1.3).
pub(crate) const INT_MAX: u64 = (1 << 53) - 1;

/// The arguments of one call.
#[derive(Debug)]
pub(crate) struct Args(Map<String, Value>);

impl Args {
    /// The arguments of a call whose references are resolved.
    pub(crate) fn new(arguments: Map<String, Value>) -> Self {
        Self(arguments)
    }

    /// Takes an argument as it is.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name)
    }

    /// All arguments, for Core/echo.
    pub(crate) fn into_map(self) -> Map<String, Value> {
        self.0
    }

    /// Takes an argument that must be present.
    pub(crate) fn required<T: Argument>(&mut self, name: &str) -> Result<T, MethodError> {
        self.optional(name)?.ok_or_else(|| MethodError::argument(name, "is missing"))
    }

    /// Takes an argument that may be absent, but not null.
    pub(crate) fn optional<T: Argument>(&mut self, name: &str) -> Result<Option<T>, MethodError> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => read(name, value).map(Some),
        }
    }

    /// Takes an argument whose signature has `|null`: null means the same as absent.
    pub(crate) fn nullable<T: Argument>(&mut self, name: &str) -> Result<Option<T>, MethodError> {
        match self.take(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => read(name, value).map(Some),
        }
    }

    /// Takes `accountId`, and checks that the caller has the needed access to the account.
    pub(crate) async fn account(
        &mut self,
        context: &Context,
        needed: Access,
    ) -> Result<AccountId, MethodError> {
        let id = self.required::<Id>("accountId")?;
        context.account(&id, needed).await
    }

    /// Takes `fromAccountId` of a /copy.
    #[expect(clippy::wrong_self_convention, reason = "it takes the argument of this name")]
    pub(crate) async fn from_account(&mut self, context: &Context) -> Result<AccountId, MethodError> {
        let id = self.required::<Id>("fromAccountId")?;
        context.account(&id, Access::Read).await.map_err(|error| match error {
            MethodError::AccountNotFound => MethodError::FromAccountNotFound,
            other => other,
        })
    }

    /// Takes `ids` of a /get: `None` for all. Each id occurs once. Creation ids are resolved where possible; an unknown one is left as
    /// it is, and matches nothing.
    pub(crate) fn ids_to_get(
        &mut self,
        context: &Context,
        creations: &Creations,
    ) -> Result<Option<Vec<String>>, MethodError> {
        let Some(ids) = self.nullable::<Vec<Id>>("ids")? else { return Ok(None) };
        let distinct = creations.distinct(ids);
        context.check_objects_in_get(distinct.len())?;
        Ok(Some(distinct))
    }

    /// Finishes reading the arguments.
    ///
    /// # Errors
    /// `invalidArguments` when an argument was not taken: it is unknown.
    pub(crate) fn done(self) -> Result<(), MethodError> {
        match self.0.keys().next() {
            Some(name) => {
                let name = restante_http::reply::cut(name, NAME_CHARS_MAX);
                Err(MethodError::argument(&name, "is not an argument of this method"))
            }
            None => Ok(()),
        }
    }
}

/// The longest part of a client's name that an error repeats.
const NAME_CHARS_MAX: usize = 60;

fn read<T: Argument>(name: &str, value: Value) -> Result<T, MethodError> {
    T::read(value).ok_or_else(|| MethodError::argument(name, &format!("expected {}", T::EXPECTED)))
}

/// A type of arguments.
pub(crate) trait Argument: Sized {
    /// A description of the type, for error messages.
    const EXPECTED: &'static str;

    /// Reads a value; `None` when it is of another type.
    fn read(value: Value) -> Option<Self>;
}

impl Argument for bool {
    const EXPECTED: &'static str = "true or false";

    fn read(value: Value) -> Option<Self> {
        value.as_bool()
    }
}

/// An `UnsignedInt` (RFC 8620 §1.3).
impl Argument for u64 {
    const EXPECTED: &'static str = "a whole number from 0 to 2^53-1";

    fn read(value: Value) -> Option<Self> {
        value.as_u64().filter(|number| *number <= INT_MAX)
    }
}

/// An `Int` (RFC 8620 §1.3).
impl Argument for i64 {
    const EXPECTED: &'static str = "a whole number from -2^53+1 to 2^53-1";

    fn read(value: Value) -> Option<Self> {
        value.as_i64().filter(|number| number.unsigned_abs() <= INT_MAX)
    }
}

impl Argument for String {
    const EXPECTED: &'static str = "a string";

    fn read(value: Value) -> Option<Self> {
        match value {
            Value::String(text) => Some(text),
            _ => None,
        }
    }
}

impl Argument for Id {
    const EXPECTED: &'static str = "an id: 1 to 255 characters of A-Z, a-z, 0-9, - and _";

    fn read(value: Value) -> Option<Self> {
        String::read(value).and_then(Id::read)
    }
}

impl Argument for Map<String, Value> {
    const EXPECTED: &'static str = "an object";

    fn read(value: Value) -> Option<Self> {
        match value {
            Value::Object(map) => Some(map),
            _ => None,
        }
    }
}

impl Argument for Vec<Value> {
    const EXPECTED: &'static str = "an array";

    fn read(value: Value) -> Option<Self> {
        match value {
            Value::Array(items) => Some(items),
            _ => None,
        }
    }
}

impl Argument for Vec<Id> {
    const EXPECTED: &'static str = "an array of ids";

    fn read(value: Value) -> Option<Self> {
        Vec::<Value>::read(value)?.into_iter().map(Id::read_value).collect()
    }
}

impl Argument for Vec<String> {
    const EXPECTED: &'static str = "an array of strings";

    fn read(value: Value) -> Option<Self> {
        Vec::<Value>::read(value)?.into_iter().map(String::read).collect()
    }
}

/// An object without a fixed set of members, such as a filter or a patch.
impl Argument for Value {
    const EXPECTED: &'static str = "a value";

    fn read(value: Value) -> Option<Self> {
        Some(value)
    }
}

impl Id {
    fn read_value(value: Value) -> Option<Self> {
        <Self as Argument>::read(value)
    }
}

/// A `UTCDate` (RFC 8620 §1.4), in seconds since 1970. Fractions of seconds are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UtcDate(pub(crate) i64);

impl Argument for UtcDate {
    const EXPECTED: &'static str = "a time as 2014-10-30T06:12:00Z";

    fn read(value: Value) -> Option<Self> {
        Self::parse(value.as_str()?)
    }
}

impl UtcDate {
    /// Reads `2014-10-30T06:12:00Z`; letters are upper case, and a fraction is not zero (RFC 8620 §1.4).
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.strip_suffix('Z')?;
        let (text, fraction) = match text.split_once('.') {
            Some((text, fraction)) => (text, Some(fraction)),
            None => (text, None),
        };
        let is_fraction = |digits: &str| {
            digits.bytes().all(|byte| byte.is_ascii_digit()) && digits.bytes().any(|byte| byte != b'0')
        };
        if fraction.is_some_and(|digits| !is_fraction(digits)) {
            return None;
        }
        let bytes: &[u8; 19] = text.as_bytes().try_into().ok()?;
        let separators = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
        if !separators.iter().all(|(at, separator)| bytes.get(*at) == Some(separator)) {
            return None;
        }
        let field = |range: std::ops::Range<usize>| -> Option<i64> {
            let digits = text.get(range)?;
            if digits.bytes().all(|byte| byte.is_ascii_digit()) { digits.parse().ok() } else { None }
        };
        let (year, month, day) = (field(0..4)?, field(5..7)?, field(8..10)?);
        let (hour, minute, second) = (field(11..13)?, field(14..16)?, field(17..19)?);
        // RFC 3339 §5.6: a leap second is written as 60.
        if hour > 23 || minute > 59 || second > 60 || !(1..=days_of(year, month)?).contains(&day) {
            return None;
        }
        Some(Self(days_before(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second))
    }
}

fn days_of(year: i64, month: i64) -> Option<i64> {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => Some(31),
        4 | 6 | 9 | 11 => Some(30),
        2 => Some(if is_leap { 29 } else { 28 }),
        _ => None,
    }
}

/// The days from 1970-01-01 to a date of the Gregorian calendar. Years begin with March here, so that a leap day is the last day of its
/// year.
fn days_before(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - 719_468
}

/// Writes a `UTCDate` as a JSON string.
pub(crate) fn write_utc_date(seconds: i64, out: &mut Vec<u8>) {
    // Writing to a vector can't fail.
    let _ = write!(out, "\"{}\"", Date { seconds, offset_minutes: 0 });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn args(value: Value) -> Args {
        let Value::Object(map) = value else { panic!("an object") };
        Args::new(map)
    }

    #[test]
    fn m3_types_are_checked_and_unknown_arguments_refused() {
        let mut of = args(json!({"a": 1, "b": "x", "c": null, "d": true}));
        assert_eq!(of.required::<u64>("a"), Ok(1));
        let wrong = of.required::<bool>("b").unwrap_err();
        assert_eq!(wrong, MethodError::InvalidArguments("b: expected true or false".into()));
        assert_eq!(of.nullable::<String>("c"), Ok(None));
        let error = of.done().unwrap_err();
        assert_eq!(error, MethodError::InvalidArguments("d: is not an argument of this method".into()));
        assert!(args(json!({})).required::<u64>("a").is_err());
        assert!(args(json!({"a": null})).optional::<u64>("a").is_err(), "null is a value there");
    }

    #[test]
    fn m3_whole_numbers_are_below_2_to_the_53() {
        let read = |value: Value| <u64 as Argument>::read(value);
        assert_eq!(read(json!(0)), Some(0));
        assert_eq!(read(json!(9_007_199_254_740_991_u64)), Some(INT_MAX));
        for wrong in
            [json!(-1), json!(9_007_199_254_740_992_u64), json!(1.5), json!(1.0), json!("1"), json!(true)]
        {
            assert_eq!(read(wrong.clone()), None, "{wrong}");
        }
        assert_eq!(<i64 as Argument>::read(json!(-9_007_199_254_740_991_i64)), Some(-9_007_199_254_740_991));
        assert_eq!(<i64 as Argument>::read(json!(-9_007_199_254_740_992_i64)), None);
    }

    #[test]
    fn m3_a_utc_date_ends_in_z_and_has_no_zero_fraction() {
        let read = |text: &str| UtcDate::parse(text).map(|date| date.0);
        assert_eq!(read("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(read("2014-10-30T06:12:00Z"), Some(1_414_649_520));
        assert_eq!(read("2014-10-30T06:12:00.25Z"), Some(1_414_649_520));
        assert_eq!(read("2000-02-29T23:59:59Z"), Some(951_868_799));
        assert_eq!(read("0001-01-01T00:00:00Z"), Some(-62_135_596_800));
        for wrong in [
            "2014-10-30T14:12:00+08:00",
            "2014-10-30t06:12:00Z",
            "2014-10-30T06:12:00z",
            "2014-10-30T06:12:00.0Z",
            "2014-10-30T06:12:00.Z",
            "2014-10-30 06:12:00Z",
            "2014-02-29T06:12:00Z",
            "2014-13-01T06:12:00Z",
            "2014-10-30T24:00:00Z",
            "2014-1-30T06:12:00Z",
            "+014-10-30T06:12:00Z",
            "",
            "Z",
            "1900-02-29T00:00:00Z",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    proptest::proptest! {
        #[test]
        fn m3_dates_are_written_as_they_are_read(seconds in -62_135_596_800_i64..253_402_300_800) {
            let mut out = Vec::new();
            write_utc_date(seconds, &mut out);
            let text: String = serde_json::from_slice(&out).unwrap();
            proptest::prop_assert_eq!(UtcDate::parse(&text), Some(UtcDate(seconds)));
        }

        #[test]
        fn m3_reading_a_date_never_panics(text in "\\PC{0,30}") {
            let _ = UtcDate::parse(&text);
        }
    }
}
