//! The kinds of records of the directory, and the accounts that hold them.
//!
//! Kinds, properties and indexes have numbers that are stored in files: they are never changed and never reused.

use restante_records::{AccountId, Index, IndexSchema, Kind, KindSchema, Property};
use ring::digest::{SHA256, digest};

use crate::Domain;

/// The number of reserved accounts over which the directory is spread, so that no partition of a distributed engine grows with the number
/// of users.
pub const SHARDS: usize = 64;

/// The reserved account for what exists once: the number of the next account, and keys of the server.
pub(crate) const SERVER: AccountId = AccountId(0);
/// The first of the reserved accounts over which the directory is spread.
const FIRST_SHARD: u32 = 1;
/// The number of the first user's account; those below are reserved.
pub const FIRST_ACCOUNT: u32 = 1_024;

pub(crate) const DOMAIN: Kind = Kind(64);
pub(crate) const DOMAIN_HASH: Property = Property(1);
pub(crate) const DOMAIN_BY_HASH: Index = Index(1);

pub(crate) const ADDRESS: Kind = Kind(65);
pub(crate) const ADDRESS_DOMAIN: Property = Property(1);
pub(crate) const ADDRESS_LOCAL: Property = Property(2);
pub(crate) const ADDRESS_STATE: Property = Property(3);
pub(crate) const ADDRESS_ACCOUNT: Property = Property(4);
pub(crate) const ADDRESS_ROLE: Property = Property(5);
pub(crate) const ADDRESS_QUOTA: Property = Property(6);
pub(crate) const ADDRESS_TOKEN: Property = Property(7);
pub(crate) const ADDRESS_OWNER: Property = Property(8);
pub(crate) const ADDRESS_TARGET: Property = Property(9);
pub(crate) const ADDRESS_BY_NAME: Index = Index(1);
pub(crate) const ADDRESS_BY_TOKEN: Index = Index(2);
pub(crate) const ADDRESS_BY_OWNER: Index = Index(3);
pub(crate) const ADDRESS_BY_TARGET: Index = Index(4);

pub(crate) const NUMBER: Kind = Kind(66);
pub(crate) const NUMBER_ACCOUNT: Property = Property(1);
pub(crate) const NUMBER_BY_ACCOUNT: Index = Index(1);

pub(crate) const OPERATION: Kind = Kind(67);
pub(crate) const OPERATION_TIME: Property = Property(1);
pub(crate) const OPERATION_BY_TIME: Index = Index(1);

pub(crate) const SERVER_KEY: Kind = Kind(68);
pub(crate) const SERVER_KEY_NAME: Property = Property(1);
pub(crate) const SERVER_KEY_BY_NAME: Index = Index(1);

pub(crate) const REMOVED: Kind = Kind(69);
pub(crate) const REMOVED_ACCOUNT: Property = Property(1);
pub(crate) const REMOVED_BY_ACCOUNT: Index = Index(1);

/// The kinds of records of the directory, to be merged with those of others when records are opened.
pub fn kinds() -> Vec<KindSchema> {
    let domain = KindSchema::new(DOMAIN, "domain").property(DOMAIN_HASH, "hash").index(IndexSchema::ordered(
        DOMAIN_BY_HASH,
        "hash",
        &[DOMAIN_HASH],
    ));
    // An account or an alias: the meaning of an address.
    let address = KindSchema::new(ADDRESS, "address")
        .property(ADDRESS_DOMAIN, "domain")
        .property(ADDRESS_LOCAL, "local")
        .property(ADDRESS_STATE, "state")
        .property(ADDRESS_ACCOUNT, "account")
        .property(ADDRESS_ROLE, "role")
        .property(ADDRESS_QUOTA, "quota")
        .property(ADDRESS_TOKEN, "token")
        .property(ADDRESS_OWNER, "owner")
        .property(ADDRESS_TARGET, "target")
        .index(IndexSchema::ordered(ADDRESS_BY_NAME, "name", &[ADDRESS_DOMAIN, ADDRESS_LOCAL]))
        .index(IndexSchema::scattered(ADDRESS_BY_TOKEN, "token", &[ADDRESS_TOKEN]))
        .index(IndexSchema::ordered(ADDRESS_BY_OWNER, "owner", &[ADDRESS_OWNER]))
        .index(IndexSchema::scattered(ADDRESS_BY_TARGET, "target", &[ADDRESS_TARGET]));
    let number = KindSchema::new(NUMBER, "number")
        .property(NUMBER_ACCOUNT, "account")
        .index(IndexSchema::ordered(NUMBER_BY_ACCOUNT, "account", &[NUMBER_ACCOUNT]));
    let operation = KindSchema::new(OPERATION, "operation")
        .property(OPERATION_TIME, "time")
        .index(IndexSchema::ordered(OPERATION_BY_TIME, "time", &[OPERATION_TIME]));
    let server_key = KindSchema::new(SERVER_KEY, "server-key")
        .property(SERVER_KEY_NAME, "name")
        .index(IndexSchema::ordered(SERVER_KEY_BY_NAME, "name", &[SERVER_KEY_NAME]));
    let removed = KindSchema::new(REMOVED, "removed-account")
        .property(REMOVED_ACCOUNT, "account")
        .index(IndexSchema::ordered(REMOVED_BY_ACCOUNT, "account", &[REMOVED_ACCOUNT]));
    vec![domain, address, number, operation, server_key, removed]
}

