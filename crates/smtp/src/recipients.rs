//! Where a recipient leads.

use std::sync::Arc;

use async_trait::async_trait;
use restante_core::{Error, ErrorKind};
use restante_directory::{self as directory, Directory, Domain, EmailAddress, Resolution, State};
use restante_mail_wire::smtp::{ForwardPath, Mailbox};
use restante_records::AccountId;
use tracing::debug;

use crate::{SmtpConfig, door::Server, refusal::Refusal};

/// The local part of an address that exists in every domain.
const POSTMASTER: &str = "postmaster";

/// Resolves addresses. [`Directory`] does.
#[async_trait]
pub trait Recipients: Send + Sync + 'static {
    /// Where mail for an address goes.
    ///
    /// # Errors
    /// `Conflict` if the aliases of the address can't be followed; any other kind if this can't be determined now.
    async fn resolve(&self, address: &EmailAddress) -> Result<Resolution, Error>;
}

#[async_trait]
impl Recipients for Directory {
    async fn resolve(&self, address: &EmailAddress) -> Result<Resolution, Error> {
        Self::resolve(self, address).await
    }
}

/// Recipients with a postmaster in every domain (RFC 5321 §4.5.1): for a domain without such an address, that of this server.
pub struct WithPostmasters {
    recipients: Arc<dyn Recipients>,
    /// The candidates for this server's own postmaster, tried in this order.
    postmasters: Vec<EmailAddress>,
}

impl WithPostmasters {
    /// Adds postmasters according to the settings.
    pub fn new(recipients: Arc<dyn Recipients>, config: &SmtpConfig) -> Self {
        Self { recipients, postmasters: postmasters(config) }
    }
}

#[async_trait]
impl Recipients for WithPostmasters {
    async fn resolve(&self, address: &EmailAddress) -> Result<Resolution, Error> {
        let found = self.recipients.resolve(address).await?;
        if found != Resolution::Unknown || !address.local().eq_ignore_ascii_case(POSTMASTER) {
            return Ok(found);
        }
        for postmaster in self.postmasters.iter().filter(|postmaster| *postmaster != address) {
            let own = self.recipients.resolve(postmaster).await?;
            if matches!(own, Resolution::Targets(_)) {
                return Ok(own);
            }
        }
        Ok(found)
    }
}

/// The address of the settings, or `postmaster` at the host name and at its parent domain.
fn postmasters(config: &SmtpConfig) -> Vec<EmailAddress> {
    if let Some(address) = &config.postmaster {
        return vec![address.clone()];
    }
    let parent = config.hostname.split_once('.').map(|(_, parent)| parent);
    let domains = std::iter::once(config.hostname.as_str()).chain(parent);
    domains.filter_map(|domain| address_of(Mailbox { local: POSTMASTER, domain }).ok()).collect()
}

/// An account to which a message is delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its number.
    pub account: AccountId,
    /// Its address.
    pub address: EmailAddress,
    /// The most bytes of its mail; `None` for no limit.
    pub quota_bytes: Option<u64>,
}

/// Where a recipient leads: to at least one account or outside address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Destination {
    /// Its accounts.
    pub(crate) targets: Vec<Target>,
    /// The addresses at other servers.
    pub(crate) outside: Option<Outside>,
}

/// Addresses at other servers to which a recipient leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outside {
    /// The recipient.
    pub(crate) alias: EmailAddress,
    /// At least one.
    pub(crate) addresses: Vec<String>,
    /// Whether the recipient is a sender that this server has rewritten: it accepts only reports.
    pub(crate) is_return: bool,
}

/// Where a recipient leads.
pub(crate) async fn destination_of(server: &Server, path: ForwardPath<'_>) -> Result<Destination, Refusal> {
    let mailbox = match path {
        ForwardPath::Mailbox(mailbox) => mailbox,
        ForwardPath::Postmaster => return postmaster(server).await,
    };
    let address = address_of(mailbox)?;
    if let Some(forwards) = &server.forwards
        && let Some(original) = forwards.sender.original(&mailbox.to_string())
    {
        // The hash doesn't cover the domain: only domains of this server are accepted, so that nothing is relayed for others.
        if let Err(refusal @ (Refusal::Relay | Refusal::Away)) = resolve(server, &address).await {
            return Err(refusal);
        }
        let outside = Outside { alias: address, addresses: vec![original], is_return: true };
        return Ok(Destination { targets: Vec::new(), outside: Some(outside) });
    }
    resolve(server, &address).await
}

/// The address of a recipient of a submitted message, as it is queued: one at another server, or one that exists on this server.
pub(crate) async fn submitted_to(server: &Server, path: ForwardPath<'_>) -> Result<String, Refusal> {
    let mailbox = match path {
        ForwardPath::Mailbox(mailbox) => mailbox,
        ForwardPath::Postmaster => return Ok(postmaster_address(server).await?.to_string()),
    };
    // Nothing is sent to an invalid domain, nor to address literals.
    let address = address_of(mailbox).map_err(|_| Refusal::BadAddress)?;
    match resolve(server, &address).await {
        Ok(_) | Err(Refusal::Relay) => Ok(format!("{}@{}", mailbox.local, address.domain())),
        Err(refusal) => Err(refusal),
    }
}

/// The address of a mailbox. A domain that this server can't have belongs to another one.
fn address_of(mailbox: Mailbox<'_>) -> Result<EmailAddress, Refusal> {
    let domain: Domain = mailbox.domain.parse().map_err(|_| Refusal::Relay)?;
    EmailAddress::new(mailbox.local, domain).map_err(|_| Refusal::BadAddress)
}

