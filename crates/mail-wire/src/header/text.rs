use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use super::encoded_word::{EncodedWord, TextBuilder};

/// The Raw form: the octets as they are, without NUL, with U+FFFD for what is not UTF-8.
pub fn as_raw(value: &[u8]) -> String {
    let mut raw = String::from_utf8_lossy(value).into_owned();
    if raw.contains('\0') {
        raw.retain(|character| character != '\0');
    }
    raw
}

/// The Text form: unfolded, without leading white space, encoded words decoded if they are separated from others, in NFC.
pub fn as_text(value: &[u8]) -> String {
    nfc(unstructured(value, &[]))
}

/// Decodes unstructured text. Each of the `delimiters` is a word of its own: the parentheses of a comment.
pub(super) fn unstructured(value: &[u8], delimiters: &[u8]) -> String {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
    let is_end_of_word = |byte: &u8| is_space(byte) || delimiters.contains(byte);
    let mut builder = TextBuilder::default();
    let start = value.iter().take_while(|byte| is_space(byte)).count();
    let mut rest = value.get(start..).unwrap_or_default();
    while let Some(first) = rest.first() {
        if is_space(first) {
            let (space, after) = rest.split_at(rest.iter().take_while(|byte| is_space(byte)).count());
            builder.push_space(space);
            rest = after;
            continue;
        }
        let length = rest.iter().position(is_end_of_word).unwrap_or(rest.len()).max(1);
        let (word, after) = rest.split_at(length);
        match EncodedWord::parse_whole(word) {
            Some(encoded) => builder.push_encoded(encoded, word),
            None => builder.push_plain(word),
        }
        rest = after;
    }
    builder.finish()
}

/// The text in Unicode's normalization form C.
pub(crate) fn nfc(text: String) -> String {
    if text.is_ascii() || is_nfc_quick(text.chars()) == IsNormalized::Yes {
        return text;
    }
    text.nfc().collect()
}