/// One of the reserved accounts over which the directory is spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Shard(u8);

impl Shard {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..SHARDS).map(|number| Self(number as u8))
    }

    /// The shard of a canonical address, domain or other name. It decides where records are, so it never changes.
    pub(crate) fn of(name: &str) -> Self {
        let hash = digest(&SHA256, name.as_bytes());
        let first = hash.as_ref().first().copied().unwrap_or_default();
        Self(first % SHARDS as u8)
    }

    /// The shard with this number.
    pub(crate) fn numbered(number: u8) -> Option<Self> {
        (usize::from(number) < SHARDS).then_some(Self(number))
    }

    /// Its number, below [`SHARDS`].
    pub(crate) fn number(self) -> u8 {
        self.0
    }

    /// The reserved account.
    pub(crate) fn account(self) -> AccountId {
        AccountId(FIRST_SHARD + u32::from(self.0))
    }

    /// The shard of this reserved account, if it is one.
    pub(crate) fn of_account(account: AccountId) -> Option<Self> {
        let number = account.0.checked_sub(FIRST_SHARD)?;
        Self::numbered(u8::try_from(number).ok()?)
    }
}

/// The reserved accounts with the records that belong to domains.
pub fn accounts_of_domains() -> impl Iterator<Item = AccountId> {
    Shard::all().map(Shard::account)
}

/// The reserved account with the records that belong to a domain. It never changes.
pub fn account_of_domain(domain: &Domain) -> AccountId {
    Shard::of(domain.as_str()).account()
}

/// The hash by which the records that belong to a domain are found in their reserved account. It never changes.
pub fn hash_of_domain(domain: &Domain) -> u64 {
    hash64(domain.as_str().as_bytes())
}

/// The name of an account's number, by which its shard is chosen.
pub(crate) fn number_name(account: AccountId) -> String {
    format!("number {}", account.0)
}

/// 64 bits of a hash, for properties that represent texts longer than a property may be.
pub(crate) fn hash64(bytes: &[u8]) -> u64 {
    let hash = digest(&SHA256, bytes);
    // The first bytes choose the shard.
    let eight = hash.as_ref().get(8..16).and_then(|eight| eight.try_into().ok());
    u64::from_be_bytes(eight.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use restante_records::IndexOrder;

    use super::*;

    #[test]
    fn numbers_and_shards_stay_as_they_are() {
        let numbers: Vec<(u8, &str)> = kinds().iter().map(|kind| (kind.kind.0, kind.name)).collect();
        let known = [
            (64, "domain"),
            (65, "address"),
            (66, "number"),
            (67, "operation"),
            (68, "server-key"),
            (69, "removed-account"),
        ];
        assert_eq!(numbers, known);
        assert_eq!(Shard::of("anna@example.org").account(), AccountId(36));
        assert_eq!(Shard::of("example.org").account(), AccountId(64));
        assert_eq!(hash64(b"example.org"), 0x3360_d3ad_6461_c9c4);
    }

    /// The documentation lists the numbers that are stored in files.
    #[test]
    fn the_page_of_the_format_lists_every_number() {
        let page = include_str!("../../../docs/formats/records.md");
        let (_, section) = page.split_once("\n## Kinds of the directory\n").unwrap();
        let listed: Vec<&str> = section.lines().take_while(|line| !line.starts_with("## ")).collect();
        for kind in kinds() {
            let name_of =
                |part: &Property| kind.properties.iter().find(|(known, _)| known == part).unwrap().1;
            let properties: Vec<String> =
                kind.properties.iter().map(|(property, name)| format!("{} {name}", property.0)).collect();
            let index = |index: &IndexSchema| {
                let parts: Vec<&str> = index.parts.iter().map(name_of).collect();
                let order = if index.order == IndexOrder::Scattered { " scattered" } else { "" };
                format!("{} [{}]{order}", index.index.0, parts.join(", "))
            };
            let indexes: Vec<String> = kind.indexes.iter().map(index).collect();
            let (properties, indexes) = (properties.join(", "), indexes.join(", "));
            let row = format!("| {} | {} | {properties} | {indexes} |", kind.kind.0, kind.name);
            assert!(listed.contains(&row.as_str()), "{row}");
        }
    }

    #[test]
    fn names_spread_over_all_shards() {
        let shards: BTreeSet<Shard> =
            (0..1_000).map(|n| Shard::of(&format!("user{n}@example.org"))).collect();
        assert_eq!(shards.len(), SHARDS);
        for shard in shards {
            assert_eq!(Shard::of_account(shard.account()), Some(shard));
            assert!(shard.account().0 < FIRST_ACCOUNT && shard.account() != SERVER);
        }
        for account in [SERVER, AccountId(65), AccountId(FIRST_ACCOUNT), AccountId(u32::MAX)] {
            assert_eq!(Shard::of_account(account), None);
        }
    }
}
