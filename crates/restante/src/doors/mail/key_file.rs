//! Whether the key file is there by which private keys in the records are sealed.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use restante_mail::dkim;
use restante_records::Stats;

use super::commands::directory::dkim::KEY_FILE;
use crate::{backups, config::Config};

/// The key file of a server, and how many private keys it sealed. Cloning shares the number.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyFileCheck {
    path: PathBuf,
    /// As the records were last counted; 0 before.
    sealed: Arc<AtomicU64>,
}

impl KeyFileCheck {
    pub(crate) fn new(config: &Config) -> Self {
        Self { path: backups::data_folder(config).join(KEY_FILE), sealed: Arc::default() }
    }

    /// Notes how many private keys the records hold.
    pub(crate) fn note(&self, stats: &Stats) {
        let keys = stats.kinds.iter().find(|share| share.kind == dkim::KIND);
        self.sealed.store(keys.map_or(0, |share| share.records), Relaxed);
    }

    /// What is wrong, if something is: that private keys can't be opened because the file is missing. It looks for the file each
    /// time, so that a file that is put back counts at once.
    pub(crate) fn problem(&self) -> Option<String> {
        let sealed = self.sealed.load(Relaxed);
        // An error says nothing: it is reported by what reads the file.
        let is_missing = sealed > 0 && matches!(self.path.try_exists(), Ok(false));
        is_missing.then(|| {
            format!(
                "the key file {} is missing, by which {sealed} DKIM keys are sealed: mail of their domains waits until it is put back \
                 from a copy, or the keys are removed",
                self.path.display()
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use restante_records::KindStats;

    use super::*;

    #[test]
    fn a_missing_file_is_a_problem_as_long_as_something_is_sealed_by_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.server.data_dir = folder.path().to_owned();
        let check = KeyFileCheck::new(&config);
        let kind = |kind, records| KindStats { kind, records, tombstones: 1 };
        let hold = |keys| {
            let kinds = vec![kind(restante_mail::email::KIND, 7), kind(dkim::KIND, keys)];
            check.note(&Stats { kinds, ..Stats::default() });
        };
        assert_eq!(check.problem(), None, "not counted yet");
        hold(2);
        let problem = check.problem().unwrap();
        assert!(problem.contains("secrets.key is missing, by which 2 DKIM keys"), "{problem}");
        std::fs::write(folder.path().join(KEY_FILE), "a key").unwrap();
        assert_eq!(check.problem(), None);
        std::fs::remove_file(folder.path().join(KEY_FILE)).unwrap();
        hold(0);
        assert_eq!(check.problem(), None);
    }
}
