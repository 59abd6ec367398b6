//! The contents of records: domains, accounts and aliases, and how they are encoded.

use std::num::NonZero;

use bytes::Bytes;
use restante_records::{AccountId, Body, Properties, Property, Record, Value};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    Domain, EmailAddress, Error, base64_serde,
    keys::StoredKeys,
    schema::{
        ADDRESS_ACCOUNT, ADDRESS_DOMAIN, ADDRESS_LOCAL, ADDRESS_OWNER, ADDRESS_QUOTA, ADDRESS_ROLE,
        ADDRESS_STATE, ADDRESS_TARGET, ADDRESS_TOKEN, DOMAIN_HASH, hash64,
    },
};

/// Whether an account may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It accepts mail, and its user can log in.
    Active,
    /// Neither.
    Disabled,
}

/// What a user may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Use the account.
    #[default]
    User,
    /// Also operate the server.
    Operator,
}

/// What one account may do with another's mail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Read it.
    Read,
    /// Read and change it.
    Write,
}

/// The use that a token permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Reading and changing mail.
    Mail,
    /// Sending mail.
    Send,
    /// Chat.
    Chat,
    /// Operators' tasks, for accounts of operators.
    Operate,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Self; 4] = [Self::Mail, Self::Send, Self::Chat, Self::Operate];
}

/// An account that another one may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The account whose mail it is.
    pub owner: AccountId,
    /// What may be done with it.
    pub access: Access,
}

/// A domain as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DomainEntry {
    pub(crate) domain: Domain,
    /// Seconds since 1970.
    pub(crate) created: i64,
    pub(crate) separator: Option<char>,
    pub(crate) catch_all: Option<EmailAddress>,
}

impl DomainEntry {
    pub(crate) fn body(&self) -> Result<Body, Error> {
        encode(self)
    }

    pub(crate) fn properties(&self) -> Properties {
        Properties::default().with(DOMAIN_HASH, hash64(self.domain.as_str().as_bytes()))
    }

    pub(crate) fn read(record: &Record) -> Result<Self, Error> {
        decode(record, "domain")
    }
}

/// The meaning of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AddressEntry {
    Account(AccountEntry),
    Alias(AliasBody),
}

/// An account as it is stored: what routing needs is in the properties, the rest in the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AccountEntry {
    pub(crate) head: AccountHead,
    pub(crate) body: AccountBody,
}

/// The part of an account that routing needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccountHead {
    pub(crate) account: AccountId,
    pub(crate) state: State,
    pub(crate) role: Role,
    pub(crate) quota_bytes: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AccountBody {
    pub(crate) address: EmailAddress,
    /// Seconds since 1970.
    pub(crate) created: i64,
    /// All passwords of an account share one salt and number of rounds, so that one derivation checks them all, and SCRAM, which
    /// sends the salt before it knows the password, works with each.
    #[serde(with = "base64_serde")]
    pub(crate) salt: Vec<u8>,
    pub(crate) rounds: NonZero<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) passwords: Vec<PasswordEntry>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) tokens: Vec<TokenEntry>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) grants: Vec<GrantEntry>,
}

