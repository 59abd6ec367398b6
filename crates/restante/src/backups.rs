//! What the commands and the server give to `restante_backup`: where the settings put everything, and what is open.

mod settings;

use std::{path::PathBuf, sync::Arc};

use restante_backup::{ArchiveFiles, Layout, Removing, Sources, Store};
use restante_core::Error;

use crate::{
    clock,
    config::{Config, Effective},
};

/// What is open of the stores of a server; `None` for one of which nothing is at its place.
#[derive(Default)]
pub(crate) struct OpenStores {
    pub(crate) records: Option<Arc<dyn restante_records::Upkeep>>,
    pub(crate) blobs: Option<Arc<dyn restante_blobs::Upkeep>>,
    pub(crate) archive: Option<Arc<dyn restante_archive::Upkeep>>,
}

/// What a backup copies.
pub(crate) fn sources(effective: &Effective, open: OpenStores, removing: Removing) -> Sources {
    Sources::new(layout_with(&effective.config, open), settings::text(effective), clock::system(), removing)
}

/// Where the settings put everything.
pub(crate) fn layout(config: &Config) -> Layout {
    layout_with(config, OpenStores::default())
}

fn layout_with(config: &Config, open: OpenStores) -> Layout {
    let layout = Layout::new(&config.server.data_dir);
    let key = config.waku.node.key.file(layout.data());
    let state = config.waku.sync.file(layout.data());
    let archive = ArchiveFiles {
        url: config.archive_url(),
        spool: config.spool_in("archive").folder,
        second: config.archive.tandem.clone(),
        second_spool: config.spool_in("tandem").folder,
    };
    layout
        .with_node_key(key.as_deref())
        .with_file(&state)
        .with_store(Store::records(&config.records_url(), open.records))
        .with_store(Store::blobs(&config.blobs_url(), open.blobs))
        .with_store(Store::archive(archive, open.archive))
}

/// The data folder by the one name that it has.
pub(crate) fn data_folder(config: &Config) -> PathBuf {
    restante_backup::real_path(&config.server.data_dir)
}

/// Fails when a restore into the data folder was not finished.
pub(crate) fn check_not_halfway(config: &Config) -> Result<(), Error> {
    restante_backup::check_not_halfway(&layout(config))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_small_file_is_one_below_the_data_folder() {
        let mut config = Config::default();
        let here = std::env::current_dir().unwrap();
        let has =
            |config: &Config, path: &str| layout(config).small_files().any(|own| own == Path::new(path));
        for (key, expected) in [
            (PathBuf::from("keys/my.key"), Some("keys/my.key")),
            (here.join("data/my.key"), Some("my.key")),
            (PathBuf::from("../my.key"), None),
            (here.join("my.key"), None),
        ] {
            config.waku.node.key = key.to_str().unwrap().parse().unwrap();
            let count = layout(&config).small_files().count();
            assert_eq!(count, if expected.is_some() { 2 } else { 1 }, "{}", key.display());
            assert!(expected.is_none_or(|path| has(&config, path)), "{}", key.display());
        }
    }
}
