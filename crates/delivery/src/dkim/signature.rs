//! A `DKIM-Signature` field, and what it shares with an `ARC-Message-Signature`.

use std::fmt::Write;

use restante_core::Error;
use restante_mail_wire::header::{Field, Header};

use super::{canonical, pair::Pair};

/// The fields that are signed, each as often as it occurs in the message (RFC 6376 §5.4.1). Fields that servers on the way add or
/// change are not among them.
const SIGNED: [&str; 25] = [
    "From",
    "Sender",
    "Reply-To",
    "To",
    "Cc",
    "Subject",
    "Date",
    "Message-ID",
    "In-Reply-To",
    "References",
    "MIME-Version",
    "Content-Type",
    "Content-Transfer-Encoding",
    "Content-Disposition",
    "Content-Language",
    "Auto-Submitted",
    "List-Id",
    "List-Help",
    "List-Subscribe",
    "List-Unsubscribe",
    "List-Unsubscribe-Post",
    "List-Post",
    "List-Owner",
    "List-Archive",
    "Autocrypt",
];
/// The most fields of one name that are signed: the last ones. A message has no reason for more.
pub(super) const SAME_NAME_MAX: usize = 8;
const OWN_NAME: &str = "DKIM-Signature";
/// Where lines are folded (RFC 5322 §2.1.1).
const LINE_BYTES: usize = 76;

/// A key that signs.
pub(super) struct SigningKey {
    pub(super) selector: String,
    pub(super) pair: Pair,
}

/// The names that `h=` lists. `From` is listed once more than it occurs in the message, so that no second one can be added (RFC 6376 §8.15).
pub(super) fn signed_names(header: &Header<'_>) -> Vec<&'static str> {
    let mut names = Vec::new();
    for name in SIGNED {
        let count = header.all(name).take(SAME_NAME_MAX).count();
        names.extend(std::iter::repeat_n(name, count));
        if name == "From" {
            names.push(name);
        }
    }
    names
}

/// The signed data (RFC 6376 §3.7): the named fields, those of equal names from the last one up, and the signature's own field with
/// an empty `b=`.
pub(super) fn signed_data(header: &Header<'_>, names: &[&str], own_name: &str, own_value: &str) -> Vec<u8> {
    let fields: Vec<Field<'_>> = header.fields().collect();
    let mut data = Vec::with_capacity(1_024);
    for (at, name) in names.iter().enumerate() {
        let before = names.iter().take(at).filter(|earlier| earlier.eq_ignore_ascii_case(name)).count();
        // A name for which no field is left adds no bytes (RFC 6376 §5.4).
        if let Some(found) = fields.iter().rev().filter(|field| field.is(name)).nth(before) {
            canonical::field(found.name, found.value, &mut data);
            data.extend_from_slice(b"\r\n");
        }
    }
    canonical::field(own_name, own_value.as_bytes(), &mut data);
    data
}

/// The field that signs a message with one key, ended by CRLF. `now` is in seconds since 1970.
pub(super) fn sign(
    key: &SigningKey,
    domain: &str,
    header: &Header<'_>,
    body_hash: &[u8],
    now: i64,
) -> Result<Vec<u8>, Error> {
    let names = signed_names(header);
    let value = unsigned_value("v=1", key, domain, &names, body_hash, now);
    let signature = key.pair.sign(&signed_data(header, &names, OWN_NAME, &value))?;
    Ok(with_signature(OWN_NAME, &value, &signature))
}

/// A field whose value ends with an empty `b=`, with its signature and CRLF.
pub(super) fn with_signature(name: &str, value: &str, signature: &[u8]) -> Vec<u8> {
    let signature = base64_simd::STANDARD.encode_to_string(signature);
    let mut field = format!("{name}:{value}").into_bytes();
    // White space in b= is ignored (RFC 6376 §3.5).
    let first = LINE_BYTES - "\tb=".len();
    let (start, mut rest) = signature.as_bytes().split_at(first.min(signature.len()));
    field.extend_from_slice(start);
    while !rest.is_empty() {
        let (line, behind) = rest.split_at((LINE_BYTES - 1).min(rest.len()));
        field.extend_from_slice(b"\r\n\t");
        field.extend_from_slice(line);
        rest = behind;
    }
    field.extend_from_slice(b"\r\n");
    field
}

/// The field's value from its first tag up to an empty `b=`. There is no `l=`: it would let others add to the body (RFC 6376 §8.2).
pub(super) fn unsigned_value(
    first_tag: &str,
    key: &SigningKey,
    domain: &str,
    names: &[&str],
    body_hash: &[u8],
    now: i64,
) -> String {
    let mut value = String::with_capacity(512);
    let (algorithm, selector) = (key.pair.algorithm().name(), &key.selector);
    let hash = base64_simd::STANDARD.encode_to_string(body_hash);
    // Writing to a string does not fail.
    let _ = write!(
        value,
        " {first_tag}; a={algorithm}; c=relaxed/relaxed;\r\n\tt={now};\r\n\td={domain};\r\n\ts={selector};\r\n\t"
    );
    let mut line_bytes = 1;
    for (at, name) in names.iter().enumerate() {
        let before = if at == 0 { "h=" } else { ":" };
        if line_bytes + before.len() + name.len() + 1 > LINE_BYTES {
            value.push_str("\r\n\t");
            line_bytes = 1;
        }
        value.push_str(before);
        value.push_str(name);
        line_bytes += before.len() + name.len();
    }
    let _ = write!(value, ";\r\n\tbh={hash};\r\n\tb=");
    value
}
