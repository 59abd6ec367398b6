//! A filter of content that operators run: rspamd, over HTTP.

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

/// What a filter advises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterAction {
    /// Nothing.
    None,
    /// Refuse it for now.
    TryLater,
    /// Put it into Junk.
    Junk,
    /// Keep it for the operator.
    Quarantine,
    /// Refuse it.
    Refuse,
}

/// What a filter said of a message.
#[derive(Clone, Debug, PartialEq)]
pub struct FilterVerdict {
    /// Its advice.
    pub action: FilterAction,
    /// Its score.
    pub score: f64,
    /// The score from which on it refuses, where it says so.
    pub required: Option<f64>,
    /// Its names of what it found, what weighs most first: 20 at most, each of at most 64 bytes of letters, digits, `_`, `-` and `.`.
    pub symbols: Vec<String>,
    /// What the client is to hear, where it says so: printable ASCII in one line of 200 bytes at most.
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

/// Judges what a message says.
#[async_trait]
pub trait Filter: Send + Sync + 'static {
    /// Whether a message of so many bytes is shown to it.
    fn takes(&self, bytes: u64) -> bool;

    /// Judges a message.
    ///
    /// # Errors
    /// `Unavailable` when the filter is away, slow or answers in a way that can't be understood: the message is taken as if there was no filter.
    async fn judge(&self, envelope: Envelope<'_>, raw: Bytes) -> Result<FilterVerdict, Error>;

    /// Learns from a decision of a user. Learning the same again changes nothing.
    ///
    /// # Errors
    /// `Unavailable` when it is to be tried again; `Invalid` when the filter never learns this message; `Internal` when it fails on this message, which may
    /// be the message's fault.
    async fn learn(&self, lesson: Lesson, raw: Bytes) -> Result<(), Error>;
}

/// The filter of content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FilterConfig {
    /// The address of rspamd's normal worker, as `http://127.0.0.1:11333`; empty for no filter.
    pub url: String,
    /// The address of its controller, which learns what users move into and out of Junk, as `http://127.0.0.1:11334`; empty for not learning.
    pub learn_url: String,
    /// A file with the password of the controller; empty for none.
    pub password_file: PathBuf,
    /// The most messages of an account that it learns in an hour; further ones are left out.
    pub learned_per_hour_max: NonZeroU32,
    /// How long it may take for a message.
    pub timeout_ms: NonZeroU64,
    /// Longer messages are not shown to it.
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
    /// What is wrong with these settings, if something is: the setting, and what to do.
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
