//! Identities: the addresses that an account sends with (RFC 8621 §6).

use bytes::Bytes;
use restante_core::{Error, ErrorKind};
use restante_records::{
    AccountId, Body, Change, Commit, Committed, Get, Properties, QUERY_ROWS_MAX, Query, Record, RecordId,
    Revision, TEXT_BYTES_MAX,
};
use serde::{Deserialize, Serialize};

use crate::{Mail, MailError, Transition, Tries, schema::identity};

/// Once an account has so many identities, including those of its addresses, no other one can be created.
const IDENTITIES_MAX: usize = 256;
/// The most bytes of an identity's texts together.
const TEXTS_BYTES_MAX: usize = 128 << 10;

/// An address that an account sends with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its id.
    pub id: RecordId,
    /// The address.
    pub email: String,
    /// The name that clients write beside the address.
    pub name: String,
    /// The Reply-To that clients set.
    pub reply_to: Option<Vec<NamedAddress>>,
    /// The Bcc that clients set.
    pub bcc: Option<Vec<NamedAddress>>,
    /// What clients add to texts.
    pub text_signature: String,
    /// What clients add to texts in HTML.
    pub html_signature: String,
    /// Whether it may be destroyed: not if it is the identity of an address of the account.
    pub may_delete: bool,
}

/// An address with a name: EmailAddress of RFC 8621 §4.1.2.3.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedAddress {
    /// The name.
    pub name: Option<String>,
    /// The address.
    pub email: String,
}

/// An identity to create.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewIdentity {
    /// The address.
    pub email: String,
    /// What else it has.
    pub update: IdentityUpdate,
}

/// How an identity changes; `None` leaves a property as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdentityUpdate {
    /// Its name.
    pub name: Option<String>,
    /// Its Reply-To.
    pub reply_to: Option<Option<Vec<NamedAddress>>>,
    /// Its Bcc.
    pub bcc: Option<Option<Vec<NamedAddress>>>,
    /// Its signature for texts.
    pub text_signature: Option<String>,
    /// Its signature for HTML.
    pub html_signature: Option<String>,
}

/// The body of its record, as JSON. Version 0.1 had neither `replyTo` nor `bcc`, and some later versions had no `addressGone`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct IdentityBody {
    email: String,
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reply_to: Option<Vec<NamedAddress>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bcc: Option<Vec<NamedAddress>>,
    text_signature: String,
    html_signature: String,
    may_delete: bool,
    /// Whether the account no longer has the address: the identity may then be destroyed, although it was created for the address.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    address_gone: bool,
}

impl IdentityBody {
    fn new(email: &str, may_delete: bool) -> Self {
        Self {
            email: email.to_owned(),
            name: String::new(),
            reply_to: None,
            bcc: None,
            text_signature: String::new(),
            html_signature: String::new(),
            may_delete,
            address_gone: false,
        }
    }

    fn apply(&mut self, update: &IdentityUpdate) {
        fn set<T: Clone>(property: &mut T, update: Option<&T>) {
            if let Some(value) = update {
                property.clone_from(value);
            }
        }
        set(&mut self.name, update.name.as_ref());
        set(&mut self.reply_to, update.reply_to.as_ref());
        set(&mut self.bcc, update.bcc.as_ref());
        set(&mut self.text_signature, update.text_signature.as_ref());
        set(&mut self.html_signature, update.html_signature.as_ref());
    }

    fn read(record: &Record) -> Result<Self, Error> {
        serde_json::from_slice(&record.body.bytes).map_err(|error| {
            Error::corrupt(format!("the record of identity {} is damaged: {error}", record.id.0))
        })
    }

    fn body(&self) -> Result<Body, MailError> {
        let json = serde_json::to_vec(self)
            .map_err(|error| Error::internal(format!("an identity can't be written as JSON: {error}")))?;
        if json.len() > TEXTS_BYTES_MAX {
            let properties = vec!["textSignature", "htmlSignature"];
            let why = format!("an identity has at most {TEXTS_BYTES_MAX} bytes");
            return Err(MailError::Invalid { properties, why });
        }
        Ok(Body::new(json))
    }

