//! The addresses that an account may send with.

use restante_core::ErrorKind;
use restante_records::AccountId;

use crate::{
    Directory, EmailAddress, Error, Resolution, Target,
    entry::{AddressEntry, target_hash},
    schema::{ADDRESS, ADDRESS_BY_TARGET},
};

/// The most addresses of one account that [`Directory::addresses_of`] finds.
const ADDRESSES_MAX: usize = 64;

impl Directory {
    /// The addresses of an account: its own, then the aliases that lead to it and to no other account, at most 64. Empty when there is
    /// no such account. An alias that an older version has written is found once it was changed; [`Directory::is_address_of`] knows
    /// all.
    ///
    /// # Errors
    /// Those of the records.
    pub async fn addresses_of(&self, account: AccountId) -> Result<Vec<EmailAddress>, Error> {
        let mut addresses: Vec<EmailAddress> = self.address_of(account).await?.into_iter().collect();
        let mut followed = 0;
        // Aliases may lead to the account through other aliases of it.
        while let Some(target) = addresses.get(followed).cloned() {
            followed += 1;
            let found = self.store().all(ADDRESS, ADDRESS_BY_TARGET, target_hash(&target).into()).await?;
            for (_, record) in found {
                let AddressEntry::Alias(alias) = AddressEntry::read(&record)? else { continue };
                if addresses.len() >= ADDRESSES_MAX {
                    return Ok(addresses);
                }
                let is_new = alias.targets.contains(&target) && !addresses.contains(&alias.address);
                if is_new && self.is_address_of(account, &alias.address).await? {
                    addresses.push(alias.address);
                }
            }
        }
        Ok(addresses)
    }

    /// Whether an address belongs to an account: mail for it goes to this account and to no other.
    ///
    /// # Errors
    /// Those of the records.
    pub async fn is_address_of(&self, account: AccountId, address: &EmailAddress) -> Result<bool, Error> {
        match self.resolve(address).await {
            Ok(Resolution::Targets(targets)) => {
                let is_account =
                    |target: &Target| matches!(target, Target::Account { account: to, .. } if *to == account);
                Ok(targets.len() == 1 && targets.iter().all(is_account))
            }
            Ok(Resolution::Unknown | Resolution::Foreign) => Ok(false),
            // An alias that leads in a circle, or too far, leads to no account.
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(false),
            Err(error) => Err(error),
        }
    }
}
