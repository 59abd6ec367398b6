//! A Status mailserver's LevelDB, written with another library.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that can't go on has failed")]

mod common;

use std::{collections::BTreeMap, fs, path::Path};

use common::{envelope, key, read_all, topic_message};
use restante_import::{Extent, Findings, Location, Options, Owner, open};
use rusty_leveldb::{CompressorId, DB, compressor::SnappyCompressor};
use tempfile::TempDir;

const FIRST: u32 = 1_554_076_800;
const TOPICS: [[u8; 4]; 3] = [[0x5c, 0x6c, 0x9b, 0x56], [0xf8, 0x94, 0x6a, 0xac], [0, 0, 0, 1]];

/// A mailserver's folder with this many envelopes: the older half has keys without topic.
fn mailserver(count: u32) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut db = open_db(folder.path());
    for number in 0..count {
        let topic = TOPICS[number as usize % 3];
        let bytes = envelope(FIRST + number, topic, &data(number));
        let mut key = key(FIRST + number, topic, &bytes);
        if number < count / 2 {
            key.truncate(36);
        }
        db.put(&key, &bytes).unwrap();
    }
    db.close().unwrap();
    folder
}

fn open_db(folder: &Path) -> DB {
    let options = rusty_leveldb::Options {
        write_buffer_size: 100_000,
        compressor: SnappyCompressor::ID,
        ..rusty_leveldb::Options::default()
    };
    DB::open(folder, options).unwrap()
}

fn data(number: u32) -> Vec<u8> {
    format!("data {number} ").repeat(20).into_bytes()
}

fn files_of(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    files.map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap())).collect()
}

fn location(folder: &TempDir) -> Location {
    Location::of(folder.path()).unwrap().unwrap()
}

#[tokio::test]
async fn envelopes_become_messages_and_no_file_is_touched() {
    let folder = mailserver(2_000);
    let before = files_of(folder.path());
    let source = open(location(&folder), None, Options::default()).await.unwrap();
    let Some(Extent::Bytes(bytes)) = source.extent else { panic!("{:?}", source.extent) };
    assert_eq!(source.owner, Owner::Status);
    let read = read_all(source).await;
    assert_eq!(read.refused, Findings::default());
    assert!(read.done > bytes * 9 / 10, "{} of {bytes}", read.done);
    let expected: Vec<_> = (0..2_000)
        .map(|number| topic_message(FIRST + number, TOPICS[number as usize % 3], &data(number)))
        .collect();
    assert_eq!(read.messages, expected);
    assert_eq!(files_of(folder.path()), before);
}

#[tokio::test]
async fn reading_continues_after_the_last_key() {
    let folder = mailserver(6_000);
    let mut source = open(location(&folder), Some(Owner::Status), Options::default()).await.unwrap();
    let first = source.next().await.unwrap().unwrap();
    assert!(!first.messages.is_empty() && first.messages.len() < 6_000);
    let options = Options { after: first.after.clone(), ..Options::default() };
    let rest = read_all(open(location(&folder), None, options).await.unwrap()).await;
    assert_eq!(first.messages.len() + rest.messages.len(), 6_000);
    assert!(first.messages.last().unwrap().timestamp < rest.messages[0].timestamp);
}

#[tokio::test]
async fn invalid_envelopes_are_reported_and_the_others_imported() {
    let folder = mailserver(3);
    let mut db = open_db(folder.path());
    let bytes = envelope(FIRST, TOPICS[0], b"other");
    db.put(&key(FIRST, TOPICS[0], &bytes), b"\xc5hello").unwrap();
    db.put(b"short key", &bytes).unwrap();
    db.put(&key(FIRST, TOPICS[0], b"another envelope"), &bytes).unwrap();
    db.close().unwrap();
    drop(db);
    let read = read_all(open(location(&folder), None, Options::default()).await.unwrap()).await;
    assert_eq!((read.messages.len(), read.refused.count), (3, 3));
    let reported = read.refused.listed.join("\n");
    for why in ["not an envelope", "a key of 9 bytes", "the stored hash is 0x"] {
        assert!(reported.contains(why), "{reported}");
    }
}

#[tokio::test]
async fn it_is_not_an_archive_of_nwaku() {
    let error = open(location(&mailserver(1)), Some(Owner::Nwaku), Options::default()).await.unwrap_err();
    assert_eq!(error.to_string(), "a LevelDB folder is an archive of a Status mailserver, not of nwaku");
}
