//! The bounds of the arguments of engines, checked once for all of them.

use bytes::Bytes;

use crate::{
    BATCH_BYTES_MAX, BATCH_DOCUMENTS_MAX, Batch, CHECKPOINT_BYTES_MAX, DOCUMENT_BYTES_MAX, Error,
    QUERY_HITS_MAX, Query,
};

pub(crate) fn query(query: &Query) -> Result<(), Error> {
    if query.limit == 0 || query.limit > QUERY_HITS_MAX {
        return Err(Error::invalid(format!("limit of a search must be from 1 to {QUERY_HITS_MAX}")));
    }
    query.filter.check().map_err(Error::from)
}

pub(crate) fn batch(batch: &Batch) -> Result<(), Error> {
    if batch.documents.len().max(batch.removed.len()) > BATCH_DOCUMENTS_MAX {
        return Err(Error::invalid(format!("batch has more than {BATCH_DOCUMENTS_MAX} documents")));
    }
    let mut bytes = 0;
    for document in &batch.documents {
        let length = document.bytes();
        if length > DOCUMENT_BYTES_MAX {
            let what =
                format!("document {} has {length} bytes, more than {DOCUMENT_BYTES_MAX}", document.id.0);
            return Err(Error::invalid(what));
        }
        bytes += length;
    }
    match bytes > BATCH_BYTES_MAX {
        true => Err(Error::invalid(format!("batch has more than {BATCH_BYTES_MAX} bytes"))),
        false => Ok(()),
    }
}

pub(crate) fn checkpoint(checkpoint: &Bytes) -> Result<(), Error> {
    match checkpoint.len() > CHECKPOINT_BYTES_MAX {
        true => Err(Error::invalid(format!("checkpoint has more than {CHECKPOINT_BYTES_MAX} bytes"))),
        false => Ok(()),
    }
}
