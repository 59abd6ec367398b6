use std::{
    collections::BTreeMap,
    fs,
    ops::ControlFlow,
    path::Path,
    time::{Duration, UNIX_EPOCH},
};

use proptest::prelude::*;

use super::*;
use crate::{
    ExportedMessage, Folder, Found,
    mbox::tests::{all, exported, messages, stored},
};

fn put(path: &Path, modified: u64) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, "Subject: x\n\nbody\n").unwrap();
    fs::File::options()
        .append(true)
        .open(path)
        .unwrap()
        .set_modified(UNIX_EPOCH + Duration::from_secs(modified))
        .unwrap();
}

#[test]
fn maildirs_and_their_folders_are_mailboxes() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    put(&at("cur/1000.b.host:2,FS"), 900);
    put(&at("new/1001.a.host"), 2_000);
    put(&at("cur/999.z.host:2,Ta"), 999);
    fs::write(at("cur/.hidden"), "").unwrap();
    fs::write(at("cur/1002.empty"), "").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", at("cur/1003.link")).unwrap();
    fs::create_dir(at("cur/1004.folder")).unwrap();
    fs::write(at("dovecot-keywords"), "0 Later\n").unwrap();
    put(&at(".Sent/cur/x:2,"), 5);
    put(&at(".Work.Entw&APw-rfe/cur/1.x:2,RDPb"), 5);
    fs::create_dir_all(at(".Empty/new")).unwrap();
    fs::create_dir_all(at("sieve")).unwrap();
    put(&at("Clients/Bob/cur/1.x"), 5);
    let found = all(folder.path(), read);
    let mut lines = Vec::new();
    for found in &found {
        lines.push(match found {
            Found::Folder(folder) => {
                format!("{} {}", folder.path.join("/"), folder.role.as_deref().unwrap_or("-"))
            }
            Found::Message(message) => {
                format!("  {} {}", message.received.unwrap(), message.keywords.join(" "))
            }
            Found::Refused(what) => format!("  {}", what.rsplit('/').next().unwrap()),
            Found::Deleted => "deleted".to_owned(),
        });
    }
    let expected = [
        "Inbox inbox",
        "  999 later",
        "  900 $flagged $seen",
        "  1001 ",
        "  1002.empty: it is empty",
        "  1003.link: it is no regular file",
        "  1004.folder: it is no regular file",
        "Empty -",
        "Sent sent",
        "  5 ",
        "Work/Entwürfe -",
        "  1 $answered $draft $forwarded",
        "Clients/Bob -",
        "  1 ",
    ];
    assert_eq!(lines, expected);
    assert_eq!(total_messages(folder.path()).unwrap(), 9);
    let keys: Vec<[u8; 32]> = messages(found).iter().map(|message| message.key).collect();
    assert!(keys.windows(2).all(|pair| pair[0] == pair[1]), "the bytes are equal");
}

#[test]
fn what_is_no_maildir_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = read(folder.path(), 10, &mut |_, _| ControlFlow::Continue(())).unwrap_err().to_string();
    assert!(error.contains("has no Maildir"), "{error}");
    put(&folder.path().join("cur/1.x"), 5);
    let found = messages(all(folder.path(), |path, _, each| read(path, 10, each)));
    assert_eq!(found, [], "it is longer");
    assert!(MaildirWriter::create(folder.path()).unwrap_err().to_string().contains("File exists"));
}

#[test]
fn a_folder_has_letters_for_26_keywords() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("mail");
    let inbox = [Folder::of_role("Inbox", "inbox")];
    let keywords: Vec<String> = (0..30).map(|number| format!("k{number:02}")).collect();
    let mut writer = MaildirWriter::create(&root).unwrap();
    writer.add_folder(&inbox[0]).unwrap();
    let message = ExportedMessage { id: 1, received: 5, folders: &inbox, keywords: &keywords, raw: b"x" };
    writer.write(&message).unwrap();
    assert_eq!(writer.keywords_left_out, 4);
    writer.finish().unwrap();
    assert_eq!(messages(all(&root, read))[0].keywords, keywords[..26]);
}

/// When a message was received, its mailboxes, its keywords, its bytes.
type ReadBack = (i64, Vec<Vec<String>>, Vec<String>, Vec<u8>);

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn messages_are_read_as_they_were_written(written in proptest::collection::vec(exported(), 1..6)) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("mail");
        let mut writer = MaildirWriter::create(&root).unwrap();
        let folders: std::collections::BTreeSet<&Folder> = written.iter().flat_map(|(_, folders, ..)| folders).collect();
        for folder in folders {
            writer.add_folder(folder).unwrap();
        }
        for (id, (received, folders, keywords, raw)) in (7..).zip(&written) {
            writer.write(&ExportedMessage { id, received: *received, folders, keywords, raw }).unwrap();
        }
        writer.finish().unwrap();
        // Messages of several mailboxes share a key.
        let mut read_back: BTreeMap<[u8; 32], ReadBack> = BTreeMap::new();
        for message in messages(all(&root, read)) {
            let raw = stored(&message);
            let first = (message.received.unwrap(), Vec::new(), message.keywords, raw);
            let entry = read_back.entry(message.key).or_insert(first);
            entry.1.extend(message.folders.into_iter().map(|folder| folder.path));
        }
        let mut read_back: Vec<_> = read_back.into_values().collect();
        for (_, paths, ..) in &mut read_back {
            paths.sort();
        }
        read_back.sort();
        let mut written: Vec<_> = written
            .into_iter()
            .map(|(received, folders, keywords, raw)| {
                (received, folders.into_iter().map(|folder| folder.path).collect::<Vec<_>>(), keywords, raw)
            })
            .collect();
        for (_, paths, ..) in &mut written {
            paths.sort();
            paths.dedup();
        }
        written.sort();
        prop_assert_eq!(read_back, written);
    }
}
