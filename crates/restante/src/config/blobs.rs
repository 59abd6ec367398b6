//! The settings of blobs: their location, their maximum length, and when unreferenced blobs are removed.

use std::{
    num::NonZero,
    path::{Path, PathBuf},
};

use restante_blobs::{EngineUrl, FilesConfig, S3Config};
use restante_core::nonzero;
use serde::{Deserialize, Serialize};

use super::words;

const SWEEP_INTERVAL_SECONDS: u64 = 86_400;
/// A day: the attachments of a draft may be uploaded in the morning, and the draft sent in the evening.
const SWEEP_GRACE_SECONDS: u64 = 86_400;
/// RFC 8620 §6: an unreferenced blob must not be deleted for at least an hour after its upload. No commit of a record takes that long,
/// so none refers to a blob that is being removed.
const SWEEP_GRACE_SECONDS_MIN: u64 = 3_600;
/// The engine `s3` remembers for this long which blobs were touched.
const S3_SWEEP_GRACE_SECONDS_MAX: u64 = 38 * 86_400;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Blobs {
    /// `None`, written as an empty text, is the embedded engine below the data folder.
    #[serde(with = "words::text_or_empty")]
    pub(crate) url: Option<EngineUrl>,
    pub(crate) blob_bytes_max: NonZero<u64>,
    pub(crate) sweep_interval_seconds: NonZero<u64>,
    pub(crate) sweep_grace_seconds: NonZero<u64>,
    pub(crate) files: FilesConfig,
    pub(crate) s3: BlobsS3,
}

/// The settings of an S3 storage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct BlobsS3 {
    /// Empty for the key of the environment.
    pub(crate) access_key: String,
    /// Empty for the key of the environment.
    pub(crate) secret_key_file: PathBuf,
    /// Empty for a folder below the data folder.
    pub(crate) folder: PathBuf,
    #[serde(flatten)]
    pub(crate) engine: S3Config,
}

impl Blobs {
    /// The location of the blobs, with the default filled in.
    pub(crate) fn url(&self, data_dir: &Path) -> EngineUrl {
        self.url.clone().unwrap_or_else(|| EngineUrl::Files(data_dir.join("blobs")))
    }

    /// The first pair of settings that contradict each other: the key to blame and what is wrong.
    pub(crate) fn contradiction(&self) -> Option<(&'static str, String)> {
        if self.sweep_grace_seconds.get() < SWEEP_GRACE_SECONDS_MIN {
            let what = format!(
                "who has uploaded a blob may refer to it for an hour (RFC 8620): set at least {SWEEP_GRACE_SECONDS_MIN}"
            );
            return Some(("blobs.sweep_grace_seconds", what));
        }
        if self.files.packed_bytes_max > self.files.pack_bytes.get() {
            let what = "a blob that lies in a pack file must fit into one: set at least blobs.files.packed_bytes_max";
            return Some(("blobs.files.pack_bytes", what.into()));
        }
        if let Some(what) = S3Config::endpoint_error(&self.s3.engine.endpoint) {
            return Some(("blobs.s3.endpoint", what.to_owned()));
        }
        let is_s3 = matches!(self.url, Some(EngineUrl::S3(_)));
        if is_s3 && self.sweep_grace_seconds.get() > S3_SWEEP_GRACE_SECONDS_MAX {
            let what = format!(
                "an S3 storage does not know longer than that what was touched: set {S3_SWEEP_GRACE_SECONDS_MAX} at most"
            );
            return Some(("blobs.sweep_grace_seconds", what));
        }
        None
    }
}

impl Default for Blobs {
    fn default() -> Self {
        let config = restante_blobs::Config::new(EngineUrl::Memory);
        Self {
            url: None,
            blob_bytes_max: config.blob_bytes_max,
            sweep_interval_seconds: nonzero!(SWEEP_INTERVAL_SECONDS),
            sweep_grace_seconds: nonzero!(SWEEP_GRACE_SECONDS),
            files: config.files,
            s3: BlobsS3::default(),
        }
    }
}
