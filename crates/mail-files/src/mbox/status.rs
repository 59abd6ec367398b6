//! What programs store about a message in the file: its flags, its labels, and what our own export stores.

use restante_mail_wire::header::{Header, as_text};
use serde::{Deserialize, Serialize};

use crate::{
    ExportedMessage, Folder,
    export::ManifestFolder,
    header::{first_field, without_fields},
    keywords::{STATUS_LETTERS, keyword_of},
};

/// The field of our own exports, the first one of a message.
const EXPORT_FIELD: &str = "X-Restante-Export";
/// The fields that follow it, for other programs.
const FLAG_FIELDS: [&str; 3] = ["Status", "X-Status", "X-Keywords"];
/// Fields in which programs store their own data about a message: they are not part of it, and change.
const LOCAL_FIELDS: [&str; 10] = [
    "status",
    "x-status",
    "x-keywords",
    "x-uid",
    "x-imap",
    "x-imapbase",
    "x-mozilla-status",
    "x-mozilla-status2",
    "x-mozilla-keys",
    "x-evolution",
];
/// Labels of a Google Takeout: changing them does not make it another message.
const LABELS: &str = "X-Gmail-Labels";
/// Bits of X-Mozilla-Status.
const MOZILLA_READ: u16 = 1;
const MOZILLA_REPLIED: u16 = 2;
const MOZILLA_MARKED: u16 = 4;
const MOZILLA_EXPUNGED: u16 = 8;
const MOZILLA_FORWARDED: u16 = 0x1000;

/// What our own export stores about a message.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Noted {
    id: u64,
    pub(super) received: i64,
    pub(super) keywords: Vec<String>,
    mailboxes: Vec<ManifestFolder>,
    /// Whether the bytes are the original ones, and not with LF instead of CRLF.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) exact: bool,
    /// Whether the last line has no line break, although the file needs one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    open: bool,
}

/// A message with what the file stores about it.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) raw: Vec<u8>,
    /// The bytes from which the key is computed, if they are not the message's.
    pub(super) named_by: Option<Vec<u8>>,
    pub(super) id: Option<u64>,
    pub(super) keywords: Vec<String>,
    /// Empty if the file doesn't specify any: then the folder is that of the file.
    pub(super) folders: Vec<Folder>,
    pub(super) received: Option<i64>,
    pub(super) is_exact: bool,
    pub(super) is_deleted: bool,
}

/// The fields before an exported message.
pub(super) fn fields_of(message: &ExportedMessage<'_>, exact: bool, open: bool) -> String {
    let noted = Noted {
        id: message.id,
        received: message.received,
        keywords: message.keywords.to_vec(),
        mailboxes: message.folders.iter().map(ManifestFolder::of).collect(),
        exact,
        open,
    };
    let json = ascii_json(&serde_json::to_string(&noted).unwrap_or_default());
    let has = |keyword: &str| message.keywords.iter().any(|has| has == keyword);
    let status = if has("$seen") { "RO" } else { "O" };
    let letters: String =
        STATUS_LETTERS.iter().filter(|(_, keyword)| has(keyword)).map(|(letter, _)| letter).collect();
    let is_other =
        |keyword: &&String| *keyword != "$seen" && !STATUS_LETTERS.iter().any(|(_, known)| known == *keyword);
    let others: Vec<&str> = message.keywords.iter().filter(is_other).map(String::as_str).collect();
    let [of_status, of_letters, of_keywords] = FLAG_FIELDS;
    format!(
        "{EXPORT_FIELD}: {json}\n{of_status}: {status}\n{of_letters}: {letters}\n{of_keywords}: {}\n",
        others.join(" ")
    )
}

/// JSON in ASCII: headers contain nothing else.
fn ascii_json(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if character.is_ascii() {
            text.push(character);
        } else {
            let mut buffer = [0; 2];
            text.extend(character.encode_utf16(&mut buffer).iter().map(|unit| format!("\\u{unit:04x}")));
        }
    }
    text
}

/// Whether our own export has written this message.
pub(super) fn is_ours(content: &[u8]) -> bool {
    first_field(content, EXPORT_FIELD).is_some()
}

