use std::num::NonZero;

use restante_core::nonzero;
use serde::{Deserialize, Serialize};

/// The limits of mail in an account. Clients see most of them in the session object (RFC 8621 §1.3).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MailConfig {
    /// The most mailboxes of an account.
    pub mailboxes_max: NonZero<usize>,
    /// The deepest nesting of mailboxes; a mailbox at the top has depth 1.
    pub mailbox_depth_max: NonZero<usize>,
    /// The longest name of a mailbox in bytes. RFC 8621 §1.3.1 requires at least 100.
    pub mailbox_name_bytes_max: NonZero<usize>,
    /// The most mailboxes that one email is in.
    pub mailboxes_per_email_max: NonZero<usize>,
    /// The most keywords of one email.
    pub keywords_per_email_max: NonZero<usize>,
    /// The most different keywords of an account, besides the well-known ones. An account's keywords are in memory while it is
    /// in use.
    pub keywords_max: NonZero<usize>,
    /// How long a repeated delivery is recognized, even if the email has been destroyed since. Peers retry for up to five days (RFC
    /// 5321 §4.5.4.1).
    pub delivery_memory_seconds: NonZero<u64>,
    /// How long a destroyed email can be restored.
    pub vault_seconds: u64,
    /// The most bytes of destroyed emails that an account keeps for restoring; beyond that, those destroyed first are removed.
    pub vault_bytes_max: u64,
    /// The most accounts that stay in memory while nothing happens in them.
    pub accounts_in_memory_max: NonZero<usize>,
    /// The most mailboxes that stay in memory for all those accounts, for writers and readers separately; each takes about 300 bytes.
    pub mailboxes_in_memory_max: usize,
    /// The most edits of one account that wait for their commit; further ones are refused as busy.
    pub edits_waiting_max: NonZero<usize>,
}

impl Default for MailConfig {
    fn default() -> Self {
        Self {
            mailboxes_max: nonzero!(10_000),
            mailbox_depth_max: nonzero!(10),
            mailbox_name_bytes_max: nonzero!(490),
            mailboxes_per_email_max: nonzero!(100),
            keywords_per_email_max: nonzero!(100),
            keywords_max: nonzero!(4_096),
            delivery_memory_seconds: nonzero!(5 * 24 * 3_600),
            vault_seconds: 30 * 24 * 3_600,
            vault_bytes_max: 1_000_000_000,
            accounts_in_memory_max: nonzero!(1_024),
            mailboxes_in_memory_max: 65_536,
            edits_waiting_max: nonzero!(4_096),
        }
    }
}

impl MailConfig {
    /// The least that `mailbox_name_bytes_max` may be (RFC 8621 §1.3.1).
    pub const NAME_BYTES_MIN: usize = 100;
    /// The most that `mailboxes_per_email_max` and `keywords_per_email_max` may be: an email has at most
    /// [`restante_records::INDEX_ENTRIES_MAX`] entries in an index.
    pub const PER_EMAIL_MAX: usize = 200;

    /// The first wrong setting, if there is one, and what to do about it.
    pub fn problem(&self) -> Option<(&'static str, String)> {
        if self.mailbox_name_bytes_max.get() < Self::NAME_BYTES_MIN {
            return Some(("mailbox_name_bytes_max", format!("use at least {}", Self::NAME_BYTES_MIN)));
        }
        let per_email = [
            ("mailboxes_per_email_max", self.mailboxes_per_email_max),
            ("keywords_per_email_max", self.keywords_per_email_max),
        ];
        let too_many = per_email.into_iter().find(|(_, max)| max.get() > Self::PER_EMAIL_MAX);
        too_many.map(|(setting, _)| (setting, format!("use at most {}", Self::PER_EMAIL_MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_no_store_can_keep_are_named() {
        assert_eq!(MailConfig::default().problem(), None);
        let short = MailConfig { mailbox_name_bytes_max: nonzero!(99), ..MailConfig::default() };
        assert_eq!(short.problem().unwrap().0, "mailbox_name_bytes_max");
        let many = MailConfig { keywords_per_email_max: nonzero!(201), ..MailConfig::default() };
        assert_eq!(many.problem(), Some(("keywords_per_email_max", "use at most 200".to_owned())));
    }
}
