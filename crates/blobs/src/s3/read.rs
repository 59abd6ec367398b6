//! Reading a blob, or a range of it.

use std::{ops::Range, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, stream::BoxStream};
use object_store::GetResult;
use restante_core::BlobId;
use sha2::{Digest, Sha256};

use super::{S3, cache::Cache, client::Get, error::failed, receive::blocking, schema::blob_key};
use crate::{
    CHUNK_BYTES_MAX, Error, Source,
    error::no_blob,
    hash::hash_in_turns,
    limits::{check_range, clip},
};

impl S3 {
    /// Opens a range of a blob.
    pub(super) async fn open_blob(&self, id: BlobId, range: Range<u64>) -> Result<Box<dyn Source>, Error> {
        check_range(&range)?;
        let cache = self.cache.clone();
        if !cache.is_held(id) {
            cache.count_miss();
        } else if let Some(bytes) = blocking(move || Ok(cache.read(id))).await? {
            let range = clip(&range, bytes.len() as u64);
            return Ok(Box::new(bytes.slice(range.start as usize..range.end as usize)));
        }
        let key = blob_key(id);
        if range.is_empty() {
            return self.nothing_of(id).await;
        }
        let wanted = (range != (0..u64::MAX)).then(|| range.clone());
        let found = match self.client.get(&key, wanted.clone()).await? {
            Get::NotFound if self.restore_if_due(id).await? => self.client.get(&key, wanted).await?,
            found => found,
        };
        match found {
            Get::Found(result) => Ok(Box::new(Blob::new(id, result, Some(&self.cache)))),
            Get::NotFound => Err(no_blob(id)),
            Get::BeyondEnd => self.nothing_of(id).await,
            Get::Whole => match self.client.get(&key, None).await? {
                Get::Found(result) => {
                    let range = clip(&range, result.meta.size);
                    let blob = Blob::new(id, result, Some(&self.cache));
                    Ok(Box::new(Part { blob, skip: range.start, left: range.end - range.start }))
                }
                Get::NotFound | Get::BeyondEnd | Get::Whole => Err(no_blob(id)),
            },
        }
    }

    /// An empty range of a blob, if it exists.
    async fn nothing_of(&self, id: BlobId) -> Result<Box<dyn Source>, Error> {
        match self.find(id).await? {
            Some(_) => Ok(Box::new(Bytes::new())),
            None => Err(no_blob(id)),
        }
    }
}

/// The bytes of an answer. If they are the whole blob, their hash is verified.
pub(super) struct Blob {
    id: BlobId,
    stream: BoxStream<'static, object_store::Result<Bytes>>,
    /// The rest of a frame that is longer than a chunk; otherwise empty.
    rest: Bytes,
    /// Bytes that have not arrived yet.
    left: u64,
    hasher: Option<Sha256>,
    /// The bytes to add to the cache if the hash is right.
    copy: Option<(Arc<Cache>, Vec<Bytes>)>,
    is_over: bool,
    /// Stays true when the wait for a chunk was cancelled: the chunk may be lost.
    is_waiting: bool,
}

impl Blob {
    pub(super) fn new(id: BlobId, result: GetResult, cache: Option<&Arc<Cache>>) -> Self {
        let (range, bytes) = (result.range.clone(), result.meta.size);
        let is_whole = range == (0..bytes);
        let cache = cache.filter(|cache| is_whole && cache.takes(bytes));
        Self {
            id,
            left: range.end - range.start,
            stream: result.into_stream(),
            rest: Bytes::new(),
            hasher: is_whole.then(Sha256::new),
            copy: cache.map(|cache| (cache.clone(), Vec::new())),
            is_over: false,
            is_waiting: false,
        }
    }

    async fn next_frame(&mut self) -> Result<Option<Bytes>, Error> {
        while self.rest.is_empty() {
            match self.stream.next().await {
                Some(Ok(frame)) => self.rest = frame,
                Some(Err(error)) => return Err(failed("read", &blob_key(self.id), error).error),
                None => return Ok(None),
            }
        }
        let chunk = self.rest.split_to(self.rest.len().min(CHUNK_BYTES_MAX));
        Ok(Some(chunk))
    }

    async fn add(&mut self, chunk: &Bytes) -> Result<(), Error> {
        let len = chunk.len() as u64;
        self.left = self.left.checked_sub(len).ok_or_else(|| self.not_those_that_were_put())?;
        if let Some(hasher) = &mut self.hasher {
            hash_in_turns(hasher, chunk).await;
        }
        if let Some((_, chunks)) = &mut self.copy {
            chunks.push(chunk.clone());
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), Error> {
        if self.left > 0 {
            return Err(Error::unavailable(format!(
                "the S3 storage ended blob {} {} bytes too early: try again",
                self.id, self.left
            )));
        }
        let Some(hasher) = self.hasher.take() else { return Ok(()) };
        if BlobId(hasher.finalize().into()) != self.id {
            return Err(self.not_those_that_were_put());
        }
        if let Some((cache, chunks)) = self.copy.take() {
            cache.insert(self.id, chunks.concat().into());
        }
        Ok(())
    }

    fn not_those_that_were_put(&self) -> Error {
        Error::corrupt(format!(
            "the bytes of blob {} in the S3 storage are not those that were put: put the object back from a copy",
            self.id
        ))
    }
}

/// A part of a blob that is sent as a whole.
struct Part {
    blob: Blob,
    /// Bytes to skip before it.
    skip: u64,
    left: u64,
}

#[async_trait]
impl Source for Part {
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        while self.left > 0 {
            let Some(mut chunk) = self.blob.next().await? else { break };
            let skipped = self.skip.min(chunk.len() as u64);
            self.skip -= skipped;
            drop(chunk.split_to(skipped as usize));
            chunk.truncate(self.left.min(chunk.len() as u64) as usize);
            if !chunk.is_empty() {
                self.left -= chunk.len() as u64;
                return Ok(Some(chunk));
            }
        }
        Ok(None)
    }
}

#[async_trait]
impl Source for Blob {
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        if self.is_over {
            return Ok(None);
        }
        if std::mem::replace(&mut self.is_waiting, true) {
            return Err(Error::unavailable("the read of the blob was interrupted before"));
        }
        let next = match self.next_frame().await {
            Ok(Some(chunk)) => self.add(&chunk).await.map(|()| Some(chunk)),
            Ok(None) => self.end().map(|()| None),
            Err(error) => Err(error),
        };
        self.is_waiting = false;
        self.is_over = !matches!(next, Ok(Some(_)));
        next
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use object_store::{ObjectStoreExt, memory::InMemory, path::Path};
    use restante_core::ErrorKind;

    use super::*;
    use crate::hash::id_of;

    #[tokio::test]
    async fn a_read_does_not_go_on_after_a_cancelled_call() {
        let (store, path, bytes) = (InMemory::new(), Path::from("blob"), vec![7; 300 << 10]);
        store.put(&path, bytes.clone().into()).await.unwrap();
        let mut blob = Blob::new(id_of(&bytes), store.get(&path).await.unwrap(), None);
        assert!(blob.next().now_or_never().is_none(), "hashing so many bytes is interrupted");
        assert_eq!(blob.next().await.unwrap_err().kind(), ErrorKind::Unavailable);
    }
}
