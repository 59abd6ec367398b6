//! Lists of tags (RFC 6376 §3.2): those of signatures, key records and policies.

/// The most tags of a list.
const TAGS_MAX: usize = 100;

/// A list of tags, in order.
#[derive(Clone, Debug)]
pub(super) struct Tags<'t>(Vec<(&'t str, &'t str)>);

impl<'t> Tags<'t> {
    /// Parses a list. `None` if the syntax is wrong, or a tag is repeated.
    pub(super) fn parse(text: &'t str) -> Option<Self> {
        let is_space = |character: char| matches!(character, ' ' | '\t' | '\r' | '\n');
        let mut tags: Vec<(&str, &str)> = Vec::new();
        let mut specs = text.split(';').peekable();
        while let Some(spec) = specs.next() {
            let spec = spec.trim_matches(is_space);
            if spec.is_empty() && specs.peek().is_none() {
                break; // after the last semicolon
            }
            let (name, value) = spec.split_once('=')?;
            let name = name.trim_matches(is_space);
            let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            let is_name =
                name.starts_with(|first: char| first.is_ascii_alphabetic()) && name.bytes().all(is_name_byte);
            let is_repeated = tags.iter().any(|(earlier, _)| *earlier == name);
            if !is_name || is_repeated || tags.len() >= TAGS_MAX {
                return None;
            }
            tags.push((name, value.trim_matches(is_space)));
        }
        Some(Self(tags))
    }

    /// The value of a tag. Names of tags are case-sensitive.
    pub(super) fn get(&self, name: &str) -> Option<&'t str> {
        self.0.iter().find(|(tag, _)| *tag == name).map(|(_, value)| *value)
    }

    /// The first tag.
    pub(super) fn first(&self) -> Option<(&'t str, &'t str)> {
        self.0.first().copied()
    }

    /// A number of at most 18 digits; `None` if the tag is missing, an error if it is not a number.
    pub(super) fn number(&self, name: &str) -> Result<Option<u64>, ()> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let is_number = (1..=18).contains(&value.len()) && value.bytes().all(|byte| byte.is_ascii_digit());
        if is_number { value.parse().map(Some).map_err(|_| ()) } else { Err(()) }
    }
}

/// The items of a colon-separated list, without white space around them.
pub(super) fn items(value: &str) -> impl Iterator<Item = &str> {
    value.split(':').map(str::trim_ascii)
}

/// Decodes base64, with white space anywhere.
pub(super) fn base64(value: &str) -> Option<Vec<u8>> {
    let plain: Vec<u8> = value.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    base64_simd::forgiving_decode_to_vec(&plain).ok()
}
