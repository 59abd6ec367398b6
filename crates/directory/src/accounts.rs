//! Accounts: an address, a number that identifies it in other stores, passwords, and the accounts that may use it.

use restante_records::{AccountId, Body, Change, Commit, Properties, Query};
use serde::{Deserialize, Serialize};

use crate::{
    Access, Actor, Directory, EmailAddress, Error, Mechanism, Page, Role, State, StoredKeys, TokenInfo,
    domains::no_domain,
    entry::{AccountBody, AccountEntry, AccountHead, AddressEntry, GrantEntry, PasswordEntry},
    keys::{SALT_BYTES, prepare},
    random,
    schema::{
        ADDRESS, ADDRESS_BY_NAME, ADDRESS_BY_OWNER, NUMBER, NUMBER_ACCOUNT, NUMBER_BY_ACCOUNT, Shard, hash64,
        number_name,
    },
    store::{Found, Plan, Step},
};

/// The most passwords that one account has.
const PASSWORDS_MAX: usize = 32;
/// The most accounts that one account may use.
const GRANTS_MAX: usize = 64;
/// The longest name of a password or a token.
pub(crate) const NAME_BYTES_MAX: usize = 64;

/// An account to add.
#[derive(Clone, Debug)]
pub struct NewAccount {
    /// Its address.
    pub address: EmailAddress,
    /// Its password; without one nobody can log in to it with a password.
    pub password: Option<String>,
    /// What its user may do.
    pub role: Role,
    /// The most bytes of its mail; `None` for no limit.
    pub quota_bytes: Option<u64>,
}

/// An account in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AccountSummary {
    /// Its address.
    pub address: EmailAddress,
    /// Its number.
    pub account: u32,
    /// Whether it may be used.
    pub state: State,
    /// What its user may do.
    pub role: Role,
    /// The most bytes of its mail; `None` for no limit.
    pub quota_bytes: Option<u64>,
}

/// An account with all that operators may see.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AccountInfo {
    /// What lists show.
    #[serde(flatten)]
    pub summary: AccountSummary,
    /// When it was added, in seconds since 1970.
    pub created: i64,
    /// Its passwords.
    pub passwords: Vec<PasswordInfo>,
    /// Its tokens.
    pub tokens: Vec<TokenInfo>,
    /// The accounts that it may use.
    pub may_use: Vec<GrantInfo>,
    /// The accounts that may use it.
    pub used_by: Vec<GrantInfo>,
}

/// A password, without its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PasswordInfo {
    /// The application's name; `None` for the account's own password.
    pub name: Option<String>,
    /// When it was set, in seconds since 1970.
    pub created: i64,
}

/// What one account may do with another's mail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GrantInfo {
    /// The other account.
    pub address: EmailAddress,
    /// What may be done.
    pub access: Access,
}

/// The input of a derivation.
#[derive(Clone, PartialEq, Eq)]
struct Salting {
    salt: Vec<u8>,
    rounds: std::num::NonZero<u32>,
}

impl Directory {
    /// Adds an account and assigns a number to it.
    pub(crate) async fn add_account(&self, actor: &Actor, new: NewAccount) -> Result<AccountId, Error> {
        let NewAccount { address, password, role, quota_bytes } = new;
        if self.find_domain(address.domain()).await?.is_none() {
            return Err(no_domain(address.domain()));
        }
        if let Some(there) = self.store().find::<AddressEntry>(&address).await? {
            return Err(is_taken(&there.entry));
        }
        let salting = self.new_salting()?;
        let passwords = match password {
            Some(password) => vec![self.derive(None, &password, &salting).await?],
            None => Vec::new(),
        };
        let account = self.next_account().await?;
        self.add_number(account, &address).await?;
        let Salting { salt, rounds } = salting;
        let created = self.store().now().seconds();
        let body = AccountBody {
            address: address.clone(),
            created,
            salt,
            rounds,
            passwords,
            tokens: Vec::new(),
            grants: Vec::new(),
        };
        let head = AccountHead { account, state: State::Active, role, quota_bytes };
        let entry = AddressEntry::Account(AccountEntry { head, body });
        self.store()
            .change::<AddressEntry, ()>(actor, &address, |there| match there {
                Some(there) => Err(is_taken(there)),
                None => Ok(Plan {
                    step: Step::Create(entry.clone()),
                    log: format!("added account {address} with number {}", account.0),
                    answer: (),
                }),
            })
            .await?;
        Ok(account)
    }

