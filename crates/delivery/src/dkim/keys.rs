//! The keys of domains, and the operations on them.

use std::{path::PathBuf, sync::Arc};

use parking_lot::Mutex;
use restante_core::{Clock, Error, ErrorKind, Timestamp};
use restante_directory::{
    Actor, Directory, Domain, KeyFile, account_of_domain, accounts_of_domains, hash_of_domain,
};
use restante_mail::dkim;
use restante_records::{
    AccountId, Body, Change, Commit, Get, Properties, Query, Record, RecordId, Records, Revision,
};
use serde::{Deserialize, Serialize};

use super::{
    pair::{Algorithm, Pair},
    signature::SigningKey,
};

/// The most keys that a domain has.
pub const KEYS_PER_DOMAIN_MAX: usize = 16;
/// How often a change is tried while other servers change keys, too.
const TRIES: usize = 8;
/// Keys that are read at once to check the key file.
const READ_ROWS: usize = 256;
/// The longest selector: with `._domainkey.` and a domain it must fit into a name of 253 bytes.
const SELECTOR_BYTES_MAX: usize = 63;

/// The state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyState {
    /// Its record has yet to be published; nothing is signed with it.
    Waiting,
    /// It signs.
    Active,
    /// It does not sign any more. Its record stays published for mail that is still under way.
    Retired,
}

/// A key of a domain, without its private part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyInfo {
    /// The domain.
    pub domain: Domain,
    /// Its selector (RFC 6376 §3.1).
    pub selector: String,
    /// The algorithm that it signs with.
    pub algorithm: Algorithm,
    /// Its state.
    pub state: KeyState,
    /// When it was made, in seconds since 1970.
    pub created: i64,
    /// When its state last changed, in seconds since 1970.
    pub changed: i64,
    /// The public key, in the form of `p=`.
    pub public_key: String,
}

impl KeyInfo {
    /// The name of its TXT record, without a dot at the end.
    pub fn record_name(&self) -> String {
        format!("{}._domainkey.{}", self.selector, self.domain)
    }

    /// The text of its TXT record (RFC 6376 §3.6.1).
    pub fn record_text(&self) -> String {
        format!("v=DKIM1; k={}; p={}", self.algorithm.key_type(), self.public_key)
    }
}

/// The body of a key's record.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct KeyBody {
    #[serde(flatten)]
    info: KeyInfo,
    /// The private key, sealed, in base64.
    private_key: String,
}

/// A key as it was read.
struct StoredKey {
    id: RecordId,
    body: KeyBody,
}

/// An operation on keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Operation {
    /// The keys of a domain, the oldest first.
    List {
        /// The domain.
        domain: Domain,
    },
    /// Creates a waiting key for each algorithm.
    Create {
        /// The domain.
        domain: Domain,
        /// The algorithms; both if this is empty.
        algorithms: Vec<Algorithm>,
        /// The selector of a single key; `None` derives one from the date.
        selector: Option<String>,
    },
    /// Signs with a key, and retires the active one of the same algorithm.
    Activate {
        /// The domain.
        domain: Domain,
        /// The key.
        selector: String,
    },
    /// Stops signing with a key.
    Retire {
        /// The domain.
        domain: Domain,
        /// The key.
        selector: String,
    },
    /// Removes a key that does not sign.
    Remove {
        /// The domain.
        domain: Domain,
        /// The key.
        selector: String,
    },
}

/// What an operation returns: the keys that it concerns, as they are now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The keys, without those that were removed.
    pub keys: Vec<KeyInfo>,
}

/// The keys of domains. Cloning shares them.
#[derive(Clone)]
pub struct DkimKeys {
    records: Arc<dyn Records>,
    clock: Arc<dyn Clock>,
    directory: Directory,
    key_file: Arc<SealingKey>,
}

/// The key file. It is created when the first private key is sealed: a server without DKIM has none.
struct SealingKey {
    path: PathBuf,
    /// The key file as last read.
    read: Mutex<Option<Arc<KeyFile>>>,
}

impl SealingKey {
    /// Opens a sealed text. If the key that was read before does not fit, the file is read again: the right file may have been put back.
    fn open(&self, name: &str, sealed: &[u8]) -> Result<Vec<u8>, Error> {
        let known = self.read.lock().clone();
        if let Some(opened) = known.and_then(|key| key.open(name, sealed).ok()) {
            return Ok(opened);
        }
        let key = KeyFile::open_existing(&self.path)?;
        let opened = key.open(name, sealed)?;
        *self.read.lock() = Some(Arc::new(key));
        Ok(opened)
    }
}

