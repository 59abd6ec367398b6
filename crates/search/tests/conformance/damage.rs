//! Promises about an index that is damaged, cut, foreign, old or missing.

use std::{
    fs::{self, OpenOptions},
    path::{Path, PathBuf},
};

use restante_core::ErrorKind;
use restante_search::{Filter, Opened, Query, Revision};

use crate::{
    Subject,
    common::{A, anywhere, batch, begin, checkpoint, email, found, page},
};

crate::promises! {
    any: [],
    files: [
        any_file_that_is_cut_is_noticed_on_opening,
        any_file_with_a_flipped_bit_is_noticed_on_opening,
        any_file_that_is_missing_is_noticed_on_opening,
        an_index_that_is_gone_begins_from_zero,
        a_foreign_index_is_replaced,
        an_index_of_another_version_is_replaced,
        what_is_not_of_the_engine_stays,
        a_file_that_no_commit_names_is_removed,
        a_check_names_damaged_files,
        a_damaged_index_that_must_exist_stays_as_it_is,
        an_index_that_is_removed_while_it_is_written_begins_from_zero,
    ]
}

/// An index with documents and a checkpoint, closed.
async fn closed_index(subject: &Subject) {
    let opened = subject.open().await;
    let series = begin(&opened).await;
    opened.index.write(series, A, batch((1..50).map(|n| email(n, "some words")), 1)).await.unwrap();
    opened.index.commit(series).await.unwrap();
    opened.index.write(series, A, batch([email(7, "other words")], 2)).await.unwrap();
    opened.index.save(series, checkpoint("saved")).await.unwrap();
    opened.upkeep.close().await.unwrap();
}

/// The files that Tantivy keeps, without its locks.
fn files(subject: &Subject) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(subject.folder().join("index")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if !name.starts_with('.') && fs::metadata(&path).unwrap().len() > 0 {
            files.push(path);
        }
    }
    files.sort();
    assert!(files.len() > 4, "{files:?}");
    files
}

/// Whether an index is empty, has no checkpoint, and works.
async fn begins_from_zero(opened: &Opened) -> bool {
    let page = page(opened, A, Filter::And(vec![])).await;
    let begun = opened.index.begin().await.unwrap();
    if begun.checkpoint.is_some() {
        return false;
    }
    assert_eq!((page.hits, page.revision), (vec![], Revision(0)));
    opened.index.write(begun.series, A, batch([email(1, "again")], 1)).await.unwrap();
    opened.index.commit(begun.series).await.unwrap();
    assert_eq!(found(opened, A, anywhere("again")).await, [1]);
    true
}

/// Damages each file in turn, and expects a new index or, where the damage loses nothing, the whole one.
async fn each_file(subject: &Subject, damage: impl Fn(&Path)) {
    closed_index(subject).await;
    let copy = tempfile::tempdir().unwrap();
    let files = files(subject);
    for file in &files {
        fs::copy(file, copy.path().join(file.file_name().unwrap())).unwrap();
    }
    for file in &files {
        damage(file);
        let opened = subject.open().await;
        assert!(begins_from_zero(&opened).await, "{}", file.display());
        opened.upkeep.close().await.unwrap();
        drop(opened);
        let folder = subject.folder().join("index");
        fs::remove_dir_all(&folder).unwrap();
        fs::create_dir(&folder).unwrap();
        for entry in fs::read_dir(copy.path()).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
        }
    }
    let opened = subject.open().await;
    assert_eq!(opened.index.begin().await.unwrap().checkpoint, Some(checkpoint("saved")), "undamaged");
    assert_eq!(found(&opened, A, anywhere("other")).await, [7]);
}

async fn any_file_that_is_cut_is_noticed_on_opening(subject: Subject) {
    each_file(&subject, |file| {
        let length = fs::metadata(file).unwrap().len();
        OpenOptions::new().write(true).open(file).unwrap().set_len(length / 2).unwrap();
    })
    .await;
}

async fn any_file_with_a_flipped_bit_is_noticed_on_opening(subject: Subject) {
    each_file(&subject, |file| {
        let mut bytes = fs::read(file).unwrap();
        if file.ends_with("meta.json") {
            let text = String::from_utf8(bytes).unwrap();
            bytes = text.replacen("7361766564", "7361766565", 1).into_bytes(); // in the checkpoint, in hex digits
        } else {
            bytes[0] ^= 4;
        }
        fs::write(file, bytes).unwrap();
    })
    .await;
}

async fn any_file_that_is_missing_is_noticed_on_opening(subject: Subject) {
    each_file(&subject, |file| fs::remove_file(file).unwrap()).await;
}

