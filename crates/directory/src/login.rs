//! Log-ins: checks passwords, SCRAM exchanges and tokens.

use std::{net::IpAddr, num::NonZero, sync::Arc, time::Instant};

use restante_core::ErrorKind;
use restante_records::AccountId;
use ring::hmac;
use tokio::sync::OwnedSemaphorePermit;

use crate::{
    Challenge, ChannelBinding, ClientFirst, Directory, EmailAddress, Error, Grant, Mechanism,
    PASSWORD_BYTES_MAX, Role, Scope, ScramError, State, StoredKeys, UserKeys,
    entry::{AccountBody, AccountEntry, PasswordEntry, TokenEntry},
    keys::{SALT_BYTES, prepare},
    limits::{Attempt, Wait},
    metrics::{LoginResult, Means},
    random,
    remembered::Digest,
    schema::hash64,
    store::Found,
};

/// The longest name that is looked up.
const LOGIN_BYTES_MAX: usize = 1_024;
/// Random bytes of a server's nonce.
const NONCE_BYTES: usize = 18;

/// A user who has logged in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// The account.
    pub account: AccountId,
    /// Its address.
    pub address: EmailAddress,
    /// What its user may do.
    pub role: Role,
    /// Other accounts that it may use.
    pub grants: Vec<Grant>,
    /// What the token permits; `None` for a password, which permits everything.
    pub scopes: Option<Vec<Scope>>,
    /// When the token expires, in seconds since 1970.
    pub expires: Option<i64>,
    /// Identifies the password or token.
    pub(crate) credential: u64,
}

impl Login {
    /// Whether it permits a scope. [`Scope::Operate`] also requires an account of an operator.
    pub fn allows(&self, scope: Scope) -> bool {
        let is_in_scope = self.scopes.as_ref().is_none_or(|scopes| scopes.contains(&scope));
        is_in_scope && (scope != Scope::Operate || self.role == Role::Operator)
    }

    /// Identifies the password or token of the account: a number that stays the same until the credential is changed.
    pub fn credential(&self) -> u64 {
        self.credential
    }
}

/// Why a log-in is refused. Only the first two concern the client's name and password.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    /// The name, the password or the token is wrong, or the account is disabled: the client does not learn which.
    #[error("the name or the password is wrong")]
    Refused,
    /// Too many log-ins have failed.
    #[error("too many log-ins have failed: try again in {wait_seconds} s")]
    Limited {
        /// Seconds until the next try.
        wait_seconds: u64,
    },
    /// The exchange broke the rules of SCRAM.
    #[error("the SCRAM exchange failed: {0}")]
    Scram(ScramError),
    /// The check could not be made; of kind `Unavailable` when too many wait, or the records fail.
    #[error(transparent)]
    Failed(#[from] Error),
}

impl LoginError {
    /// Whether the same log-in may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Refused | Self::Scram(_) => false,
            Self::Limited { .. } => true,
            Self::Failed(error) => error.is_transient(),
        }
    }

    /// The last message of a SCRAM exchange, for the client.
    pub fn scram_message(&self) -> String {
        match self {
            Self::Scram(error) => error.message(),
            Self::Refused => ScramError::Proof.message(),
            Self::Limited { .. } | Self::Failed(_) => ScramError::Malformed.message(),
        }
    }

    fn busy() -> Self {
        Self::Failed(Error::unavailable("too many passwords wait to be checked: try again"))
    }

    pub(crate) fn result(&self) -> LoginResult {
        match self {
            Self::Refused | Self::Scram(_) => LoginResult::Refused,
            Self::Limited { .. } => LoginResult::Limited,
            Self::Failed(error) if error.kind() == ErrorKind::Unavailable => LoginResult::Busy,
            Self::Failed(_) => LoginResult::Failed,
        }
    }
}

impl From<Wait> for LoginError {
    fn from(Wait(wait_seconds): Wait) -> Self {
        Self::Limited { wait_seconds }
    }
}

/// A SCRAM exchange that waits for the client's last message.
pub struct ScramExchange {
    directory: Directory,
    challenge: Challenge,
    means: Means,
    attempt: Attempt,
    account: Option<Found<AccountEntry>>,
}

/// The name that a client has sent.
struct LoginName {
    text: String,
    address: Option<EmailAddress>,
}

impl LoginName {
    fn of(name: &str) -> Self {
        // A name that is not an address belongs to nobody, and is refused as late as a wrong password.
        let address = (name.len() <= LOGIN_BYTES_MAX).then(|| name.parse::<EmailAddress>().ok()).flatten();
        let text = match &address {
            Some(address) => address.to_string(),
            None => hex::encode(hash64(name.as_bytes()).to_be_bytes()),
        };
        Self { text, address }
    }
}

