//! What the door refuses, and the replies: the one table from reasons to codes.

use restante_core::ErrorKind;
use restante_mail_wire::smtp::{DataError, Reply};

/// Why a recipient or a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Refusal {
    Unknown,
    Relay,
    Disabled,
    /// An alias leads to another server, and mail is not sent yet.
    AliasOutside,
    AliasLoop,
    BadAddress,
    NeedsUtf8,
    TooManyRecipients,
    /// For now.
    OverQuota,
    /// For good.
    OverQuotaForGood,
    Away,
    DiskFull,
    Memory,
    TooBig,
    BareNewline,
    LineTooLong,
    HopLimit,
}

impl Refusal {
    pub(crate) const fn reply(self) -> Reply<'static> {
        match self {
            Self::Unknown => Reply::new(550, "5.1.1", "no such user here"),
            Self::Relay => Reply::new(554, "5.7.1", "this server does not relay"),
            Self::Disabled => Reply::new(550, "5.2.1", "the mailbox is disabled"),
            Self::AliasOutside => {
                Reply::new(550, "5.7.1", "the address leads to another server, to which nothing is sent")
            }
            Self::AliasLoop => {
                Reply::new(550, "5.4.6", "the address leads nowhere: its aliases can't be followed")
            }
            Self::BadAddress => Reply::new(553, "5.1.3", "this can't be an address of a mailbox"),
            Self::NeedsUtf8 => Reply::new(553, "5.6.7", "an address that is not ASCII needs SMTPUTF8"),
            Self::TooManyRecipients => {
                Reply::new(452, "4.5.3", "too many recipients: send the rest in another message")
            }
            Self::OverQuota => Reply::new(452, "4.2.2", "the mailbox is full"),
            Self::OverQuotaForGood => Reply::new(552, "5.2.2", "the mailbox is full"),
            Self::Away => Reply::new(451, "4.3.0", "this can't be done now: try again later"),
            Self::DiskFull => {
                Reply::new(452, "4.3.1", "there is no space for the message now: try again later")
            }
            Self::Memory => Reply::new(452, "4.3.1", "too many messages at once: try again later"),
            Self::TooBig => Reply::new(552, "5.3.4", "the message is too big"),
            Self::BareNewline => {
                Reply::new(550, "5.5.2", "the message has a CR or LF that is not part of CRLF")
            }
            Self::LineTooLong => Reply::new(550, "5.5.2", "a line of the message is too long"),
            Self::HopLimit => Reply::new(550, "5.4.6", "the message has gone through too many servers"),
        }
    }

    /// The value of the label `result`.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Relay => "relay",
            Self::Disabled => "disabled",
            Self::AliasOutside => "alias_outside",
            Self::AliasLoop => "alias_loop",
            Self::BadAddress | Self::NeedsUtf8 => "bad_address",
            Self::TooManyRecipients => "too_many",
            Self::OverQuota | Self::OverQuotaForGood => "over_quota",
            Self::Away => "unavailable",
            Self::DiskFull => "disk_full",
            Self::Memory => "memory",
            Self::TooBig => "too_big",
            Self::BareNewline => "bare_newline",
            Self::LineTooLong => "line_too_long",
            Self::HopLimit => "hop_limit",
        }
    }

    /// What a failed store means for a client. Everything but a full disk is a matter of time or of this server's operator, so a client
    /// keeps the message.
    pub(crate) const fn of_store(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Full => Self::DiskFull,
            _ => Self::Away,
        }
    }
}

impl From<DataError> for Refusal {
    fn from(error: DataError) -> Self {
        match error {
            DataError::BareNewline => Self::BareNewline,
            DataError::LineTooLong => Self::LineTooLong,
        }
    }
}
