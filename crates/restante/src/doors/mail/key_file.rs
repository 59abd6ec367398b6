//! Checks that the file with the key exists that encrypts the private keys in the records.

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
use crate::{backups, config::Config, output::counted};

/// The key file of a server, and the number of private keys that are encrypted with it. Clones share the number.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyFileCheck {
    path: PathBuf,
    /// The number when the records were last counted; 0 before.
    encrypted_keys: Arc<AtomicU64>,
}

impl KeyFileCheck {
    pub(crate) fn new(config: &Config) -> Self {
        Self { path: backups::data_folder(config).join(KEY_FILE), encrypted_keys: Arc::default() }
    }

    /// Stores how many private keys the records have.
    pub(crate) fn note(&self, stats: &Stats) {
        let keys = stats.kinds.iter().find(|share| share.kind == dkim::KIND);
        self.encrypted_keys.store(keys.map_or(0, |share| share.records), Relaxed);
    }

    /// The problem when the file is missing although there are keys that are encrypted with it. The file is looked for each time, so
    /// a file that is put back counts at once.
    pub(crate) fn problem(&self) -> Option<String> {
        let keys = self.encrypted_keys.load(Relaxed);
        // An error of the look-up is reported by what reads the file.
        let is_missing = keys > 0 && matches!(self.path.try_exists(), Ok(false));
        is_missing.then(|| {
            format!(
                "the key file {} is missing, and {} encrypted with it: mail of these domains waits until the file is put back from \
                 a copy, or the keys are removed",
                self.path.display(),
                counted(keys, "DKIM key is", "DKIM keys are")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use restante_records::KindStats;

    use super::*;

    #[test]
    fn a_missing_file_is_a_problem_while_keys_are_encrypted_with_it() {
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
        assert!(
            problem.contains("secrets.key is missing, and 2 DKIM keys are encrypted with it"),
            "{problem}"
        );
        std::fs::write(folder.path().join(KEY_FILE), "a key").unwrap();
        assert_eq!(check.problem(), None);
        std::fs::remove_file(folder.path().join(KEY_FILE)).unwrap();
        hold(0);
        assert_eq!(check.problem(), None);
    }
}
