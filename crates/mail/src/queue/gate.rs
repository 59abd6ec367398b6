//! The gate: whether anything is sent.

use restante_core::{Error, ErrorKind};
use restante_records::{Body, Change, Commit, Get, Properties, Query, Record};
use serde::{Deserialize, Serialize};

use super::{account::GATE, edit::Editor, stored::number};
use crate::schema::outgoing;

const TRIES_MAX: usize = 8;

/// That nothing is sent, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Since when, in seconds since 1970.
    pub since: u64,
    /// Why: a sentence for the operator.
    pub why: String,
}

/// The body of the record of the gate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Stored {
    held: Option<Held>,
}

/// The gate as it was read.
struct Found {
    record: Option<Record>,
    held: Option<Held>,
    /// How often the store had been restored when sending was last allowed.
    released: u64,
}

impl Editor {
    /// See [`super::Queue::gate`].
    pub(super) async fn gate(&self, restores: u64) -> Result<Option<Held>, Error> {
        let changes = self.known_gate.lock().changes;
        let found = self.find_gate().await?;
        if found.held.is_some() || restores <= found.released {
            let mut known = self.known_gate.lock();
            if known.changes == changes {
                known.is_held = found.held.is_some();
            }
            return Ok(found.held);
        }
        // What the backup has in its queue may have been sent after the backup was made.
        let why = "the server was restored from a backup: what is queued may have been sent already";
        self.set_gate(Some(why), None).await
    }

    /// Holds everything for a reason, or releases it as of a number of restores; returns the reason that is in force afterwards. A
    /// reason that is in force already stays.
    pub(super) async fn set_gate(
        &self,
        why: Option<&str>,
        restores: Option<u64>,
    ) -> Result<Option<Held>, Error> {
        let mut tries = 0;
        loop {
            let state = self.records.states(GATE).await?.of(outgoing::KIND);
            let found = self.find_gate().await?;
            let held = match (why, found.held) {
                (Some(_), Some(held)) => Some(held),
                (Some(why), None) => Some(Held { since: self.now(), why: why.to_owned() }),
                (None, _) => None,
            };
            let released = restores.unwrap_or(found.released);
            let change = change(found.record, &Stored { held: held.clone() }, released)?;
            tries += 1;
            match self.records.commit(GATE, Commit::of([change]).if_in_state(outgoing::KIND, state)).await {
                Ok(_) => {
                    let mut known = self.known_gate.lock();
                    known.changes += 1;
                    known.is_held = held.is_some();
                    return Ok(held);
                }
                Err(error) if error.kind() == ErrorKind::Conflict && tries < TRIES_MAX => {}
                Err(error) => return Err(error.context("holding or releasing the queue")),
            }
        }
    }

    async fn find_gate(&self) -> Result<Found, Error> {
        let query = Query::new(outgoing::KIND, outgoing::ALL).limit(1);
        let ids = self.records.query(GATE, &query).await?.ids;
        if ids.is_empty() {
            return Ok(Found { record: None, held: None, released: 0 });
        }
        let found = self.records.get(GATE, &Get::whole(outgoing::KIND, ids)).await?;
        let Some(record) = found.into_iter().flatten().next() else {
            return Ok(Found { record: None, held: None, released: 0 });
        };
        let stored: Stored = serde_json::from_slice(&record.body.bytes)
            .map_err(|error| Error::corrupt("the gate of the queue can't be read").with_source(error))?;
        let released = number(&record.properties, outgoing::RELEASED).unwrap_or(0);
        Ok(Found { record: Some(record), held: stored.held, released })
    }
}

fn change(record: Option<Record>, stored: &Stored, released: u64) -> Result<Change, Error> {
    let bytes = serde_json::to_vec(stored)
        .map_err(|error| Error::internal("the gate of the queue can't be written").with_source(error))?;
    let body = Body::new(bytes);
    let properties = Properties::default().with(outgoing::RELEASED, released);
    Ok(match record {
        None => Change::Create { kind: outgoing::KIND, body, properties },
        Some(record) => Change::Update {
            kind: outgoing::KIND,
            id: record.id,
            body: Some(body),
            properties: Some(properties),
        },
    })
}
