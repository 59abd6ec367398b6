use std::{fs, ops::ControlFlow, path::Path};

use proptest::prelude::*;

use super::*;
use crate::{ExportedMessage, FileMessage, Folder, Found};

const FROM: &str = "From a@b Thu Aug 22 12:36:23 2002\n";

fn splits(mbox: &[u8], bytes_max: u64) -> Vec<Split> {
    let mut splitter = Splitter::new(mbox, mbox, bytes_max);
    let mut splits = Vec::new();
    while let Some(split) = splitter.next_message().unwrap() {
        splits.push(split);
    }
    splits
}

/// The messages of an mbox as they are in it.
fn contents(mbox: &str) -> Vec<String> {
    let text = |split: Split| match split.content {
        Content::Bytes(bytes) => String::from_utf8(bytes).unwrap(),
        Content::TooLong(bytes) => format!("too long: {bytes}"),
    };
    splits(mbox.as_bytes(), 1 << 20).into_iter().map(text).collect()
}

pub(crate) fn all(
    path: &Path,
    read: impl Fn(&Path, u64, &mut crate::Each<'_>) -> Result<(), crate::FilesError>,
) -> Vec<Found> {
    let mut found = Vec::new();
    read(path, 1 << 20, &mut |one, _| {
        found.push(one);
        ControlFlow::Continue(())
    })
    .unwrap();
    found
}

fn read_text(mbox: &str) -> Vec<Found> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("Work.mbox");
    fs::write(&path, mbox).unwrap();
    all(&path, read)
}

pub(crate) fn messages(found: Vec<Found>) -> Vec<FileMessage> {
    let message = |found| match found {
        Found::Message(message) => Some(message),
        _ => None,
    };
    found.into_iter().filter_map(message).collect()
}

#[test]
fn a_message_ends_before_a_from_line_with_a_date_behind_an_empty_line() {
    let one = "Subject: 1\n\nFrom now on\n>From me\nFrom a@b Thu Aug 22 12:36:23 2002\n\nFrom here\n";
    let two = "Subject: 2\r\n\r\nbody\r\n";
    assert_eq!(contents(&format!("{FROM}{one}\n{FROM}{two}\r\n{FROM}Subject: 3")), [one, two, "Subject: 3"]);
    assert_eq!(contents(""), [""; 0]);
    assert_eq!(contents(FROM), [""]);
    assert_eq!(contents(&format!("{FROM}\n{FROM}\n\n")), ["", "\n"]);
    let error = Splitter::new(&b"Subject: x\n"[..], &b""[..], 1).next_message().unwrap_err();
    assert!(error.to_string().contains("'From '"));
}

#[test]
fn a_content_length_counts_where_that_of_the_first_message_leads_to_the_next_one() {
    let body = format!("{FROM}\n{FROM}x\n");
    let mbox = format!(
        "{FROM}Content-Length: {}\n\n{body}\n{FROM}Content-Length: 7\n\ntwo\n\n{FROM}content-length: 6\n\nthree\n\n",
        body.len()
    );
    let first = format!("Content-Length: {}\n\n{body}", body.len());
    assert_eq!(contents(&mbox), [&*first, "Content-Length: 7\n\ntwo\n", "content-length: 6\n\nthree\n"]);
    assert!(splits(mbox.as_bytes(), 1_000)[0].is_unquoted);
    // Otherwise it is an ordinary field.
    let mbox = format!("{FROM}Content-Length: 5\n\n{FROM}\n{FROM}Content-Length: 4\n\ntwo\n");
    assert_eq!(contents(&mbox).len(), 3);
}

#[test]
fn a_message_that_is_too_long_is_skipped() {
    let long = format!("Subject: long\n\n{}\n", "x".repeat(200_000));
    let mbox = format!("{FROM}{long}\n{FROM}Subject: short\n\n");
    let splits = splits(mbox.as_bytes(), 1_000);
    assert_eq!(splits[0].content, Content::TooLong(long.len() as u64));
    assert_eq!(splits[1].content, Content::Bytes(b"Subject: short\n".to_vec()));
}

#[test]
fn flags_of_many_programs_are_keywords_and_no_part_of_the_message() {
    for (fields, expected) in [
        ("", &[][..]),
        ("Status: O\n", &[]),
        ("Status: RO\nX-Status: AFT\n", &["$answered", "$draft", "$flagged", "$seen"]),
        ("X-Keywords: NonJunk Later $Forwarded \\Recent\n", &["$forwarded", "$notjunk", "later"]),
        (
            "X-Mozilla-Status: 1007\nX-Mozilla-Keys: $label1  \n",
            &["$answered", "$flagged", "$forwarded", "$label1", "$seen"],
        ),
    ] {
        let found = read_text(&format!("{FROM}Subject: x\n{fields}To: y\n\nbody\n"));
        let [Found::Folder(folder), Found::Message(message)] = &found[..] else { panic!("{found:?}") };
        assert_eq!((&*folder.path, &*message.folders), (&["Work".to_owned()][..], &[folder.clone()][..]));
        assert_eq!(message.keywords, expected, "{fields}");
        assert_eq!(message.raw, b"Subject: x\nTo: y\n\nbody\n");
        assert_eq!((message.received, message.stored), (None, Some(1_030_019_783)));
    }
    let deleted = read_text(&format!("{FROM}X-Mozilla-Status: 0009\nSubject: x\n\n"));
    assert!(matches!(&deleted[..], [Found::Folder(_), Found::Deleted]), "{deleted:?}");
    let data = "Subject: DON'T DELETE THIS MESSAGE -- FOLDER INTERNAL DATA\nX-IMAP: 1 2\n\n";
    assert!(matches!(&read_text(&format!("{FROM}{data}"))[..], [Found::Folder(_), Found::Deleted]));
}

