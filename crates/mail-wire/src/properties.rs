//! Properties that hold for any bytes: checked by the fuzz targets, and by ordinary tests over their seeds.

use unicode_normalization::{UnicodeNormalization, is_nfc};

use crate::{
    charset,
    compose::{ComposeError, Content, FieldValue, Message, Origin, Part},
    header::{self, Address, Date, Field, Form, Group, Header, HeaderProperty, is_field_name},
    subject::base_subject,
    transfer,
};

/// Bytes as a header, as the value of a field in every form, as a subject, and as a body in every encoding: nothing panics, and
/// the results are as the forms promise.
///
/// # Panics
/// If that does not hold.
pub fn header_forms(bytes: &[u8]) {
    header_fields(bytes);
    texts(bytes);
    addresses(bytes);
    for list in [header::as_message_ids(bytes), header::as_urls(bytes)].into_iter().flatten() {
        assert!(!list.is_empty());
        assert!(list.iter().all(|item| !item.is_empty() && !item.contains(['\r', '\n', '\0'])));
    }
    if let Some(date) = header::as_date(bytes) {
        assert_eq!(Date::parse(&date.to_string()), Some(date));
    }
    let parameters = header::as_parameters(bytes);
    for (name, value) in &parameters.parameters {
        assert!(parameters.get(name) == Some(value), "{name} is there twice");
        assert!(!name.is_empty() && !value.contains(['\r', '\n', '\0']));
    }
    for encoding in ["", "base64", "quoted-printable", "x-other"] {
        assert!(transfer::decode(encoding, bytes).bytes.len() <= bytes.len());
    }
    for label in ["utf-8", "us-ascii", "utf-7", "utf-16", "iso-2022-jp", "x-unknown"] {
        assert!(charset::decode(label, bytes).text.len() <= 3 * bytes.len() + 3);
    }
}

/// The fields of a header are within it, in order, and each is found by its name.
fn header_fields(message: &[u8]) {
    let header = Header::parse(message);
    let block = message.get(..header.bytes()).expect("a header ends within its message");
    let mut end = block.as_ptr().addr();
    for Field { name, value } in header.fields().take(64) {
        assert!(is_field_name(name));
        assert!(end <= name.as_ptr().addr() && name.as_ptr().addr() < value.as_ptr().addr());
        end = value.as_ptr().addr() + value.len();
        assert!(header.last(name).is_some() && header.all(name).count() > 0);
        let property = format!("header:{name}:asRaw:all");
        assert_eq!(
            HeaderProperty::parse(&property).map(|found| (found.form, found.all)),
            Some((Form::Raw, true))
        );
    }
    assert!(end <= block.as_ptr().addr() + block.len());
}

fn texts(value: &[u8]) {
    let raw = header::as_raw(value);
    assert!(!raw.contains('\0') && raw.len() <= 3 * value.len());
    let text = header::as_text(value);
    assert!(is_nfc(&text) && !text.contains(['\r', '\n', '\0']));
    let base = base_subject(&text);
    assert!(base.len() <= text.len() && base_subject(&base) == base);
}

fn addresses(value: &[u8]) {
    let groups = header::as_grouped_addresses(value);
    let mut flat = header::as_addresses(value).into_iter();
    for group in &groups {
        assert!(group.name.is_some() || !group.addresses.is_empty());
        for address in &group.addresses {
            let Address { name, email } = address;
            assert_eq!(flat.next().as_ref(), Some(address));
            assert!(name.is_some() || !email.is_empty());
            assert!(!email.contains(['\r', '\n', '\0']));
            let is_clean = |name: &String| {
                is_nfc(name) && name.trim() == name && !name.is_empty() && !name.contains(['\r', '\n', '\0'])
            };
            assert!(name.as_ref().is_none_or(is_clean), "{name:?}");
        }
    }
    assert_eq!(flat.next(), None);
}

/// A message made of the bytes is refused, or has valid lines, and parsing it returns the same fields and parts.
///
/// # Panics
/// If that does not hold.
pub fn compose(bytes: &[u8]) {
    let mut source = Source { rest: bytes };
    let fields = source.fields();
    let root = source.part(0);
    for (name, value) in &fields {
        field_is_read_again(name, value);
    }
    let _ = check(&Message { fields, root });
}

/// A single field is refused, or parsing it returns the same value.
///
/// # Panics
/// If that does not hold.
pub fn field_is_read_again(name: &str, value: &FieldValue) {
    let root = Part::new("text/plain", Content::Text("".into()));
    let _ = check(&Message { fields: vec![(name.to_owned(), value.clone())], root });
}

/// A single part is refused, or parsing it returns the same part.
///
/// # Panics
/// If that does not hold.
pub fn part_is_read_again(part: &Part) {
    let _ = check(&Message { fields: Vec::new(), root: part.clone() });
}

