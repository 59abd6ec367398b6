//! Which index is read and which is written: aliases, and how an index is created, replaced and built beside another.
//!
//! The alias that is named like the prefix leads to the index that queries read. While an index is built anew, `<prefix>-next` leads
//! to it; `<prefix>-old` leads to one that is about to be removed. Each index has its own alias for writes, so that a write to a
//! removed index doesn't create one.

use hyper::Method;
use restante_core::Identity;
use serde_json::{Value, json};
use tracing::{info, warn};

use super::{
    Engine,
    client::Body,
    schema::{FORMAT, format_of, index_body},
};
use crate::Error;

/// The name of an index of this program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct IndexName(String);

impl IndexName {
    fn new(prefix: &str) -> Self {
        let Identity(chance) = Identity::random();
        let chance: String = chance.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Self(format!("{prefix}-{chance}"))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// The alias for writes.
    pub(super) fn for_writes(&self) -> String {
        format!("{}-write", self.0)
    }
}

/// The indexes that the aliases lead to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// The index that queries read.
    pub(super) live: Option<IndexName>,
    /// The index that is being built.
    pub(super) next: Option<IndexName>,
    /// The actions that remove other indexes from the aliases: those of other versions, and foreign ones.
    actions: Vec<Value>,
}

impl Engine {
    fn next_alias(&self) -> String {
        format!("{}-next", self.config.prefix)
    }

    fn old_alias(&self) -> String {
        format!("{}-old", self.config.prefix)
    }

    /// Looks up what the aliases lead to.
    pub(super) async fn find(&self) -> Result<Found, Error> {
        let (live, next, old) = (&self.config.prefix, self.next_alias(), self.old_alias());
        let path = format!("/{live},{next},{old}?ignore_unavailable=true");
        let answer = self.client.ask(Method::GET, &path, Body::Nothing, self.query_limit()).await?;
        if answer.is_missing() {
            return Ok(Found::default());
        }
        self.sort_out(&answer.success("look up the search index")?)
    }

    fn sort_out(&self, answer: &Value) -> Result<Found, Error> {
        let (live, next, old) = (self.config.prefix.as_str(), self.next_alias(), self.old_alias());
        let mut found = Found::default();
        // In the order of their names, so that two servers that created one each both choose the same.
        for (name, index) in answer.as_object().into_iter().flatten() {
            if name == live || *name == next || *name == old {
                return Err(Error::conflict(format!(
                    "OpenSearch has an index '{name}', which is not restante's: choose another search.opensearch.prefix, or delete it"
                )));
            }
            let has = |alias: &str| index.get("aliases").is_some_and(|aliases| aliases.get(alias).is_some());
            let format = format_of(index);
            let place = match (format, has(&next)) {
                _ if has(&old) => None,
                (Some(FORMAT), true) => Some(&mut found.next),
                (Some(FORMAT), false) => Some(&mut found.live),
                _ => None,
            };
            if let Some(place) = place
                && place.is_none()
            {
                *place = Some(IndexName(name.clone()));
                continue;
            }
            if format.is_some() {
                warn!(
                    index = name,
                    ?format,
                    "this search index is of another version, or was replaced: it is removed"
                );
                found.actions.push(json!({"remove_index": {"index": name}}));
                continue;
            }
            warn!(index = name, "this index is not restante's: it is left alone, and not searched any more");
            for alias in [live, &next, &old].into_iter().filter(|alias| has(alias)) {
                found.actions.push(json!({"remove": {"index": name, "alias": alias}}));
            }
        }
        Ok(found)
    }

    /// Finds the index, and the one that is being built; creates one if there is none.
    pub(super) async fn find_or_create(&self) -> Result<Found, Error> {
        let mut found = self.find().await?;
        if found.live.is_none() && found.next.is_none() {
            let index = self.create(found.actions.is_empty()).await?;
            if !found.actions.is_empty() {
                found.actions.push(self.add_live(&index));
            }
            found.live = Some(index);
        }
        self.change_aliases(std::mem::take(&mut found.actions)).await?;
        Ok(found)
    }

    /// Replaces all indexes by an empty one.
    pub(super) async fn replace(&self) -> Result<(), Error> {
        let found = self.find().await?;
        let index = self.create(false).await?;
        let mut actions = found.actions;
        actions.extend(found.live.iter().flat_map(|live| self.retire(live)));
        actions.extend(found.next.iter().map(remove_index));
        actions.push(self.add_live(&index));
        self.change_aliases(actions).await?;
        self.change_aliases(found.live.iter().map(remove_index).collect()).await
    }

    /// Creates an empty index to be built beside the one that queries read.
    pub(super) async fn create_next(&self) -> Result<(), Error> {
        let found = self.find_or_create().await?;
        let index = self.create(false).await?;
        let mut actions: Vec<Value> = found.next.iter().map(remove_index).collect();
        actions.push(json!({"add": {"index": index.as_str(), "alias": self.next_alias()}}));
        self.change_aliases(actions).await
    }

    /// Lets queries read the index that was built, and removes the one that they read before.
    pub(super) async fn promote(&self, next: &IndexName, old: Option<&IndexName>) -> Result<(), Error> {
        let mut actions: Vec<Value> = old.iter().flat_map(|old| self.retire(old)).collect();
        actions.push(self.add_live(next));
        actions.push(json!({"remove": {"index": next.as_str(), "alias": self.next_alias()}}));
        self.change_aliases(actions).await?;
        info!(
            index = next.as_str(),
            "the search index that was built anew is complete, and used from now on"
        );
        self.change_aliases(old.into_iter().map(remove_index).collect()).await
    }

    /// Hides an index from queries before it is removed: a query that finds it during the removal would fail.
    fn retire(&self, index: &IndexName) -> [Value; 2] {
        [
            json!({"add": {"index": index.as_str(), "alias": self.old_alias()}}),
            json!({"remove": {"index": index.as_str(), "alias": self.config.prefix}}),
        ]
    }

    fn add_live(&self, index: &IndexName) -> Value {
        json!({"add": {"index": index.as_str(), "alias": self.config.prefix}})
    }

    /// Creates an index; with the alias that queries read, or with one that no query reads yet.
    async fn create(&self, is_live: bool) -> Result<IndexName, Error> {
        let index = IndexName::new(&self.config.prefix);
        let write = index.for_writes();
        let mut aliases = vec![write.as_str()];
        if is_live {
            aliases.push(&self.config.prefix);
        }
        let (path, body) = (format!("/{}", index.as_str()), index_body(&self.config, &aliases));
        let answer = self.client.ask(Method::PUT, &path, Body::Json(body), self.write_limit()).await?;
        let made = answer.success("make a search index")?;
        // Until its shards have started, requests wait for them.
        if made.get("shards_acknowledged") != Some(&Value::Bool(true)) {
            warn!(index = index.as_str(), "a search index was made, and its shards have not started yet");
        }
        self.metrics.cleared.inc();
        Ok(index)
    }

    /// All of the changes or none.
    async fn change_aliases(&self, actions: Vec<Value>) -> Result<(), Error> {
        if actions.is_empty() {
            return Ok(());
        }
        let body = Body::Json(json!({ "actions": actions }));
        let answer = self.client.ask(Method::POST, "/_aliases", body, self.write_limit()).await?;
        answer.success("change the aliases of search indexes").map(drop)
    }
}

fn remove_index(index: &IndexName) -> Value {
    json!({"remove_index": {"index": index.as_str()}})
}
