//! Which parts are body and which are attachments (RFC 8621 §4.1.4).

use std::collections::HashSet;

use memchr::memmem;

use super::{Part, PartKind, Structure, body::text_of};

impl Structure {
    /// Sorts the leaves into the three lists.
    pub(super) fn new(parts: Vec<Part>) -> Self {
        let mut walk =
            Walk { parts: &parts, next: 0, text: Vec::new(), html: Vec::new(), attachments: Vec::new() };
        walk.multipart(0, "mixed", Lists { in_alternative: false, text: true, html: true });
        let Walk { text, html, attachments, .. } = walk;
        Self { parts, text_body: text, html_body: html, attachments }
    }

    /// RFC 8621 §4.1.4 hasAttachment: an attachment that is not inline and not an image that the HTML shows by its Content-ID.
    pub(super) fn has_attachment(&self, raw: &[u8]) -> bool {
        let mut images = Vec::new();
        for part in self.attachments.iter().filter_map(|number| self.part(*number)) {
            if part.disposition.as_deref() == Some("inline") {
                continue;
            }
            match &part.cid {
                Some(cid) if part.media_type.starts_with("image/") => images.push(cid.as_bytes()),
                _ => return true,
            }
        }
        if images.is_empty() {
            return false;
        }
        let mut used = HashSet::new();
        for part in self.html_body.iter().filter_map(|number| self.part(*number)) {
            if part.media_type == "text/html" {
                collect_content_ids(&text_of(raw, part, usize::MAX).text, &mut used);
            }
        }
        images.into_iter().any(|cid| !used.contains(cid))
    }
}

/// The ids of all `cid:` URLs (RFC 2392) in HTML. Each byte belongs to one id at most, so that a text of nothing but `cid:` takes
/// linear time.
fn collect_content_ids(html: &str, ids: &mut HashSet<Vec<u8>>) {
    let is_end = |byte: &u8| byte.is_ascii_whitespace() || b"\"'<>()&".contains(byte);
    let mut rest = html.as_bytes();
    while let Some(at) = memmem::find(rest, b"cid:") {
        let url = rest.get(at + 4..).unwrap_or_default();
        let length = url.iter().position(is_end).unwrap_or(url.len());
        let (id, behind) = url.split_at(length);
        ids.insert(percent_decoded(id));
        rest = behind;
    }
}

fn percent_decoded(text: &[u8]) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if let (b'%', [high, low, behind @ ..]) = (byte, after)
            && let (Some(high), Some(low)) = (digit(*high), digit(*low))
        {
            decoded.push(high << 4 | low);
            rest = behind;
        } else {
            decoded.push(byte);
        }
    }
    decoded
}

/// The lists that a part may still be put into, below one multipart.
#[derive(Clone, Copy)]
struct Lists {
    in_alternative: bool,
    text: bool,
    html: bool,
}

struct Walk<'p> {
    parts: &'p [Part],
    /// The index of the next part: parts are listed depth first.
    next: usize,
    text: Vec<u16>,
    html: Vec<u16>,
    attachments: Vec<u16>,
}

impl Walk<'_> {
    /// The parts below `parent`; multiparts are nested at most [`super::NESTING_MAX`] deep.
    fn multipart(&mut self, parent: u16, subtype: &str, mut lists: Lists) {
        let is_alternative = subtype == "alternative";
        let (text_before, html_before) = (self.text.len(), self.html.len());
        let mut is_first = true;
        while let Some(part) = self.parts.get(self.next).filter(|part| part.parent == parent) {
            self.next += 1;
            if part.kind == PartKind::Multipart {
                let subtype = part.media_type.strip_prefix("multipart/").unwrap_or_default();
                let in_alternative = lists.in_alternative || subtype == "alternative";
                self.multipart(part.number, subtype, Lists { in_alternative, ..lists });
            } else if !is_inline(part, is_first, subtype) {
                self.attachments.push(part.number);
            } else if is_alternative {
                match part.media_type.as_str() {
                    "text/plain" => self.text.push(part.number),
                    "text/html" => self.html.push(part.number),
                    _ => self.attachments.push(part.number),
                }
            } else {
                self.inline(part, &mut lists);
            }
            is_first = false;
        }
        if is_alternative && lists.text && lists.html {
            self.share(text_before, html_before);
        }
    }

    /// Adds a part that is shown inline. Below an alternative, the first text of a branch decides which of the two bodies it belongs to.
    fn inline(&mut self, part: &Part, lists: &mut Lists) {
        if lists.in_alternative {
            match part.media_type.as_str() {
                "text/plain" => lists.html = false,
                "text/html" => lists.text = false,
                _ => {}
            }
        }
        if lists.text {
            self.text.push(part.number);
        }
        if lists.html {
            self.html.push(part.number);
        }
        let is_hidden = !lists.text && !lists.html;
        if is_hidden || is_media(part) && !(lists.text && lists.html) {
            self.attachments.push(part.number);
        }
    }

    /// Copies what an alternative gave to only one of the two lists to the other one.
    fn share(&mut self, text_before: usize, html_before: usize) {
        let has_text = self.text.len() != text_before;
        let has_html = self.html.len() != html_before;
        if has_html && !has_text {
            self.text.extend(self.html.iter().skip(html_before));
        }
        if has_text && !has_html {
            self.html.extend(self.text.iter().skip(text_before));
        }
    }
}

fn is_media(part: &Part) -> bool {
    ["image/", "audio/", "video/"].iter().any(|prefix| part.media_type.starts_with(prefix))
}

fn is_inline(part: &Part, is_first: bool, subtype: &str) -> bool {
    let is_body_type = is_media(part) || matches!(part.media_type.as_str(), "text/plain" | "text/html");
    let has_position = is_first || subtype != "related" && (is_media(part) || part.name.is_none());
    part.disposition.as_deref() != Some("attachment") && is_body_type && has_position
}

#[cfg(test)]
mod tests;
