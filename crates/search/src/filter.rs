use restante_core::Error;

use crate::SearchText;

/// How deep a filter may be nested.
pub const FILTER_DEPTH_MAX: usize = 32;

/// The most operators and conditions of a filter.
pub const FILTER_CONDITIONS_MAX: usize = 256;

/// The most words of all texts of a filter together: each is looked up in each field and in each part of an index.
pub const FILTER_WORDS_MAX: usize = 512;

/// The longest name of a header field: a line of a header is no longer (RFC 5322 §2.1.1).
const HEADER_NAME_BYTES_MAX: usize = 998;

/// What an email must contain: the text conditions of RFC 8621 §4.4.1 and their operators (RFC 8620 §5.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// All of them match; true if there are none.
    And(Vec<Filter>),
    /// One of them matches; false if there are none.
    Or(Vec<Filter>),
    /// None of them matches; true if there are none.
    Not(Vec<Filter>),
    /// Each phrase of the text is in some field: `text`.
    Text(SearchText),
    /// Each phrase of the text is in this field.
    In(Field, SearchText),
    /// A header field of this name exists; with a text: each phrase of it is in a header field of this name.
    Header(HeaderName, Option<SearchText>),
}

/// A field of a document, as conditions name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Field {
    /// [`crate::Document::from`].
    From,
    /// [`crate::Document::to`].
    To,
    /// [`crate::Document::cc`].
    Cc,
    /// [`crate::Document::bcc`].
    Bcc,
    /// [`crate::Document::subject`].
    Subject,
    /// [`crate::Document::body`].
    Body,
    /// [`crate::Document::attachments`].
    Attachments,
}

impl Field {
    /// All fields: those that [`Filter::Text`] searches.
    pub const ALL: [Self; 7] =
        [Self::From, Self::To, Self::Cc, Self::Bcc, Self::Subject, Self::Body, Self::Attachments];
}

/// The name of a header field, in lower case: printable ASCII without a colon (RFC 5322 §2.2).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HeaderName(String);

impl HeaderName {
    /// Parses a name in any case; `None` when no header field can have it.
    pub fn new(name: &str) -> Option<Self> {
        let is_name = |byte: u8| byte.is_ascii_graphic() && byte != b':';
        let is_valid = !name.is_empty() && name.len() <= HEADER_NAME_BYTES_MAX && name.bytes().all(is_name);
        is_valid.then(|| Self(name.to_ascii_lowercase()))
    }

    /// The name in lower case.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The bound that a filter exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// It is nested too deeply.
    #[error("filter is nested deeper than {FILTER_DEPTH_MAX}")]
    Depth,
    /// It has too many operators and conditions.
    #[error("filter has more than {FILTER_CONDITIONS_MAX} operators and conditions")]
    Conditions,
    /// Its texts have too many words.
    #[error("texts of a filter have more than {FILTER_WORDS_MAX} words")]
    Words,
}

impl From<FilterError> for Error {
    fn from(error: FilterError) -> Self {
        Self::invalid(error.to_string())
    }
}

impl Filter {
    /// Checks the bounds of the filter.
    ///
    /// # Errors
    /// When it is nested deeper than [`FILTER_DEPTH_MAX`], or has more than [`FILTER_CONDITIONS_MAX`] operators and conditions, or more
    /// than [`FILTER_WORDS_MAX`] words.
    pub fn check(&self) -> Result<(), FilterError> {
        let mut unchecked = vec![(self, 1)];
        let (mut conditions, mut words) = (0, 0);
        while let Some((filter, depth)) = unchecked.pop() {
            conditions += 1;
            if depth > FILTER_DEPTH_MAX {
                return Err(FilterError::Depth);
            }
            match filter {
                Self::And(filters) | Self::Or(filters) | Self::Not(filters) => {
                    if conditions + unchecked.len() + filters.len() > FILTER_CONDITIONS_MAX {
                        return Err(FilterError::Conditions);
                    }
                    unchecked.extend(filters.iter().map(|filter| (filter, depth + 1)));
                }
                Self::Text(text) | Self::In(_, text) | Self::Header(_, Some(text)) => {
                    words += text.phrases().iter().map(|phrase| phrase.words().len()).sum::<usize>();
                }
                Self::Header(_, None) => {}
            }
            if words > FILTER_WORDS_MAX {
                return Err(FilterError::Words);
            }
        }
        Ok(())
    }
}