    /// Records the address of a number. It is written before the account: a number without an account is never assigned again.
    async fn add_number(&self, account: AccountId, address: &EmailAddress) -> Result<(), Error> {
        let properties = Properties::default().with(NUMBER_ACCOUNT, u64::from(account.0));
        let body = Body::new(address.to_string().into_bytes());
        let commit = Commit::of([Change::Create { kind: NUMBER, body, properties }]);
        self.store().commit(Shard::of(&number_name(account)).account(), commit).await?;
        Ok(())
    }

    /// The address of an account; `None` when there is no such account.
    ///
    /// # Errors
    /// Those of the records.
    pub async fn address_of(&self, account: AccountId) -> Result<Option<EmailAddress>, Error> {
        let found = self.find_numbered(account).await?;
        Ok(found.map(|found| found.entry.body.address))
    }

    /// The most bytes of the mail of an account; `None` for no limit, and when there is no such account.
    ///
    /// # Errors
    /// Those of the records.
    pub async fn quota_of(&self, account: AccountId) -> Result<Option<u64>, Error> {
        let found = self.find_numbered(account).await?;
        Ok(found.and_then(|found| found.head.quota_bytes))
    }

    /// The account with a number.
    pub(crate) async fn find_numbered(
        &self,
        account: AccountId,
    ) -> Result<Option<Found<AccountEntry>>, Error> {
        let query = Query::new(NUMBER, NUMBER_BY_ACCOUNT).equals(u64::from(account.0));
        let (record, _) = self.store().first(Shard::of(&number_name(account)).account(), query, true).await?;
        let Some(record) = record else { return Ok(None) };
        let damaged =
            || Error::corrupt(format!("the record of account number {} holds no address", account.0));
        let text = std::str::from_utf8(&record.body.bytes).map_err(|_| damaged())?;
        let address: EmailAddress = text.parse().map_err(|_| damaged())?;
        let found = self.find_account(&address).await?;
        Ok(found.filter(|found| found.head.account == account))
    }

    /// The account of an address; `None` for an alias and for an address that does not exist.
    pub(crate) async fn find_account(
        &self,
        address: &EmailAddress,
    ) -> Result<Option<Found<AccountEntry>>, Error> {
        let found = self.store().find::<AddressEntry>(address).await?;
        Ok(found.and_then(|Found { shard, id, revision, entry }| match entry {
            AddressEntry::Account(entry) => Some(Found { shard, id, revision, entry }),
            AddressEntry::Alias(_) => None,
        }))
    }

    /// Changes an account: `plan` changes it in place, and returns the line for the log and the result.
    pub(crate) async fn change_account<A>(
        &self,
        actor: &Actor,
        address: &EmailAddress,
        plan: impl Fn(&mut AccountEntry) -> Result<(String, A), Error>,
    ) -> Result<A, Error> {
        self.store()
            .change::<AddressEntry, A>(actor, address, |there| {
                let Some(AddressEntry::Account(entry)) = there else { return Err(no_account(address)) };
                let mut entry = entry.clone();
                let (log, answer) = plan(&mut entry)?;
                Ok(Plan { step: Step::Update(AddressEntry::Account(entry)), log, answer })
            })
            .await
    }

    /// Sets the account's own password, or that of an application by its name.
    pub(crate) async fn set_password(
        &self,
        actor: &Actor,
        address: &EmailAddress,
        name: Option<&str>,
        password: &str,
    ) -> Result<(), Error> {
        check_name(name)?;
        let found = self.find_account(address).await?.ok_or_else(|| no_account(address))?;
        let salting = match others(&found.entry, name) {
            0 => self.new_salting()?,
            _ => salting_of(&found.entry),
        };
        let password = self.derive(name, password, &salting).await?;
        let what = named(name);
        self.change_account(actor, address, |entry| {
            match others(entry, name) {
                0 => (entry.body.salt, entry.body.rounds) = (salting.salt.clone(), salting.rounds),
                _ if salting_of(entry) != salting => {
                    return Err(Error::new(
                        restante_core::ErrorKind::Unavailable,
                        format!("the passwords of {address} were changed at the same time: try again"),
                    ));
                }
                PASSWORDS_MAX.. => {
                    return Err(Error::conflict(format!(
                        "{address} has {PASSWORDS_MAX} passwords: remove one first"
                    )));
                }
                _ => {}
            }
            entry.body.passwords.retain(|known| known.name.as_deref() != name);
            entry.body.passwords.push(password.clone());
            Ok((format!("set the {what} of {address}"), ()))
        })
        .await
    }

