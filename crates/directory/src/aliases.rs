//! Aliases and lists: an address whose mail is forwarded to other addresses.

use serde::{Deserialize, Serialize};

use crate::{
    Actor, Directory, Domain, EmailAddress, Error, Page,
    accounts::is_taken,
    domains::no_domain,
    entry::{AddressEntry, AliasBody},
    store::{Plan, Step},
};

/// The most targets that one alias has.
const TARGETS_MAX: usize = 256;

/// An alias, or a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AliasInfo {
    /// Its address.
    pub address: EmailAddress,
    /// Where its mail goes, here or elsewhere.
    pub targets: Vec<EmailAddress>,
    /// When it was added, in seconds since 1970.
    pub created: i64,
}

impl Directory {
    /// Adds targets to an alias, which is created if it does not exist.
    pub(crate) async fn add_alias(
        &self,
        actor: &Actor,
        address: &EmailAddress,
        targets: &[EmailAddress],
    ) -> Result<(), Error> {
        if self.find_domain(address.domain()).await?.is_none() {
            return Err(no_domain(address.domain()));
        }
        if targets.is_empty() {
            return Err(Error::invalid(format!("the alias {address} has no targets: name one")));
        }
        self.check_chains(address, targets).await?;
        let created = self.store().now().seconds();
        let shown = shown(targets);
        self.store()
            .change::<AddressEntry, ()>(actor, address, |there| {
                let mut alias = match there {
                    None => AliasBody { address: address.clone(), created, targets: Vec::new() },
                    Some(AddressEntry::Alias(alias)) => alias.clone(),
                    Some(account) => return Err(is_taken(account)),
                };
                for target in targets {
                    if !alias.targets.contains(target) {
                        alias.targets.push(target.clone());
                    }
                }
                if alias.targets.len() > TARGETS_MAX {
                    let what = format!("the alias {address} would have more than {TARGETS_MAX} targets");
                    return Err(Error::invalid(format!("{what}: use aliases of aliases")));
                }
                let step = match there {
                    None => Step::Create(AddressEntry::Alias(alias)),
                    Some(_) => Step::Update(AddressEntry::Alias(alias)),
                };
                Ok(Plan { step, log: format!("added {shown} to alias {address}"), answer: () })
            })
            .await
    }

    /// Removes targets from an alias; without targets, or when none is left, the alias itself.
    pub(crate) async fn remove_alias(
        &self,
        actor: &Actor,
        address: &EmailAddress,
        targets: &[EmailAddress],
    ) -> Result<(), Error> {
        self.store()
            .change::<AddressEntry, ()>(actor, address, |there| {
                let Some(AddressEntry::Alias(alias)) = there else {
                    let list = "`restante alias list` shows those there are";
                    return Err(Error::not_found(format!("there is no alias {address}: {list}")));
                };
                let mut alias = alias.clone();
                if let Some(missing) = targets.iter().find(|target| !alias.targets.contains(target)) {
                    return Err(Error::not_found(format!("{missing} is no target of the alias {address}")));
                }
                alias.targets.retain(|target| !targets.contains(target));
                if targets.is_empty() || alias.targets.is_empty() {
                    return Ok(Plan {
                        step: Step::Destroy,
                        log: format!("removed alias {address}"),
                        answer: (),
                    });
                }
                let log = format!("removed {} from alias {address}", shown(targets));
                Ok(Plan { step: Step::Update(AddressEntry::Alias(alias)), log, answer: () })
            })
            .await
    }

    /// One page of all aliases, or of those of a domain, in unspecified order.
    pub(crate) async fn aliases(
        &self,
        domain: Option<&Domain>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<AliasInfo>, Error> {
        let (entries, next) = self.addresses(domain, after, limit).await?;
        let alias = |entry| match entry {
            AddressEntry::Alias(AliasBody { address, created, targets }) => {
                Some(AliasInfo { address, targets, created })
            }
            AddressEntry::Account(_) => None,
        };
        Ok(Page { items: entries.into_iter().filter_map(alias).collect(), next })
    }
}

fn shown(targets: &[EmailAddress]) -> String {
    let shown: Vec<String> = targets.iter().map(ToString::to_string).collect();
    shown.join(", ")
}
