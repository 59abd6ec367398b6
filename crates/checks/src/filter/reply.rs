//! The answers of rspamd (<https://rspamd.com/doc/developers/protocol.html>).

use std::cmp::Ordering;

use restante_core::Error;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{FilterAction, FilterVerdict};
use crate::text::printable;

/// The most names of symbols.
const SYMBOLS_MAX: usize = 20;
const SYMBOL_BYTES_MAX: usize = 64;
const TEXT_BYTES_MAX: usize = 200;

#[derive(Deserialize)]
struct Reply {
    action: String,
    score: f64,
    required_score: Option<f64>,
    #[serde(default)]
    symbols: Map<String, Value>,
    /// An object; older versions return lists.
    #[serde(default)]
    messages: Value,
}

/// Parses an answer to `/checkv2`.
///
/// # Errors
/// `Unavailable` if it can't be parsed.
pub(super) fn read(body: &[u8]) -> Result<FilterVerdict, Error> {
    let reply: Reply = serde_json::from_slice(body)
        .map_err(|error| Error::unavailable(format!("the filter's answer can't be understood: {error}")))?;
    let action = action(&reply.action).ok_or_else(|| {
        let action = printable(&reply.action, SYMBOL_BYTES_MAX);
        Error::unavailable(format!("the filter advises '{action}', which is not known here"))
    })?;
    let text = reply.messages.get("smtp_message").and_then(Value::as_str);
    let text = text.map(|text| printable(text, TEXT_BYTES_MAX)).filter(|text| !text.is_empty());
    Ok(FilterVerdict {
        action,
        score: reply.score,
        required: reply.required_score,
        symbols: heaviest(&reply.symbols),
        text,
    })
}

/// rspamd's names of actions. This server ignores `greylist`: where rspamd does the greylisting, it answers `soft reject`.
fn action(name: &str) -> Option<FilterAction> {
    Some(match name {
        "no action" | "greylist" => FilterAction::None,
        "soft reject" => FilterAction::TryLater,
        "add header" | "rewrite subject" => FilterAction::Junk,
        "quarantine" => FilterAction::Quarantine,
        // Nothing is discarded here without a reply.
        "reject" | "discard" => FilterAction::Refuse,
        _ => return None,
    })
}

/// The names of symbols, the highest weight first. Names with unexpected characters are left out.
fn heaviest(symbols: &Map<String, Value>) -> Vec<String> {
    let is_name = |name: &str| {
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        !name.is_empty() && name.len() <= SYMBOL_BYTES_MAX && name.bytes().all(is_known)
    };
    let weight = |symbol: &Value| symbol.get("score").and_then(Value::as_f64).unwrap_or_default().abs();
    let mut found: Vec<(&str, f64)> = symbols
        .iter()
        .filter(|(name, _)| is_name(name))
        .map(|(name, symbol)| (name.as_str(), weight(symbol)))
        .collect();
    let by_weight = |a: &(&str, f64), b: &(&str, f64)| b.1.partial_cmp(&a.1).unwrap_or(Ordering::Equal);
    found.sort_by(|a, b| by_weight(a, b).then_with(|| a.0.cmp(b.0)));
    found.into_iter().take(SYMBOLS_MAX).map(|(name, _)| name.to_owned()).collect()
}
