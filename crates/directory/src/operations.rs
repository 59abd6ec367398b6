//! The operations of operators, as values: the command line creates them, and a running server gets them over HTTP.

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::{
    Access, AccountInfo, AccountSummary, Actor, AliasInfo, Directory, Domain, DomainInfo, EmailAddress,
    Error, NewAccount, NewToken, OperationEntry, Page, Role, State, TokenInfo, random,
};

/// A password to set.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NewPassword {
    /// This one.
    Given(String),
    /// A random one, which the server returns once.
    Generated,
}

/// An operation of an operator.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
#[expect(missing_docs, reason = "the fields are those of what the variants name")]
pub enum Operation {
    /// Adds a domain.
    AddDomain { domain: Domain, separator: Option<char>, catch_all: Option<EmailAddress> },
    /// Changes a domain: what is absent stays, null removes.
    SetDomain {
        domain: Domain,
        #[serde(default, with = "present", skip_serializing_if = "Option::is_none")]
        separator: Option<Option<char>>,
        #[serde(default, with = "present", skip_serializing_if = "Option::is_none")]
        catch_all: Option<Option<EmailAddress>>,
    },
    /// Removes a domain without addresses.
    RemoveDomain { domain: Domain },
    /// One page of the domains.
    Domains { after: Option<String>, limit: usize },
    /// Adds an account.
    AddAccount {
        address: EmailAddress,
        password: Option<NewPassword>,
        #[serde(default)]
        role: Role,
        quota_bytes: Option<u64>,
    },
    /// One page of the accounts.
    Accounts { domain: Option<Domain>, after: Option<String>, limit: usize },
    /// One account.
    Account { address: EmailAddress },
    /// Sets an account's password, or an application's.
    SetPassword { address: EmailAddress, application: Option<String>, password: NewPassword },
    /// Removes an account's password, or an application's.
    RemovePassword { address: EmailAddress, application: Option<String> },
    /// Enables or disables an account.
    SetState { address: EmailAddress, state: State },
    /// Sets the limit of an account's mail.
    SetQuota { address: EmailAddress, quota_bytes: Option<u64> },
    /// Sets what the user of an account may do.
    SetRole { address: EmailAddress, role: Role },
    /// Removes an account. Its data in other stores is erased later, see [`crate::RemovedAccount`].
    RemoveAccount { address: EmailAddress },
    /// Lets a user read or write an owner's mail.
    Grant { owner: EmailAddress, user: EmailAddress, access: Access },
    /// Revokes that.
    Revoke { owner: EmailAddress, user: EmailAddress },
    /// Adds targets to an alias, which is created if it does not exist.
    AddAlias { address: EmailAddress, targets: Vec<EmailAddress> },
    /// Removes targets of an alias; without any, the alias.
    RemoveAlias { address: EmailAddress, targets: Vec<EmailAddress> },
    /// One page of the aliases.
    Aliases { domain: Option<Domain>, after: Option<String>, limit: usize },
    /// Creates a token.
    CreateToken { address: EmailAddress, token: NewToken },
    /// The tokens of an account.
    Tokens { address: EmailAddress },
    /// Revokes a token.
    RevokeToken { address: EmailAddress, id: String },
    /// The last operations.
    Log { limit: usize },
}

/// The result of an operation.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// It is done.
    Done,
    /// A page of domains.
    Domains(Page<DomainInfo>),
    /// An account was added, or a password set: the account's number if it is new, and the password if it was generated.
    #[serde(rename_all = "camelCase")]
    Password {
        /// The number of a new account.
        account: Option<u32>,
        /// The password that was generated; it can't be shown again.
        password: Option<String>,
    },
    /// A page of accounts.
    Accounts(Page<AccountSummary>),
    /// An account.
    Account(Box<AccountInfo>),
    /// A page of aliases.
    Aliases(Page<AliasInfo>),
    /// A new token.
    #[serde(rename_all = "camelCase")]
    Token {
        /// The token; it can't be shown again.
        token: String,
        /// The token's other properties.
        info: TokenInfo,
    },
    /// Tokens of an account.
    Tokens(Vec<TokenInfo>),
    /// Lines of the log, the newest first.
    Log(Vec<OperationEntry>),
}