#[test]
fn labels_of_gmail_are_mailboxes_and_keywords() {
    let labelled = |labels: &str| format!("{FROM}X-Gmail-Labels: {labels}\nSubject: x\n\nbody\n");
    let found = read_text(&labelled(
        "=?UTF-8?Q?Inbox,Unread,Starred,?=\n =?UTF-8?Q?Work/Old,Category_Updates,B=C3=BCro?=",
    ));
    let [Found::Message(message)] = &found[..] else { panic!("{found:?}") };
    assert_eq!(message.keywords, ["$flagged"]);
    let paths: Vec<String> = message.folders.iter().map(|folder| folder.path.join("/")).collect();
    assert_eq!(paths, ["Büro", "Inbox", "Work/Old"]);
    let archived = messages(read_text(&labelled("Opened"))).remove(0);
    assert_eq!(archived.folders, [Folder::of_role("Archive", "archive")]);
    assert_eq!(archived.keywords, ["$seen"]);
    assert_eq!(archived.key, message.key, "other labels make no other message");
}

#[test]
fn a_folder_of_thunderbird_is_a_tree_of_mailboxes() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir_all(at("Work.sbd/Old.sbd")).unwrap();
    fs::create_dir_all(at("Apple.mbox")).unwrap();
    fs::write(at("Work"), "").unwrap();
    fs::write(at("Work.msf"), "// <!-- <mdb:mork").unwrap();
    fs::write(at("msgFilterRules.dat"), "").unwrap();
    fs::write(at("Work.sbd/Old"), format!("{FROM}Subject: 1\n\n")).unwrap();
    fs::write(at("Work.sbd/Old.sbd/Older"), format!("{FROM}Subject: 2\n\n")).unwrap();
    fs::write(at("Apple.mbox/mbox"), format!("{FROM}Subject: 3\n\n")).unwrap();
    std::os::unix::fs::symlink(folder.path(), at("loop")).unwrap();
    let found = all(folder.path(), read);
    let folders = found.iter().filter_map(|found| match found {
        Found::Folder(folder) => Some(folder.path.join("/")),
        _ => None,
    });
    assert_eq!(folders.collect::<Vec<_>>(), ["Apple", "Work", "Work/Old", "Work/Old/Older"]);
    assert_eq!(messages(found).len(), 3);
    assert_eq!(total_bytes(folder.path()).unwrap(), 3 * (FROM.len() as u64 + 12));
}

#[test]
fn what_is_no_mbox_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("letter.txt");
    fs::write(&path, "Dear Bob").unwrap();
    let read =
        |path: &Path| read(path, 1_000, &mut |_, _| ControlFlow::Continue(())).unwrap_err().to_string();
    assert!(read(&path).contains("letter.txt: it does not begin with"), "{}", read(&path));
    assert!(read(folder.path()).contains("has no mbox"), "{}", read(folder.path()));
    assert!(read(&folder.path().join("none")).contains("none"));
}

/// A line as attackers and old programs write it.
fn line() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        Just(FROM.trim_end().to_owned()),
        Just(format!(">{}", FROM.trim_end())),
        Just(">>From x".to_owned()),
        Just("From now on".to_owned()),
        Just("Content-Length: 34".to_owned()),
        Just("Status: RO".to_owned()),
        Just("X-Restante-Export: {\"id\":1}".to_owned()),
        "[ -~]{0,20}",
    ]
}

fn text(end: &'static str) -> impl Strategy<Value = String> {
    (proptest::collection::vec(line(), 0..12), any::<bool>()).prop_map(move |(lines, is_open)| {
        let text: String = lines.iter().map(|line| format!("{line}{end}")).collect();
        if is_open { text.trim_end_matches(end).to_owned() } else { text }
    })
}

fn folder() -> impl Strategy<Value = Folder> {
    proptest::collection::vec("[a-zé./ ]{1,6}", 1..4).prop_map(Folder::named)
}

/// A message of any bytes, in text or not.
pub(crate) fn exported() -> impl Strategy<Value = (i64, Vec<Folder>, Vec<String>, Vec<u8>)> {
    let raw = prop_oneof![
        text("\r\n").prop_map(String::into_bytes),
        text("\n").prop_map(String::into_bytes),
        proptest::collection::vec(any::<u8>(), 1..40),
    ];
    let keywords = proptest::collection::btree_set("\\$?[a-z!~+]{1,8}", 0..4);
    let folders = proptest::collection::btree_set(folder(), 1..3);
    (0..4_102_444_800_i64, folders, keywords, raw.prop_filter("not empty", |raw| !raw.is_empty())).prop_map(
        |(received, folders, keywords, raw)| {
            (received, folders.into_iter().collect(), keywords.into_iter().collect(), raw)
        },
    )
}