async fn an_index_that_is_gone_begins_from_zero(subject: Subject) {
    closed_index(&subject).await;
    fs::remove_dir_all(subject.folder()).unwrap();
    assert!(begins_from_zero(&subject.open().await).await);
}

async fn a_foreign_index_is_replaced(subject: Subject) {
    let folder = subject.folder().join("index");
    fs::create_dir_all(&folder).unwrap();
    let mut schema = tantivy::schema::Schema::builder();
    schema.add_text_field("title", tantivy::schema::TEXT);
    drop(tantivy::Index::create_in_dir(&folder, schema.build()).unwrap());
    assert!(begins_from_zero(&subject.open().await).await);
}

async fn an_index_of_another_version_is_replaced(subject: Subject) {
    closed_index(&subject).await;
    let meta = subject.folder().join("index/meta.json");
    let text = fs::read_to_string(&meta).unwrap();
    let old = text.replacen("\"payload\":\"2 ", "\"payload\":\"1 ", 1);
    let old = if old == text { text.replacen("\"payload\": \"2 ", "\"payload\": \"1 ", 1) } else { old };
    assert_ne!(old, text, "{text}");
    fs::write(&meta, old).unwrap();
    assert!(begins_from_zero(&subject.open().await).await);
}

async fn what_is_not_of_the_engine_stays(subject: Subject) {
    fs::create_dir_all(subject.folder().join("index")).unwrap();
    fs::write(subject.folder().join("letter.txt"), "Dear").unwrap();
    fs::write(subject.folder().join("index/meta.json"), "{}").unwrap();
    assert!(begins_from_zero(&subject.open().await).await);
    assert_eq!(fs::read(subject.folder().join("letter.txt")).unwrap(), b"Dear");
}

async fn a_file_that_no_commit_names_is_removed(subject: Subject) {
    closed_index(&subject).await;
    let left = subject.folder().join("index/0123456789abcdef0123456789abcdef.idx");
    fs::write(&left, "of a segment that a crash left").unwrap();
    let opened = subject.open().await;
    let series = begin(&opened).await;
    opened.index.write(series, A, batch([email(8, "new words")], 3)).await.unwrap();
    opened.index.commit(series).await.unwrap();
    opened.upkeep.close().await.unwrap();
    assert!(!left.exists());
    assert_eq!(found(&subject.open().await, A, anywhere("words")).await.len(), 49);
}

async fn a_check_names_damaged_files(subject: Subject) {
    closed_index(&subject).await;
    let opened = subject.open().await;
    let file =
        files(&subject).into_iter().find(|file| file.extension().is_some_and(|name| name == "pos")).unwrap();
    let mut bytes = fs::read(&file).unwrap();
    bytes[0] ^= 1;
    fs::write(&file, bytes).unwrap(); // in place: the file is mapped
    let report = opened.upkeep.check(&|_, _| {}).await.unwrap();
    assert_eq!(report.damaged, [file.file_name().unwrap().to_str().unwrap()]);
}

/// Once, a command that printed its statistics removed it.
async fn a_damaged_index_that_must_exist_stays_as_it_is(subject: Subject) {
    closed_index(&subject).await;
    for file in files(&subject) {
        let bytes = fs::read(&file).unwrap();
        let mut damaged = bytes.clone();
        damaged[0] ^= 1;
        fs::write(&file, damaged).unwrap();
        let before = files(&subject);
        let config = restante_search::Config { must_exist: true, ..subject.config.clone() };
        let error = restante_search::open(config).await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{}: {error}", file.display());
        assert_eq!(files(&subject), before);
        fs::write(&file, bytes).unwrap();
    }
    assert_eq!(found(&subject.open().await, A, anywhere("words")).await.len(), 49);
}

async fn an_index_that_is_removed_while_it_is_written_begins_from_zero(subject: Subject) {
    let opened = subject.open().await;
    let series = begin(&opened).await;
    opened.index.save(series, checkpoint("old")).await.unwrap();
    opened.index.write(series, A, batch([email(1, "word")], 1)).await.unwrap();
    opened.index.commit(series).await.unwrap();
    fs::remove_dir_all(subject.folder().join("index")).unwrap();
    let mut outcome = opened.index.write(series, A, batch([email(2, "word")], 2)).await;
    if outcome.is_ok() {
        outcome = opened.index.commit(series).await;
    }
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(opened.upkeep.health().unwrap_err().kind(), ErrorKind::Unavailable);
    opened.index.ended(series).await;
    assert!(opened.search.query(A, &Query::new(anywhere("word"))).await.is_ok(), "what there is");
    let begun = opened.index.begin().await.unwrap();
    assert_eq!(begun.checkpoint, None);
    opened.upkeep.health().unwrap();
    assert!(begins_from_zero(&opened).await);
}