impl Directory {
    /// Executes an operation. One that changes something is noted in the log of operations, in the same commit; the log keeps the
    /// last 256 of each of the [`crate::SHARDS`].
    ///
    /// # Errors
    /// `NotFound`, `Conflict` and `Invalid` for what can't be done, with what to do; those of the records.
    pub fn operate<'o>(
        &'o self,
        actor: &'o Actor,
        operation: Operation,
    ) -> BoxFuture<'o, Result<Answer, Error>> {
        // Boxed here, so that only this crate compiles all operations, and not each crate that calls it.
        Box::pin(self.operate_as(actor, operation))
    }

    async fn operate_as(&self, actor: &Actor, operation: Operation) -> Result<Answer, Error> {
        match operation {
            Operation::AddAccount { address, password, role, quota_bytes } => {
                let (password, generated) = password.map(NewPassword::draw).transpose()?.unzip();
                let new = NewAccount { address, password, role, quota_bytes };
                let account = self.add_account(actor, new).await?;
                return Ok(Answer::Password { account: Some(account.0), password: generated.flatten() });
            }
            Operation::SetPassword { address, application, password } => {
                let (password, generated) = password.draw()?;
                self.set_password(actor, &address, application.as_deref(), &password).await?;
                return Ok(Answer::Password { account: None, password: generated });
            }
            Operation::CreateToken { address, token } => {
                let (token, info) = self.create_token(actor, &address, &token).await?;
                return Ok(Answer::Token { token, info });
            }
            Operation::Domains { after, limit } => {
                return Ok(Answer::Domains(self.domains(after.as_deref(), limit).await?));
            }
            Operation::Accounts { domain, after, limit } => {
                return Ok(Answer::Accounts(self.accounts(domain.as_ref(), after.as_deref(), limit).await?));
            }
            Operation::Aliases { domain, after, limit } => {
                return Ok(Answer::Aliases(self.aliases(domain.as_ref(), after.as_deref(), limit).await?));
            }
            Operation::Account { address } => {
                return Ok(Answer::Account(Box::new(self.account(&address).await?)));
            }
            Operation::Tokens { address } => return Ok(Answer::Tokens(self.account(&address).await?.tokens)),
            Operation::Log { limit } => return Ok(Answer::Log(self.store().operations(limit).await?)),
            Operation::AddDomain { domain, separator, catch_all } => {
                self.add_domain(actor, &domain, separator, catch_all).await?;
            }
            Operation::SetDomain { domain, separator, catch_all } => {
                self.set_domain(actor, &domain, separator, catch_all).await?;
            }
            Operation::RemoveDomain { domain } => self.remove_domain(actor, &domain).await?,
            Operation::RemovePassword { address, application } => {
                self.remove_password(actor, &address, application.as_deref()).await?;
            }
            Operation::SetState { address, state } => self.set_state(actor, &address, state).await?,
            Operation::SetQuota { address, quota_bytes } => {
                self.set_quota(actor, &address, quota_bytes).await?
            }
            Operation::SetRole { address, role } => self.set_role(actor, &address, role).await?,
            Operation::RemoveAccount { address } => self.remove_account(actor, &address).await?,
            Operation::Grant { owner, user, access } => self.grant(actor, &owner, &user, access).await?,
            Operation::Revoke { owner, user } => self.revoke(actor, &owner, &user).await?,
            Operation::AddAlias { address, targets } => self.add_alias(actor, &address, &targets).await?,
            Operation::RemoveAlias { address, targets } => {
                self.remove_alias(actor, &address, &targets).await?
            }
            Operation::RevokeToken { address, id } => self.revoke_token(actor, &address, &id).await?,
        }
        Ok(Answer::Done)
    }
}

impl NewPassword {
    /// The password, and again as the second value if it is random.
    fn draw(self) -> Result<(String, Option<String>), Error> {
        match self {
            Self::Given(password) => Ok((password, None)),
            Self::Generated => random::password().map(|password| (password.clone(), Some(password))),
        }
    }
}

/// A field that may be absent, null or a value.
mod present {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer, T: Serialize>(
        value: &Option<Option<T>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.as_ref().and_then(Option::as_ref).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
        deserializer: D,
    ) -> Result<Option<Option<T>>, D::Error> {
        Option::deserialize(deserializer).map(Some)
    }
}
