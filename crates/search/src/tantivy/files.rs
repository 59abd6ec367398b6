//! The folder of an index: opening and verifying it, and replacing it if it can't be used.

use std::{
    fs, io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Arc,
};

use ::tantivy::{
    HasLen, Index, IndexReader, IndexSettings, ReloadPolicy, TantivyError,
    directory::error::{OpenDirectoryError, OpenReadError, OpenWriteError},
    index::SegmentComponent,
};
use bytes::Bytes;
use restante_core::ErrorKind;
use restante_disk::create_folder;
use tracing::warn;

use super::{
    directory::DurableDirectory,
    newest::Times,
    schema::{Fields, register_tokenizers},
};
use crate::{Error, Report};

/// The version of the index: of the fields, of the tokeniser, of the payload. An index of another version is rebuilt.
const VERSION: &str = "2";

/// The folder inside that of the engine that Tantivy writes to.
const INDEX_FOLDER: &str = "index";
/// Without this file there is no index.
const META_FILE: &str = "meta.json";

/// The files that each segment has.
const COMPONENTS: [SegmentComponent; 6] = [
    SegmentComponent::Postings,
    SegmentComponent::Positions,
    SegmentComponent::Terms,
    SegmentComponent::FieldNorms,
    SegmentComponent::FastFields,
    SegmentComponent::Store,
];

/// An index that is open.
#[derive(Clone)]
pub(super) struct OpenIndex {
    pub(super) index: Index,
    /// The folder of the index.
    pub(super) directory: DurableDirectory,
    pub(super) reader: IndexReader,
    pub(super) fields: Fields,
    pub(super) times: Arc<Times>,
}

/// Why an index can't be used.
enum Unusable {
    /// It has to be rebuilt.
    Damaged(String),
    /// It may be intact: the disk or the system returned an error.
    Unavailable(Error),
}

/// Opens the index in `folder`. Returns whether it is a new one, because there was none or the old one can't be used.
pub(super) fn open_or_create(folder: &Path, is_verified: bool) -> Result<(OpenIndex, bool), Error> {
    let path = folder.join(INDEX_FOLDER);
    if !path.exists() {
        return Ok((create(folder)?, true));
    }
    match open_existing(&path, is_verified) {
        Ok(open) => Ok((open, false)),
        Err(Unusable::Unavailable(error)) => Err(error),
        Err(Unusable::Damaged(why)) => {
            warn!(folder = %path.display(), why, "the search index can't be used and is made again");
            Ok((create(folder)?, true))
        }
    }
}

/// Opens the index in `folder` without changing it: one that can't be used stays there.
pub(super) fn open_unchanged(folder: &Path, is_verified: bool) -> Result<OpenIndex, Error> {
    let path = folder.join(INDEX_FOLDER);
    open_existing(&path, is_verified).map_err(|error| match error {
        Unusable::Unavailable(error) => error,
        Unusable::Damaged(why) => {
            let (path, advice) = (path.display(), "a server makes it again when it starts");
            Error::corrupt(format!("the search index in {path} can't be used: {why}: {advice}"))
        }
    })
}

/// Creates an empty index in `folder`, replacing what is there.
pub(super) fn create(folder: &Path) -> Result<OpenIndex, Error> {
    let path = folder.join(INDEX_FOLDER);
    remove(&path)?;
    create_folder(&path)?;
    let (schema, fields) = Fields::schema();
    let directory = directory(&path).map_err(|error| engine_error("create", &error))?;
    let index = Index::create(directory.clone(), schema, IndexSettings::default());
    let index = index.map_err(|error| engine_error("create", &error))?;
    open_reader(index, directory, fields).map_err(|error| engine_error("open", &error))
}

/// Verifies the files of the last commit.
pub(super) fn verify(index: &Index, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
    let metas = index.load_metas().map_err(|error| engine_error("read", &error))?;
    let directory = index.directory();
    let mut report = Report::default();
    let mut files: Vec<(PathBuf, u64)> = Vec::new();
    for segment in &metas.segments {
        let removed = segment.has_deletes().then_some(SegmentComponent::Delete);
        for component in COMPONENTS.into_iter().chain(removed) {
            let path = segment.relative_path(component);
            match ::tantivy::Directory::open_read(directory, &path) {
                Ok(file) => files.push((path, file.len() as u64)),
                Err(_) => report.damaged.push(path.display().to_string()),
            }
        }
    }
    files.sort();
    let total = files.iter().map(|(_, bytes)| bytes).sum();
    for (path, bytes) in files {
        let checked = directory.validate_checksum(&path);
        if !matches!(checked, Ok(true)) {
            report.damaged.push(path.display().to_string());
        }
        report.bytes += bytes;
        progress(report.bytes, total);
    }
    Ok(report)
}

fn open_existing(path: &Path, is_verified: bool) -> Result<OpenIndex, Unusable> {
    // A damaged index can make Tantivy panic.
    let opened = catch_unwind(AssertUnwindSafe(|| open_files(path, is_verified)));
    opened.unwrap_or_else(|_| Err(Unusable::Damaged("opening it panicked".into())))
}