impl DkimKeys {
    /// The keys in these records, whose private parts are sealed by the key in a file. All servers on the same records need the same file.
    pub fn new(
        records: Arc<dyn Records>,
        clock: Arc<dyn Clock>,
        directory: Directory,
        key_file: PathBuf,
    ) -> Self {
        let key_file = Arc::new(SealingKey { path: key_file, read: Mutex::default() });
        Self { records, clock, directory, key_file }
    }

    /// Executes an operation, and records its changes in the operators' log.
    ///
    /// # Errors
    /// `NotFound` for an unknown domain or key; `Conflict` for a selector that is in use, and for removing a key that signs;
    /// `Invalid` for an invalid selector; `Full` for more than [`KEYS_PER_DOMAIN_MAX`] keys; those of the records and the key file.
    pub async fn operate(&self, actor: &Actor, operation: Operation) -> Result<Answer, Error> {
        let (domain, note) = match operation {
            Operation::List { domain } => {
                let (keys, _) = self.read(&domain).await?;
                if keys.is_empty() && self.directory.domain(&domain).await?.is_none() {
                    return Err(no_domain(&domain));
                }
                return Ok(Answer { keys: keys.into_iter().map(|key| key.body.info).collect() });
            }
            Operation::Create { domain, algorithms, selector } => {
                return self.create(actor, domain, algorithms, selector).await;
            }
            Operation::Activate { domain, selector } => {
                self.change(&domain, |keys, now| activate(keys, &domain, &selector, now)).await?;
                (domain, format!("activated DKIM key {selector}"))
            }
            Operation::Retire { domain, selector } => {
                self.change(&domain, |keys, now| retire(keys, &domain, &selector, now)).await?;
                (domain, format!("retired DKIM key {selector}"))
            }
            Operation::Remove { domain, selector } => {
                self.change(&domain, |keys, _| remove(keys, &domain, &selector)).await?;
                (domain, format!("removed DKIM key {selector}"))
            }
        };
        self.directory.note_of_domain(actor, &domain, format!("{note} of {domain}")).await?;
        let (keys, _) = self.read(&domain).await?;
        Ok(Answer { keys: keys.into_iter().map(|key| key.body.info).collect() })
    }

    async fn create(
        &self,
        actor: &Actor,
        domain: Domain,
        mut algorithms: Vec<Algorithm>,
        selector: Option<String>,
    ) -> Result<Answer, Error> {
        if self.directory.domain(&domain).await?.is_none() {
            return Err(no_domain(&domain));
        }
        algorithms.sort_unstable();
        algorithms.dedup();
        if algorithms.is_empty() {
            algorithms = vec![Algorithm::Rsa, Algorithm::Ed25519];
        }
        if let Some(selector) = &selector {
            check_selector(selector, &domain)?;
            if algorithms.len() > 1 {
                return Err(Error::invalid("a selector names one key: choose an algorithm, too"));
            }
        }
        let mut pairs = Vec::new();
        for algorithm in algorithms {
            // Generating an RSA key takes up to a second.
            let made = tokio::task::spawn_blocking(move || Pair::generate(algorithm)).await;
            pairs.push(made.map_err(|_| Error::internal("a task that makes a key has ended early"))??);
        }
        let key_file = self.key_to_seal().await?;
        let mut created = Vec::new();
        for pair in &pairs {
            let info = self
                .change(&domain, |keys, now| add(keys, &key_file, &domain, pair, selector.as_deref(), now))
                .await?;
            let note = format!("created DKIM key {} of {domain}", info.selector);
            self.directory.note_of_domain(actor, &domain, note).await?;
            created.push(info);
        }
        Ok(Answer { keys: created })
    }

