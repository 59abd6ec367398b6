use std::{num::NonZero, path::PathBuf};

use restante_core::nonzero;
use restante_records::{CHANGES_MAX, COMMIT_CHANGES_MAX, GET_RECORDS_MAX};
use serde::{Deserialize, Serialize};

/// The settings of JMAP. Clients see the limits in the session object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JmapConfig {
    /// The longest request. At least 10,000,000 (RFC 8620 §2).
    pub request_bytes_max: NonZero<usize>,
    /// The most calls of one request.
    pub calls_max: NonZero<usize>,
    /// The most requests of one user that run at once, over HTTP and WebSockets together. At least 4 (RFC 8620 §2).
    pub requests_per_user_max: NonZero<usize>,
    /// How long a request beyond this number waits before it is refused with `limit`.
    pub request_wait_ms: u64,
    /// The most event streams and WebSockets that one user has open at once, both together. One more is refused with 429.
    pub connections_per_user_max: NonZero<usize>,
    /// The most objects that one /get returns.
    pub objects_in_get_max: NonZero<usize>,
    /// The most objects that one /set changes.
    pub objects_in_set_max: NonZero<usize>,
    /// The most ids that one /query returns; a greater `limit` is reduced to this.
    pub query_limit_max: NonZero<usize>,
    /// The most ids that one /changes returns, at most 4,096; a greater `maxChanges` is reduced to this.
    pub changes_max: NonZero<usize>,
    /// How deep the operators of a filter may be nested.
    pub filter_depth_max: NonZero<usize>,
    /// The most conditions of one filter.
    pub filter_conditions_max: NonZero<usize>,
    /// When the responses of one request have more bytes than this, further calls that read much fail with `requestTooLarge`.
    pub response_bytes_max: NonZero<usize>,
    /// The most bytes of cached results of Email/query, for all accounts together; the least recently used are dropped.
    pub views_bytes_max: NonZero<usize>,
    /// The longest upload, and so the longest message. At least 50,000,000 (RFC 8620 §2).
    pub upload_bytes_max: NonZero<u64>,
    /// The most uploads of one user at once.
    pub uploads_per_user_max: NonZero<usize>,
    /// How long an upload that nothing refers to is kept; uploading it again restarts the time. At least 3,600 (RFC 8620 §6).
    pub upload_seconds: NonZero<u64>,
    /// The most bytes of the uploads of one account that nothing refers to; beyond that the oldest are removed. At least
    /// `attachments_bytes_max`. Also the limit for the blobs that one request makes, together with the uploads that they are made of.
    pub uploads_bytes_max: NonZero<u64>,
    /// The most bytes of all attachments of one email.
    pub attachments_bytes_max: NonZero<u64>,
    /// The most sources of one blob of Blob/upload. At least 64 (RFC 9404 §3.1).
    pub blob_sources_max: NonZero<usize>,
    /// How long a client may take to send a request, also as a message of a WebSocket, and to send each MiB of an upload.
    pub body_timeout_ms: NonZero<u64>,
    /// How long changes of an account are collected before they are pushed to clients.
    pub push_delay_ms: u64,
    /// How long a token in the URL of an event stream, a WebSocket or a download, which replaces a log-in, is valid.
    pub url_token_seconds: NonZero<u64>,
    /// Pushes to the URLs of subscriptions.
    pub push: PushConfig,
    /// Sending mail.
    pub submission: SubmissionConfig,
}

/// The settings of EmailSubmission (RFC 8621 §7).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SubmissionConfig {
    /// The most recipients of one message. At most 4,096.
    pub recipients_max: NonZero<usize>,
    /// The most bytes of one message.
    pub message_bytes_max: NonZero<u64>,
    /// For how many seconds a message can be held before it is sent (RFC 4865); 0 allows no holding.
    pub delay_seconds_max: u64,
}

impl Default for SubmissionConfig {
    fn default() -> Self {
        Self {
            recipients_max: nonzero!(1_000),
            message_bytes_max: nonzero!(70_000_000),
            delay_seconds_max: 31 * 86_400,
        }
    }
}

impl SubmissionConfig {
    /// The upper bound of `recipients_max`.
    pub const RECIPIENTS_MAX: usize = 4_096;
}

/// The settings of push subscriptions (RFC 8620 §7.2).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PushConfig {
    /// Whether URLs may lead to this machine and to private networks. Everybody with an account can reach them then.
    pub allow_private: bool,
    /// A PEM file with the authorities that sign the certificates of push services; empty for those of the operating system.
    pub root_file: PathBuf,
    /// How push services reach the operator of the server: a `mailto:` or `https:` URL. Empty for the public URL.
    pub contact: String,
    /// The most subscriptions of one user.
    pub subscriptions_per_user_max: NonZero<usize>,
    /// The most subscriptions that one user creates in an hour: for each of them a request is sent to a URL that the user names.
    pub created_per_hour_max: NonZero<usize>,
    /// After how many seconds a subscription expires at the latest, unless its token expires earlier. At least 172,800 (RFC 8620 §7.2).
    pub expires_seconds_max: NonZero<u64>,
    /// The most pushes that are sent at once.
    pub sends_max: NonZero<usize>,
    /// The time limit for a push.
    pub timeout_ms: NonZero<u64>,
    /// How long to wait after a push that was not accepted. The wait doubles with each further failure, up to an hour.
    pub retry_ms: NonZero<u64>,
    /// A subscription whose pushes fail for this many seconds is removed.
    pub failing_seconds_max: NonZero<u64>,
    /// How long a push service keeps a push for a client that it can't reach.
    pub ttl_seconds: NonZero<u64>,
}

