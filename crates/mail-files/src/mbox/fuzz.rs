//! Properties that hold for any bytes; see [`crate::fuzz_mbox`].

use super::{Content, MboxWriter, Split, Splitter, read::message, status, unquoted};
use crate::{ExportedMessage, Folder, Found};

/// Shorter than most messages, so that some are skipped.
const SHORT_BYTES_MAX: u64 = 64;

/// The messages of an mbox; `None` if it does not begin as one.
fn splits(mbox: &[u8], bytes_max: u64) -> Option<Vec<Split>> {
    let mut splitter = Splitter::new(mbox, mbox, bytes_max);
    let mut splits = Vec::new();
    loop {
        match splitter.next_message() {
            Ok(Some(split)) => splits.push(split),
            Ok(None) => break,
            Err(error) => {
                assert!(splits.is_empty() && !mbox.starts_with(b"From "), "{error}");
                return None;
            }
        }
    }
    assert_eq!(splitter.offset(), mbox.len() as u64, "it is read to its end");
    Some(splits)
}

/// Any bytes as an mbox: each of them is in exactly one part.
pub(crate) fn read(bytes: &[u8]) {
    let folder = Folder::named(vec!["fuzz".to_owned()]);
    if let Some(whole) = splits(bytes, u64::MAX) {
        let mut again = Vec::with_capacity(bytes.len());
        for split in whole {
            again.extend_from_slice(&split.from_line);
            if let Content::Bytes(content) = &split.content {
                again.extend_from_slice(content);
            }
            again.extend_from_slice(&split.blank);
            if let Found::Message(message) = message(split, &folder) {
                assert!(!message.folders.is_empty(), "a message is in a folder");
            }
        }
        assert_eq!(again, bytes);
    }
    for split in splits(bytes, SHORT_BYTES_MAX).unwrap_or_default() {
        match split.content {
            Content::Bytes(content) => assert!(content.len() as u64 <= SHORT_BYTES_MAX),
            Content::TooLong(bytes) => assert!(bytes > SHORT_BYTES_MAX),
        }
    }
    assert!(unquoted(bytes.to_vec()).len() <= bytes.len());
    status::read(bytes.to_vec());
}

/// Any bytes as a message: an exported message is read back unchanged.
pub(crate) fn export(raw: &[u8]) {
    if raw.is_empty() {
        return; // an email is never empty
    }
    let folder = Folder::named(vec!["a".to_owned(), "b".to_owned()]);
    let folders = [folder.clone()];
    let keywords = ["$seen".to_owned(), "other".to_owned()];
    let exported =
        ExportedMessage { id: 7, received: 1_030_019_783, folders: &folders, keywords: &keywords, raw };
    for count in [1, 2] {
        let mut writer = MboxWriter::new(Vec::new());
        for _ in 0..count {
            writer.write(&exported).expect("memory takes all bytes");
        }
        let mbox = writer.finish().expect("memory takes all bytes");
        let splits = splits(&mbox, u64::MAX).expect("an export begins as an mbox");
        assert_eq!(splits.len(), count);
        splits.into_iter().for_each(|split| check_read(split, &folder, &exported));
    }
}

/// Checks that an export is read as it was written.
fn check_read(split: Split, folder: &Folder, exported: &ExportedMessage<'_>) {
    let Found::Message(read) = message(split, folder) else { panic!("an export has no deleted messages") };
    assert_eq!((&read.folders[..], &read.keywords[..]), (exported.folders, exported.keywords));
    assert_eq!((read.exported_id, read.received), (Some(exported.id), Some(exported.received)));
    let expected = if read.is_exact { exported.raw.to_vec() } else { crate::export::with_lf(exported.raw) };
    assert_eq!(read.raw, expected);
    assert!(read.is_exact || crate::export::is_text(exported.raw), "only line breaks may change");
}