    /// The key that seals new private keys. The file is created only if nothing is sealed yet: a new one would hide that the right one is missing.
    ///
    /// # Errors
    /// Those of the key file, and `Invalid` when it opens none of the existing keys.
    async fn key_to_seal(&self) -> Result<KeyFile, Error> {
        let mut refused = None;
        for account in accounts_of_domains() {
            let mut after = None;
            loop {
                let mut query = Query::new(dkim::KIND, dkim::BY_DOMAIN).limit(READ_ROWS);
                query.after = after;
                let page = self.records.query(account, &query).await?;
                let records = match page.ids.is_empty() {
                    true => Vec::new(),
                    false => self.records.get(account, &Get::whole(dkim::KIND, page.ids)).await?,
                };
                for record in records.into_iter().flatten() {
                    let key = StoredKey::of(account, &record)?;
                    match self.private_key(account, &key) {
                        Ok(_) => return KeyFile::open_existing(&self.key_file.path),
                        Err(error) => refused = Some(error),
                    }
                }
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
        match refused {
            Some(error) => Err(error.context(
                "a DKIM key can't be sealed beside those that there are: remove them if the file is lost",
            )),
            None => KeyFile::open_or_create(&self.key_file.path),
        }
    }

    fn private_key(&self, account: AccountId, key: &StoredKey) -> Result<Vec<u8>, Error> {
        let sealed = base64_simd::STANDARD.decode_to_vec(&key.body.private_key);
        let sealed = sealed.map_err(|_| damaged(account, key.id))?;
        self.key_file.open(&seal_name(&key.body.info), &sealed)
    }

    /// Commits changes that are derived from the keys of a domain, unless keys have changed meanwhile.
    async fn change<A>(
        &self,
        domain: &Domain,
        plan: impl Fn(&[StoredKey], Timestamp) -> Result<(Vec<Change>, A), Error>,
    ) -> Result<A, Error> {
        for _ in 0..TRIES {
            let (keys, state) = self.read(domain).await?;
            let (changes, answer) = plan(&keys, self.clock.now())?;
            let commit = Commit::of(changes).if_in_state(dkim::KIND, state);
            match self.records.commit(account_of_domain(domain), commit).await {
                Ok(_) => return Ok(answer),
                Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::unavailable("other servers change DKIM keys at the same time: try again"))
    }

    /// The keys of a domain, the oldest first, and the state of all keys in its reserved account.
    async fn read(&self, domain: &Domain) -> Result<(Vec<StoredKey>, Revision), Error> {
        let account = account_of_domain(domain);
        // Another domain may have the same hash, so there may be more keys here than one domain can have.
        let query = Query::new(dkim::KIND, dkim::BY_DOMAIN)
            .equals(hash_of_domain(domain))
            .limit(4 * KEYS_PER_DOMAIN_MAX);
        let page = self.records.query(account, &query).await?;
        let records = self.records.get(account, &Get::whole(dkim::KIND, page.ids)).await?;
        let mut keys = Vec::new();
        for record in records.into_iter().flatten() {
            let key = StoredKey::of(account, &record)?;
            if key.body.info.domain == *domain {
                keys.push(key);
            }
        }
        Ok((keys, page.state))
    }

    /// The active keys of a domain, RSA first, and the state of all keys in its reserved account when they were read.
    pub(super) async fn signing(&self, domain: &Domain) -> Result<(Vec<SigningKey>, Revision), Error> {
        let (keys, state) = self.read(domain).await?;
        let mut signing = Vec::new();
        for key in keys.iter().filter(|key| key.body.info.state == KeyState::Active) {
            let info = &key.body.info;
            let private = self.private_key(account_of_domain(domain), key)?;
            let pair = Pair::read(info.algorithm, &private)?;
            signing.push(SigningKey { selector: info.selector.clone(), pair });
        }
        signing.sort_by_key(|key| key.pair.algorithm());
        Ok((signing, state))
    }

    pub(super) fn records(&self) -> &Arc<dyn Records> {
        &self.records
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

impl StoredKey {
    fn of(account: AccountId, record: &Record) -> Result<Self, Error> {
        let body = serde_json::from_slice(&record.body.bytes);
        let body = body.map_err(|error| damaged(account, record.id).with_source(error))?;
        Ok(Self { id: record.id, body })
    }

    /// The change that sets another state.
    fn change_to(&self, state: KeyState, now: Timestamp) -> Result<Change, Error> {
        let info = KeyInfo { state, changed: now.seconds(), ..self.body.info.clone() };
        let body = encode(&KeyBody { info, private_key: self.body.private_key.clone() })?;
        Ok(Change::Update { kind: dkim::KIND, id: self.id, body: Some(body), properties: None })
    }
}

/// The change that adds a key.
fn add(
    keys: &[StoredKey],
    key_file: &KeyFile,
    domain: &Domain,
    pair: &Pair,
    selector: Option<&str>,
    now: Timestamp,
) -> Result<(Vec<Change>, KeyInfo), Error> {
    if keys.len() >= KEYS_PER_DOMAIN_MAX {
        let text = format!("the domain {domain} has {KEYS_PER_DOMAIN_MAX} DKIM keys: remove retired ones");
        return Err(Error::full(text));
    }
    let is_used = |selector: &str| keys.iter().any(|key| key.body.info.selector == selector);
    let selector = match selector {
        Some(selector) if is_used(selector) => {
            return Err(Error::conflict(format!("the domain {domain} has a DKIM key {selector} already")));
        }
        Some(selector) => selector.to_owned(),
        None => free_selector(pair.algorithm(), now, is_used),
    };
    let seconds = now.seconds();
    let info = KeyInfo {
        domain: domain.clone(),
        selector,
        algorithm: pair.algorithm(),
        state: KeyState::Waiting,
        created: seconds,
        changed: seconds,
        public_key: base64_simd::STANDARD.encode_to_string(pair.public()?),
    };
    let sealed = key_file.seal(&seal_name(&info), &pair.private()?)?;
    let body = KeyBody { info: info.clone(), private_key: base64_simd::STANDARD.encode_to_string(sealed) };
    let properties = Properties::default().with(dkim::DOMAIN, hash_of_domain(domain));
    Ok((vec![Change::Create { kind: dkim::KIND, body: encode(&body)?, properties }], info))
}

fn activate(
    keys: &[StoredKey],
    domain: &Domain,
    selector: &str,
    now: Timestamp,
) -> Result<(Vec<Change>, ()), Error> {
    let key = find(keys, domain, selector)?;
    let mut changes = Vec::new();
    for other in keys {
        let (info, own) = (&other.body.info, &key.body.info);
        let is_replaced = info.state == KeyState::Active
            && info.algorithm == own.algorithm
            && info.selector != own.selector;
        if is_replaced {
            changes.push(other.change_to(KeyState::Retired, now)?);
        }
    }
    if key.body.info.state != KeyState::Active {
        changes.push(key.change_to(KeyState::Active, now)?);
    }
    Ok((changes, ()))
}

fn retire(
    keys: &[StoredKey],
    domain: &Domain,
    selector: &str,
    now: Timestamp,
) -> Result<(Vec<Change>, ()), Error> {
    let key = find(keys, domain, selector)?;
    match key.body.info.state {
        KeyState::Retired => Ok((Vec::new(), ())),
        KeyState::Waiting | KeyState::Active => Ok((vec![key.change_to(KeyState::Retired, now)?], ())),
    }
}

fn remove(keys: &[StoredKey], domain: &Domain, selector: &str) -> Result<(Vec<Change>, ()), Error> {
    let key = find(keys, domain, selector)?;
    if key.body.info.state == KeyState::Active {
        let retire = format!("restante domain dkim retire {domain} {selector}");
        return Err(Error::conflict(format!(
            "mail is signed with the DKIM key {selector}: activate another one or use `{retire}` first"
        )));
    }
    Ok((vec![Change::Destroy { kind: dkim::KIND, id: key.id }], ()))
}

fn find<'k>(keys: &'k [StoredKey], domain: &Domain, selector: &str) -> Result<&'k StoredKey, Error> {
    let found = keys.iter().find(|key| key.body.info.selector == selector);
    found.ok_or_else(|| {
        let list = format!("restante domain dkim list {domain}");
        Error::not_found(format!(
            "the domain {domain} has no DKIM key '{}': `{list}` names them",
            selector.escape_debug()
        ))
    })
}

/// A selector with the day, such as `20261123r`, and a number if that is in use.
fn free_selector(algorithm: Algorithm, now: Timestamp, is_used: impl Fn(&str) -> bool) -> String {
    let date = restante_mail_wire::header::Date { seconds: now.seconds(), offset_minutes: 0 }.to_string();
    let day: String = date.chars().take(10).filter(char::is_ascii_digit).collect();
    let letter = match algorithm {
        Algorithm::Rsa => 'r',
        Algorithm::Ed25519 => 'e',
    };
    let first = format!("{day}{letter}");
    let mut selector = first.clone();
    // A domain can't have more keys than this, so one of these is free.
    for number in 2..=KEYS_PER_DOMAIN_MAX + 1 {
        if !is_used(&selector) {
            break;
        }
        selector = format!("{first}{number}");
    }
    selector
}

/// Refuses invalid selectors: they must be labels of lowercase letters, digits and hyphens, so that no two of them are the same in the DNS.
fn check_selector(selector: &str, domain: &Domain) -> Result<(), Error> {
    let is_label = |label: &str| {
        let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !label.is_empty() && !label.starts_with('-') && !label.ends_with('-') && label.bytes().all(is_inner)
    };
    let fits = selector.len() <= SELECTOR_BYTES_MAX
        && selector.len() + "._domainkey.".len() + domain.as_str().len() <= 253;
    if fits && selector.split('.').all(is_label) {
        return Ok(());
    }
    let shown = selector.escape_debug();
    Err(Error::invalid(format!(
        "'{shown}' is no selector: use up to {SELECTOR_BYTES_MAX} lowercase letters, digits and hyphens"
    )))
}

fn encode(body: &KeyBody) -> Result<Body, Error> {
    let json = serde_json::to_vec(body);
    json.map(Body::new).map_err(|error| Error::internal(format!("can't write a DKIM key: {error}")))
}

fn seal_name(info: &KeyInfo) -> String {
    format!("dkim {} {}", info.domain, info.selector)
}

fn damaged(account: AccountId, id: RecordId) -> Error {
    Error::corrupt(format!("the DKIM key in record {} of account {} is damaged", id.0, account.0))
}

fn no_domain(domain: &Domain) -> Error {
    Error::not_found(format!("there is no domain {domain}: add it with `restante domain add {domain}`"))
}
