//! The reasons for which SMTP refuses, and the replies: the one table from reasons to codes.

use restante_core::ErrorKind;
use restante_mail_wire::smtp::{DataError, Reply};

/// Why a recipient or a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Refusal {
    Unknown,
    Relay,
    Disabled,
    /// An alias leads to another server, and this one does not forward.
    AliasOutside,
    AliasLoop,
    BadAddress,
    NeedsUtf8,
    TooManyRecipients,
    /// Temporarily.
    OverQuota,
    /// Permanently.
    OverQuotaForGood,
    Away,
    DiskFull,
    Memory,
    TooBig,
    BareNewline,
    LineTooLong,
    HopLimit,
    /// This server has already forwarded the message for the same address.
    ForwardLoop,
    /// Checks put the message into Junk, so it is not sent to another server.
    ForwardJunk,
    /// The message is not made of lines, so it can't be sent to another server.
    ForwardBinary,
    /// Mail to a rewritten sender that is not a report.
    ReturnOnly,
    /// The message does not have exactly one `From` field with addresses.
    NoAuthor,
    /// The address in `From` belongs to somebody else.
    ForeignAuthor,
    HeaderTooLong,
    NulByte,
    /// The account has sent the most messages that it may.
    MessagesLimited,
    RecipientsLimited,
    /// More recipients than an account may have in a day.
    TooManyForDay,
    /// The log-in is no longer valid; the connection ends.
    LoginOver,
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
            Self::ForwardLoop => {
                Reply::new(550, "5.4.6", "the message was forwarded for this address before")
            }
            Self::ForwardJunk => Reply::new(
                550,
                "5.7.1",
                "the address leads to another server, to which no mail is sent that looks like junk",
            ),
            Self::ForwardBinary => Reply::new(
                550,
                "5.6.1",
                "the address leads to another server, to which no binary mail is sent",
            ),
            Self::ReturnOnly => {
                Reply::new(550, "5.7.1", "this address takes reports only, with an empty sender")
            }
            Self::NoAuthor => {
                Reply::new(550, "5.7.1", "the message needs one From field, with valid addresses")
            }
            Self::ForeignAuthor => {
                Reply::new(550, "5.7.1", "the address in the From field is none of your account")
            }
            Self::HeaderTooLong => Reply::new(552, "5.3.4", "the header of the message is too long"),
            Self::NulByte => Reply::new(550, "5.6.0", "the message has a NUL byte"),
            Self::MessagesLimited => Reply::new(
                450,
                "4.7.1",
                "your account has sent as many messages as it may in an hour: try again later",
            ),
            Self::RecipientsLimited => Reply::new(
                450,
                "4.7.1",
                "your account has sent to as many recipients as it may in a day: try again later",
            ),
            Self::TooManyForDay => Reply::new(
                550,
                "5.5.3",
                "the message has more recipients than your account may have in a day",
            ),
            Self::LoginOver => Reply::new(421, "4.7.0", "closed: your log-in does not hold any more"),
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
            Self::ForwardLoop => "forward_loop",
            Self::ForwardJunk => "forward_junk",
            Self::ForwardBinary => "forward_binary",
            Self::ReturnOnly => "return_only",
            Self::NoAuthor | Self::ForeignAuthor => "author",
            Self::HeaderTooLong => "header_too_long",
            Self::NulByte => "nul_byte",
            Self::MessagesLimited | Self::RecipientsLimited | Self::TooManyForDay => "limited",
            Self::LoginOver => "log_in_over",
        }
    }

    /// Whether a recipient is refused permanently because of the message itself: if the client sends it again, `RCPT` accepts the
    /// recipient again.
    pub(crate) const fn is_of_message(self) -> bool {
        matches!(self, Self::ForwardLoop | Self::ForwardJunk | Self::OverQuotaForGood)
    }

    /// What a failed store means for a client. Everything but a full disk passes or is fixed by this server's operator, so a
    /// client keeps the message.
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
