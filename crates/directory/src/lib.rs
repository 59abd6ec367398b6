//! The directory: domains, accounts, aliases, and credentials.
//!
//! [`Directory`] stores all of it in records of reserved accounts, spread by a hash of the address or domain ([`SHARDS`]).
//! All records of an address are in one reserved account, so a commit there that requires an expected state keeps addresses
//! unique, on every engine and with several servers.
//!
//! - **Routing**: [`Directory::resolve`] returns the accounts and foreign addresses that get the mail for an address.
//! - **Log-ins**: [`Directory::check_password`], [`Directory::begin_scram`], [`Directory::check_token`]. [`Directory::changes`]
//!   announces accounts that changed, so that doors end connections whose log-in is no longer valid ([`Directory::holds`]).
//! - **Operators**: an [`Operation`] is executed by [`Directory::operate`] and noted in a bounded log, in the same commit.
//! - **Secrets that must be readable** are sealed by a [`KeyFile`].

mod accounts;
mod address;
mod aliases;
mod changes;
mod config;
mod derivation;
mod domain;
mod domains;
mod entry;
mod keys;
mod limits;
mod login;
mod metrics;
mod operations;
mod own_addresses;
mod random;
mod remembered;
mod removal;
mod resolve;
mod schema;
mod scram;
mod sealed;
mod senders;
mod store;
mod tokens;
mod url_tokens;

use std::{
    num::NonZero,
    sync::{Arc, OnceLock},
};

use restante_core::{Clock, ErrorKind};
use restante_records::{AccountId, Change, Commit, Opened, Properties, Query};
use tokio::sync::{Mutex, Semaphore, broadcast};

pub use accounts::{AccountInfo, AccountSummary, GrantInfo, NewAccount, PasswordInfo};
pub use address::EmailAddress;
pub use aliases::AliasInfo;
pub use changes::{AccountChange, AccountChanges, Follower};
pub use config::DirectoryConfig;
pub use domain::Domain;
pub use domains::{DomainInfo, SEPARATOR};
pub use entry::{Access, Grant, Role, Scope, State};
pub use keys::{Mechanism, PASSWORD_BYTES_MAX, StoredKeys};
pub use login::{Login, LoginError, ScramExchange};
pub use metrics::DirectoryMetrics;
pub use operations::{Answer, NewPassword, Operation};
pub use random::random_secret;
pub use removal::RemovedAccount;
pub use resolve::{Resolution, Target};
pub use restante_core::Error;
pub use schema::{FIRST_ACCOUNT, SHARDS, account_of_domain, accounts_of_domains, hash_of_domain, kinds};
pub use scram::{Challenge, ChannelBinding, ClientFirst, MESSAGE_BYTES_MAX, ScramError, UserKeys, Verified};
pub use sealed::KeyFile;
pub use store::{Actor, OperationEntry, PAGE_MAX, Page};
pub use tokens::{NewToken, TokenInfo};

use derivation::DerivationThreads;
use limits::Failures;
use remembered::Remembered;
use schema::{SERVER, SERVER_KEY, SERVER_KEY_BY_NAME, SERVER_KEY_NAME};
use store::Store;
use url_tokens::UrlTokens;

/// Locks so that the passwords of one account are checked one after the other. Accounts that share a lock wait for each other.
const ACCOUNT_LOCKS: usize = 1_024;
/// The name of the key from which the salts of unknown users are derived.
const UNKNOWN_SALTS: &str = "salts of unknown users";
/// The name of the record whose commits assign account numbers.
const ACCOUNT_NUMBERS: &str = "account numbers";
/// How often a commit to the server's own account is tried.
const TRIES: usize = 16;

/// The directory of a server. Clones share it.
#[derive(Clone)]
pub struct Directory(Arc<Inner>);

struct Inner {
    store: Store,
    config: DirectoryConfig,
    metrics: DirectoryMetrics,
    failures: Failures,
    remembered: Remembered,
    /// One permit for each password that is being checked or waits to be.
    waiting: Arc<Semaphore>,
    /// One permit for each processor that may derive keys.
    cores: Arc<Semaphore>,
    derivation_threads: DerivationThreads,
    account_locks: Vec<Arc<Mutex<()>>>,
    changes: broadcast::Sender<AccountChange>,
    unknown_salts: OnceLock<[u8; 32]>,
    /// Used instead until the first domain is added.
    process_salts: [u8; 32],
    url_tokens: UrlTokens,
}

