use restante_core::RecordId;

/// The most bytes of the texts of one document. Longer texts are cut when the document is created.
pub const DOCUMENT_BYTES_MAX: usize = 4 << 20;

/// Only this many characters at the beginning of a header field's value are searched: fields such as DKIM-Signature
/// are long, and nobody searches for their content.
pub const HEADER_VALUE_CHARS_MAX: usize = 512;

/// The searchable content of an email. It never changes.
///
/// A phrase doesn't match across two entries of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    /// The email.
    pub id: RecordId,
    /// When it was received, in seconds since 1970.
    pub received: i64,
    /// The addresses of From, each with its name: `Alice Smith alice@example.com`.
    pub from: Vec<String>,
    /// Those of To.
    pub to: Vec<String>,
    /// Those of Cc.
    pub cc: Vec<String>,
    /// Those of Bcc.
    pub bcc: Vec<String>,
    /// The subject, decoded.
    pub subject: String,
    /// The texts of the body: for HTML the visible text, with alternative texts and titles.
    pub body: Vec<String>,
    /// The names of attachments.
    pub attachments: Vec<String>,
    /// The header fields in their order: the name in any case, the value as text (unfolded, decoded).
    pub headers: Vec<(String, String)>,
}

impl Document {
    /// The bytes of all texts.
    pub fn bytes(&self) -> usize {
        let lists = [&self.from, &self.to, &self.cc, &self.bcc, &self.body, &self.attachments];
        let lists: usize = lists.into_iter().flatten().map(String::len).sum();
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.subject.len() + lists + headers
    }
}

/// The part of a header field's value that is searched.
pub(crate) fn searched_part(value: &str) -> &str {
    match value.char_indices().nth(HEADER_VALUE_CHARS_MAX) {
        Some((end, _)) => value.get(..end).unwrap_or(value),
        None => value,
    }
}
