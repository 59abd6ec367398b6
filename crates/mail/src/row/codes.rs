//! Strings that many parts have, as numbers. The numbers are stored on disk: a new string is added at the end, and none is moved or
//! removed.

use super::varint::{Reader, put, put_string};

pub(super) const MEDIA_TYPES: &[&str] = &[
    "text/plain",
    "text/html",
    "multipart/alternative",
    "multipart/mixed",
    "multipart/related",
    "multipart/signed",
    "multipart/report",
    "multipart/digest",
    "message/rfc822",
    "message/delivery-status",
    "text/calendar",
    "text/csv",
    "image/jpeg",
    "image/png",
    "image/gif",
    "application/octet-stream",
    "application/pdf",
    "application/zip",
    "application/pgp-signature",
    "application/pkcs7-signature",
    "application/x-pkcs7-signature",
    "application/msword",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation",
];

/// As written in mail, where both cases are common.
pub(super) const CHARSETS: &[&str] = &[
    "us-ascii",
    "US-ASCII",
    "utf-8",
    "UTF-8",
    "iso-8859-1",
    "ISO-8859-1",
    "windows-1252",
    "Windows-1252",
    "iso-8859-15",
    "ISO-8859-15",
    "windows-1251",
    "koi8-r",
    "KOI8-R",
    "iso-2022-jp",
    "ISO-2022-JP",
    "gb2312",
    "GB2312",
    "big5",
];

pub(super) const DISPOSITIONS: &[&str] = &["attachment", "inline"];

/// Appends the number of a string, counted from 1, or 0 and the string.
pub(super) fn put_code(text: &str, codes: &[&str], out: &mut Vec<u8>) {
    match codes.iter().position(|code| *code == text) {
        Some(index) => put(index as u64 + 1, out),
        None => {
            put(0, out);
            put_string(text, out);
        }
    }
}

/// Reads what [`put_code`] wrote.
pub(super) fn code(reader: &mut Reader<'_>, codes: &[&str]) -> Option<String> {
    match usize::try_from(reader.number()?).ok()?.checked_sub(1) {
        Some(index) => codes.get(index).map(|text| (*text).to_owned()),
        None => reader.string().filter(|text| !codes.contains(&text.as_str())),
    }
}
