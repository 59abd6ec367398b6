//! What the commands and the server pass to `restante_backup`: the locations in the settings, and the open stores.

mod settings;

use std::path::PathBuf;

use restante_backup::{Layout, Removing, Sources, Store};
use restante_core::Error;

use crate::{
    clock,
    config::{Config, Effective},
    doors::{self, DOORS, DoorSpec},
};

/// What a backup copies: the stores of the doors that are on. `open` has the stores that exist.
pub(crate) fn sources(effective: &Effective, open: Vec<Store>, removing: Removing) -> Sources {
    let config = &effective.config;
    let layout = layout_of(doors::enabled(config), config);
    let layout = open.into_iter().fold(layout, Layout::with_store);
    Sources::new(layout, settings::text(effective), clock::system(), removing)
}

/// The locations of everything in the settings, including those of doors that are off.
pub(crate) fn layout(config: &Config) -> Layout {
    layout_of(DOORS.iter().copied(), config)
}

fn layout_of<'d>(doors: impl Iterator<Item = &'d dyn DoorSpec>, config: &Config) -> Layout {
    doors.fold(Layout::new(&config.server.data_dir), |layout, door| door.lay_out(config, layout))
}

/// The canonical path of the data folder.
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