impl Directory {
    /// Logs a user in by an address and a password, as in SASL PLAIN and HTTP Basic.
    ///
    /// A correct password is remembered for some minutes. Others are checked one at a time for each account, on half of the
    /// processors, by threads that leave processor time to other work. An unknown name, a disabled account and a wrong password take the same time.
    ///
    /// # Errors
    /// [`LoginError`]; when the caller cancels it, the log-in counts as failed.
    pub async fn check_password(
        &self,
        ip: IpAddr,
        name: &str,
        password: &str,
    ) -> Result<Arc<Login>, LoginError> {
        let checked = self.check_password_uncounted(ip, name, password).await;
        let result = match &checked {
            Ok((_, is_remembered)) => {
                if *is_remembered {
                    LoginResult::Remembered
                } else {
                    LoginResult::Accepted
                }
            }
            Err(error) => error.result(),
        };
        self.0.metrics.count(Means::Password, result);
        checked.map(|(login, _)| login)
    }

    async fn check_password_uncounted(
        &self,
        ip: IpAddr,
        name: &str,
        password: &str,
    ) -> Result<(Arc<Login>, bool), LoginError> {
        if password.len() > PASSWORD_BYTES_MAX {
            return Err(LoginError::Refused);
        }
        let name = LoginName::of(name);
        let digest = self.0.remembered.digest(&name.text, password);
        if let Some(login) = self.0.remembered.get(&digest, self.store().now()) {
            return Ok((login, true));
        }
        let attempt = self.0.failures.attempt(ip, Some(&name.text));
        self.0.failures.check(attempt, self.store().now())?;
        let waiting = self.0.waiting.clone().try_acquire_owned().map_err(|_| LoginError::busy())?;
        let _waits = Waits::new(&self.0.metrics.checks_waiting);
        // One at a time for each account: many connections with the same password need only one derivation.
        let lock = hash64(name.text.as_bytes()) as usize % self.0.account_locks.len();
        let lock = self.0.account_locks.get(lock).cloned().unwrap_or_default();
        let locked = lock.lock_owned().await;
        if let Some(login) = self.0.remembered.get(&digest, self.store().now()) {
            return Ok((login, true));
        }
        let login = self.derive_and_compare(name, password, digest, attempt, (waiting, locked)).await?;
        Ok((login, false))
    }

    /// Checks a password that is not remembered. `held` is released when the derivation has ended, even if the caller was
    /// cancelled before.
    async fn derive_and_compare(
        &self,
        name: LoginName,
        password: &str,
        digest: Digest,
        attempt: Attempt,
        held: (OwnedSemaphorePermit, tokio::sync::OwnedMutexGuard<()>),
    ) -> Result<Arc<Login>, LoginError> {
        let core = self.core().await?;
        self.0.failures.take(attempt, self.store().now())?;
        let read = self.keys_of(&name).await.inspect_err(|_| self.0.failures.give_back(attempt));
        let (account, salt, rounds) = read?;
        // A password that can't be prepared matches none.
        let prepared = prepare(password).unwrap_or_else(|_| "\u{0}".to_owned());
        let started = Instant::now();
        let derived = self.0.derivation_threads.run(move || {
            let keys = StoredKeys::derive(Mechanism::ScramSha256, &prepared, &salt, rounds);
            drop(core);
            (keys, held)
        });
        // Held until the password is remembered, so that the next holder of the lock finds it.
        let (derived, _held) = derived.await?;
        self.0.metrics.check_seconds.observe(started.elapsed().as_secs_f64());
        let found = account.as_ref().and_then(|account| {
            let password = account.body.passwords.iter().find(|known| known.sha256.matches(&derived))?;
            (account.head.state == State::Active).then_some((account, password))
        });
        let Some((account, known)) = found else { return Err(LoginError::Refused) };
        self.0.failures.give_back(attempt);
        let login = Arc::new(login_of(account, known.credential(), None));
        let (shard, id, revision) = (account.shard, account.id, account.revision);
        self.0.remembered.note((shard, id), login.account, revision);
        self.0.remembered.insert(digest, login.clone(), ((shard, id), revision), self.store().now());
        self.forget_older(shard, vec![id]).await?;
        Ok(login)
    }

