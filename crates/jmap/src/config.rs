use std::num::NonZero;

use restante_core::nonzero;
use restante_records::{CHANGES_MAX, COMMIT_CHANGES_MAX, GET_RECORDS_MAX};
use serde::{Deserialize, Serialize};

/// The settings of JMAP. Clients see the limits in the session object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JmapConfig {
    /// The longest request. At least 10,000,000 (RFC 8620 §2).
    pub request_bytes_max: NonZero<usize>,
    /// Calls of one request.
    pub calls_max: NonZero<usize>,
    /// Requests of one user that are answered at once, over HTTP and WebSockets together. At least 4 (RFC 8620 §2).
    pub requests_per_user_max: NonZero<usize>,
    /// How long a request beyond these waits, before it is refused with `limit`.
    pub request_wait_ms: u64,
    /// Objects that one /get returns.
    pub objects_in_get_max: NonZero<usize>,
    /// Objects that one /set changes.
    pub objects_in_set_max: NonZero<usize>,
    /// Ids that one /query returns; a greater `limit` is cut to this.
    pub query_limit_max: NonZero<usize>,
    /// Ids that one /changes returns, 4,096 at most; a greater `maxChanges` is cut to this.
    pub changes_max: NonZero<usize>,
    /// How deep operators of a filter are nested.
    pub filter_depth_max: NonZero<usize>,
    /// Conditions of one filter.
    pub filter_conditions_max: NonZero<usize>,
    /// Bytes of the responses of one request, beyond which further calls that read much fail with `requestTooLarge`.
    pub response_bytes_max: NonZero<usize>,
    /// Bytes of the results of Email/query that are kept, for all accounts together: what was not used for the longest time goes.
    pub views_bytes_max: NonZero<usize>,
    /// The longest upload, and so the longest message. At least 50,000,000 (RFC 8620 §2).
    pub upload_bytes_max: NonZero<u64>,
    /// Uploads of one user at once.
    pub uploads_per_user_max: NonZero<usize>,
    /// How long an upload is kept that nothing refers to; uploading it again begins anew. At least 3,600 (RFC 8620 §6).
    pub upload_seconds: NonZero<u64>,
    /// Bytes of the uploads of one account that nothing refers to: beyond them the oldest go. At least `attachments_bytes_max`.
    pub uploads_bytes_max: NonZero<u64>,
    /// Bytes of all attachments of one email.
    pub attachments_bytes_max: NonZero<u64>,
    /// Sources that one blob of Blob/upload is made of. At least 64 (RFC 9404 §3.1).
    pub blob_sources_max: NonZero<usize>,
    /// How long a client may take to send a request, and for each MiB of an upload.
    pub body_timeout_ms: NonZero<u64>,
    /// How long changes of an account are joined before they are pushed to clients.
    pub push_delay_ms: u64,
}

impl Default for JmapConfig {
    fn default() -> Self {
        Self {
            request_bytes_max: nonzero!(10_000_000),
            calls_max: nonzero!(64),
            requests_per_user_max: nonzero!(16),
            request_wait_ms: 2_000,
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
        }
    }
}

impl JmapConfig {
    /// What is wrong with these settings, if something is: the setting, and what to do.
    pub fn problem(&self) -> Option<(&'static str, String)> {
        let at_most = [
            ("objects_in_get_max", self.objects_in_get_max.get(), GET_RECORDS_MAX),
            ("objects_in_set_max", self.objects_in_set_max.get(), COMMIT_CHANGES_MAX),
            ("changes_max", self.changes_max.get(), CHANGES_MAX),
        ];
        let too_many = at_most.into_iter().find(|(_, value, max)| value > max);
        if let Some((setting, _, max)) = too_many {
            return Some((setting, format!("use at most {max}")));
        }
        let at_least = [
            ("blob_sources_max", self.blob_sources_max.get() as u64, Self::BLOB_SOURCES_MIN),
            ("upload_seconds", self.upload_seconds.get(), Self::UPLOAD_SECONDS_MIN),
            ("uploads_bytes_max", self.uploads_bytes_max.get(), self.attachments_bytes_max.get()),
        ];
        let too_few = at_least.into_iter().find(|(_, value, min)| value < min);
        too_few.map(|(setting, _, min)| (setting, format!("use at least {min}")))
    }

    /// The least that `blob_sources_max` may be (RFC 9404 §3.1).
    pub const BLOB_SOURCES_MIN: u64 = 64;
    /// The least that `upload_seconds` may be (RFC 8620 §6).
    pub const UPLOAD_SECONDS_MIN: u64 = 3_600;
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
    }
}
