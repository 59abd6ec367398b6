//! The addresses that an account may send as.

use crate::{Access, Directory, EmailAddress, Error, Login, Resolution, Target};

impl Directory {
    /// Whether mail of a log-in may have an address as its sender: mail for the address must go to the account, by any alias or
    /// detail, or to accounts that the log-in may change, and to no others.
    ///
    /// # Errors
    /// Those of the records. Aliases that can't be followed belong to nobody.
    pub async fn may_send_as(&self, login: &Login, address: &EmailAddress) -> Result<bool, Error> {
        if *address == login.address {
            return Ok(true);
        }
        let resolved = match self.resolve(address).await {
            Ok(resolved) => resolved,
            Err(error) if error.kind() == restante_core::ErrorKind::Conflict => return Ok(false),
            Err(error) => return Err(error),
        };
        let Resolution::Targets(targets) = resolved else { return Ok(false) };
        let is_own = |target: &Target| match target {
            Target::Account { account, .. } => {
                let may_change =
                    |grant: &crate::Grant| grant.owner == *account && grant.access >= Access::Write;
                *account == login.account || login.grants.iter().any(may_change)
            }
            Target::Foreign(_) => false,
        };
        Ok(targets.iter().all(is_own)) // there is at least one
    }
}
