/// The kind of an error: enough for a door to choose its reply, and for a caller to decide whether to retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The requested thing does not exist.
    NotFound,
    /// The request is wrong, and will be wrong again.
    Invalid,
    /// The request conflicts with what is stored, or another process holds the resource.
    Conflict,
    /// The disk or a bounded queue is full.
    Full,
    /// The engine can't answer now.
    Unavailable,
    /// Stored data is damaged.
    Corrupt,
    /// A bug or an unexpected state.
    Internal,
}

impl ErrorKind {
    /// Whether the same request may succeed later.
    pub const fn is_transient(self) -> bool {
        matches!(self, Self::Full | Self::Unavailable)
    }

    /// The kind as one lowercase word, for labels and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::Invalid => "invalid",
            Self::Conflict => "conflict",
            Self::Full => "full",
            Self::Unavailable => "unavailable",
            Self::Corrupt => "corrupt",
            Self::Internal => "internal",
        }
    }
}
