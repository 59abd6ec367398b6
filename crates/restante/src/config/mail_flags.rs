//! Flags of mail.

use clap::Args;

use super::{
    ConfigError, Effective, Setting,
    flags::{FolderFlags, text},
};

/// Which records and blobs, and which configuration file.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct RecordsFlags {
    #[command(flatten)]
    folder: FolderFlags,
    #[command(flatten)]
    stores: StoreFlags,
}

/// Where records and blobs are.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct StoreFlags {
    /// Keep records here: lmdb:<folder> or memory: [default: lmdb:<data>/records]
    #[arg(long, value_name = "URL")]
    records: Option<String>,
    /// Keep blobs here: files:<folder> or memory: [default: files:<data>/blobs]
    #[arg(long, value_name = "URL")]
    blobs: Option<String>,
}

impl RecordsFlags {
    /// The settings in force for a command with these flags.
    pub(crate) fn load(&self) -> Result<Effective, ConfigError> {
        self.folder.load([self.folder.settings(), self.stores.settings()].concat())
    }
}

impl StoreFlags {
    pub(super) fn settings(&self) -> Vec<Setting> {
        let settings = [
            text("records.url", "--records", self.records.clone()),
            text("blobs.url", "--blobs", self.blobs.clone()),
        ];
        settings.into_iter().flatten().collect()
    }
}