/// Writes a message, and compares it with the result of parsing it.
fn check(message: &Message) -> Result<(), ComposeError> {
    const SEED: [u8; 16] = [7; 16];
    let origin = Origin { seed: SEED, date: Date { seconds: 0, offset_minutes: 0 }, host: "example.com" };
    let written = message.write(&origin)?;
    for line in written.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        assert!(line.len() <= 998 && !line.contains(&b'\r') && !line.contains(&0));
    }
    let line_feeds = written.iter().filter(|byte| **byte == b'\n').count();
    assert_eq!(line_feeds, memchr::memmem::find_iter(&written, "\r\n").count());

    let header = Header::parse(&written);
    let mut read = header.fields();
    for (name, value) in message.fields.iter().filter(|(_, value)| !is_empty(value)) {
        check_field(name, value, read.next().expect("each field is written"));
    }
    for name in ["Date", "Message-ID", "MIME-Version", "Content-Type"] {
        assert!(header.last(name).is_some(), "{name}");
    }
    check_part(&message.root, &written);
    Ok(())
}

fn is_empty(value: &FieldValue) -> bool {
    match value {
        FieldValue::Addresses(addresses) => addresses.is_empty(),
        FieldValue::GroupedAddresses(groups) => groups.is_empty(),
        FieldValue::MessageIds(items) | FieldValue::Urls(items) => items.is_empty(),
        FieldValue::Raw(_) | FieldValue::Text(_) | FieldValue::Date(_) => false,
    }
}

fn check_field(name: &str, value: &FieldValue, field: Field<'_>) {
    assert_eq!(field.name, name);
    match value {
        FieldValue::Raw(raw) => assert_eq!(&header::as_raw(field.value).replace("\r\n", ""), raw),
        FieldValue::Text(text) => assert_eq!(header::as_text(field.value), readable(text)),
        FieldValue::Addresses(addresses) => {
            let expected: Vec<Address> = addresses.iter().filter_map(readable_address).collect();
            assert_eq!(header::as_addresses(field.value), expected);
        }
        FieldValue::GroupedAddresses(groups) => {
            assert_eq!(header::as_grouped_addresses(field.value), readable_groups(groups));
        }
        FieldValue::MessageIds(ids) => assert_eq!(header::as_message_ids(field.value).as_ref(), Some(ids)),
        FieldValue::Date(date) => assert_eq!(header::as_date(field.value).as_ref(), Some(date)),
        FieldValue::Urls(urls) => assert_eq!(header::as_urls(field.value).as_ref(), Some(urls)),
    }
}

/// Text as it is parsed: a tab becomes a space, other control characters are removed, and it is in NFC.
fn readable(text: &str) -> String {
    let spaced = text.chars().map(|character| if character == '\t' { ' ' } else { character });
    spaced.filter(|character| !character.is_control()).nfc().collect()
}

fn readable_address(address: &Address) -> Option<Address> {
    let name = address.name.as_deref().map(|name| readable(name).trim().to_owned());
    let name = name.filter(|name| !name.is_empty());
    let has_any = name.is_some() || !address.email.is_empty();
    has_any.then(|| Address { name, email: address.email.clone() })
}

/// Groups as they are parsed: adjacent addresses outside of groups are one group.
fn readable_groups(groups: &[Group]) -> Vec<Group> {
    let mut read: Vec<Group> = Vec::new();
    for group in groups {
        let mut addresses: Vec<Address> = group.addresses.iter().filter_map(readable_address).collect();
        let name = group.name.as_deref().map(|name| readable(name).trim().to_owned());
        match read.last_mut() {
            Some(last) if name.is_none() && last.name.is_none() => last.addresses.append(&mut addresses),
            _ if name.is_none() && addresses.is_empty() => {}
            _ => read.push(Group { name, addresses }),
        }
    }
    read
}

/// Compares a part, beginning with its header, with how it was written.
fn check_part(part: &Part, written: &[u8]) {
    let header = Header::parse(written);
    let body = written.get(header.bytes()..).expect("a body follows its header");
    let content_type =
        header::as_parameters(header.last("Content-Type").expect("each part has its type").value);
    assert_eq!(content_type.value, part.media_type.to_ascii_lowercase());
    let disposition = header.last("Content-Disposition").map(|field| header::as_parameters(field.value));
    if let Some(name) = &part.name {
        let read = match &disposition {
            Some(disposition) => disposition.get("filename"),
            None => content_type.get("name"),
        };
        assert_eq!(read, Some(readable(name).as_str()));
    }
    if let Some(cid) = &part.cid {
        let read = header.last("Content-ID").and_then(|field| header::as_message_ids(field.value));
        assert_eq!(read.as_ref(), Some(&vec![cid.clone()]));
    }
    let encoding = header.last("Content-Transfer-Encoding").map(|field| header::as_text(field.value));
    let decoded = || transfer::decode(encoding.as_deref().unwrap_or_default(), body);
    match &part.content {
        Content::Text(text) => {
            let text = text.replace("\r\n", "\n").replace('\r', "\n").replace('\n', "\r\n");
            assert_eq!(content_type.get("charset"), Some("utf-8"));
            assert!(decoded().bytes == text.as_bytes() && !decoded().is_problem);
        }
        Content::Bytes(bytes) => assert!(*decoded().bytes == **bytes && !decoded().is_problem),
        Content::Parts(parts) => {
            let boundary = content_type.get("boundary").expect("a multipart has a boundary");
            let found = split_parts(body, boundary);
            assert_eq!(found.len(), parts.len());
            for (part, written) in parts.iter().zip(found) {
                check_part(part, written);
            }
        }
    }
}