impl Default for PushConfig {
    fn default() -> Self {
        Self {
            allow_private: false,
            root_file: PathBuf::new(),
            contact: String::new(),
            subscriptions_per_user_max: nonzero!(16),
            created_per_hour_max: nonzero!(32),
            expires_seconds_max: nonzero!(604_800),
            sends_max: nonzero!(32),
            timeout_ms: nonzero!(10_000),
            retry_ms: nonzero!(10_000),
            failing_seconds_max: nonzero!(259_200),
            ttl_seconds: nonzero!(86_400),
        }
    }
}

impl Default for JmapConfig {
    fn default() -> Self {
        Self {
            request_bytes_max: nonzero!(10_000_000),
            calls_max: nonzero!(64),
            requests_per_user_max: nonzero!(16),
            request_wait_ms: 2_000,
            connections_per_user_max: nonzero!(32),
            objects_in_get_max: nonzero!(1_000),
            objects_in_set_max: nonzero!(1_000),
            query_limit_max: nonzero!(5_000),
            changes_max: nonzero!(4_096),
            filter_depth_max: nonzero!(16),
            filter_conditions_max: nonzero!(100),
            response_bytes_max: nonzero!(67_108_864),
            views_bytes_max: nonzero!(67_108_864),
            upload_bytes_max: nonzero!(70_000_000),
            uploads_per_user_max: nonzero!(4),
            upload_seconds: nonzero!(86_400),
            uploads_bytes_max: nonzero!(500_000_000),
            attachments_bytes_max: nonzero!(50_000_000),
            blob_sources_max: nonzero!(64),
            body_timeout_ms: nonzero!(60_000),
            push_delay_ms: 60,
            url_token_seconds: nonzero!(600),
            push: PushConfig::default(),
            submission: SubmissionConfig::default(),
        }
    }
}

impl JmapConfig {
    /// A problem of these settings, if there is one: the setting, and what to do about it.
    pub fn problem(&self) -> Option<(&'static str, String)> {
        let contact = self.push.contact.as_str();
        let is_contact = |scheme: &str| contact.strip_prefix(scheme).is_some_and(|rest| !rest.is_empty());
        if !contact.is_empty() && !is_contact("mailto:") && !is_contact("https://") {
            return Some(("contact", "use a URL with mailto: or https://".to_owned()));
        }
        let at_most = [
            ("objects_in_get_max", self.objects_in_get_max.get(), GET_RECORDS_MAX),
            ("objects_in_set_max", self.objects_in_set_max.get(), COMMIT_CHANGES_MAX),
            ("changes_max", self.changes_max.get(), CHANGES_MAX),
            ("recipients_max", self.submission.recipients_max.get(), SubmissionConfig::RECIPIENTS_MAX),
        ];
        let too_many = at_most.into_iter().find(|(_, value, max)| value > max);
        if let Some((setting, _, max)) = too_many {
            return Some((setting, format!("use at most {max}")));
        }
        let at_least = [
            ("blob_sources_max", self.blob_sources_max.get() as u64, Self::BLOB_SOURCES_MIN),
            ("upload_seconds", self.upload_seconds.get(), Self::UPLOAD_SECONDS_MIN),
            ("uploads_bytes_max", self.uploads_bytes_max.get(), self.attachments_bytes_max.get()),
            ("expires_seconds_max", self.push.expires_seconds_max.get(), Self::PUSH_EXPIRES_SECONDS_MIN),
        ];
        let too_few = at_least.into_iter().find(|(_, value, min)| value < min);
        too_few.map(|(setting, _, min)| (setting, format!("use at least {min}")))
    }

    /// The lower bound of `blob_sources_max` (RFC 9404 §3.1).
    pub const BLOB_SOURCES_MIN: u64 = 64;
    /// The lower bound of `upload_seconds` (RFC 8620 §6).
    pub const UPLOAD_SECONDS_MIN: u64 = 3_600;
    /// The lower bound of `push.expires_seconds_max` (RFC 8620 §7.2).
    pub const PUSH_EXPIRES_SECONDS_MIN: u64 = 172_800;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_break_a_rule_or_the_records_are_named() {
        assert_eq!(JmapConfig::default().problem(), None);
        let many = JmapConfig { objects_in_get_max: nonzero!(4_097), ..JmapConfig::default() };
        assert_eq!(many.problem(), Some(("objects_in_get_max", "use at most 4096".to_owned())));
        let short = JmapConfig { upload_seconds: nonzero!(3_599), ..JmapConfig::default() };
        assert_eq!(short.problem(), Some(("upload_seconds", "use at least 3600".to_owned())));
        let small = JmapConfig { uploads_bytes_max: nonzero!(1), ..JmapConfig::default() };
        assert_eq!(small.problem(), Some(("uploads_bytes_max", "use at least 50000000".to_owned())));
        let push = PushConfig { expires_seconds_max: nonzero!(172_799), ..PushConfig::default() };
        let brief = JmapConfig { push, ..JmapConfig::default() };
        assert_eq!(brief.problem(), Some(("expires_seconds_max", "use at least 172800".to_owned())));
    }
}
