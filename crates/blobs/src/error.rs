use std::error::Error as _;

use restante_core::{BlobId, Error, ErrorKind};

/// The source of an error that says that the index is damaged.
#[derive(Debug, thiserror::Error)]
#[error("the index of the blobs")]
struct DamagedIndex;

/// An error of the index, with that context.
pub(crate) fn of_index(error: Error) -> Error {
    let is_damage = error.kind() == ErrorKind::Corrupt;
    let error = error.context(DamagedIndex);
    if is_damage { error.with_source(DamagedIndex) } else { error }
}

/// Whether the index is damaged; it can be rebuilt from packs and files.
pub(crate) fn is_damaged_index(error: &Error) -> bool {
    error.source().is_some_and(|source| source.is::<DamagedIndex>())
}

pub(crate) fn no_blob(id: BlobId) -> Error {
    Error::not_found(format!("there is no blob {id}"))
}

pub(crate) fn closed() -> Error {
    Error::unavailable("the blob store is closed")
}
