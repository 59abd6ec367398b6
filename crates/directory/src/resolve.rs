//! Finds the recipients of mail for an address.

use std::collections::BTreeSet;

use restante_records::AccountId;

use crate::{
    Directory, EmailAddress, Error, State,
    entry::{AccountHead, AddressEntry, AliasBody, target_hash},
    schema::{ADDRESS, ADDRESS_BY_TARGET, Shard},
    store::Entry,
};

/// How many aliases may lead to each other in a chain.
const DEPTH_MAX: usize = 8;
/// The most targets that one address leads to.
const TARGETS_MAX: usize = 1_000;
/// The most addresses that are looked up to resolve one.
const LOOKUPS_MAX: usize = 2_000;

/// Where mail for an address goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// To all of these, at least one.
    Targets(Vec<Target>),
    /// The domain belongs to this server, and the address does not exist.
    Unknown,
    /// The domain does not belong to this server.
    Foreign,
}

/// A recipient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// An account of this server.
    Account {
        /// Its number.
        account: AccountId,
        /// Its address.
        address: EmailAddress,
        /// A disabled account accepts no mail (RFC 5321: 550 5.2.1).
        state: State,
        /// The most bytes of its mail; `None` for no limit.
        quota_bytes: Option<u64>,
        /// The text after the separator in the requested address (RFC 5233).
        detail: Option<String>,
    },
    /// An address of another server, which an alias leads to.
    Foreign(EmailAddress),
}

/// The meaning of an address, after its detail and the catch-all.
enum Recipient {
    Account { head: AccountHead, address: EmailAddress, detail: Option<String> },
    Alias(AliasBody),
    Unknown,
    Foreign,
}

impl Directory {
    /// Where mail for an address goes.
    ///
    /// The address itself is tried first, then the address without its detail, then the catch-all of its domain. Aliases
    /// are followed; each target is returned once, and targets of an alias that no longer exist are left out.
    ///
    /// # Errors
    /// `Conflict` when aliases lead back to themselves, lead deeper than 8 or to more than 1,000 targets; those of the records.
    pub async fn resolve(&self, address: &EmailAddress) -> Result<Resolution, Error> {
        let mut walk = Walk::of(address);
        match self.recipient(address).await? {
            Recipient::Account { head, address, detail } => walk.add_account(head, address, detail),
            Recipient::Alias(alias) => self.follow_aliases(&mut walk, alias).await?,
            Recipient::Unknown => {}
            Recipient::Foreign => return Ok(Resolution::Foreign),
        }
        Ok(if walk.targets.is_empty() { Resolution::Unknown } else { Resolution::Targets(walk.targets) })
    }

    /// The recipient of an address.
    async fn recipient(&self, address: &EmailAddress) -> Result<Recipient, Error> {
        // An existing address belongs to a domain of this server: a domain with addresses can't be removed.
        if let Some(found) = self.lookup(address, None).await? {
            return Ok(found);
        }
        let Some(domain) = self.domain(address.domain()).await? else { return Ok(Recipient::Foreign) };
        if let Some((base, detail)) = domain.separator.and_then(|separator| address.split_detail(separator))
            && let Some(found) = self.lookup(&base, Some(detail)).await?
        {
            return Ok(found);
        }
        match domain.catch_all {
            Some(catch_all) if catch_all != *address => {
                let found = self.lookup(&catch_all, None).await?;
                // A catch-all on another server, or one with a detail of its own, is treated as an alias of one target.
                let alias =
                    || AliasBody { address: address.clone(), created: 0, targets: vec![catch_all.clone()] };
                Ok(found.unwrap_or_else(|| Recipient::Alias(alias())))
            }
            _ => Ok(Recipient::Unknown),
        }
    }

    /// Whether mail for an address has a recipient, even without the catch-all of its domain.
    pub(crate) async fn has_recipient(&self, address: &EmailAddress) -> Result<bool, Error> {
        if self.lookup(address, None).await?.is_some() {
            return Ok(true);
        }
        let Some(domain) = self.domain(address.domain()).await? else { return Ok(true) }; // it is on another server
        match domain.separator.and_then(|separator| address.split_detail(separator)) {
            Some((base, _)) => Ok(self.lookup(&base, None).await?.is_some()),
            None => Ok(false),
        }
    }

    /// The record of exactly this address.
    async fn lookup(&self, address: &EmailAddress, detail: Option<&str>) -> Result<Option<Recipient>, Error> {
        let shard = Shard::of(&address.to_string()).account();
        // The properties of an account are enough: its keys are not read.
        let (record, _) = self.store().first(shard, AddressEntry::query(address), false).await?;
        let Some(record) = record else { return Ok(None) };
        if let Some(head) = AccountHead::read(&record.properties)? {
            let (address, detail) = (address.clone(), detail.map(str::to_owned));
            return Ok(Some(Recipient::Account { head, address, detail }));
        }
        Ok(self.store().find::<AddressEntry>(address).await?.and_then(|found| match found.entry {
            AddressEntry::Alias(alias) => Some(Recipient::Alias(alias)),
            AddressEntry::Account(_) => None, // it has changed just now
        }))
    }

