//! Adapts a message to what a server accepts.

use bytes::Bytes;
use restante_directory::Domain;
use restante_mail::queue::Reply;
use restante_mail_wire::smtp::peer::{Extensions, is_safe_address};

use crate::{
    Outgoing,
    prepare::{INLINE_BYTES_MAX, header_bytes, to_seven_bit},
};

/// A message for one server.
#[derive(Debug)]
pub(super) struct Fitted {
    pub(super) bytes: Bytes,
    /// The header fields that are put before it.
    pub(super) signatures: Vec<u8>,
    pub(super) sender: String,
    pub(super) is_8bit: bool,
    pub(super) is_utf8: bool,
}

impl Fitted {
    /// The number of bytes that are sent, before dots are added.
    pub(super) fn size(&self) -> u64 {
        self.signatures.len() as u64 + self.bytes.len() as u64
    }
}

/// The message in the form that a server with these extensions accepts, without signatures. A long message is read on a blocking thread.
///
/// # Errors
/// The server can't accept it in any form.
pub(super) async fn fit(message: &Outgoing, extensions: &Extensions) -> Result<Fitted, Reply> {
    if message.bytes.len() <= INLINE_BYTES_MAX {
        return fit_now(message, extensions);
    }
    let (message, extensions) = (message.clone(), extensions.clone());
    let fitting = tokio::task::spawn_blocking(move || fit_now(&message, &extensions)).await;
    fitting.unwrap_or_else(|_| Err(Reply::own(451, "4.3.0", "the message can't be fitted to the server now")))
}

fn fit_now(message: &Outgoing, extensions: &Extensions) -> Result<Fitted, Reply> {
    let header = message.bytes.get(..header_bytes(&message.bytes)).unwrap_or(&message.bytes);
    let sender = if message.sender.is_empty() {
        Some(String::new())
    } else {
        address(&message.sender, extensions.has_smtputf8)
    };
    let Some(sender) = sender else { return Err(no_utf8("the address of the sender")) };
    let is_utf8_header = message.transmission.is_utf8 && !header.is_ascii();
    if is_utf8_header && !extensions.has_smtputf8 {
        return Err(no_utf8("its header"));
    }
    let is_8bit = !message.bytes.is_ascii();
    if is_8bit && !extensions.has_8bitmime {
        let Some(encoded) = to_seven_bit(&message.bytes) else {
            let why = "the server takes ASCII only, and the message can't be changed to that";
            return Err(Reply::own(554, "5.6.3", why));
        };
        return Ok(Fitted {
            bytes: encoded.into(),
            signatures: Vec::new(),
            is_utf8: !sender.is_ascii(),
            sender,
            is_8bit: false,
        });
    }
    let is_utf8 = is_utf8_header || !sender.is_ascii();
    Ok(Fitted { bytes: message.bytes.clone(), signatures: Vec::new(), sender, is_8bit, is_utf8 })
}

/// An address as it is written in a command: with the domain in ASCII where the server needs that (RFC 6531 §3.2). `None` when the
/// server can't accept it.
pub(super) fn address(address: &str, has_smtputf8: bool) -> Option<String> {
    if address.is_ascii() || has_smtputf8 {
        return Some(address.to_owned());
    }
    let (local, domain) = address.rsplit_once('@')?;
    if !local.is_ascii() {
        return None;
    }
    let domain: Domain = domain.parse().ok()?;
    Some(format!("{local}@{domain}"))
}

/// Why an address can't be in a command at all.
pub(super) fn problem_of(address: &str) -> Option<Reply> {
    let is_safe = is_safe_address(address);
    (!is_safe).then(|| Reply::own(553, "5.1.3", "the address can't be written in a command"))
}

pub(super) fn no_utf8(what: &str) -> Reply {
    Reply::own(
        550,
        "5.6.7",
        format!("the server does not take mail with other characters than ASCII in {what}"),
    )
}
