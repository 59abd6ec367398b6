//! Topics and ids in paths, in which their slashes are escaped.

use std::borrow::Cow;

use axum::http::Uri;
use percent_encoding::percent_decode_str;

use super::reply::Refusal;

/// The last part of a path, unescaped.
pub(crate) fn last<'u>(uri: &'u Uri, name: &str) -> Result<Cow<'u, str>, Refusal> {
    from_end(uri, 0, name)
}

/// The part before the last one, unescaped.
pub(crate) fn last_but_one<'u>(uri: &'u Uri, name: &str) -> Result<Cow<'u, str>, Refusal> {
    from_end(uri, 1, name)
}

fn from_end<'u>(uri: &'u Uri, index: usize, name: &str) -> Result<Cow<'u, str>, Refusal> {
    let escaped = uri.path().rsplit('/').nth(index).unwrap_or_default();
    percent_decode_str(escaped).decode_utf8().map_err(|_| Refusal::field(name, "is not UTF-8"))
}