    /// The account of a name, and the input for deriving the keys of its passwords; an unknown name has a salt, too.
    async fn keys_of(
        &self,
        name: &LoginName,
    ) -> Result<(Option<Found<AccountEntry>>, Vec<u8>, NonZero<u32>), Error> {
        // Both are always read, so that the time reveals nothing.
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.unknown_salts().await?);
        let account = match &name.address {
            Some(address) => self.find_account(address).await?,
            None => None,
        };
        if let Some(found) = &account
            && !found.body.passwords.is_empty()
        {
            let AccountBody { salt, rounds, .. } = &found.body;
            let (salt, rounds) = (salt.clone(), *rounds);
            return Ok((account, salt, rounds));
        }
        let salt = hmac::sign(&key, name.text.as_bytes());
        let salt = salt.as_ref().get(..SALT_BYTES).unwrap_or_default().to_vec();
        Ok((account, salt, self.0.config.rounds))
    }

    /// Begins a SCRAM exchange with the client's first message. `offered` are the channel bindings of the connection, and `is_plus`
    /// says whether the client has chosen the mechanism's `-PLUS` form.
    ///
    /// # Errors
    /// [`LoginError`]. An unknown user gets a challenge, too, with a salt that stays the same.
    pub async fn begin_scram(
        &self,
        ip: IpAddr,
        mechanism: Mechanism,
        first: &[u8],
        (offered, is_plus): (&[ChannelBinding], bool),
    ) -> Result<ScramExchange, LoginError> {
        let means = means_of(mechanism);
        let begun = self.begin_scram_uncounted(ip, mechanism, first, (offered, is_plus)).await;
        begun.inspect_err(|error| self.0.metrics.count(means, error.result()))
    }

    async fn begin_scram_uncounted(
        &self,
        ip: IpAddr,
        mechanism: Mechanism,
        first: &[u8],
        (offered, is_plus): (&[ChannelBinding], bool),
    ) -> Result<ScramExchange, LoginError> {
        let first = ClientFirst::parse(first, offered, is_plus).map_err(LoginError::Scram)?;
        let name = LoginName::of(&first.username);
        let attempt = self.0.failures.attempt(ip, Some(&name.text));
        self.0.failures.check(attempt, self.store().now())?;
        let (account, salt, rounds) = self.keys_of(&name).await?;
        let account = account.filter(|account| account.head.state == State::Active);
        let passwords: &[PasswordEntry] = account.as_ref().map_or(&[], |account| &account.body.passwords);
        let keys = passwords.iter().map(|password| match mechanism {
            Mechanism::ScramSha1 => password.sha1.clone(),
            Mechanism::ScramSha256 => password.sha256.clone(),
        });
        let keys = UserKeys { salt, rounds, keys: keys.collect() };
        let nonce: [u8; NONCE_BYTES] = random::bytes()?;
        let nonce = base64_simd::STANDARD.encode_to_string(nonce);
        let challenge = first.challenge(mechanism, &nonce, keys);
        Ok(ScramExchange { directory: self.clone(), challenge, means: means_of(mechanism), attempt, account })
    }

    /// Logs a user in by a token, as in HTTP Bearer.
    ///
    /// # Errors
    /// [`LoginError`].
    pub async fn check_token(&self, ip: IpAddr, token: &str) -> Result<Arc<Login>, LoginError> {
        let checked = self.check_token_uncounted(ip, token).await;
        let result = checked.as_ref().map_or_else(LoginError::result, |_| LoginResult::Accepted);
        self.0.metrics.count(Means::Token, result);
        checked
    }

    async fn check_token_uncounted(&self, ip: IpAddr, token: &str) -> Result<Arc<Login>, LoginError> {
        let attempt = self.0.failures.attempt(ip, None);
        self.0.failures.check(attempt, self.store().now())?;
        let found = self.find_token(token).await?;
        let Some((account, token)) = found.filter(|(account, _)| account.head.state == State::Active) else {
            // Counted only now, unlike for a password: a token can't be guessed, and a client's connections log in at once.
            self.0.failures.take(attempt, self.store().now())?;
            return Err(LoginError::Refused);
        };
        self.0.remembered.note((account.shard, account.id), account.head.account, account.revision);
        Ok(Arc::new(login_of(&account.entry, token.credential(), Some(&token))))
    }

    /// Whether a log-in is still valid: its account is active, has the password or the token that was used, is still an
    /// operator's if it was one then, and may still use the accounts that it could use then.
    ///
    /// # Errors
    /// Those of the records.
    pub async fn holds(&self, login: &Login) -> Result<bool, Error> {
        let Some(found) = self.find_account(&login.address).await? else { return Ok(false) };
        let now = self.store().now();
        let is_there = match &login.scopes {
            None => found.body.passwords.iter().any(|password| password.credential() == login.credential),
            Some(_) => found
                .body
                .tokens
                .iter()
                .any(|token| token.credential() == login.credential && !token.is_expired(now)),
        };
        let has_role = login.role == Role::User || found.head.role == login.role;
        let has_grant = |grant: &Grant| {
            let granted = found.body.grants.iter().find(|granted| granted.owner == grant.owner.0);
            granted.is_some_and(|granted| granted.access >= grant.access)
        };
        let has_grants = login.grants.iter().all(has_grant);
        Ok(is_there
            && has_role
            && has_grants
            && found.head.account == login.account
            && found.head.state == State::Active)
    }

    /// The log-in that a password or a token of an account permits now, by its [`Login::credential`]: for tasks that a user has left
    /// with the server. `None` when the account is disabled or removed, or no longer has the password or the token. From now on
    /// changes of the account are announced.
    ///
    /// # Errors
    /// Those of the records.
    pub async fn login_by_credential(
        &self,
        account: AccountId,
        credential: u64,
    ) -> Result<Option<Arc<Login>>, Error> {
        let Some(found) = self.find_numbered(account).await? else { return Ok(None) };
        let now = self.store().now();
        let token =
            found.body.tokens.iter().find(|token| token.credential() == credential && !token.is_expired(now));
        let has_password = || found.body.passwords.iter().any(|password| password.credential() == credential);
        if found.head.state != State::Active || (token.is_none() && !has_password()) {
            return Ok(None);
        }
        self.0.remembered.note((found.shard, found.id), found.head.account, found.revision);
        Ok(Some(Arc::new(login_of(&found.entry, credential, token))))
    }

    /// Runs a derivation on one of the processors that are reserved for it.
    pub(crate) async fn on_a_core<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        let core = self.core().await?;
        let done = self.0.derivation_threads.run(move || {
            let done = work();
            drop(core);
            done
        });
        done.await
    }

    async fn core(&self) -> Result<OwnedSemaphorePermit, Error> {
        let core = self.0.cores.clone().acquire_owned().await;
        core.map_err(|_| Error::unavailable("the directory is closed"))
    }
}

