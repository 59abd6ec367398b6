//! The part of a report that people read.

use super::{Action, Report, ReportedRecipient, Returned, one_line};
use crate::header::Date;

/// The longest reply that is shown.
const REPLY_BYTES_MAX: usize = 500;

pub(super) fn write(report: &Report<'_>) -> String {
    let host = one_line(report.host, true, 255);
    let mut text = format!("This is the mail server {host}.\n\n");
    let is_one = report.recipients.len() == 1;
    let recipients = if is_one { "this recipient" } else { "these recipients" };
    let s = if is_one { "s" } else { "" };
    let begin = match report.action {
        Action::Failed => format!("Your message could not be delivered to {recipients}:"),
        Action::Delayed => format!("Your message has not been delivered to {recipients} yet:"),
        Action::Delivered => format!("Your message was delivered to {recipients}:"),
        Action::Expanded => {
            format!("Your message was passed on to the addresses that {recipients} lead{s} to:")
        }
        Action::Relayed => {
            format!(
                "Your message was passed on to the server of {recipients}, which does not report deliveries:"
            )
        }
    };
    text.push_str(&begin);
    text.push_str("\n\n");
    for recipient in &report.recipients {
        add_recipient(report.action, recipient, &mut text);
    }
    match report.action {
        Action::Failed => {
            text.push_str(
                "It will not be tried again. If you think that this is an error, please contact the\n",
            );
            text.push_str("recipient in another way, or send the message again later.\n");
        }
        Action::Delayed => {
            text.push_str("You don't need to do anything: this server keeps trying");
            let until = report.recipients.iter().filter_map(|recipient| recipient.will_retry_until).max();
            if let Some(seconds) = until {
                let date = Date { seconds, offset_minutes: 0 }.to_rfc_5322();
                text.push_str(&format!(" until\n{date}, and tells you if it gives up"));
            }
            text.push_str(".\n");
        }
        Action::Delivered | Action::Relayed | Action::Expanded => {}
    }
    if !report.original.is_empty() {
        text.push_str(match report.returned() {
            Returned::Whole => "\nYour message is attached.\n",
            Returned::Header => "\nThe header of your message is attached.\n",
        });
    }
    text
}

/// A recipient and, unless all went well, the reason.
fn add_recipient(action: Action, recipient: &ReportedRecipient<'_>, text: &mut String) {
    let address = one_line(recipient.address, true, REPLY_BYTES_MAX);
    text.push_str(&format!("  {address}\n"));
    if matches!(action, Action::Failed | Action::Delayed) {
        let reply = one_line(recipient.text, true, REPLY_BYTES_MAX);
        if let Some(why) = recipient.expired {
            text.push_str(&format!(
                "    It is not tried any more: {}\n",
                one_line(why, true, REPLY_BYTES_MAX)
            ));
        }
        let last = if recipient.expired.is_some() { " at last" } else { "" };
        let why = match recipient.server {
            Some(server) => {
                let server = one_line(server, true, 255);
                format!("The server {server} replied{last}: {} {} {reply}", recipient.code, recipient.status)
            }
            None => format!("The reason: {reply} ({} {})", recipient.code, recipient.status),
        };
        text.push_str(&format!("    {}\n", why.replace("  ", " ")));
    }
    text.push('\n');
}
