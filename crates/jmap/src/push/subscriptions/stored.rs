//! Subscriptions as records: of the kind `push`, in the account of the user.

use restante_core::{Error, ErrorKind};
use restante_mail::{Mail, Tries, push};
use restante_records::{
    AccountId, Body, Change, Commit, Get, Properties, QUERY_ROWS_MAX, Query, Record, RecordId, Revision,
    get_each,
};
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::core::content::number;

/// The content of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stored {
    /// The password or the token that created it: the subscription ends with it (RFC 8620 §7.2).
    pub(crate) credential: u64,
    pub(crate) device_client_id: String,
    pub(crate) url: String,
    /// Without keys, pushes are not encrypted.
    pub(crate) keys: Option<Keys>,
    /// What the client has to send back.
    pub(crate) code: String,
    pub(crate) is_code_sent: bool,
    pub(crate) is_verified: bool,
    /// As shown to the client, in seconds since 1970; the property has the time when it really ends.
    pub(crate) expires: Option<i64>,
    /// `None` for all.
    pub(crate) types: Option<Vec<String>>,
    /// Since when no push has been accepted, in seconds since 1970.
    pub(crate) failing_since: Option<i64>,
}

/// The keys of a client (RFC 8291), in base64url without padding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Keys {
    pub(crate) p256dh: String,
    pub(crate) auth: String,
}

/// A subscription with its id and when it ends, in seconds since 1970.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) id: RecordId,
    pub(crate) ends: i64,
    pub(crate) stored: Stored,
}

impl Found {
    fn read(record: &Record) -> Result<Self, Error> {
        let stored = serde_json::from_slice(&record.body.bytes).map_err(|_| {
            Error::corrupt(format!("the record of push subscription {} can't be read", record.id.0))
        })?;
        let ends = number(record, push::EXPIRES).and_then(|ends| i64::try_from(ends).ok());
        Ok(Self { id: record.id, ends: ends.unwrap_or(i64::MAX), stored })
    }

    fn body(&self) -> Result<Body, Error> {
        let bytes = serde_json::to_vec(&self.stored)
            .map_err(|_| Error::internal("a push subscription can't be written"))?;
        Ok(Body::new(bytes))
    }

    fn properties(&self) -> Properties {
        Properties::default().with(push::EXPIRES, u64::try_from(self.ends).unwrap_or_default())
    }
}

/// All subscriptions of a user, and the state of the kind.
pub(crate) struct Listed {
    pub(crate) subscriptions: Vec<Found>,
    state: Revision,
}

/// All subscriptions of a user. A damaged one is left out, and logged: it must not prevent the others from being read.
///
/// # Errors
/// Those of the records.
pub(crate) async fn list(mail: &Mail, account: AccountId) -> Result<Listed, Error> {
    let records = mail.records();
    let query = Query::new(push::KIND, push::BY_EXPIRES).limit(QUERY_ROWS_MAX);
    let page = records.query(account, &query).await?;
    let state = page.state;
    let mut subscriptions = Vec::new();
    for record in get_each(records.as_ref(), account, &Get::whole(push::KIND, page.ids)).await? {
        match record.and_then(|record| record.as_ref().map(Found::read).transpose()) {
            Ok(found) => subscriptions.extend(found),
            Err(error) => warn!(account = account.0, %error, "left out a damaged push subscription"),
        }
    }
    Ok(Listed { subscriptions, state })
}

/// One subscription.
///
/// # Errors
/// Those of the records.
pub(super) async fn find(mail: &Mail, account: AccountId, id: RecordId) -> Result<Option<Found>, Error> {
    let found = mail.records().get(account, &Get::whole(push::KIND, vec![id])).await?;
    found.iter().flatten().next().map(Found::read).transpose()
}

/// Stores a new subscription; `None` when the user already has `max`.
///
/// # Errors
/// Those of the records; `Unavailable` when other servers keep changing the user's subscriptions.
pub(crate) async fn create(
    mail: &Mail,
    account: AccountId,
    (ends, stored): (i64, Stored),
    max: usize,
) -> Result<Option<RecordId>, Error> {
    let new = Found { id: RecordId(0), ends, stored };
    let _lock = mail.lock_edits(account, push::KIND).await;
    let mut tries = Tries::default();
    loop {
        let listed = list(mail, account).await?;
        if listed.subscriptions.len() >= max {
            return Ok(None);
        }
        let create = Change::Create { kind: push::KIND, body: new.body()?, properties: new.properties() };
        let commit = Commit::of([create]).if_in_state(push::KIND, listed.state);
        match mail.records().commit(account, commit).await {
            Ok(committed) => {
                let missing = || Error::internal("a commit that creates a push subscription returned no id");
                return committed.created.first().copied().map(Some).ok_or_else(missing);
            }
            Err(error) if error.kind() == ErrorKind::Conflict => {
                if !tries.next().await {
                    return Err(busy(account));
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// Changes a subscription: `edit` changes it in place, or refuses. `None` when there is no such subscription.
///
/// # Errors
/// Those of the records; `Unavailable` when other servers keep changing the user's subscriptions.
pub(crate) async fn change<T, R>(
    mail: &Mail,
    account: AccountId,
    id: RecordId,
    edit: impl Fn(&mut Found) -> Result<T, R>,
) -> Result<Option<Result<T, R>>, Error> {
    let _lock = mail.lock_edits(account, push::KIND).await;
    let mut tries = Tries::default();
    loop {
        let state = mail.records().states(account).await?.of(push::KIND);
        let Some(found) = find(mail, account, id).await? else { return Ok(None) };
        let mut edited = found.clone();
        let answer = match edit(&mut edited) {
            Ok(answer) => answer,
            Err(refused) => return Ok(Some(Err(refused))),
        };
        if edited.stored == found.stored && edited.ends == found.ends {
            return Ok(Some(Ok(answer)));
        }
        let (body, properties) = (Some(edited.body()?), Some(edited.properties()));
        let update = Change::Update { kind: push::KIND, id, body, properties };
        let commit = Commit::of([update]).if_in_state(push::KIND, state);
        match mail.records().commit(account, commit).await {
            Ok(_) => return Ok(Some(Ok(answer))),
            Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => {
                if !tries.next().await {
                    return Err(busy(account));
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// Destroys a subscription, with its URL and its keys; false when there is none.
///
/// # Errors
/// Those of the records.
pub(crate) async fn destroy(mail: &Mail, account: AccountId, id: RecordId) -> Result<bool, Error> {
    let commit = Commit::of([Change::Destroy { kind: push::KIND, id }]);
    match mail.records().commit(account, commit).await {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Destroys all push subscriptions of a user, from all log-ins, for an account that is removed. Returns how many there were.
///
/// # Errors
/// Those of the records.
pub async fn erase_push_subscriptions(mail: &Mail, account: AccountId) -> Result<usize, Error> {
    let records = mail.records();
    let mut erased = 0;
    loop {
        let query = Query::new(push::KIND, push::BY_EXPIRES).limit(QUERY_ROWS_MAX / 2);
        let page = records.query(account, &query).await?;
        if page.ids.is_empty() {
            return Ok(erased);
        }
        let changes = page.ids.iter().map(|id| Change::Destroy { kind: push::KIND, id: *id });
        match records.commit(account, Commit::of(changes)).await {
            Ok(_) => erased += page.ids.len(),
            // One of them was destroyed in the meantime.
            Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => {}
            Err(error) => return Err(error),
        }
    }
}

fn busy(account: AccountId) -> Error {
    let who = account.0;
    Error::unavailable(format!(
        "others change the push subscriptions of account {who} at the same time: try again"
    ))
}