impl ScramExchange {
    /// The message for the client.
    pub fn message(&self) -> &str {
        self.challenge.message()
    }

    /// The identity that the client asks to act as, if it is not the user.
    pub fn authorization(&self) -> Option<&str> {
        self.challenge.first().authorization.as_deref()
    }

    /// Checks the client's last message; returns the log-in, and the server's last message.
    ///
    /// # Errors
    /// [`LoginError`]; [`LoginError::scram_message`] is for the client.
    pub async fn finish(self, last: &[u8]) -> Result<(Arc<Login>, String), LoginError> {
        let (directory, means) = (self.directory.clone(), self.means);
        let finished = self.finish_uncounted(last).await;
        let result = finished.as_ref().map_or_else(LoginError::result, |_| LoginResult::Accepted);
        directory.0.metrics.count(means, result);
        finished
    }

    async fn finish_uncounted(self, last: &[u8]) -> Result<(Arc<Login>, String), LoginError> {
        let Self { directory, challenge, attempt, account, .. } = self;
        directory.0.failures.take(attempt, directory.store().now())?;
        let verified = challenge.verify(last).map_err(LoginError::Scram)?;
        let password = account.as_ref().and_then(|account| account.body.passwords.get(verified.key));
        let (Some(account), Some(password)) = (&account, password) else { return Err(LoginError::Refused) };
        let login = login_of(&account.entry, password.credential(), None);
        directory.0.failures.give_back(attempt);
        // The password may have been changed since the exchange began.
        if !directory.holds(&login).await? {
            return Err(LoginError::Refused);
        }
        directory.0.remembered.note((account.shard, account.id), login.account, account.revision);
        Ok((Arc::new(login), verified.message))
    }
}

fn means_of(mechanism: Mechanism) -> Means {
    match mechanism {
        Mechanism::ScramSha1 => Means::ScramSha1,
        Mechanism::ScramSha256 => Means::ScramSha256,
    }
}

fn login_of(account: &AccountEntry, credential: u64, token: Option<&TokenEntry>) -> Login {
    let grants = account.body.grants.iter();
    Login {
        account: account.head.account,
        address: account.body.address.clone(),
        role: account.head.role,
        grants: grants.map(|grant| Grant { owner: AccountId(grant.owner), access: grant.access }).collect(),
        scopes: token.map(|token| token.scopes.clone()),
        expires: token.and_then(|token| token.expires),
        credential,
    }
}

impl PasswordEntry {
    /// Identifies the password: another one has other keys.
    fn credential(&self) -> u64 {
        hash64(&self.sha256.stored)
    }
}

impl TokenEntry {
    fn credential(&self) -> u64 {
        hash64(&self.hash)
    }
}

/// Counts one check that waits, until it is dropped.
struct Waits<'a>(&'a prometheus_client::metrics::gauge::Gauge);

impl<'a> Waits<'a> {
    fn new(gauge: &'a prometheus_client::metrics::gauge::Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}
