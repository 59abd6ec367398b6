use restante_core::Error;
use restante_records::RecordId;

/// Why an edit failed. Nothing was changed then, except after [`MailError::Store`], see there.
#[derive(Debug, thiserror::Error)]
pub enum MailError {
    /// The email, the mailbox or the entry of the vault does not exist.
    #[error("it does not exist")]
    NotFound,
    /// The state is not the one that the edit requires (RFC 8620 §5.3).
    #[error("the state is another one")]
    StateMismatch,
    /// It would exceed the quota of the account, or the number of its mailboxes.
    #[error("it exceeds the quota")]
    OverQuota,
    /// The email would be in too many mailboxes.
    #[error("the email would be in too many mailboxes")]
    TooManyMailboxes,
    /// The email would have too many keywords, or the account too many different ones.
    #[error("there would be too many keywords")]
    TooManyKeywords,
    /// The email would be in these mailboxes, which don't exist.
    #[error("there are no such mailboxes")]
    UnknownMailbox(Vec<RecordId>),
    /// The email would be in no mailbox.
    #[error("the email would be in no mailbox")]
    NoMailbox,
    /// This is no keyword (RFC 8621 §4.1.1).
    #[error("not a keyword: expected 1 to 255 characters of ASCII without spaces and ( ) {{ }} ] % * \" \\")]
    BadKeyword(String),
    /// There is already a mailbox with this name below the same parent.
    #[error("a mailbox of this name exists")]
    AlreadyExists {
        /// That mailbox.
        existing: RecordId,
    },
    /// The mailbox has others below it.
    #[error("the mailbox has child mailboxes")]
    HasChild,
    /// The mailbox has emails.
    #[error("the mailbox has emails")]
    HasEmail,
    /// These properties, which have their JMAP names, have invalid values.
    #[error("{why}")]
    Invalid {
        /// All of them.
        properties: Vec<&'static str>,
        /// What is wrong.
        why: String,
    },
    /// The submission is final (RFC 8621 §7.5).
    #[error("the message is being sent, or was sent")]
    CannotUnsend,
    /// It is not allowed.
    #[error("{0}")]
    Forbidden(&'static str),
    /// The store failed. After `Full` and `Unavailable` it is unknown whether the edit was made; a delivery can be repeated.
    #[error(transparent)]
    Store(#[from] Error),
}

impl MailError {
    /// A copy for another edit of the same commit.
    pub(crate) fn of_store(error: &Error) -> Self {
        Self::Store(error.duplicate())
    }

    /// The store's error, for callers that can get no other one: any other becomes `Internal`.
    pub fn into_store(self) -> Error {
        match self {
            Self::Store(error) => error,
            other => Error::internal(format!("an edit failed that can't: {other}")),
        }
    }

    pub(crate) fn invalid(property: &'static str, why: impl Into<String>) -> Self {
        Self::Invalid { properties: vec![property], why: why.into() }
    }
}