impl Directory {
    /// A directory in these records, which were opened with [`kinds`] in their schema. The [`Follower`] must run for as long as
    /// log-ins are checked; a command that checks none drops it.
    ///
    /// # Errors
    /// `Unavailable` when the records fail, `Internal` when the system has no random numbers.
    pub async fn open(
        opened: &Opened,
        config: DirectoryConfig,
        clock: Arc<dyn Clock>,
        metrics: DirectoryMetrics,
    ) -> Result<(Self, Follower), Error> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let cores = NonZero::new(cores / 2).unwrap_or(NonZero::<usize>::MIN);
        let inner = Inner {
            failures: Failures::new(&config),
            remembered: Remembered::new(&config, metrics.remembered.clone())?,
            waiting: Arc::new(Semaphore::new(config.checks_waiting_max.get())),
            cores: Arc::new(Semaphore::new(cores.get())),
            derivation_threads: DerivationThreads::new(cores)?,
            account_locks: (0..ACCOUNT_LOCKS).map(|_| Arc::default()).collect(),
            changes: broadcast::Sender::new(changes::WAITING_MAX),
            unknown_salts: OnceLock::new(),
            process_salts: random::bytes()?,
            url_tokens: UrlTokens::new()?,
            store: Store::new(opened.records.clone(), clock),
            config,
            metrics,
        };
        let directory = Self(Arc::new(inner));
        let follower = Follower::new(directory.clone(), opened.feed.clone()).await?;
        Ok((directory, follower))
    }

    fn store(&self) -> &Store {
        &self.0.store
    }

    /// The key from which the salts of unknown users are derived: the same on all servers, so that an unknown user always has
    /// the same salt everywhere.
    async fn unknown_salts(&self) -> Result<[u8; 32], Error> {
        if let Some(key) = self.0.unknown_salts.get() {
            return Ok(*key);
        }
        let query = server_key(UNKNOWN_SALTS);
        let (record, _) = self.store().first(SERVER, query, true).await?;
        let key = record.and_then(|record| record.body.bytes.as_ref().try_into().ok());
        Ok(key.map_or(self.0.process_salts, |key| *self.0.unknown_salts.get_or_init(|| key)))
    }

    /// A secret of the server by its name, the same on all servers that share the records. The first call creates it from
    /// `new`.
    ///
    /// # Errors
    /// Those of the records.
    pub async fn server_secret(&self, name: &'static str, new: &[u8]) -> Result<Vec<u8>, Error> {
        let (record, _) = self.store().first(SERVER, server_key(name), true).await?;
        if let Some(record) = record {
            return Ok(record.body.bytes.into());
        }
        self.touch_server_key(name, new).await?;
        // Another server may have created it meanwhile.
        let (record, _) = self.store().first(SERVER, server_key(name), true).await?;
        let missing =
            || Error::internal(format!("the secret '{name}' of the server was made and is not there"));
        record.map(|record| record.body.bytes.into()).ok_or_else(missing)
    }

    /// Creates that key if it does not exist.
    async fn make_unknown_salts(&self) -> Result<(), Error> {
        let key: [u8; 32] = random::bytes()?;
        self.touch_server_key(UNKNOWN_SALTS, &key).await?;
        Ok(())
    }

    /// The number of a new account: numbers increase, and none is assigned twice, because each is a revision of the
    /// server's own account, and a restore makes revisions jump ahead.
    async fn next_account(&self) -> Result<AccountId, Error> {
        let revision = self.touch_server_key(ACCOUNT_NUMBERS, &[]).await?;
        let number = u32::try_from(revision).ok().and_then(|number| (FIRST_ACCOUNT - 1).checked_add(number));
        number.map(AccountId).ok_or_else(|| Error::full("all numbers of accounts are used"))
    }

    /// Creates a record of the server's own account, or commits without changing it; returns the revision.
    async fn touch_server_key(&self, name: &'static str, body: &[u8]) -> Result<u64, Error> {
        let store = self.store();
        for _ in 0..TRIES {
            let (record, state) = store.first(SERVER, server_key(name), false).await?;
            let commit = match record {
                Some(record) => {
                    let change =
                        Change::Update { kind: SERVER_KEY, id: record.id, body: None, properties: None };
                    Commit::of([change])
                }
                None => {
                    let body = restante_records::Body::new(body.to_vec());
                    let properties = Properties::default().with(SERVER_KEY_NAME, name);
                    Commit::of([Change::Create { kind: SERVER_KEY, body, properties }])
                        .if_in_state(SERVER_KEY, state)
                }
            };
            match store.commit(SERVER, commit).await {
                Ok(committed) => return Ok(committed.revision.0),
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::unavailable("other servers change the directory at the same time: try again"))
    }
}

fn server_key(name: &'static str) -> Query {
    Query::new(SERVER_KEY, SERVER_KEY_BY_NAME).equals(name)
}

/// Bytes as base64 in JSON.
mod base64_serde {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&base64_simd::STANDARD.encode_to_string(bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        base64_simd::STANDARD.decode_to_vec(text).map_err(D::Error::custom)
    }
}

/// Serialises a type as its text.
macro_rules! text_serde {
    ($type:ty) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
use text_serde;
