use super::{Authentication, Outcome};
use crate::{Envelope, Reverse};

/// The longest value that is written.
const VALUE_BYTES_MAX: usize = 255;

/// The `Authentication-Results` field of a message (RFC 8601), ended by CRLF, for the server with this name. Values from outside
/// are quoted, and are printable ASCII.
pub fn results_field(hostname: &str, envelope: Envelope<'_>, found: &Authentication) -> String {
    let mut field = format!("Authentication-Results: {}", value(hostname));
    // RFC 8601 §2.2: each result on a line of its own.
    let mut add = |result: &str| {
        field.push_str(";\r\n\t");
        field.push_str(result);
    };

    let property = if envelope.sender.is_empty() { "smtp.helo" } else { "smtp.mailfrom" };
    let asked = if found.spf_domain.is_empty() { String::new() } else { named(property, &found.spf_domain) };
    add(&format!("spf={}{asked}", found.spf.as_str()));

    for signature in &found.dkim {
        let mut result = format!("dkim={}", signature.outcome.as_str());
        let properties = [
            ("header.d", &signature.domain),
            ("header.s", &signature.selector),
            ("header.b", &signature.signature),
        ];
        for (property, text) in properties {
            if !text.is_empty() {
                result.push_str(&named(property, text));
            }
        }
        add(&result);
    }
    if found.dkim.is_empty() {
        add("dkim=none");
    }
    if found.arc != Outcome::None {
        add(&format!("arc={}", found.arc.as_str()));
    }

    let mut result = format!("dmarc={}", found.dmarc.as_str());
    if let Some(from) = &found.from {
        result.push_str(&named("header.from", from));
    }
    if found.dmarc_domain.is_some() {
        result.push_str(&named("policy.dmarc", found.policy.as_str()));
    }
    add(&result);

    let reverse = match &envelope.facts.reverse {
        Reverse::Confirmed(_) => Outcome::Pass,
        Reverse::Unconfirmed(_) => Outcome::Fail,
        Reverse::None => Outcome::PermError, // RFC 8601 §2.7.3: it has no name
        Reverse::Unknown => Outcome::TempError,
    };
    let address = envelope.peer.address.to_canonical().to_string();
    add(&format!("iprev={}{}", reverse.as_str(), named("policy.iprev", &address)));
    field.push_str("\r\n");
    field
}

/// A property, on a line of its own when it is long.
fn named(property: &str, text: &str) -> String {
    let value = value(text);
    let space = if value.len() > 40 { "\r\n\t " } else { " " };
    format!("{space}{property}={value}")
}

/// A value (RFC 8601 §2.2): a token, or a quoted string.
fn value(text: &str) -> String {
    let is_token_byte = |byte: u8| byte.is_ascii_graphic() && !br#"()<>@,;:\"/[]?="#.contains(&byte);
    if (1..=VALUE_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_token_byte) {
        return text.to_owned();
    }
    let mut quoted = String::from("\"");
    for character in text.chars().take(VALUE_BYTES_MAX) {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            ' '..='~' => quoted.push(character),
            _ => quoted.push('?'),
        }
    }
    quoted.push('"');
    quoted
}