    /// Removes the account's own password, or that of an application by its name.
    pub(crate) async fn remove_password(
        &self,
        actor: &Actor,
        address: &EmailAddress,
        name: Option<&str>,
    ) -> Result<(), Error> {
        let what = named(name);
        self.change_account(actor, address, |entry| {
            let before = entry.body.passwords.len();
            entry.body.passwords.retain(|known| known.name.as_deref() != name);
            if entry.body.passwords.len() == before {
                return Err(Error::not_found(format!("{address} has no {what}")));
            }
            Ok((format!("removed the {what} of {address}"), ()))
        })
        .await
    }

    pub(crate) async fn set_state(
        &self,
        actor: &Actor,
        address: &EmailAddress,
        state: State,
    ) -> Result<(), Error> {
        let verb = if state == State::Active { "enabled" } else { "disabled" };
        self.change_account(actor, address, |entry| {
            entry.head.state = state;
            Ok((format!("{verb} account {address}"), ()))
        })
        .await
    }

    pub(crate) async fn set_quota(
        &self,
        actor: &Actor,
        address: &EmailAddress,
        bytes: Option<u64>,
    ) -> Result<(), Error> {
        let what = bytes.map_or("no limit".to_owned(), |bytes| format!("{bytes} bytes"));
        self.change_account(actor, address, |entry| {
            entry.head.quota_bytes = bytes;
            Ok((format!("set the quota of {address} to {what}"), ()))
        })
        .await
    }

    pub(crate) async fn set_role(
        &self,
        actor: &Actor,
        address: &EmailAddress,
        role: Role,
    ) -> Result<(), Error> {
        let what = if role == Role::Operator { "operator" } else { "user" };
        self.change_account(actor, address, |entry| {
            entry.head.role = role;
            Ok((format!("made {address} {what}"), ()))
        })
        .await
    }

    /// Lets `user` read or write the mail of `owner`.
    pub(crate) async fn grant(
        &self,
        actor: &Actor,
        owner: &EmailAddress,
        user: &EmailAddress,
        access: Access,
    ) -> Result<(), Error> {
        if owner == user {
            return Err(Error::invalid(format!("{owner} may use its own mail already")));
        }
        let of = self.find_account(owner).await?.ok_or_else(|| no_account(owner))?.head.account;
        let what = if access == Access::Write { "write" } else { "read" };
        self.change_account(actor, user, |entry| {
            let grants = &mut entry.body.grants;
            grants.retain(|grant| grant.owner != of.0);
            if grants.len() >= GRANTS_MAX {
                return Err(Error::conflict(format!(
                    "{user} may use {GRANTS_MAX} accounts already: revoke one first"
                )));
            }
            grants.push(GrantEntry { owner: of.0, access });
            Ok((format!("let {user} {what} the mail of {owner}"), ()))
        })
        .await
    }

    /// Revokes the access of `user` to the mail of `owner`.
    pub(crate) async fn revoke(
        &self,
        actor: &Actor,
        owner: &EmailAddress,
        user: &EmailAddress,
    ) -> Result<(), Error> {
        let of = self.find_account(owner).await?.ok_or_else(|| no_account(owner))?.head.account;
        self.change_account(actor, user, |entry| {
            let before = entry.body.grants.len();
            entry.body.grants.retain(|grant| grant.owner != of.0);
            if entry.body.grants.len() == before {
                return Err(Error::not_found(format!("{user} may not use the mail of {owner}")));
            }
            Ok((format!("revoked what {user} could do with the mail of {owner}"), ()))
        })
        .await
    }

    /// The accounts that may use another one.
    pub(crate) async fn users_of(&self, owner: AccountId) -> Result<Vec<(EmailAddress, Access)>, Error> {
        let rows = self.store().all(ADDRESS, ADDRESS_BY_OWNER, u64::from(owner.0).into()).await?;
        let mut users = Vec::with_capacity(rows.len());
        for (_, record) in rows {
            let AddressEntry::Account(entry) = AddressEntry::read(&record)? else { continue };
            let grant = entry.body.grants.iter().find(|grant| grant.owner == owner.0);
            if let Some(grant) = grant {
                users.push((entry.body.address.clone(), grant.access));
            }
        }
        Ok(users)
    }