    /// Follows an alias to its ends, depth first.
    async fn follow_aliases(&self, walk: &mut Walk, alias: AliasBody) -> Result<(), Error> {
        walk.enter(alias)?;
        while let Some(target) = walk.next() {
            walk.check_circle(&target)?;
            walk.count_lookup()?;
            match self.recipient(&target).await? {
                Recipient::Account { head, address, detail } => walk.add_account(head, address, detail),
                Recipient::Alias(alias) => walk.enter(alias)?,
                Recipient::Foreign => walk.add(Target::Foreign(target)),
                Recipient::Unknown => {}
            }
            walk.check_targets()?;
        }
        Ok(())
    }

    /// Fails when an alias with these targets would lead back to itself, or form too long a chain: then mail for the aliases that lead
    /// to it would be refused, too.
    pub(crate) async fn check_chains(
        &self,
        alias: &EmailAddress,
        targets: &[EmailAddress],
    ) -> Result<(), Error> {
        let new = AliasBody { address: alias.clone(), created: 0, targets: targets.to_vec() };
        let mut walk = Walk::of(alias);
        self.follow_aliases(&mut walk, new).await?;
        let (mut depth, mut level) = (walk.deepest, vec![alias.clone()]);
        loop {
            level = self.aliases_that_lead_to(&level).await?;
            let Some(first) = level.first() else { return Ok(()) };
            depth += 1;
            if depth > DEPTH_MAX {
                let what = format!(
                    "the alias {first} would lead through more than {DEPTH_MAX} aliases, one after the other"
                );
                return Err(Error::conflict(format!("{what}: give it targets that are nearer to the end")));
            }
        }
    }

    /// The aliases with one of these addresses as a target. One that an older version has written is found once it was changed.
    async fn aliases_that_lead_to(&self, addresses: &[EmailAddress]) -> Result<Vec<EmailAddress>, Error> {
        let mut aliases = BTreeSet::new();
        for target in addresses.iter().take(LOOKUPS_MAX) {
            for (_, record) in
                self.store().all(ADDRESS, ADDRESS_BY_TARGET, target_hash(target).into()).await?
            {
                if let AddressEntry::Alias(alias) = AddressEntry::read(&record)?
                    && alias.targets.contains(target)
                {
                    aliases.insert(alias.address);
                }
            }
        }
        Ok(aliases.into_iter().collect())
    }
}

/// A walk through aliases.
struct Walk {
    asked: EmailAddress,
    targets: Vec<Target>,
    /// From the requested alias to the one that is followed now, each with its remaining targets.
    path: Vec<(EmailAddress, std::vec::IntoIter<EmailAddress>)>,
    /// The greatest length of the path so far.
    deepest: usize,
    lookups: usize,
}

impl Walk {
    fn of(asked: &EmailAddress) -> Self {
        Self { asked: asked.clone(), targets: Vec::new(), path: Vec::new(), deepest: 0, lookups: 0 }
    }

    fn enter(&mut self, alias: AliasBody) -> Result<(), Error> {
        self.check_circle(&alias.address)?;
        if self.path.len() >= DEPTH_MAX {
            return Err(
                self.error(&format!("leads through more than {DEPTH_MAX} aliases, one after the other"))
            );
        }
        self.path.push((alias.address, alias.targets.into_iter()));
        self.deepest = self.deepest.max(self.path.len());
        Ok(())
    }

    fn check_circle(&self, address: &EmailAddress) -> Result<(), Error> {
        if self.path.iter().any(|(other, _)| other == address) {
            return Err(self.error(&format!("leads through {address} in a circle")));
        }
        Ok(())
    }

    fn next(&mut self) -> Option<EmailAddress> {
        while let Some((_, targets)) = self.path.last_mut() {
            if let Some(target) = targets.next() {
                return Some(target);
            }
            self.path.pop();
        }
        None
    }

    fn count_lookup(&mut self) -> Result<(), Error> {
        self.lookups += 1;
        if self.lookups > LOOKUPS_MAX {
            return Err(self.error(&format!("needs more than {LOOKUPS_MAX} look-ups")));
        }
        Ok(())
    }

    fn add_account(&mut self, head: AccountHead, address: EmailAddress, detail: Option<String>) {
        let AccountHead { account, state, quota_bytes, .. } = head;
        let is_there =
            |target: &Target| matches!(target, Target::Account { account: other, .. } if *other == account);
        if !self.targets.iter().any(is_there) {
            self.targets.push(Target::Account { account, address, state, quota_bytes, detail });
        }
    }

    fn add(&mut self, target: Target) {
        if !self.targets.contains(&target) {
            self.targets.push(target);
        }
    }

    fn check_targets(&self) -> Result<(), Error> {
        if self.targets.len() > TARGETS_MAX {
            return Err(self.error(&format!("leads to more than {TARGETS_MAX} targets")));
        }
        Ok(())
    }

    fn error(&self, what: &str) -> Error {
        let advice = "change it with `restante alias remove`";
        Error::conflict(format!("the alias {} {what}: {advice}", self.asked))
    }
}
