//! What the methods of one request work with.

use std::sync::Arc;

use restante_blobs::Blobs;
use restante_core::{Clock, Error};
use restante_directory::{Access, Directory, Login};
use restante_mail::Mail;
use restante_records::{AccountId, Records};
use restante_search::Search;

use super::{Id, MethodError, Using, ids};
use crate::{JmapConfig, JmapParts, methods::email::query::Views, push::subscriptions::PushSender};

/// One per request: the user that sent it, the capabilities that it uses, and the stores.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) parts: Arc<JmapParts>,
    pub(crate) config: Arc<JmapConfig>,
    pub(crate) login: Arc<Login>,
    pub(crate) using: Using,
    /// The cache of results of Email/query, for all requests of the door.
    pub(crate) views: Arc<Views>,
    pub(crate) push: Arc<PushSender>,
}

impl Context {
    pub(crate) fn mail(&self) -> &Mail {
        &self.parts.mail
    }

    pub(crate) fn search(&self) -> Option<&dyn Search> {
        self.parts.search.as_deref()
    }

    pub(crate) fn records(&self) -> &dyn Records {
        &**self.mail().records()
    }

    pub(crate) fn blobs(&self) -> &dyn Blobs {
        &**self.mail().blobs()
    }

    pub(crate) fn directory(&self) -> &Directory {
        &self.parts.directory
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &**self.mail().clock()
    }

    /// What the caller may do with an account; `None` for nothing.
    pub(crate) fn access(&self, account: AccountId) -> Option<Access> {
        access(&self.login, account)
    }

    /// The account of an `accountId`, if the caller has this access to it. Creates its first mailboxes if necessary.
    pub(crate) async fn account(&self, id: &Id, needed: Access) -> Result<AccountId, MethodError> {
        let account = ids::read_account_id(id.as_str()).ok_or(MethodError::AccountNotFound)?;
        match self.access(account) {
            None => Err(MethodError::AccountNotFound),
            Some(Access::Read) if needed == Access::Write => Err(MethodError::AccountReadOnly),
            Some(_) => {
                self.mail().prepare(account).await?;
                Ok(account)
            }
        }
    }

    /// The most bytes of mail that an account may have; `None` for no limit.
    pub(crate) async fn quota_bytes(&self, account: AccountId) -> Result<Option<u64>, Error> {
        self.directory().quota_of(account).await
    }

    /// Fails when a /get requests too many objects.
    pub(crate) fn check_objects_in_get(&self, count: usize) -> Result<(), MethodError> {
        let max = self.config.objects_in_get_max.get();
        if count > max {
            return Err(MethodError::RequestTooLarge(format!("a /get returns at most {max} objects")));
        }
        Ok(())
    }

    /// Fails when a /set, /copy or /import changes too many objects.
    pub(crate) fn check_objects_in_set(&self, count: usize) -> Result<(), MethodError> {
        let max = self.config.objects_in_set_max.get();
        if count > max {
            return Err(MethodError::RequestTooLarge(format!("a /set changes at most {max} objects")));
        }
        Ok(())
    }
}

/// What a log-in may do with an account; `None` for nothing.
pub(crate) fn access(login: &Login, account: AccountId) -> Option<Access> {
    if login.account == account {
        return Some(Access::Write);
    }
    let grant = login.grants.iter().find(|grant| grant.owner == account);
    grant.map(|grant| grant.access)
}
