//! The requests that the engine makes, with typed errors.

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use object_store::{
    Attribute, Attributes, BackoffConfig, Error as StoreError, GetOptions, GetRange, GetResult, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey},
    list::{PaginatedListOptions, PaginatedListStore},
    multipart::{MultipartStore, PartId},
    path::Path,
};
use restante_core::{Identity, Timestamp};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{error::failed, http::Http};
use crate::{Error, S3Config, S3Encryption, S3Keys, S3Url, s3_metrics::S3Metrics};

/// The most keys of a page of a list: the limit of S3.
const LIST_KEYS_MAX: usize = 1_000;
/// The first wait before a request is tried again; later ones are up to twice as long each.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
/// The longest such wait.
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// The most tries of a request after the first.
const RETRIES_MAX: usize = 6;
/// Metadata of an object: which put created it.
const CREATED_BY: Attribute = Attribute::Metadata(Cow::Borrowed("created-by"));

/// A bucket, or the part of it below a prefix.
pub(super) struct Client {
    store: Arc<AmazonS3>,
    prefix: String,
    /// Requests whose answers have not begun.
    requests: Semaphore,
    /// Whether the storage supports puts that must not overwrite.
    can_create: AtomicBool,
}

/// The outcome of a put that must not overwrite.
#[derive(Debug)]
pub(super) enum Created {
    New,
    /// The object exists. A conflict with another writer looks the same, so the object may also be absent.
    Exists,
    /// It is unknown whether the storage created the object: it may also have existed before, as a storage that refuses a
    /// long put may close the connection before it has read all of it, so that its answer is lost. [`Client::is_created_by`]
    /// tells.
    Unknown(PutId),
}

/// Identifies a put that must not overwrite.
#[derive(Debug)]
pub(super) struct PutId(String);

/// An object in the storage.
#[derive(Clone, Debug)]
pub(super) struct Object {
    /// Without the prefix of the store.
    pub(super) key: String,
    pub(super) bytes: u64,
    /// By the clock of the storage.
    pub(super) modified: Timestamp,
}

/// A page of objects.
pub(super) struct Page {
    pub(super) objects: Vec<Object>,
    pub(super) is_last: bool,
}

impl Client {
    /// # Errors
    /// `Invalid`: the settings can't be used.
    pub(super) fn new(
        url: &S3Url,
        config: &S3Config,
        keys: &S3Keys,
        metrics: S3Metrics,
    ) -> Result<Self, Error> {
        if let Some(what) = S3Config::endpoint_error(&config.endpoint) {
            return Err(Error::invalid(format!("blobs.s3.endpoint can't be used: {what}")));
        }
        let is_tls = !config.endpoint.starts_with("http://");
        let retry = RetryConfig {
            backoff: BackoffConfig { init_backoff: BACKOFF_FIRST, max_backoff: BACKOFF_MAX, base: 2.0 },
            max_retries: RETRIES_MAX,
            retry_timeout: Duration::from_millis(config.retry_ms),
        };
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(url.bucket())
            .with_region(&config.region)
            .with_access_key_id(&keys.access_key)
            .with_secret_access_key(&keys.secret_key)
            .with_retry(retry)
            .with_disable_bulk_delete(true) // it requires a checksum that not all storages know
            .with_http_connector(Http::new(config, is_tls, metrics)?)
            // The bucket is seldom a part of the host name at other storages.
            .with_virtual_hosted_style_request(config.endpoint.is_empty());
        if !config.endpoint.is_empty() {
            builder = builder.with_endpoint(config.endpoint.trim_end_matches('/')).with_allow_http(!is_tls);
        }
        match &config.encryption {
            S3Encryption::BucketDefault => {}
            S3Encryption::Aes256 => {
                let key: AmazonS3ConfigKey = "aws_server_side_encryption".parse().map_err(|error| {
                    Error::internal("encryption in the S3 storage can't be set").with_source(error)
                })?;
                builder = builder.with_config(key, "AES256");
            }
            S3Encryption::Kms(key) => builder = builder.with_sse_kms_encryption(key),
        }
        let store = builder.build().map_err(|error| {
            Error::invalid("the settings of the S3 storage can't be used: look at blobs.s3")
                .with_source(error)
        })?;
        Ok(Self {
            store: Arc::new(store),
            prefix: url.key_prefix(),
            requests: Semaphore::new(config.requests_max.get()),
            can_create: AtomicBool::new(true),
        })
    }

