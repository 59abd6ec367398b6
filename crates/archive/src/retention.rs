use std::{fmt, str::FromStr};

use restante_core::Timestamp;

/// Which messages to keep: `time:<seconds>`, `capacity:<count>`, `size:<n>MB|GB`, joined by `;`, or `none`.
///
/// A message is kept when every rule keeps it:
/// - `time`: messages not older than this many seconds;
/// - `capacity`: this many of the newest messages;
/// - `size`: the newest messages whose parts together take at most this many bytes on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Seconds that a message is kept.
    pub time_seconds: Option<u64>,
    /// Messages that are kept.
    pub capacity: Option<u64>,
    /// Bytes on disk that are kept (1 MB = 10^6 B).
    pub size_bytes: Option<u64>,
}

impl Retention {
    /// Whether everything is kept.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// The oldest timestamp that the time rule keeps.
    pub fn oldest_kept(&self, now: Timestamp) -> Option<Timestamp> {
        let seconds = i64::try_from(self.time_seconds?).unwrap_or(i64::MAX);
        Some(now.plus_seconds(seconds.saturating_neg()))
    }
}

/// What a prune has left in an engine that removes messages by whole parts: segments, windows or epochs.
#[derive(Clone, Debug)]
pub(crate) struct LeftByPrune {
    /// The name of the oldest part that has messages, its first timestamp, its messages and its bytes on disk.
    pub(crate) name: String,
    pub(crate) first: Timestamp,
    pub(crate) messages: u64,
    pub(crate) disk_bytes: u64,
    /// Those of all parts.
    pub(crate) all_messages: u64,
    pub(crate) all_disk_bytes: u64,
}

/// The word for a part, with its article and in the plural, and the settings of its length.
pub(crate) struct PartWords {
    pub(crate) one: &'static str,
    pub(crate) many: &'static str,
    pub(crate) settings: &'static str,
}

impl LeftByPrune {
    /// Describes why the oldest part stays although the policy may remove some of its messages; `None` when it removes none.
    pub(crate) fn not_removed(&self, policy: &Retention, now: Timestamp, part: &PartWords) -> Option<String> {
        let is_too_old = policy.oldest_kept(now).is_some_and(|kept| self.first < kept);
        let is_too_many = policy.capacity.is_some_and(|capacity| self.all_messages > capacity);
        let is_too_big = policy.size_bytes.is_some_and(|size| self.all_disk_bytes > size);
        if !(is_too_old || is_too_many || is_too_big) {
            return None;
        }
        let Self { name, first, messages, disk_bytes, .. } = self;
        let PartWords { one, many, settings } = part;
        Some(format!(
            "{name} ({messages} messages, {disk_bytes} bytes, from {first} on) stays although the policy may remove some of its \
             messages: {one} is removed as a whole, when the policy keeps none of its messages. Shorter {many} ({settings}) are \
             removed sooner"
        ))
    }
}

/// The error for a text that is no retention policy.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ParseRetentionError {
    /// The name of this rule is unknown.
    #[error(
        "retention rule '{0}' is not understood: use time:<seconds>, capacity:<count> or size:<n>MB|GB, joined by ';', or none"
    )]
    Unknown(String),
    /// Two rules have this name.
    #[error("the rule '{0}' is given twice: name each rule once")]
    Twice(String),
    /// The rule would keep no message.
    #[error("the retention rule '{0}' keeps nothing: use a larger number, or none to keep everything")]
    Nothing(String),
}

impl FromStr for Retention {
    type Err = ParseRetentionError;

    fn from_str(text: &str) -> Result<Self, ParseRetentionError> {
        let mut policy = Self::default();
        let text = text.trim();
        if text.is_empty() || text.eq_ignore_ascii_case("none") {
            return Ok(policy);
        }
        for rule in text.split(';') {
            policy.add(rule.trim())?;
        }
        Ok(policy)
    }
}

impl Retention {
    /// Adds one rule.
    fn add(&mut self, rule: &str) -> Result<(), ParseRetentionError> {
        let unknown = || ParseRetentionError::Unknown(rule.to_owned());
        let (name, value) = rule.split_once(':').ok_or_else(unknown)?;
        let (name, value) = (name.trim().to_ascii_lowercase(), value.trim());
        let (field, number) = match name.as_str() {
            "time" => (&mut self.time_seconds, value.parse().ok()),
            "capacity" => (&mut self.capacity, value.parse().ok()),
            "size" => (&mut self.size_bytes, parse_size(value)),
            _ => return Err(unknown()),
        };
        let number = number.ok_or_else(unknown)?;
        if number == 0 {
            return Err(ParseRetentionError::Nothing(rule.to_owned()));
        }
        if field.is_some() {
            return Err(ParseRetentionError::Twice(name));
        }
        *field = Some(number);
        Ok(())
    }
}

/// `1.5GB` in bytes; units MB and GB in any case, decimal multiples.
fn parse_size(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    let (number, unit) = match (lower.strip_suffix("mb"), lower.strip_suffix("gb")) {
        (Some(number), _) => (number, 1e6),
        (_, Some(number)) => (number, 1e9),
        _ => return None,
    };
    let bytes = number.trim().parse::<f64>().ok()? * unit;
    let is_size = bytes.is_finite() && (1.0..9e18).contains(&bytes);
    is_size.then_some(bytes as u64)
}

impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules = [
            self.time_seconds.map(|seconds| format!("time:{seconds}")),
            self.capacity.map(|count| format!("capacity:{count}")),
            self.size_bytes.map(|bytes| format!("size:{}MB", bytes as f64 / 1e6)),
        ];
        let rules: Vec<String> = rules.into_iter().flatten().collect();
        f.write_str(if rules.is_empty() { "none" } else { "" })?;
        f.write_str(&rules.join(";"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_read_back() {
        for text in ["none", "time:172800", "capacity:1000;size:1500MB", "time:60;capacity:5;size:2000MB"] {
            assert_eq!(text.parse::<Retention>().unwrap().to_string(), text);
        }
        assert_eq!("".parse(), Ok(Retention::default()));
        assert_eq!("SIZE: 1.5gb".parse::<Retention>().unwrap().size_bytes, Some(1_500_000_000));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "time",
            "time:",
            "time:-1",
            "time:0",
            "size:5",
            "size:nanMB",
            "size:infGB",
            "x:1",
            "time:1;time:2",
            ";",
        ] {
            assert!(text.parse::<Retention>().is_err(), "{text}");
        }
    }
}
