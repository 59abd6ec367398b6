//! Greylisting (RFC 6647): programs that send junk rarely try again.

mod file;
mod pool;
#[cfg(test)]
mod tests;

use std::{
    net::IpAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use restante_core::{Clock, Error};
use restante_disk::{Disk, Folder, create_folder};
use restante_net::LogThrottle;
use sha2::{Digest, Sha256};
use tracing::warn;

use self::{
    file::Remembered,
    pool::{Entry, Key, Pool},
};
use crate::{GreylistConfig, Refused};

/// How long a first attempt counts: servers try again within this time (RFC 5321 §4.5.4.1 requires them to retry for four or five
/// days, and all do so within the first).
const WAITING_SECONDS: u64 = 2 * 86_400;
/// The most first attempts that are remembered for one network, so that one network does not displace those of others. When one
/// of them is repeated, all mail from its network is accepted.
const WAITING_PER_NETWORK_MAX: u32 = 256;
/// How often new entries are written to disk.
const SAVE_INTERVAL: Duration = Duration::from_secs(600);
/// The time of a client that keeps sending is updated after this time.
const REFRESH_SECONDS: u64 = 3_600;
/// Entries that are copied under one lock: this takes much less than half a millisecond.
const PAGE_ENTRIES: usize = 1_000;

/// Clients that have sent before, and first attempts of others.
///
/// - The first message from a network (an IPv4 /24 or an IPv6 /64) and a sender to a recipient is refused temporarily, until it
///   is sent again [`GreylistConfig::delay_seconds`] later. From then on nothing from its network is refused, as long as it sends
///   at least once in [`GreylistConfig::remembered_seconds`].
/// - Attempts are stored as hashes, and at most [`GreylistConfig::entries_max`] networks and as many attempts. The oldest are
///   forgotten; new attempts, however many, displace no network that has sent again.
/// - It is written to its folder every ten minutes and by [`Greylist::save`]. Later entries are lost when the process is killed:
///   some senders have to wait once more.
pub struct Greylist {
    config: GreylistConfig,
    clock: Arc<dyn Clock>,
    disk: Option<Arc<dyn Disk>>,
    state: Mutex<State>,
    is_changed: AtomicBool,
    /// One writer at a time.
    saving: tokio::sync::Mutex<()>,
    failures: LogThrottle,
}

#[derive(Debug)]
struct State {
    known: Pool,
    waiting: Pool,
}

impl Greylist {
    /// Opens the greylist in a folder, which is created if it does not exist. A damaged file is ignored with a warning.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn open(folder: &Path, config: GreylistConfig, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        create_folder(folder)?;
        Self::on(Arc::new(Folder::new(folder)), config, clock)
    }

    /// A greylist that remembers nothing after a restart.
    pub fn in_memory(config: GreylistConfig, clock: Arc<dyn Clock>) -> Self {
        let entries_max = config.entries_max.get();
        let state = State { known: Pool::new(entries_max), waiting: Pool::new(entries_max) };
        Self {
            config,
            clock,
            disk: None,
            state: Mutex::new(state),
            is_changed: AtomicBool::new(false),
            saving: tokio::sync::Mutex::default(),
            failures: LogThrottle::default(),
        }
    }

    fn on(disk: Arc<dyn Disk>, config: GreylistConfig, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        let remembered = file::read(&*disk)?.unwrap_or_else(|| {
            let path = disk.path("greylist");
            warn!(path = %path.display(), "the greylist is damaged or of another version: it begins anew");
            Remembered::default()
        });
        let greylist = Self { disk: Some(disk), ..Self::in_memory(config, clock) };
        {
            let mut state = greylist.state.lock();
            remembered.known.into_iter().for_each(|entry| state.known.set(entry));
            remembered.waiting.into_iter().for_each(|entry| state.waiting.set(entry));
        }
        Ok(greylist)
    }

    /// Whether a client may send to a recipient.
    ///
    /// # Errors
    /// The temporary refusal.
    pub fn admit(&self, client: IpAddr, sender: &str, recipient: &str) -> Result<(), Refused> {
        let now = u64::try_from(self.clock.now().seconds()).unwrap_or_default();
        let network = network_of(client);
        let attempt = attempt_of(&network, sender, recipient);
        let mut state = self.state.lock();
        if let Some(at) = state.known.get(&network) {
            let age = now.saturating_sub(at);
            if age < self.config.remembered_seconds.get() {
                if age >= REFRESH_SECONDS.min(self.config.remembered_seconds.get() / 2) {
                    self.remember(&mut state, network, now);
                }
                return Ok(());
            }
            state.known.remove(&network);
            self.is_changed.store(true, Ordering::Relaxed);
        }
        let delay = self.config.delay_seconds.get();
        let first =
            state.waiting.get(&attempt).filter(|at| now.saturating_sub(*at) < WAITING_SECONDS.max(2 * delay));
        let waited = match first {
            Some(at) => now.saturating_sub(at),
            None => {
                if state.waiting.of_owner(&network) < WAITING_PER_NETWORK_MAX {
                    state.waiting.set(Entry { key: attempt, at: now, owner: network });
                    self.is_changed.store(true, Ordering::Relaxed);
                }
                0
            }
        };
        if first.is_some() && waited >= delay {
            state.waiting.remove(&attempt);
            self.remember(&mut state, network, now);
            return Ok(());
        }
        let seconds = delay.saturating_sub(waited);
        let text = format!("greylisted: try again in {seconds} seconds");
        Err(Refused { code: 451, enhanced: "4.7.1", text, check: "greylist" })
    }

    fn remember(&self, state: &mut State, network: Key, now: u64) {
        state.known.set(Entry { key: network, at: now, owner: network });
        self.is_changed.store(true, Ordering::Relaxed);
    }

    /// The numbers of networks that have sent again, and of first attempts.
    pub fn entries(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.known.len(), state.waiting.len())
    }

    /// Writes new entries every ten minutes, for ever.
    pub async fn run(self: Arc<Self>) {
        loop {
            tokio::time::sleep(SAVE_INTERVAL).await;
            if let Err(error) = self.save().await
                && let Some(times) = self.failures.count()
            {
                warn!(%error, times, "the greylist can't be written: senders may have to wait once more");
            }
        }
    }

    /// Writes the entries if they have changed since the last write: durably when this returns.
    ///
    /// # Errors
    /// Those of the disk; then the last file is unchanged.
    pub async fn save(self: &Arc<Self>) -> Result<(), Error> {
        let Some(disk) = self.disk.clone() else { return Ok(()) };
        let _saving = self.saving.lock().await;
        if !self.is_changed.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let greylist = self.clone();
        let written = tokio::task::spawn_blocking(move || file::write(&*disk, &greylist.remembered())).await;
        let written = written
            .unwrap_or_else(|error| Err(Error::internal(format!("the greylist was not written: {error}"))));
        if written.is_err() {
            self.is_changed.store(true, Ordering::Relaxed);
        }
        written
    }

    /// A copy, made in steps, so that no caller waits long for the lock.
    fn remembered(&self) -> Remembered {
        let copy = |pool: fn(&State) -> &Pool| {
            let (mut entries, mut from) = (Vec::new(), Some(0));
            while let Some(number) = from {
                let (page, next) = pool(&self.state.lock()).page(number, PAGE_ENTRIES);
                entries.extend(page);
                from = next;
            }
            entries
        };
        Remembered { known: copy(|state| &state.known), waiting: copy(|state| &state.waiting) }
    }
}

/// The network of a client: large senders try again from another address of it.
fn network_of(client: IpAddr) -> Key {
    let network: u128 = match client.to_canonical() {
        IpAddr::V4(address) => u128::from(address.to_ipv6_mapped()) >> 8 << 8,
        IpAddr::V6(address) => u128::from(address) >> 64 << 64,
    };
    network.to_be_bytes()
}

/// The key by which a repeated attempt is recognized.
fn attempt_of(network: &Key, sender: &str, recipient: &str) -> Key {
    let mut hash = Sha256::new();
    hash.update(network);
    hash.update(sender.to_lowercase());
    hash.update([0]);
    hash.update(recipient.to_lowercase());
    let digest: [u8; 32] = hash.finalize().into();
    digest.first_chunk().copied().unwrap_or_default()
}
