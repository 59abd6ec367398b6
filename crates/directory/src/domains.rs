//! The domains that this server is responsible for.

use restante_records::Query;
use serde::{Deserialize, Serialize};

use crate::{
    Actor, Directory, Domain, EmailAddress, Error, Page,
    entry::DomainEntry,
    schema::{ADDRESS, ADDRESS_BY_NAME, DOMAIN, DOMAIN_BY_HASH, Shard, hash64},
    store::{Plan, Step},
};

/// The separator between an address and a detail, unless a domain has another one.
pub const SEPARATOR: char = '+';
/// The possible separators: characters that people expect, and that most names don't contain.
const SEPARATORS: &str = "+-_=~.";

/// A domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DomainInfo {
    /// Its name.
    pub domain: Domain,
    /// What separates an address from a detail, as in anna+shop@example.org; `None` when addresses have no details.
    pub separator: Option<char>,
    /// The recipient of mail for addresses that don't exist.
    pub catch_all: Option<EmailAddress>,
    /// When it was added, in seconds since 1970.
    pub created: i64,
}

impl From<DomainEntry> for DomainInfo {
    fn from(entry: DomainEntry) -> Self {
        let DomainEntry { domain, created, separator, catch_all } = entry;
        Self { domain, separator, catch_all, created }
    }
}

impl Directory {
    /// Adds a domain.
    ///
    /// # Errors
    /// `Conflict` when it exists, `Invalid` for an impossible separator.
    pub(crate) async fn add_domain(
        &self,
        actor: &Actor,
        domain: &Domain,
        separator: Option<char>,
        catch_all: Option<EmailAddress>,
    ) -> Result<(), Error> {
        check_separator(separator)?;
        self.make_unknown_salts().await?;
        let created = self.store().now().seconds();
        self.store()
            .change::<DomainEntry, ()>(actor, domain, |there| match there {
                Some(_) => Err(Error::conflict(format!("the domain {domain} is there already"))),
                None => Ok(Plan {
                    step: Step::Create(DomainEntry {
                        domain: domain.clone(),
                        created,
                        separator,
                        catch_all: catch_all.clone(),
                    }),
                    log: format!("added domain {domain}"),
                    answer: (),
                }),
            })
            .await
    }

    /// Changes the separator or the catch-all of a domain; `None` leaves it unchanged.
    pub(crate) async fn set_domain(
        &self,
        actor: &Actor,
        domain: &Domain,
        separator: Option<Option<char>>,
        catch_all: Option<Option<EmailAddress>>,
    ) -> Result<(), Error> {
        check_separator(separator.flatten())?;
        if let Some(Some(address)) = &catch_all
            && !self.has_recipient(address).await?
        {
            let what = "can't be a catch-all: add the account or the alias first";
            return Err(Error::invalid(format!("nobody has the address {address}, it {what}")));
        }
        self.store()
            .change::<DomainEntry, ()>(actor, domain, |there| {
                let mut entry = there.cloned().ok_or_else(|| no_domain(domain))?;
                entry.separator = separator.unwrap_or(entry.separator);
                entry.catch_all = catch_all.clone().unwrap_or(entry.catch_all);
                Ok(Plan { step: Step::Update(entry), log: format!("changed domain {domain}"), answer: () })
            })
            .await
    }

    /// Removes a domain that has no addresses. An account that is added at the same moment may stay.
    pub(crate) async fn remove_domain(&self, actor: &Actor, domain: &Domain) -> Result<(), Error> {
        let addresses =
            Query::new(ADDRESS, ADDRESS_BY_NAME).equals(hash64(domain.as_str().as_bytes())).limit(1);
        for shard in Shard::all() {
            if !self.store().query(shard.account(), &addresses).await?.ids.is_empty() {
                let what = "has accounts or aliases: remove them first";
                return Err(Error::conflict(format!("the domain {domain} {what}")));
            }
        }
        self.store()
            .change::<DomainEntry, ()>(actor, domain, |there| {
                there.ok_or_else(|| no_domain(domain))?;
                Ok(Plan { step: Step::Destroy, log: format!("removed domain {domain}"), answer: () })
            })
            .await
    }

    /// A domain; `None` when this server is not responsible for it.
    ///
    /// # Errors
    /// Those of the records.
    pub async fn domain(&self, domain: &Domain) -> Result<Option<DomainInfo>, Error> {
        Ok(self.find_domain(domain).await?.map(DomainInfo::from))
    }

    /// Adds a line to the log of operations about something that belongs to a domain.
    ///
    /// # Errors
    /// Those of the records.
    pub async fn note_of_domain(&self, actor: &Actor, domain: &Domain, what: String) -> Result<(), Error> {
        self.store().note(Shard::of(domain.as_str()), actor, what).await
    }

    pub(crate) async fn find_domain(&self, domain: &Domain) -> Result<Option<DomainEntry>, Error> {
        let found = self.store().find::<DomainEntry>(domain).await?;
        Ok(found.map(|found| found.entry).filter(|entry| entry.domain == *domain))
    }

    /// One page of all domains, in unspecified order.
    pub(crate) async fn domains(&self, after: Option<&str>, limit: usize) -> Result<Page<DomainInfo>, Error> {
        let (rows, next) = self.store().page(&Query::new(DOMAIN, DOMAIN_BY_HASH), after, limit).await?;
        let items = rows.iter().map(|(_, record)| Ok(DomainEntry::read(record)?.into()));
        Ok(Page { items: items.collect::<Result<_, Error>>()?, next })
    }
}

fn check_separator(separator: Option<char>) -> Result<(), Error> {
    match separator {
        Some(separator) if !SEPARATORS.contains(separator) => {
            let shown = separator.escape_debug();
            Err(Error::invalid(format!(
                "'{shown}' can't separate a detail from an address: use one of {SEPARATORS}"
            )))
        }
        _ => Ok(()),
    }
}

pub(crate) fn no_domain(domain: &Domain) -> Error {
    Error::not_found(format!("there is no domain {domain}: add it with `restante domain add {domain}`"))
}
