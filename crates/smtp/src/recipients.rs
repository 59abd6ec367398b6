//! Where a recipient leads.

use async_trait::async_trait;
use restante_core::{Error, ErrorKind};
use restante_directory::{self as directory, Directory, Domain, EmailAddress, Resolution, State};
use restante_mail_wire::smtp::{ForwardPath, Mailbox};
use restante_records::AccountId;
use tracing::debug;

use crate::{door::Server, refusal::Refusal};

/// Says where mail for an address goes. [`Directory`] does.
#[async_trait]
pub trait Recipients: Send + Sync + 'static {
    /// Where mail for an address goes.
    ///
    /// # Errors
    /// `Conflict` when the aliases behind the address can't be followed; any other kind when it can't be known now.
    async fn resolve(&self, address: &EmailAddress) -> Result<Resolution, Error>;
}

#[async_trait]
impl Recipients for Directory {
    async fn resolve(&self, address: &EmailAddress) -> Result<Resolution, Error> {
        Self::resolve(self, address).await
    }
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

/// Where a recipient leads: one account or address outside at least.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Destination {
    /// Its accounts.
    pub(crate) targets: Vec<Target>,
    /// Addresses of other servers.
    pub(crate) outside: Option<Outside>,
}

/// Addresses of other servers to which a recipient leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outside {
    /// The recipient.
    pub(crate) alias: EmailAddress,
    /// One at least.
    pub(crate) addresses: Vec<String>,
    /// Whether the recipient is a sender that this server has rewritten: it takes reports alone.
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
        let outside = Outside { alias: address, addresses: vec![original], is_return: true };
        return Ok(Destination { targets: Vec::new(), outside: Some(outside) });
    }
    resolve(server, &address).await
}

/// The address of a recipient of a submitted message, as it is queued: one of another server, or one that leads somewhere here.
pub(crate) async fn submitted_to(server: &Server, path: ForwardPath<'_>) -> Result<String, Refusal> {
    let mailbox = match path {
        ForwardPath::Mailbox(mailbox) => mailbox,
        ForwardPath::Postmaster => return Ok(postmaster_address(server).await?.to_string()),
    };
    // Nothing is sent to what can't be a domain, and not to address literals.
    let address = address_of(mailbox).map_err(|_| Refusal::BadAddress)?;
    match resolve(server, &address).await {
        Ok(_) | Err(Refusal::Relay) => Ok(format!("{}@{}", mailbox.local, address.domain())),
        Err(refusal) => Err(refusal),
    }
}

/// The address of a mailbox. A domain that this server can't have is another's.
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

/// The active accounts among the targets of an address, and those outside. Mail for an alias is not lost for those of its users that are disabled, but
/// for targets elsewhere it would be: without forwards such an alias is refused as a whole.
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

/// The address of a recipient that was accepted, with its domain.
pub(crate) async fn address_of_recipient(server: &Server, recipient: &str) -> Result<String, Refusal> {
    match recipient.contains('@') {
        true => Ok(recipient.to_owned()),
        false => Ok(postmaster_address(server).await?.to_string()),
    }
}

async fn postmaster(server: &Server) -> Result<Destination, Refusal> {
    resolve(server, &postmaster_address(server).await?).await
}

/// RFC 5321 §4.5.1: `<postmaster>` without a domain is always there. It is the address of the settings, or `postmaster` at the host name or at its
/// parent domain.
async fn postmaster_address(server: &Server) -> Result<EmailAddress, Refusal> {
    let config = &server.config;
    if let Some(address) = &config.postmaster {
        return Ok(address.clone());
    }
    let parent = config.hostname.split_once('.').map(|(_, parent)| parent);
    for domain in std::iter::once(config.hostname.as_str()).chain(parent) {
        let address = address_of(Mailbox { local: "postmaster", domain });
        match address {
            Ok(address) => match resolve(server, &address).await {
                Err(Refusal::Unknown | Refusal::Relay) => {}
                Ok(_) => return Ok(address),
                Err(refusal) => return Err(refusal),
            },
            Err(_) => debug!(domain, "the host name is no domain"),
        }
    }
    Err(Refusal::Unknown)
}
