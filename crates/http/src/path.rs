//! Segments of paths, in which slashes of topics and ids are escaped, and values of query strings.

use std::borrow::Cow;

use axum::http::Uri;
use percent_encoding::{percent_decode, percent_decode_str};

use crate::Refusal;

/// The last segment of a path, unescaped; `name` is for the error.
///
/// # Errors
/// 400 when it is not UTF-8.
pub fn last<'u>(uri: &'u Uri, name: &str) -> Result<Cow<'u, str>, Refusal> {
    from_end(uri, 0, name)
}

/// The segment before the last one, unescaped.
///
/// # Errors
/// As [`last`].
pub fn last_but_one<'u>(uri: &'u Uri, name: &str) -> Result<Cow<'u, str>, Refusal> {
    from_end(uri, 1, name)
}

fn from_end<'u>(uri: &'u Uri, index: usize, name: &str) -> Result<Cow<'u, str>, Refusal> {
    let escaped = uri.path().rsplit('/').nth(index).unwrap_or_default();
    percent_decode_str(escaped).decode_utf8().map_err(|_| Refusal::field(name, "is not UTF-8"))
}

/// Decodes a name or value of a query string: `+` is a space, `%41` a byte.
///
/// # Errors
/// 400 when it is not UTF-8; `name` is for the error.
pub fn decode_form<'t>(text: &'t str, name: &str) -> Result<Cow<'t, str>, Refusal> {
    let not_utf8 = |_| Refusal::field(name, "is not UTF-8");
    if !text.contains('+') {
        return percent_decode(text.as_bytes()).decode_utf8().map_err(not_utf8);
    }
    let spaced = text.replace('+', " ");
    let decoded = percent_decode(spaced.as_bytes()).decode_utf8().map_err(not_utf8)?;
    Ok(Cow::Owned(decoded.into_owned()))
}

/// Sets a value that may be given only once.
///
/// # Errors
/// The problem, if it was already set.
pub fn set_once<T>(field: &mut Option<T>, value: T) -> Result<(), &'static str> {
    if field.is_some() {
        return Err("is given twice");
    }
    *field = Some(value);
    Ok(())
}