    fn path(&self, key: &str) -> Path {
        Path::from(format!("{}{key}", self.prefix))
    }

    async fn permit(&self) -> Result<SemaphorePermit<'_>, Error> {
        self.requests.acquire().await.map_err(|_| crate::error::closed())
    }

    /// Puts an object that must not exist. Not repeated when its outcome is unknown.
    pub(super) async fn create(&self, key: &str, payload: PutPayload) -> Result<Created, Error> {
        if !self.can_create.load(Ordering::Relaxed) {
            // The storage does not support such puts. An existing object has the same bytes, as its key is their hash.
            return match self.head(key).await? {
                Some(_) => Ok(Created::Exists),
                None => self.overwrite(key, payload).await.map(|()| Created::New),
            };
        }
        let permit = self.permit().await?;
        let id = PutId(Identity::random().to_string());
        let attributes = Attributes::from_iter([(CREATED_BY, id.0.clone())]);
        let options = PutOptions { mode: PutMode::Create, attributes, ..PutOptions::default() };
        let put = self.store.put_opts(&self.path(key), payload.clone(), options).await;
        drop(permit);
        match put {
            Ok(_) => Ok(Created::New),
            Err(StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }) => Ok(Created::Exists),
            Err(error) => {
                let error = failed("put", key, error);
                if error.code.as_deref() == Some("NotImplemented") || error.status == Some(501) {
                    self.can_create.store(false, Ordering::Relaxed);
                    return Box::pin(self.create(key, payload)).await;
                }
                if error.is_refused() { Err(error.error) } else { Ok(Created::Unknown(id)) }
            }
        }
    }

    /// Whether an object was created by this put; `None` when there is no object.
    pub(super) async fn is_created_by(&self, key: &str, put: &PutId) -> Result<Option<bool>, Error> {
        let _permit = self.permit().await?;
        let options = GetOptions { head: true, ..GetOptions::default() };
        match self.store.get_opts(&self.path(key), options).await {
            Ok(object) => Ok(Some(object.attributes.get(&CREATED_BY).is_some_and(|found| **found == *put.0))),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(failed("look for", key, error).error),
        }
    }

    /// Puts an object, replacing one that exists.
    pub(super) async fn overwrite(&self, key: &str, payload: PutPayload) -> Result<(), Error> {
        let _permit = self.permit().await?;
        let put = self.store.put(&self.path(key), payload).await;
        put.map(drop).map_err(|error| failed("put", key, error).error)
    }

    /// The object of a key, without its bytes.
    pub(super) async fn head(&self, key: &str) -> Result<Option<Object>, Error> {
        let _permit = self.permit().await?;
        match self.store.head(&self.path(key)).await {
            Ok(meta) => Ok(Some(self.object(meta))),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(failed("look for", key, error).error),
        }
    }

    /// Begins to read an object, or a range of it, which must begin within it.
    pub(super) async fn get(&self, key: &str, range: Option<std::ops::Range<u64>>) -> Result<Get, Error> {
        let _permit = self.permit().await?;
        let options = GetOptions { range: range.map(GetRange::Bounded), ..GetOptions::default() };
        match self.store.get_opts(&self.path(key), options).await {
            Ok(result) => Ok(Get::Found(result)),
            Err(StoreError::NotFound { .. }) => Ok(Get::NotFound),
            Err(error) => {
                // `object_store` has no error kind for this.
                let is_whole = error.to_string().contains("non-partial response");
                let error = failed("read", key, error);
                match error.status {
                    Some(416) => Ok(Get::BeyondEnd),
                    _ if is_whole => Ok(Get::Whole),
                    _ => Err(error.error),
                }
            }
        }
    }

    /// All bytes of a small object.
    pub(super) async fn get_small(&self, key: &str) -> Result<Option<Bytes>, Error> {
        let Get::Found(found) = self.get(key, None).await? else { return Ok(None) };
        found.bytes().await.map(Some).map_err(|error| failed("read", key, error).error)
    }

    /// Copies an object within the storage; false when it is absent.
    pub(super) async fn copy(&self, from: &str, to: &str) -> Result<bool, Error> {
        let _permit = self.permit().await?;
        match self.store.copy(&self.path(from), &self.path(to)).await {
            Ok(()) => Ok(true),
            Err(StoreError::NotFound { .. }) => Ok(false),
            Err(error) => {
                let error = failed("copy", from, error);
                if error.status == Some(404) { Ok(false) } else { Err(error.error) }
            }
        }
    }

    /// Deletes an object, if it exists.
    pub(super) async fn delete(&self, key: &str) -> Result<(), Error> {
        let _permit = self.permit().await?;
        match self.store.delete(&self.path(key)).await {
            Ok(()) | Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(failed("delete", key, error).error),
        }
    }

    /// A page of at most `limit` of the objects whose keys begin with `start`, in the order of their keys, after one key.
    pub(super) async fn list(&self, start: &str, after: Option<&str>, limit: usize) -> Result<Page, Error> {
        let _permit = self.permit().await?;
        let options = PaginatedListOptions {
            offset: after.map(|after| format!("{}{after}", self.prefix)),
            max_keys: Some(limit.clamp(1, LIST_KEYS_MAX)),
            ..PaginatedListOptions::default()
        };
        let listed = self.store.list_paginated(Some(&format!("{}{start}", self.prefix)), options).await;
        let page = listed.map_err(|error| failed("list", start, error).error)?;
        let objects = page.result.objects.into_iter().map(|meta| self.object(meta)).collect();
        Ok(Page { objects, is_last: page.page_token.is_none() })
    }

    fn object(&self, meta: ObjectMeta) -> Object {
        let key = meta.location.as_ref();
        Object {
            key: key.strip_prefix(&self.prefix).unwrap_or(key).to_owned(),
            bytes: meta.size,
            modified: Timestamp(meta.last_modified.timestamp_nanos_opt().unwrap_or(i64::MAX)),
        }
    }

    /// Begins an upload in parts: the object is not visible before it is completed.
    pub(super) async fn begin_upload(&self, key: &str) -> Result<Upload, Error> {
        let _permit = self.permit().await?;
        let path = self.path(key);
        let id = self.store.create_multipart(&path).await;
        let id = id.map_err(|error| failed("begin an upload of", key, error).error)?;
        Ok(Upload { store: self.store.clone(), key: key.to_owned(), path, id, is_done: false })
    }

    pub(super) async fn put_part(
        &self,
        upload: &Upload,
        number: usize,
        payload: PutPayload,
    ) -> Result<PartId, Error> {
        let _permit = self.permit().await?;
        let put = self.store.put_part(&upload.path, &upload.id, number, payload).await;
        put.map_err(|error| failed("put a part of", &upload.key, error).error)
    }
}

/// The answer to a get.
pub(super) enum Get {
    Found(GetResult),
    NotFound,
    /// The range begins at the end of the object or after it.
    BeyondEnd,
    /// The storage would send all of it: some do so for an empty object, or do not support ranges.
    Whole,
}

/// An upload in parts. It is aborted when it is dropped before its completion.
pub(super) struct Upload {
    store: Arc<AmazonS3>,
    key: String,
    path: Path,
    id: String,
    is_done: bool,
}

impl Upload {
    /// Makes the object visible. When this fails, it may be visible or not.
    pub(super) async fn complete(mut self, parts: Vec<PartId>) -> Result<(), Error> {
        let completed = self.store.complete_multipart(&self.path, &self.id, parts).await;
        completed.map_err(|error| failed("complete the upload of", &self.key, error).error)?;
        self.is_done = true;
        Ok(())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        // If there is no runtime, and after a crash, a rule of the bucket aborts it.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (store, path, id) = (self.store.clone(), self.path.clone(), self.id.clone());
        runtime.spawn(async move {
            if let Err(error) = store.abort_multipart(&path, &id).await {
                tracing::debug!(%error, "an unfinished upload of a blob stays until the rule of the bucket aborts it");
            }
        });
    }
}