    /// An account with all that operators may see.
    pub(crate) async fn account(&self, address: &EmailAddress) -> Result<AccountInfo, Error> {
        let found = self.find_account(address).await?.ok_or_else(|| no_account(address))?;
        let mut may_use = Vec::new();
        for grant in &found.body.grants {
            if let Some(address) = self.address_of(AccountId(grant.owner)).await? {
                may_use.push(GrantInfo { address, access: grant.access });
            }
        }
        let users = self.users_of(found.head.account).await?;
        let password =
            |known: &PasswordEntry| PasswordInfo { name: known.name.clone(), created: known.created };
        Ok(AccountInfo {
            summary: summary(&found.entry),
            created: found.body.created,
            passwords: found.body.passwords.iter().map(password).collect(),
            tokens: found.body.tokens.iter().map(TokenInfo::from).collect(),
            may_use,
            used_by: users.into_iter().map(|(address, access)| GrantInfo { address, access }).collect(),
        })
    }

    /// One page of all accounts, or of those of a domain, in unspecified order.
    pub(crate) async fn accounts(
        &self,
        domain: Option<&crate::Domain>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<AccountSummary>, Error> {
        let (entries, next) = self.addresses(domain, after, limit).await?;
        let account = |entry| match entry {
            AddressEntry::Account(entry) => Some(summary(&entry)),
            AddressEntry::Alias(_) => None,
        };
        Ok(Page { items: entries.into_iter().filter_map(account).collect(), next })
    }

    /// One page of accounts and aliases.
    pub(crate) async fn addresses(
        &self,
        domain: Option<&crate::Domain>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<AddressEntry>, Option<String>), Error> {
        let mut query = Query::new(ADDRESS, ADDRESS_BY_NAME);
        if let Some(domain) = domain {
            query = query.equals(hash64(domain.as_str().as_bytes()));
        }
        let (rows, next) = self.store().page(&query, after, limit).await?;
        let entries = rows.iter().map(|(_, record)| AddressEntry::read(record));
        Ok((entries.collect::<Result<_, _>>()?, next))
    }

    fn new_salting(&self) -> Result<Salting, Error> {
        let salt: [u8; SALT_BYTES] = random::bytes()?;
        Ok(Salting { salt: salt.to_vec(), rounds: self.0.config.rounds })
    }

    /// Derives the keys of a password on one of the processors that are reserved for it.
    async fn derive(
        &self,
        name: Option<&str>,
        password: &str,
        salting: &Salting,
    ) -> Result<PasswordEntry, Error> {
        let prepared = prepare(password)?;
        let Salting { salt, rounds } = salting.clone();
        let (sha1, sha256) = self
            .on_a_core(move || {
                let derive = |mechanism| StoredKeys::derive(mechanism, &prepared, &salt, rounds);
                (derive(Mechanism::ScramSha1), derive(Mechanism::ScramSha256))
            })
            .await?;
        let created = self.store().now().seconds();
        Ok(PasswordEntry { name: name.map(str::to_owned), created, sha1, sha256 })
    }
}

/// The number of an account's passwords other than the one with this name.
fn others(entry: &AccountEntry, name: Option<&str>) -> usize {
    entry.body.passwords.iter().filter(|known| known.name.as_deref() != name).count()
}

fn salting_of(entry: &AccountEntry) -> Salting {
    Salting { salt: entry.body.salt.clone(), rounds: entry.body.rounds }
}

fn named(name: Option<&str>) -> String {
    name.map_or("password".to_owned(), |name| format!("application password '{name}'"))
}

pub(crate) fn check_name(name: Option<&str>) -> Result<(), Error> {
    let is_allowed = |name: &str| {
        (1..=NAME_BYTES_MAX).contains(&name.len())
            && name.trim() == name
            && !name.chars().any(char::is_control)
    };
    match name {
        Some(name) if !is_allowed(name) => {
            let shown = name.escape_debug();
            Err(Error::invalid(format!("'{shown}' is no name: use 1 to {NAME_BYTES_MAX} bytes of text")))
        }
        _ => Ok(()),
    }
}

fn summary(entry: &AccountEntry) -> AccountSummary {
    let AccountHead { account, state, role, quota_bytes } = entry.head;
    AccountSummary { address: entry.body.address.clone(), account: account.0, state, role, quota_bytes }
}

pub(crate) fn no_account(address: &EmailAddress) -> Error {
    Error::not_found(format!("there is no account {address}: `restante account list` shows those there are"))
}

pub(crate) fn is_taken(entry: &AddressEntry) -> Error {
    let address = entry.address();
    Error::conflict(match entry {
        AddressEntry::Account(_) => format!("there is an account {address} already"),
        AddressEntry::Alias(_) => {
            format!("{address} is an alias: remove it first with `restante alias remove {address}`")
        }
    })
}
