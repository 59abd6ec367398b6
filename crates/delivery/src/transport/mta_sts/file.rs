//! Stores policies in a file, so that they survive restarts.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::{task::spawn_blocking, time::sleep};
use tracing::warn;

use super::{
    DOMAINS_MAX, Known,
    parse::{MAX_AGE_SECONDS, Policy},
};

/// The name of the file in the data folder.
const NAME: &str = "mta-sts.json";
/// Its name while it is written.
const PARTIAL: &str = "mta-sts.json.partial";
const FORMAT: u32 = 1;
/// Its maximum length. Beyond it, policies are left out, those that expire first.
const BYTES_MAX: usize = 8 << 20;
/// How long policies are collected before they are written.
const WRITE_DELAY: Duration = Duration::from_secs(1);

/// The content of the file.
#[derive(Default, Serialize, Deserialize)]
struct Stored {
    format: u32,
    /// Those that are valid longest come first.
    policies: Vec<StoredPolicy>,
}

#[derive(Serialize, Deserialize)]
struct StoredPolicy {
    domain: String,
    /// The id of its record.
    id: String,
    #[serde(flatten)]
    policy: Policy,
    /// Until when it is valid, in seconds since 1970.
    until: i64,
}

/// The file of policies. Clones share it.
#[derive(Clone)]
pub(super) struct PolicyFile {
    folder: PathBuf,
    /// Whether a write is pending.
    is_pending: Arc<AtomicBool>,
    /// Held by the thread that writes it.
    writing: Arc<Mutex<()>>,
}

impl PolicyFile {
    /// The file in a folder, and the policies in it that are still valid. A file that can't be read counts as empty: policies are
    /// fetched again.
    pub(super) fn open(folder: &Path, now: i64) -> (Self, HashMap<String, Known>) {
        let file = Self { folder: folder.to_owned(), is_pending: Arc::default(), writing: Arc::default() };
        let stored = file.read().unwrap_or_else(|error| {
            warn!(%error, file = NAME, "the kept TLS policies of domains can't be read: they are fetched again");
            Stored::default()
        });
        // A policy that is valid for longer than allowed was stored while the clock was wrong.
        let holds = |until: i64| now < until && until <= now.saturating_add(MAX_AGE_SECONDS);
        let known = stored.policies.into_iter().filter(|stored| holds(stored.until)).take(DOMAINS_MAX);
        let known = known.map(|stored| {
            let StoredPolicy { domain, id, policy, until } = stored;
            (domain, Known { id, policy: Some((policy, until)), retry: None })
        });
        (file, known.collect())
    }

    fn read(&self) -> io::Result<Stored> {
        let file = match File::open(self.folder.join(NAME)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Stored::default()),
            opened => opened?,
        };
        let mut bytes = Vec::new();
        file.take(BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
        if bytes.len() > BYTES_MAX {
            return Err(io::Error::other(format!("it has more than {BYTES_MAX} bytes")));
        }
        let stored: Stored = serde_json::from_slice(&bytes)?;
        if stored.format != FORMAT {
            return Err(io::Error::other(format!("it has format {}", stored.format)));
        }
        Ok(stored)
    }

    /// Writes the known policies after a second, including those that are added until then. A failure is logged: the policies are
    /// lost with a restart.
    pub(super) fn write_soon(&self, known: &Arc<Mutex<HashMap<String, Known>>>) {
        if self.is_pending.swap(true, Ordering::Relaxed) {
            return;
        }
        let (file, known) = (self.clone(), known.clone());
        tokio::spawn(async move {
            sleep(WRITE_DELAY).await;
            let written = spawn_blocking(move || {
                let _writing = file.writing.lock();
                file.is_pending.store(false, Ordering::Relaxed);
                let bytes = encoded(&known.lock());
                file.write(&bytes)
            });
            if let Ok(Err(error)) = written.await {
                warn!(%error, file = NAME, "the TLS policies of domains can't be kept over a restart");
            }
        });
    }

    #[expect(clippy::disallowed_methods, reason = "the folder is synced after the rename")]
    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let partial = self.folder.join(PARTIAL);
        let mut file = File::create(&partial)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&partial, self.folder.join(NAME))?;
        File::open(&self.folder)?.sync_all()
    }
}

/// The content of the file.
fn encoded(known: &HashMap<String, Known>) -> Vec<u8> {
    let mut policies: Vec<StoredPolicy> = Vec::new();
    for (domain, Known { id, policy, .. }) in known {
        if let Some((policy, until)) = policy {
            let (domain, id, policy) = (domain.clone(), id.clone(), policy.clone());
            policies.push(StoredPolicy { domain, id, policy, until: *until });
        }
    }
    policies.sort_by(|one, other| (other.until, &other.domain).cmp(&(one.until, &one.domain)));
    loop {
        let stored = Stored { format: FORMAT, policies };
        let bytes = serde_json::to_vec(&stored).unwrap_or_default();
        if bytes.len() <= BYTES_MAX {
            return bytes;
        }
        policies = stored.policies;
        policies.truncate(policies.len() / 2);
    }
}