/// Parses a message whose quoting was removed.
pub(super) fn read(content: Vec<u8>) -> Read {
    if let Some((value, mut rest)) = first_field(&content, EXPORT_FIELD)
        && let Ok(noted) = serde_json::from_slice::<Noted>(value)
    {
        for field in FLAG_FIELDS {
            rest = first_field(rest, field).map_or(rest, |(_, behind)| behind);
        }
        let raw = if noted.open { rest.strip_suffix(b"\n").unwrap_or(rest) } else { rest };
        return Read {
            raw: raw.to_vec(),
            named_by: None,
            id: Some(noted.id),
            keywords: noted.keywords,
            folders: noted.mailboxes.into_iter().filter_map(ManifestFolder::folder).collect(),
            received: Some(noted.received),
            is_exact: noted.exact,
            is_deleted: false,
        };
    }
    read_foreign(content)
}

fn read_foreign(content: Vec<u8>) -> Read {
    let header = Header::parse(&content);
    let value = |name: &str| header.last(name).map(|field| as_text(field.value)).unwrap_or_default();
    let mut keywords: Vec<String> = Vec::new();
    let status = value("Status");
    if status.contains('R') {
        keywords.push("$seen".to_owned());
    }
    let letters = value("X-Status");
    let of_letters = STATUS_LETTERS.iter().filter(|(letter, _)| letters.contains(*letter));
    keywords.extend(of_letters.map(|(_, keyword)| (*keyword).to_owned()));
    for field in ["X-Keywords", "X-Mozilla-Keys"] {
        keywords.extend(value(field).split_ascii_whitespace().filter_map(keyword_of));
    }
    let mozilla = u16::from_str_radix(value("X-Mozilla-Status").trim(), 16).unwrap_or(0);
    let bits = [
        (MOZILLA_READ, "$seen"),
        (MOZILLA_REPLIED, "$answered"),
        (MOZILLA_MARKED, "$flagged"),
        (MOZILLA_FORWARDED, "$forwarded"),
    ];
    keywords
        .extend(bits.iter().filter(|(bit, _)| mozilla & bit != 0).map(|(_, keyword)| (*keyword).to_owned()));
    let is_folder_data = header.last("X-IMAP").is_some() || header.last("X-IMAPbase").is_some();
    let is_folder_data = is_folder_data && value("Subject").contains("FOLDER INTERNAL DATA");
    let labels = header.last(LABELS).map(|field| as_text(field.value));
    let folders = labels.as_deref().map(|labels| of_labels(labels, &mut keywords)).unwrap_or_default();
    keywords.sort_unstable();
    keywords.dedup();
    let raw = without_fields(&content, &LOCAL_FIELDS);
    let named_by = labels.map(|_| without_fields(&raw, &[&LABELS.to_ascii_lowercase()]));
    Read {
        raw,
        named_by,
        id: None,
        keywords,
        folders,
        received: None,
        is_exact: false,
        is_deleted: mozilla & MOZILLA_EXPUNGED != 0 || is_folder_data,
    }
}

/// The mailboxes for labels of Gmail; labels that are flags become keywords.
fn of_labels(labels: &str, keywords: &mut Vec<String>) -> Vec<Folder> {
    let mut folders = Vec::new();
    let mut is_seen = true;
    for label in labels.split(',').map(str::trim).filter(|label| !label.is_empty()) {
        match label.to_ascii_lowercase().as_str() {
            "unread" => is_seen = false,
            "opened" | "all mail" => {}
            "starred" => keywords.push("$flagged".to_owned()),
            "important" => keywords.push("$important".to_owned()),
            "drafts" => {
                keywords.push("$draft".to_owned());
                folders.push(Folder::named(vec![label.to_owned()]));
            }
            "archived" => folders.push(Folder::of_role("Archive", "archive")),
            name if name.starts_with("category ") => {}
            _ => folders.push(Folder::named(label.split('/').map(str::to_owned).collect())),
        }
    }
    if is_seen {
        keywords.push("$seen".to_owned());
    }
    if folders.is_empty() {
        folders.push(Folder::of_role("Archive", "archive"));
    }
    folders.sort_unstable();
    folders.dedup();
    folders
}