/// The parts of a multipart's body, RFC 2046, section 5.1.1.
fn split_parts<'b>(body: &'b [u8], boundary: &str) -> Vec<&'b [u8]> {
    let delimiter = format!("--{boundary}");
    let mut parts = Vec::new();
    let mut start = None;
    let mut at = 0;
    for line in body.split_inclusive(|byte| *byte == b'\n') {
        if line.starts_with(delimiter.as_bytes()) {
            // The line break before a delimiter is part of it.
            parts.extend(start.and_then(|start| body.get(start..at - 2)));
            start = Some(at + line.len());
            let is_last = line.get(delimiter.len()..).is_some_and(|rest| rest.starts_with(b"--"));
            if is_last {
                return parts;
            }
        }
        at += line.len();
    }
    panic!("a multipart is not closed");
}

/// Values made of bytes.
struct Source<'b> {
    rest: &'b [u8],
}

impl Source<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.rest.split_first().unwrap_or((&0, b""));
        self.rest = rest;
        *first
    }

    /// A list of at most seven items.
    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let count = self.byte() & 7;
        (0..count).map(|_| item(self)).collect()
    }

    /// Some text, now and then repeated to make it long.
    fn text(&mut self) -> String {
        let length = usize::from(self.byte());
        let (text, rest) = self.rest.split_at_checked(length).unwrap_or((self.rest, b""));
        self.rest = rest;
        let copies = if length % 16 == 15 { 40 } else { 1 };
        String::from_utf8_lossy(text).repeat(copies)
    }

    fn option(&mut self) -> Option<String> {
        let is_some = self.byte() & 1 == 1;
        is_some.then(|| self.text())
    }

    fn address(&mut self) -> Address {
        Address { name: self.option(), email: self.text() }
    }

    fn fields(&mut self) -> Vec<(String, FieldValue)> {
        self.list(|source| (format!("X-{}", source.byte()), source.value()))
    }

    fn value(&mut self) -> FieldValue {
        match self.byte() & 7 {
            0 => FieldValue::Raw(self.text()),
            1 => FieldValue::Addresses(self.list(Self::address)),
            2 => FieldValue::GroupedAddresses(
                self.list(|source| Group { name: source.option(), addresses: source.list(Self::address) }),
            ),
            3 => FieldValue::MessageIds(self.list(Self::text)),
            4 => FieldValue::Urls(self.list(Self::text)),
            5 => {
                let seconds = i64::from(self.byte()) * 86_400_000 + i64::from(self.byte());
                FieldValue::Date(Date { seconds, offset_minutes: i16::from(self.byte()) - 128 })
            }
            _ => FieldValue::Text(self.text()),
        }
    }

    fn part(&mut self, depth: u8) -> Part {
        const TYPES: [&str; 8] = [
            "text/plain",
            "text/html",
            "message/rfc822",
            "application/octet-stream",
            "Image/PNG",
            "text/x",
            "bad",
            "multipart/x",
        ];
        let kind = self.byte();
        let (media_type, content) = match kind & 3 {
            0 if depth < 4 => ("multipart/mixed", Content::Parts(self.list(|source| source.part(depth + 1)))),
            1 => (self.media_type(&TYPES), Content::Bytes(self.text().into_bytes().into())),
            _ => (self.media_type(&TYPES), Content::Text(self.text().into())),
        };
        let mut part = Part::new(media_type, content);
        if kind & 16 == 16 {
            part.disposition = Some("attachment".to_owned());
        }
        if kind & 32 == 32 {
            part.name = Some(self.text());
        }
        if kind & 64 == 64 {
            part.cid = Some(self.text());
        }
        if kind & 128 == 128 {
            part.fields = self.fields();
        }
        part
    }

    fn media_type<'t>(&mut self, types: &[&'t str]) -> &'t str {
        types.get(usize::from(self.byte()) % types.len()).copied().unwrap_or_default()
    }
}