    fn create(&self) -> Result<Change, MailError> {
        let key = self.email.as_bytes();
        let key = Bytes::copy_from_slice(key.get(..TEXT_BYTES_MAX).unwrap_or(key));
        let properties = Properties::default().with(identity::EMAIL, key);
        Ok(Change::Create { kind: identity::KIND, body: self.body()?, properties })
    }
}

impl Identity {
    /// `addresses` are those of the account: the identity of an address that it no longer has may be destroyed.
    fn of(record: &Record, addresses: &[String]) -> Result<Self, Error> {
        let body = IdentityBody::read(record)?;
        let IdentityBody { email, name, reply_to, bcc, text_signature, html_signature, may_delete, .. } =
            body;
        let may_delete = may_delete || !addresses.contains(&email);
        Ok(Self { id: record.id, email, name, reply_to, bcc, text_signature, html_signature, may_delete })
    }
}

impl Mail {
    /// All identities of an account, and their state. Each of its addresses has at least one; a missing one is created here. When
    /// an address was added or removed, the state changes.
    ///
    /// # Errors
    /// Those of the records.
    pub async fn identities(
        &self,
        account: AccountId,
        addresses: &[String],
    ) -> Result<(Vec<Identity>, Revision), Error> {
        let mut lock = None;
        let mut tries = Tries::default();
        loop {
            let (records, state) = self.identity_records(account).await?;
            let found = records.iter().map(|record| Identity::of(record, addresses));
            let found = found.collect::<Result<Vec<Identity>, Error>>()?;
            let is_missing = |address: &&String| {
                !found.iter().any(|identity| identity.email == **address && !identity.may_delete)
            };
            let missing = addresses.iter().filter(is_missing);
            let creates = missing.map(|address| IdentityBody::new(address, false).create());
            let creates: Result<Vec<Change>, MailError> = creates.collect();
            let mut changes = creates.map_err(MailError::into_store)?;
            changes.extend(records.iter().filter_map(|record| noted_address(record, addresses)));
            if changes.is_empty() {
                return Ok((found, state));
            }
            if lock.is_none() {
                // A call that only reads does not wait for the lock. The previous holder may have created what is missing.
                lock = Some(self.lock_edits(account, identity::KIND).await);
                continue;
            }
            let commit = Commit::of(changes).if_in_state(identity::KIND, state);
            match self.records().commit(account, commit).await {
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => {
                    if !tries.next().await {
                        return Err(busy());
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// One identity; `None` when there is none. Its `may_delete` does not take the account's addresses into account.
    ///
    /// # Errors
    /// Those of the records.
    pub async fn identity(&self, account: AccountId, id: RecordId) -> Result<Option<Identity>, Error> {
        let found = self.records().get(account, &Get::whole(identity::KIND, vec![id])).await?;
        found.into_iter().flatten().next().map(|record| Identity::of(&record, &[])).transpose()
    }

    /// Creates an identity.
    ///
    /// # Errors
    /// `StateMismatch`; `OverQuota` when the account has too many; `Invalid` when it is too long; `Store`.
    pub async fn create_identity(
        &self,
        account: AccountId,
        new: &NewIdentity,
        if_in_state: Option<Revision>,
    ) -> Result<(RecordId, Transition), MailError> {
        let mut body = IdentityBody::new(&new.email, true);
        body.apply(&new.update);
        let create = body.create()?;
        let (committed, states) = self
            .edit_identities(account, if_in_state, |records| {
                if records.len() >= IDENTITIES_MAX {
                    return Err(MailError::OverQuota);
                }
                Ok(Some(create.clone()))
            })
            .await?;
        let id = committed.and_then(|committed| committed.created.first().copied());
        let id = id.ok_or_else(|| Error::internal("a commit has created no identity"))?;
        Ok((id, states))
    }

    /// Changes an identity. Setting what is set commits nothing.
    ///
    /// # Errors
    /// `NotFound`, `StateMismatch`, `Invalid` when it gets too long, `Store`.
    pub async fn update_identity(
        &self,
        account: AccountId,
        id: RecordId,
        update: &IdentityUpdate,
        if_in_state: Option<Revision>,
    ) -> Result<Transition, MailError> {
        let (_, states) = self
            .edit_identities(account, if_in_state, |records| {
                let record = records.iter().find(|record| record.id == id).ok_or(MailError::NotFound)?;
                let before = IdentityBody::read(record)?;
                let mut after = before.clone();
                after.apply(update);
                if after == before {
                    return Ok(None);
                }
                let body = Some(after.body()?);
                Ok(Some(Change::Update { kind: identity::KIND, id, body, properties: None }))
            })
            .await?;
        Ok(states)
    }

    /// Destroys an identity. `addresses` are those of the account: the identity of one of them stays.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden`, `StateMismatch`, `Store`.
    pub async fn destroy_identity(
        &self,
        account: AccountId,
        id: RecordId,
        addresses: &[String],
        if_in_state: Option<Revision>,
    ) -> Result<Transition, MailError> {
        let (_, states) = self
            .edit_identities(account, if_in_state, |records| {
                let record = records.iter().find(|record| record.id == id).ok_or(MailError::NotFound)?;
                if !Identity::of(record, addresses)?.may_delete {
                    return Err(MailError::Forbidden("an address of the account keeps its identity"));
                }
                Ok(Some(Change::Destroy { kind: identity::KIND, id }))
            })
            .await?;
        Ok(states)
    }

    /// Makes one change, which `plan` derives from all identities; `plan` is called again when another server has changed them meanwhile.
    async fn edit_identities(
        &self,
        account: AccountId,
        if_in_state: Option<Revision>,
        plan: impl Fn(&[Record]) -> Result<Option<Change>, MailError>,
    ) -> Result<(Option<Committed>, Transition), MailError> {
        let _lock = self.lock_edits(account, identity::KIND).await;
        let mut tries = Tries::default();
        loop {
            let (records, old) = self.identity_records(account).await?;
            if if_in_state.is_some_and(|expected| expected != old) {
                return Err(MailError::StateMismatch);
            }
            let Some(change) = plan(&records)? else {
                return Ok((None, Transition { old, new: old, is_shared: false }));
            };
            let commit = Commit::of([change]).if_in_state(identity::KIND, old);
            match self.records().commit(account, commit).await {
                Ok(committed) => {
                    let states = Transition { old, new: committed.revision, is_shared: false };
                    return Ok((Some(committed), states));
                }
                Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => {
                    if !tries.next().await {
                        return Err(busy().into());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// All records, and their state before they were read.
    async fn identity_records(&self, account: AccountId) -> Result<(Vec<Record>, Revision), Error> {
        let all = Query::new(identity::KIND, identity::BY_EMAIL).limit(QUERY_ROWS_MAX);
        let page = self.records().query(account, &all).await?;
        let records = self.records().get(account, &Get::whole(identity::KIND, page.ids)).await?;
        Ok((records.into_iter().flatten().collect(), page.state))
    }
}

/// The change that records in an address's identity whether the account has that address; `None` when it is recorded already.
fn noted_address(record: &Record, addresses: &[String]) -> Option<Change> {
    let mut body = IdentityBody::read(record).ok()?;
    let is_gone = !body.may_delete && !addresses.contains(&body.email);
    if body.address_gone == is_gone {
        return None;
    }
    body.address_gone = is_gone;
    let body = body.body().ok()?; // its texts leave no space for the note
    Some(Change::Update { kind: identity::KIND, id: record.id, body: Some(body), properties: None })
}

fn busy() -> Error {
    Error::unavailable("the identities of the account change all the time: try again")
}
