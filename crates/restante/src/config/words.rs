//! How single values are written in a file: as texts that are parsed, or as a word for "none".

use std::{fmt, str::FromStr};

pub(super) use restante_core::settings::{text, text_or_empty};
use tracing_subscriber::EnvFilter;

/// What is logged: a level, or levels for single targets, such as `info,restante_archive=debug`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogFilter(String);

/// Libraries that warn about every misbehaving peer, about every lost connection (which is reported anyway), or about every merge of
/// the search index that is interrupted by a full disk or the stop of the server: a failed write is reported, and a merge is repeated.
const QUIET: [&str; 6] =
    ["lapin", "libp2p_gossipsub", "libp2p_mplex", "multistream_select", "tantivy", "yamux"];

impl LogFilter {
    /// The filter for a subscriber. Libraries that log events which any peer can cause are silent unless they are named: strangers must
    /// not be able to fill the log, and the important events are counted.
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
        // A bare word that is not a level would be parsed as a target, and silence everything else.
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

#[cfg(test)]
mod tests {
    use super::*;

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
