//! The delivery status (RFC 3464 §2).

use super::{Action, Report, ReportedRecipient, one_line};
use crate::{
    header::Date,
    smtp::{decode_xtext, peer::utf8_address_in_ascii},
};

/// The longest value of a field.
const VALUE_BYTES_MAX: usize = 900;

/// The fields of the message, then those of each recipient after an empty line.
pub(super) fn write(report: &Report<'_>) -> Vec<u8> {
    let mut fields = Fields { is_utf8: report.is_utf8, out: String::new() };
    fields.add("Reporting-MTA", &format!("dns; {}", report.host));
    if let Some(id) = report.envelope_id {
        fields.add("Original-Envelope-Id", &decode_xtext(id));
    }
    fields.add("Arrival-Date", &date(report.arrived));
    for recipient in &report.recipients {
        fields.out.push_str("\r\n");
        fields.recipient(report.action, recipient);
    }
    fields.out.into_bytes()
}

struct Fields {
    is_utf8: bool,
    out: String,
}

impl Fields {
    fn add(&mut self, name: &str, value: &str) {
        let value = one_line(value, self.is_utf8, VALUE_BYTES_MAX);
        if !value.is_empty() {
            self.out.push_str(&format!("{name}: {value}\r\n"));
        }
    }

    fn recipient(&mut self, action: Action, recipient: &ReportedRecipient<'_>) {
        if let Some((kind, original)) = recipient.original.and_then(|original| original.split_once(';')) {
            // RFC 6533 §3: addresses of the type `utf-8` have their own encoding, and are written unchanged.
            let is_encoded = !kind.eq_ignore_ascii_case("utf-8");
            let original = if is_encoded { decode_xtext(original) } else { original.into() };
            self.address("Original-Recipient", kind, &original);
        }
        self.address("Final-Recipient", "rfc822", recipient.address);
        self.add("Action", action.word());
        self.add("Status", &status_of(action, recipient));
        if let Some(server) = recipient.server {
            self.add("Remote-MTA", &format!("dns; {server}"));
        }
        let ReportedRecipient { code, text, .. } = recipient;
        let starts_with_status = recipient.status.is_empty() || text.starts_with(recipient.status);
        let enhanced = if starts_with_status { String::new() } else { format!("{} ", recipient.status) };
        self.add("Diagnostic-Code", &format!("smtp; {code} {enhanced}{text}"));
        self.add("Last-Attempt-Date", &date(recipient.last_attempt));
        if let Some(until) = recipient.will_retry_until.filter(|_| action == Action::Delayed) {
            self.add("Will-Retry-Until", &date(until));
        }
    }

    /// An address with its type. RFC 6533 §3: an address with non-ASCII characters has the type `utf-8`, and where these
    /// characters are not allowed they are written in hexadecimal.
    fn address(&mut self, field: &str, kind: &str, address: &str) {
        if address.is_ascii() {
            self.add(field, &format!("{kind};{address}"));
            return;
        }
        if self.is_utf8 {
            self.add(field, &format!("utf-8;{address}"));
            return;
        }
        self.add(field, &format!("utf-8;{}", utf8_address_in_ascii(address)));
    }
}

impl Action {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Delayed => "delayed",
            Self::Delivered => "delivered",
            Self::Relayed => "relayed",
            Self::Expanded => "expanded",
        }
    }

    /// The class of status codes for this action.
    fn class(self) -> char {
        match self {
            Self::Failed => '5',
            Self::Delayed => '4',
            Self::Delivered | Self::Relayed | Self::Expanded => '2',
        }
    }
}

/// A status of the action's class (RFC 3464 §2.3.4). A recipient that was tried until its time was over gets the status for that
/// (RFC 3463 §3.5).
fn status_of(action: Action, recipient: &ReportedRecipient<'_>) -> String {
    if recipient.expired.is_some() {
        return "5.4.7".to_owned();
    }
    let numbers: Vec<&str> = recipient.status.split('.').collect();
    let is_number = |text: &&str| (1..=3).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    match numbers.as_slice() {
        [class, subject, detail] if class.len() == 1 && numbers.iter().all(is_number) => {
            format!("{}.{subject}.{detail}", action.class())
        }
        _ => format!("{}.0.0", action.class()),
    }
}

fn date(seconds: i64) -> String {
    Date { seconds, offset_minutes: 0 }.to_rfc_5322()
}
