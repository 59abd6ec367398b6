//! Identities: the addresses that an account sends with (RFC 8621 §6).

use bytes::Bytes;
use restante_core::{Error, ErrorKind};
use restante_records::{
    AccountId, Body, Change, Commit, Get, Properties, QUERY_ROWS_MAX, Query, Record, RecordId, Revision,
    TEXT_BYTES_MAX,
};
use serde::{Deserialize, Serialize};

use crate::{Mail, schema::identity};

/// How often missing identities are made while others make some, too.
const TRIES: usize = 8;

/// An address that an account sends with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its id.
    pub id: RecordId,
    /// The address.
    pub email: String,
    /// The name that clients write beside the address.
    pub name: String,
    /// What clients add to texts.
    pub text_signature: String,
    /// What clients add to texts in HTML.
    pub html_signature: String,
    /// Whether it may be destroyed: not if it is the one of an address of the account.
    pub may_delete: bool,
}

/// The body of its record, as JSON.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct IdentityBody {
    email: String,
    name: String,
    text_signature: String,
    html_signature: String,
    may_delete: bool,
}

impl Identity {
    fn of(record: Record) -> Result<Self, Error> {
        let id = record.id;
        let body: IdentityBody = serde_json::from_slice(&record.body.bytes).map_err(|error| {
            Error::corrupt(format!("the record of identity {} is damaged: {error}", id.0))
        })?;
        let IdentityBody { email, name, text_signature, html_signature, may_delete } = body;
        Ok(Self { id, email, name, text_signature, html_signature, may_delete })
    }
}

impl Mail {
    /// All identities of an account, and their state. Each of its addresses has one at least, which is made here when it is missing.
    ///
    /// # Errors
    /// Those of the records.
    pub async fn identities(
        &self,
        account: AccountId,
        addresses: &[String],
    ) -> Result<(Vec<Identity>, Revision), Error> {
        let all = Query::new(identity::KIND, identity::BY_EMAIL).limit(QUERY_ROWS_MAX);
        for _ in 0..TRIES {
            let page = self.records().query(account, &all).await?;
            let records = self.records().get(account, &Get::whole(identity::KIND, page.ids)).await?;
            let found = records.into_iter().flatten().map(Identity::of);
            let found = found.collect::<Result<Vec<Identity>, Error>>()?;
            let is_missing = |address: &&String| {
                !found.iter().any(|identity| identity.email == **address && !identity.may_delete)
            };
            let missing: Vec<&String> = addresses.iter().filter(is_missing).collect();
            if missing.is_empty() {
                return Ok((found, page.state));
            }
            let creates = missing.into_iter().map(|address| create(address));
            let creates = creates.collect::<Result<Vec<Change>, Error>>()?;
            let commit = Commit::of(creates).if_in_state(identity::KIND, page.state);
            match self.records().commit(account, commit).await {
                Err(error) if error.kind() != ErrorKind::Conflict => return Err(error),
                _ => {}
            }
        }
        Err(Error::unavailable("the identities of the account change all the time: try again"))
    }
}

/// Makes the identity of an address.
fn create(address: &str) -> Result<Change, Error> {
    let body = IdentityBody {
        email: address.to_owned(),
        name: String::new(),
        text_signature: String::new(),
        html_signature: String::new(),
        may_delete: false,
    };
    let json = serde_json::to_vec(&body);
    let json =
        json.map_err(|error| Error::internal(format!("an identity can't be written as JSON: {error}")))?;
    let key = address.as_bytes();
    let key = Bytes::copy_from_slice(key.get(..TEXT_BYTES_MAX).unwrap_or(key));
    let properties = Properties::default().with(identity::EMAIL, key);
    Ok(Change::Create { kind: identity::KIND, body: Body::new(json), properties })
}
