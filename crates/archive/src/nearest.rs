//! The nearest archive when there is none at a given path.

use std::{
    collections::VecDeque,
    fs, io,
    path::{Path, PathBuf},
};

use crate::{EngineUrl, Error, log};

/// Levels below the given path, and below each folder above it, that are searched.
const LEVELS_BELOW_MAX: usize = 3;
/// Folders above the given path that are searched.
const LEVELS_ABOVE_MAX: usize = 2;
/// The most entries of folders that are read, in all.
const ENTRIES_MAX: usize = 5_000;

/// Checks that a folder to be opened for reading has an archive of the `log` engine.
///
/// # Errors
/// `NotFound` when it doesn't: the error names the nearest archive. `Unavailable` when it can't be read.
pub(crate) fn check_folder(folder: &Path) -> Result<(), Error> {
    match log::holds_archive(folder) {
        Ok(true) => Ok(()),
        Ok(false) => Err(absent(folder)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Err(absent(folder))
        }
        Err(error) => Err(Error::io("read", folder.display(), error)),
    }
}

/// The error for a path without an archive.
pub(crate) fn absent(place: &Path) -> Error {
    let advice = match nearest(place) {
        Some(url) => format!("the nearest one is {url}"),
        None => "name the folder that holds its .log files, or its SQLite file".to_owned(),
    };
    Error::not_found(format!("there is no archive in {}: {advice}", place.display()))
}

/// The archive nearest to a path: first below it, then below the folders above it.
fn nearest(place: &Path) -> Option<EngineUrl> {
    let place = std::path::absolute(place).ok()?;
    let mut entries_left = ENTRIES_MAX;
    place.ancestors().take(1 + LEVELS_ABOVE_MAX).find_map(|root| search(root, &mut entries_left))
}

/// The first archive in or below a folder, level by level. Links are not followed.
fn search(root: &Path, entries_left: &mut usize) -> Option<EngineUrl> {
    let mut waiting = VecDeque::from([(root.to_owned(), 0)]);
    while let Some((folder, level)) = waiting.pop_front() {
        if log::holds_archive(&folder).unwrap_or(false) {
            return Some(EngineUrl::Log(folder));
        }
        // Folders that can't be read are skipped: the result is only a hint.
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        let mut paths: Vec<(PathBuf, fs::FileType)> = Vec::new();
        for entry in entries.flatten() {
            *entries_left = entries_left.checked_sub(1)?;
            paths.extend(entry.file_type().ok().map(|kind| (entry.path(), kind)));
        }
        paths.sort_by(|(one, _), (other, _)| one.cmp(other));
        for (path, kind) in paths {
            if kind.is_dir() && level < LEVELS_BELOW_MAX {
                waiting.push_back((path, level + 1));
            } else if kind.is_file() && is_sqlite_archive(&path) {
                return Some(EngineUrl::Sqlite(path));
            }
        }
    }
    None
}

#[cfg(feature = "sqlite")]
fn is_sqlite_archive(file: &Path) -> bool {
    file.extension().is_some_and(|ending| ending == "db") && crate::sqlite::holds_archive(file)
}

#[cfg(not(feature = "sqlite"))]
fn is_sqlite_archive(_: &Path) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use restante_core::{ErrorKind, MessageHash, Timestamp};

    use super::*;
    use crate::{Config, Message, open};

    fn message(n: u8) -> Message {
        Message {
            message_hash: MessageHash([n; 32]),
            channel: "chan".into(),
            topic: "topic".into(),
            timestamp: Timestamp(i64::from(n)),
            body: "body".into(),
        }
    }

    async fn make(url: EngineUrl, messages: u8) {
        let opened = open(Config::new(url)).await.unwrap();
        opened.archive.append((0..messages).map(message).collect()).await.unwrap();
        opened.upkeep.close().await.unwrap();
    }

    async fn read(url: EngineUrl) -> Result<u64, Error> {
        let opened = open(Config { read_only: true, ..Config::new(url) }).await?;
        Ok(opened.upkeep.stats().await?.messages)
    }

    #[tokio::test]
    async fn a_place_without_an_archive_is_an_error_that_names_the_nearest() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("a/b/empty")).unwrap();
        fs::write(at("a/b/file"), "text").unwrap();
        let archive = EngineUrl::Log(at("a/b/archive"));
        make(archive.clone(), 3).await;
        for wrong in ["a", "a/b", "a/b/empty", "a/b/file", "a/b/archve", "a/b/archive/x", "."] {
            for url in [EngineUrl::Log(at(wrong)), EngineUrl::Sqlite(at(wrong).join("missing.db"))] {
                let error = read(url.clone()).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::NotFound, "{url}: {error}");
                assert!(error.to_string().ends_with(&format!("the nearest one is {archive}")), "{error}");
            }
        }
        assert_eq!(read(archive).await.unwrap(), 3);
    }

    #[tokio::test]
    async fn an_archive_in_a_file_is_named_too() {
        let folder = tempfile::tempdir().unwrap();
        let archive = EngineUrl::Sqlite(folder.path().join("archive.db"));
        make(archive.clone(), 1).await;
        let error = read(EngineUrl::Log(folder.path().to_owned())).await.unwrap_err();
        assert!(error.to_string().ends_with(&format!("the nearest one is {archive}")), "{error}");
    }

    #[tokio::test]
    async fn where_none_is_near_the_error_says_what_to_name() {
        let error = read(EngineUrl::Log("/proc/self/fdinfo".into())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(error.to_string().contains("name the folder"), "{error}");
    }

    /// A server that never received a message has an archive all the same.
    #[tokio::test]
    async fn an_archive_without_messages_is_one() {
        let folder = tempfile::tempdir().unwrap();
        let archive = EngineUrl::Log(folder.path().join("archive"));
        make(archive.clone(), 0).await;
        assert_eq!(read(archive).await.unwrap(), 0);
    }
}