async fn resolve(server: &Server, address: &EmailAddress) -> Result<Destination, Refusal> {
    match server.recipients.resolve(address).await {
        Ok(Resolution::Targets(targets)) => active(address, targets, server.forwards.is_some()),
        Ok(Resolution::Unknown) => Err(Refusal::Unknown),
        Ok(Resolution::Foreign) => Err(Refusal::Relay),
        Err(error) if error.kind() == ErrorKind::Conflict => {
            debug!(%error, "a recipient leads nowhere");
            Err(Refusal::AliasLoop)
        }
        Err(error) => {
            server.log_failure("recipients can't be looked up", &error);
            Err(Refusal::Away)
        }
    }
}

/// The active accounts among the targets of an address, and the outside addresses. Mail for an alias is not lost if some of its
/// users are disabled, but it would be lost for outside targets: without forwards such an alias is refused as a whole.
pub(crate) fn active(
    address: &EmailAddress,
    targets: Vec<directory::Target>,
    may_forward: bool,
) -> Result<Destination, Refusal> {
    let (mut active, mut outside) = (Vec::with_capacity(targets.len()), Vec::new());
    for target in targets {
        match target {
            directory::Target::Foreign(_) if !may_forward => return Err(Refusal::AliasOutside),
            directory::Target::Foreign(address) => outside.push(address.to_string()),
            directory::Target::Account { state: State::Disabled, .. } => {}
            directory::Target::Account { account, address, state: State::Active, quota_bytes, .. } => {
                active.push(Target { account, address, quota_bytes });
            }
        }
    }
    if active.is_empty() && outside.is_empty() {
        return Err(Refusal::Disabled);
    }
    let outside = (!outside.is_empty()).then(|| Outside {
        alias: address.clone(),
        addresses: outside,
        is_return: false,
    });
    Ok(Destination { targets: active, outside })
}

/// The address of an accepted recipient, with its domain.
pub(crate) async fn address_of_recipient(server: &Server, recipient: &str) -> Result<String, Refusal> {
    match recipient.contains('@') {
        true => Ok(recipient.to_owned()),
        false => Ok(postmaster_address(server).await?.to_string()),
    }
}

async fn postmaster(server: &Server) -> Result<Destination, Refusal> {
    resolve(server, &postmaster_address(server).await?).await
}

/// RFC 5321 §4.5.1: `<postmaster>` without a domain always exists.
async fn postmaster_address(server: &Server) -> Result<EmailAddress, Refusal> {
    if let Some(address) = &server.config.postmaster {
        return Ok(address.clone());
    }
    for address in postmasters(&server.config) {
        match resolve(server, &address).await {
            Err(Refusal::Unknown | Refusal::Relay) => {}
            Ok(_) => return Ok(address),
            Err(refusal) => return Err(refusal),
        }
    }
    Err(Refusal::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accounts by their addresses; the domains are those of the accounts.
    struct Accounts(&'static [&'static str]);

    #[async_trait]
    impl Recipients for Accounts {
        async fn resolve(&self, address: &EmailAddress) -> Result<Resolution, Error> {
            let address = address.to_string();
            let domain = |address: &str| address.rsplit_once('@').map(|(_, domain)| domain.to_owned());
            match self.0.iter().position(|known| *known == address) {
                Some(number) => Ok(Resolution::Targets(vec![directory::Target::Account {
                    account: AccountId(number as u32),
                    address: address.parse()?,
                    state: State::Active,
                    quota_bytes: None,
                    detail: None,
                }])),
                None if self.0.iter().any(|known| domain(known) == domain(&address)) => {
                    Ok(Resolution::Unknown)
                }
                None => Ok(Resolution::Foreign),
            }
        }
    }

    /// The number of the account that an address leads to.
    async fn found(
        accounts: &'static [&'static str],
        postmaster: Option<&str>,
        address: &str,
    ) -> Option<u32> {
        let postmaster = postmaster.map(|address| address.parse().unwrap());
        let config =
            SmtpConfig { hostname: "mail.a.example".to_owned(), postmaster, ..SmtpConfig::default() };
        let recipients = WithPostmasters::new(Arc::new(Accounts(accounts)), &config);
        match recipients.resolve(&address.parse().unwrap()).await.unwrap() {
            Resolution::Targets(targets) => match targets.as_slice() {
                [directory::Target::Account { account, .. }] => Some(account.0),
                _ => None,
            },
            Resolution::Unknown | Resolution::Foreign => None,
        }
    }

    #[tokio::test]
    async fn sm9_every_domain_has_a_postmaster() {
        let accounts = &["x@a.example", "postmaster@a.example", "x@b.example"];
        assert_eq!(found(accounts, None, "postmaster@b.example").await, Some(1), "that of the server");
        assert_eq!(found(accounts, None, "PostMaster@b.example").await, Some(1));
        assert_eq!(found(accounts, Some("x@a.example"), "postmaster@b.example").await, Some(0));
        assert_eq!(found(accounts, Some("x@a.example"), "postmaster@a.example").await, Some(1), "its own");
        assert_eq!(found(accounts, None, "nobody@b.example").await, None);
        assert_eq!(found(accounts, None, "postmaster@c.example").await, None, "another server's");
        assert_eq!(found(&["x@b.example"], None, "postmaster@b.example").await, None, "there is none");
    }
}