/// A message as an import stores it: in text unless the file says that its bytes are exact.
pub(crate) fn stored(message: &FileMessage) -> Vec<u8> {
    if message.is_exact {
        return message.raw.clone();
    }
    assert!(!message.raw.contains(&b'\r'));
    message.raw.split(|byte| *byte == b'\n').collect::<Vec<_>>().join(&b"\r\n"[..])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Nothing is lost, duplicated or invented, whatever the file contains.
    #[test]
    fn the_parts_of_an_mbox_are_all_of_its_bytes(lines in proptest::collection::vec((line(), 0..4_u8), 0..40), bytes_max in 0_u64..200) {
        let ends = ["\n", "\n", "\r\n", "\n\n"];
        let text: String = lines.iter().map(|(line, end)| format!("{line}{}", ends[usize::from(*end)])).collect();
        let mbox = format!("{FROM}{text}");
        let (mut whole, mut bytes) = (Vec::new(), 0);
        for split in splits(mbox.as_bytes(), 1 << 20) {
            let Content::Bytes(content) = split.content else { panic!("nothing is too long") };
            whole.extend([split.from_line, content, split.blank].concat());
        }
        prop_assert_eq!(String::from_utf8(whole).unwrap(), mbox.clone());
        for split in splits(mbox.as_bytes(), bytes_max) {
            bytes += (split.from_line.len() + split.blank.len()) as u64;
            bytes += match split.content {
                Content::Bytes(content) => content.len() as u64,
                Content::TooLong(bytes) => bytes,
            };
        }
        prop_assert_eq!(bytes, mbox.len() as u64);
    }

    #[test]
    fn messages_are_read_as_they_were_written(written in proptest::collection::vec(exported(), 1..6)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("all.mbox");
        let mut writer = MboxWriter::new(Vec::new());
        for (id, (received, folders, keywords, raw)) in (7..).zip(&written) {
            writer.write(&ExportedMessage { id, received: *received, folders, keywords, raw }).unwrap();
        }
        fs::write(&path, writer.finish().unwrap()).unwrap();
        let read = messages(all(&path, read));
        prop_assert_eq!(read.len(), written.len());
        for ((received, folders, keywords, raw), message) in written.iter().zip(&read) {
            prop_assert_eq!(stored(message).escape_ascii().to_string(), raw.escape_ascii().to_string());
            prop_assert_eq!((message.received, &message.keywords), (Some(*received), keywords));
            let paths = |folders: &[Folder]| folders.iter().map(|folder| folder.path.clone()).collect::<Vec<_>>();
            prop_assert_eq!(paths(&message.folders), paths(folders));
        }
    }

    #[test]
    fn a_file_for_each_mailbox_has_all_messages_of_it(written in proptest::collection::vec(exported(), 1..6)) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("mail");
        let mut writer = MboxFolders::create(&root).unwrap();
        let all_folders: std::collections::BTreeSet<&Folder> = written.iter().flat_map(|(_, folders, ..)| folders).collect();
        for folder in &all_folders {
            writer.add_folder(folder).unwrap();
        }
        for (id, (received, folders, keywords, raw)) in (7..).zip(&written) {
            writer.write(&ExportedMessage { id, received: *received, folders, keywords, raw }).unwrap();
        }
        writer.finish().unwrap();
        let read = messages(all(&root, read));
        for (_, folders, _, raw) in &written {
            let same = read.iter().filter(|message| stored(message) == *raw).count();
            prop_assert!(same >= folders.len());
        }
        prop_assert_eq!(read.len(), written.iter().map(|(_, folders, ..)| folders.len()).sum::<usize>());
    }
}

/// The empty line after the message was treated as a part of it, because the message's own field leads to the end of the file.
#[test]
fn a_content_length_of_an_exported_message_does_not_count() {
    let raw = b"Content-Length: 34\r\n\r\nFrom now on\r\n>>From x\r\n>>From x\r\n";
    crate::fuzz_mbox(raw);
    let mut writer = MboxWriter::new(Vec::new());
    writer
        .write(&ExportedMessage {
            id: 1,
            received: 0,
            folders: &[Folder::named(vec!["a".to_owned()])],
            keywords: &[],
            raw,
        })
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.mbox");
    fs::write(&path, writer.finish().unwrap()).unwrap();
    let read = messages(all(&path, read));
    assert_eq!(read.len(), 1);
    assert_eq!(stored(&read[0]).escape_ascii().to_string(), raw.escape_ascii().to_string());
}

#[test]
fn the_seeds_of_the_fuzz_target_hold() {
    let root = Path::new("../..");
    let seeds = root.join("tests").join("fuzz/corpus/mbox");
    let mut count = 0;
    for seed in fs::read_dir(seeds).unwrap() {
        crate::fuzz_mbox(&fs::read(seed.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count > 5);
}
