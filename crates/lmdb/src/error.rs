use restante_core::{Error, ErrorKind};

use crate::Table;

/// An error of LMDB while doing `what`.
pub(crate) fn lmdb_error(what: &str, source: heed::Error) -> Error {
    use heed::{Error as Heed, MdbError};
    let kind = match &source {
        Heed::Io(error) => return Error::io(what, "the LMDB store", std::io::Error::from(error.kind())),
        Heed::Mdb(MdbError::MapFull | MdbError::TxnFull) => ErrorKind::Full,
        Heed::Mdb(
            MdbError::Corrupted
            | MdbError::PageNotFound
            | MdbError::Invalid
            | MdbError::VersionMismatch
            | MdbError::BadTxn, // the transaction met a damaged page before
        ) => ErrorKind::Corrupt,
        Heed::Mdb(MdbError::ReadersFull) => ErrorKind::Unavailable,
        _ => ErrorKind::Internal,
    };
    Error::new(kind, format!("can't {what} the LMDB store: {source}")).with_source(source)
}

pub(crate) fn no_table(table: Table) -> Error {
    Error::internal(format!("the store was opened without the table {}", table.name()))
}
