//! A content filter that operators run: rspamd, over HTTP.

mod http;
mod reply;
mod rspamd;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod url;

use std::{
    num::{NonZeroU32, NonZeroU64},
    path::PathBuf,
};

use async_trait::async_trait;
use bytes::Bytes;
use restante_core::{Error, nonzero};
use serde::{Deserialize, Serialize};

pub use self::rspamd::Rspamd;
use self::url::FilterUrl;
use crate::Envelope;

/// The action that a filter recommends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterAction {
    /// Nothing.
    None,
    /// Refuse it temporarily.
    TryLater,
    /// Put it into Junk.
    Junk,
    /// Hold it for the operator.
    Quarantine,
    /// Refuse it.
    Refuse,
}

/// A filter's verdict on a message.
#[derive(Clone, Debug, PartialEq)]
pub struct FilterVerdict {
    /// The recommended action.
    pub action: FilterAction,
    /// Its score.
    pub score: f64,
    /// The score from which on it refuses, if it says so.
    pub required: Option<f64>,
    /// The names of the symbols it found, the highest weight first: at most 20, each of at most 64 bytes of letters, digits, `_`,
    /// `-` and `.`.
    pub symbols: Vec<String>,
    /// The text for the client, if there is one: printable ASCII in one line of at most 200 bytes.
    pub text: Option<String>,
}

/// What a user has decided about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lesson {
    /// It was moved into Junk.
    Junk,
    /// It was moved out of Junk.
    NotJunk,
}

/// Judges the content of messages.
#[async_trait]
pub trait Filter: Send + Sync + 'static {
    /// Whether a message of this length is sent to it.
    fn takes(&self, bytes: u64) -> bool;

    /// Judges a message.
    ///
    /// # Errors
    /// `Unavailable` if the filter is unreachable, slow or its answer can't be parsed: the message is treated as if there was no filter.
    async fn judge(&self, envelope: Envelope<'_>, raw: Bytes) -> Result<FilterVerdict, Error>;

    /// Learns from a decision of a user. Learning the same again changes nothing.
    ///
    /// # Errors
    /// `Unavailable` if the caller should try again; `Invalid` if the filter will never learn this message; `Internal` if it fails on this
    /// message, which may be the message's fault.
    async fn learn(&self, lesson: Lesson, raw: Bytes) -> Result<(), Error>;
}

/// The settings of the content filter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FilterConfig {
    /// The address of rspamd's normal worker, as `http://127.0.0.1:11333`; empty for no filter.
    pub url: String,
    /// The address of its controller, which learns what users move into and out of Junk, as `http://127.0.0.1:11334`; empty to
    /// disable learning.
    pub learn_url: String,
    /// A file with the password of the controller; empty for none.
    pub password_file: PathBuf,
    /// The most messages of an account that it learns in an hour; further ones are skipped.
    pub learned_per_hour_max: NonZeroU32,
    /// How long it may take per message.
    pub timeout_ms: NonZeroU64,
    /// Longer messages are not sent to it.
    pub message_bytes_max: NonZeroU64,
}

impl Default for FilterConfig {
    fn default() -> Self {
        Self {
            url: String::new(),
            learn_url: String::new(),
            password_file: PathBuf::new(),
            learned_per_hour_max: nonzero!(500),
            timeout_ms: nonzero!(10_000),
            message_bytes_max: nonzero!(10_000_000),
        }
    }
}

impl FilterConfig {
    /// What is wrong with these settings, if anything: the setting, and how to fix it.
    pub fn problem(&self) -> Option<(&'static str, String)> {
        for (name, url) in [("filter.url", &self.url), ("filter.learn_url", &self.learn_url)] {
            if let Err(why) = FilterUrl::parse_if_any(url) {
                return Some((name, why));
            }
        }
        let needs_url = self.learn_url.is_empty() && !self.password_file.as_os_str().is_empty();
        needs_url.then(|| ("filter.password_file", "give filter.learn_url, which it is for, too".to_owned()))
    }
}
