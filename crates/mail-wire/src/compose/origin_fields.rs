//! Fields that a server adds to a message.

use crate::header::Date;

/// `Date` and `Message-ID`, for a submitted message without them (RFC 6409 §8): RFC 5322 §3.6 requires the former and recommends
/// the latter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginFields {
    /// For `Date`.
    pub date: Date,
    /// For `Message-ID`, without brackets.
    pub message_id: String,
}

impl OriginFields {
    /// The lines of those fields that the message does not have. They are put before its own.
    pub fn missing(&self, has_date: bool, has_message_id: bool) -> String {
        let mut lines = String::new();
        if !has_date {
            lines.push_str(&format!("Date: {}\r\n", self.date.to_rfc_5322()));
        }
        if !has_message_id {
            lines.push_str(&format!("Message-ID: <{}>\r\n", self.message_id));
        }
        lines
    }
}