fn open_files(path: &Path, is_verified: bool) -> Result<OpenIndex, Unusable> {
    let directory = directory(path).map_err(|error| unusable(&error))?;
    let index = Index::open(directory.clone()).map_err(|error| unusable(&error))?;
    let (schema, fields) = Fields::schema();
    if index.schema() != schema {
        return Err(Unusable::Damaged("it has other fields".into()));
    }
    let metas = index.load_metas().map_err(|error| unusable(&error))?;
    match metas.payload {
        Some(payload) => drop(read_payload(&payload).map_err(Unusable::Damaged)?),
        None if metas.segments.is_empty() => {} // nothing is committed yet
        None => return Err(Unusable::Damaged("its last commit has no checkpoint".into())),
    }
    if is_verified {
        let report = verify(&index, &|_, _| {}).map_err(Unusable::Unavailable)?;
        if let Some(file) = report.damaged.first() {
            return Err(Unusable::Damaged(format!("{file} is damaged")));
        }
    }
    open_reader(index, directory, fields).map_err(|error| unusable(&error))
}

fn open_reader(index: Index, directory: DurableDirectory, fields: Fields) -> Result<OpenIndex, TantivyError> {
    register_tokenizers(&index);
    let reader = index.reader_builder().reload_policy(ReloadPolicy::Manual).try_into()?;
    Ok(OpenIndex { index, directory, reader, fields, times: Arc::default() })
}

fn directory(path: &Path) -> Result<DurableDirectory, TantivyError> {
    Ok(DurableDirectory::open(path)?)
}

/// Removes an index. The file without which the rest is no index is removed first: so half of an index is never opened.
fn remove(folder: &Path) -> Result<(), Error> {
    for removed in [fs::remove_file(folder.join(META_FILE)), fs::remove_dir_all(folder)] {
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io("remove", folder.display(), error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The contents of a commit besides the documents: the version, a checksum, and the checkpoint.
pub(super) fn payload(checkpoint: Option<&Bytes>) -> String {
    let text = checkpoint.map_or_else(|| "-".to_owned(), hex::encode);
    format!("{VERSION} {:08x} {text}", crc32c::crc32c(text.as_bytes()))
}

pub(super) fn read_payload(payload: &str) -> Result<Option<Bytes>, String> {
    let mut parts = payload.splitn(3, ' ');
    let (version, sum, text) = (parts.next(), parts.next(), parts.next().unwrap_or_default());
    if version != Some(VERSION) {
        return Err("it is of another version".into());
    }
    if sum != Some(&format!("{:08x}", crc32c::crc32c(text.as_bytes()))) {
        return Err("its checkpoint is damaged".into());
    }
    if text == "-" {
        return Ok(None);
    }
    let bytes = hex::decode(text).map_err(|_| "its checkpoint is damaged".to_owned())?;
    Ok(Some(bytes.into()))
}

fn unusable(error: &TantivyError) -> Unusable {
    let is_damage = match io_error(error) {
        Some(io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData) | None => {
            !matches!(error, TantivyError::LockFailure(..) | TantivyError::SystemError(_))
        }
        Some(_) => false,
    };
    match is_damage {
        true => Unusable::Damaged(error.to_string()),
        false => Unusable::Unavailable(engine_error("open", error)),
    }
}

/// An error of Tantivy while doing `what` to the index.
pub(super) fn engine_error(what: &str, error: &TantivyError) -> Error {
    let kind = io_error(error).map_or(ErrorKind::Unavailable, |kind| match ErrorKind::of_io(kind) {
        ErrorKind::Full => ErrorKind::Full,
        _ => ErrorKind::Unavailable,
    });
    Error::new(kind, format!("can't {what} the search index: {error}"))
}

fn io_error(error: &TantivyError) -> Option<io::ErrorKind> {
    match error {
        TantivyError::IoError(error) => Some(error.kind()),
        TantivyError::OpenReadError(OpenReadError::IoError { io_error, .. })
        | TantivyError::OpenWriteError(OpenWriteError::IoError { io_error, .. })
        | TantivyError::OpenDirectoryError(OpenDirectoryError::IoError { io_error, .. }) => {
            Some(io_error.kind())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_read_back_and_others_are_refused() {
        for checkpoint in [None, Some(Bytes::new()), Some(Bytes::from_static(b"\0some\xff"))] {
            assert_eq!(read_payload(&payload(checkpoint.as_ref())), Ok(checkpoint));
        }
        let good = payload(Some(&Bytes::from_static(b"some")));
        for index in 0..good.len() {
            let mut bad = good.clone().into_bytes();
            bad[index] ^= 1;
            let bad = String::from_utf8(bad).unwrap();
            assert!(read_payload(&bad).is_err(), "{bad}");
            assert!(read_payload(&good[..index]).is_err());
        }
    }
}