/// A password: the account's own, without a name, or one for an application.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PasswordEntry {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    pub(crate) created: i64,
    pub(crate) sha1: StoredKeys,
    pub(crate) sha256: StoredKeys,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TokenEntry {
    /// The id by which it is revoked.
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) created: i64,
    /// Seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) expires: Option<i64>,
    pub(crate) scopes: Vec<Scope>,
    /// SHA-256 of the token's bytes.
    #[serde(with = "base64_serde")]
    pub(crate) hash: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GrantEntry {
    pub(crate) owner: u32,
    pub(crate) access: Access,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AliasBody {
    pub(crate) address: EmailAddress,
    pub(crate) created: i64,
    pub(crate) targets: Vec<EmailAddress>,
}

/// Values of the property `state`.
const ALIAS: u64 = 0;
const ACTIVE: u64 = 1;
const DISABLED: u64 = 2;
/// Value of the property `role`.
const OPERATOR: u64 = 1;

impl AddressEntry {
    pub(crate) fn address(&self) -> &EmailAddress {
        match self {
            Self::Account(account) => &account.body.address,
            Self::Alias(alias) => &alias.address,
        }
    }

    pub(crate) fn body(&self) -> Result<Body, Error> {
        match self {
            Self::Account(account) => encode(&account.body),
            Self::Alias(alias) => encode(alias),
        }
    }

    pub(crate) fn properties(&self) -> Properties {
        let address = self.address();
        let properties = Properties::default()
            .with(ADDRESS_DOMAIN, hash64(address.domain().as_str().as_bytes()))
            .with(ADDRESS_LOCAL, Bytes::copy_from_slice(address.local().as_bytes()));
        let (head, body) = match self {
            Self::Account(AccountEntry { head, body }) => (head, body),
            Self::Alias(alias) => {
                let targets = alias.targets.iter().map(target_hash);
                return targets.fold(properties.with(ADDRESS_STATE, ALIAS), |properties, target| {
                    properties.with(ADDRESS_TARGET, target)
                });
            }
        };
        let mut properties = properties
            .with(ADDRESS_STATE, if head.state == State::Active { ACTIVE } else { DISABLED })
            .with(ADDRESS_ACCOUNT, u64::from(head.account.0));
        if head.role == Role::Operator {
            properties.add(ADDRESS_ROLE, OPERATOR.into());
        }
        if let Some(bytes) = head.quota_bytes {
            properties.add(ADDRESS_QUOTA, bytes.into());
        }
        for token in &body.tokens {
            properties.add(ADDRESS_TOKEN, hash64(&token.hash).into());
        }
        for grant in &body.grants {
            properties.add(ADDRESS_OWNER, u64::from(grant.owner).into());
        }
        properties
    }

    pub(crate) fn read(record: &Record) -> Result<Self, Error> {
        match AccountHead::read(&record.properties)? {
            Some(head) => Ok(Self::Account(AccountEntry { head, body: decode(record, "account")? })),
            None => Ok(Self::Alias(decode(record, "alias")?)),
        }
    }
}

/// The hash by which the aliases with this target are found.
pub(crate) fn target_hash(target: &EmailAddress) -> u64 {
    hash64(target.to_string().as_bytes())
}

impl AccountHead {
    /// The account with these properties; `None` for an alias.
    pub(crate) fn read(properties: &Properties) -> Result<Option<Self>, Error> {
        let damaged = || Error::corrupt("the record of an address has properties that nobody writes");
        let state = match number(properties, ADDRESS_STATE) {
            Some(ALIAS) => return Ok(None),
            Some(ACTIVE) => State::Active,
            Some(DISABLED) => State::Disabled,
            _ => return Err(damaged()),
        };
        let account = number(properties, ADDRESS_ACCOUNT).and_then(|number| u32::try_from(number).ok());
        let role =
            if number(properties, ADDRESS_ROLE) == Some(OPERATOR) { Role::Operator } else { Role::User };
        Ok(Some(Self {
            account: AccountId(account.ok_or_else(damaged)?),
            state,
            role,
            quota_bytes: number(properties, ADDRESS_QUOTA),
        }))
    }
}

pub(crate) fn number(properties: &Properties, property: Property) -> Option<u64> {
    match properties.values(property).next() {
        Some(Value::Number(number)) => Some(*number),
        _ => None,
    }
}

pub(crate) fn encode(value: &impl Serialize) -> Result<Body, Error> {
    let json = serde_json::to_vec(value);
    let json = json.map_err(|error| Error::corrupt(format!("a record can't be written as JSON: {error}")))?;
    Ok(Body::new(json))
}

pub(crate) fn decode<T: DeserializeOwned>(record: &Record, what: &str) -> Result<T, Error> {
    serde_json::from_slice(&record.body.bytes).map_err(|error| {
        let id = record.id.0;
        Error::corrupt(format!("record {id} of the directory holds no {what}: {error}")).with_source(error)
    })
}
