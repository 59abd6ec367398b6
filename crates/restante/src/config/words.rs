//! How single values are written in a file: as texts that are parsed, or with a word for "none".

use std::{fmt, str::FromStr};

pub(super) use restante_core::settings::{text, text_or_empty, texts};
use tracing_subscriber::EnvFilter;

/// What is logged: a level, or levels for single targets, such as `info,restante_archive=debug`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogFilter(String);

/// Libraries that warn of each misdeed of a peer.
const QUIET: [&str; 4] = ["libp2p_gossipsub", "libp2p_mplex", "multistream_select", "yamux"];

impl LogFilter {
    /// The filter for a subscriber. Libraries that log what any peer can bring about are silent unless they are named: the log
    /// must not grow with what strangers do, and what matters of it is counted.
    pub(crate) fn directives(&self) -> EnvFilter {
        let quiet =
            QUIET.iter().filter(|target| !self.0.contains(**target)).map(|target| format!("{target}=off,"));
        EnvFilter::new(quiet.chain([self.0.clone()]).collect::<String>())
    }
}

impl Default for LogFilter {
    fn default() -> Self {
        Self("info".into())
    }
}

impl FromStr for LogFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const HELP: &str =
            "use error, warn, info, debug or trace, or levels by target as in info,restante_archive=debug";
        // A bare word that is no level would be taken as the name of a target, and silence everything else.
        let is_named =
            |part: &str| part.contains('=') || part.parse::<tracing::Level>().is_ok() || part == "off";
        let is_filter = text.split(',').all(is_named) && EnvFilter::try_new(text).is_ok();
        if is_filter {
            Ok(Self(text.to_owned()))
        } else {
            Err(format!("log level '{text}' is not understood: {HELP}"))
        }
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A number of bytes as operators write it: `153600`, `150KiB`, `1MiB`, `150KB`.
///
/// nwaku's `--max-msg-size` takes the binary units.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "kb" => 1_000,
        "mb" => 1_000_000,
        _ => return Err(format!("'{text}' is no size: use bytes, or a unit as in 150KiB, 1MiB, 150KB, 1MB")),
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    bytes.ok_or_else(|| format!("'{text}' is no size: use a whole number, as in 150KiB"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_unit() {
        for (text, bytes) in
            [("153600", 153_600), ("150KiB", 153_600), ("1 MiB", 1 << 20), ("2kb", 2_000), ("3MB", 3_000_000)]
        {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "KiB", "-1", "1.5MiB", "1GiBi", "99999999999999999999", "99999999999999999MiB"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_word_that_is_no_level_is_refused() {
        for text in ["info", "warn,restante=trace", "off", "DEBUG"] {
            assert!(text.parse::<LogFilter>().is_ok(), "{text}");
        }
        for text in ["loud", "", "info,loud", "restante=loud"] {
            assert!(text.parse::<LogFilter>().is_err(), "{text}");
        }
    }
}
