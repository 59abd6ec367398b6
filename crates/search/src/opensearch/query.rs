//! A filter as a query of OpenSearch, and its hits.
//!
//! A request asks for the hits and the state of the account at once; in each order the state is the first of them. So the revision and
//! the hits are of one snapshot. The sort values contain all that is needed of a hit; nothing else is read.

use std::time::Duration;

use async_trait::async_trait;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::{
    Engine, Failure, Handle,
    client::{Answer, Body},
    place::IndexName,
    schema::{ANYWHERE, WINDOW, header_prefix, phrase_cells, signed, text_field, unsigned},
};
use crate::{
    AccountId, Error, Field, Filter, Hit, Order, Page, Phrase, Query, RecordId, Revision, Search, SearchText,
    validate,
};

/// How long OpenSearch keeps a snapshot between two requests of one query.
const SNAPSHOT_KEPT: &str = "1m";
/// The waits before a query is sent again: it takes a moment until all nodes of a cluster know another index.
const REPLACED_WAITS: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(300)];

#[async_trait]
impl Search for Handle {
    async fn query(&self, account: AccountId, query: &Query) -> Result<Page, Error> {
        validate::query(query)?;
        let engine = &self.engine;
        engine.check_open()?;
        let limit = engine.query_limit();
        engine.circuit.check(limit)?;
        let ahead = engine.ahead_of(account);
        let found = timeout(limit, async {
            let closed = |_| Error::unavailable("the search index is closed");
            let _permit = engine.permits.acquire().await.map_err(closed)?;
            engine.page_of_any(account, query).await
        });
        let late = || format!("OpenSearch did not answer a query within {} ms", limit.as_millis());
        let found = found.await.unwrap_or_else(|_| Err(Error::unavailable(late())));
        match &found {
            Err(error) if error.is_transient() => engine.circuit.failed(),
            _ => engine.circuit.answered(),
        }
        let mut page = found?;
        // It was known before the query, so the answer includes it; it still is, so it belongs to the same index.
        if let (Some((committed, revision)), Some((still, _))) = (ahead, engine.ahead_of(account))
            && page.revision == committed
            && committed == still
        {
            page.revision = revision;
        }
        Ok(page)
    }
}

/// A hit, by its sort values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    number: i64,
    received: i64,
    /// The revision in a state; less than 0 for an email.
    revision: i64,
}

impl Engine {
    fn ahead_of(&self, account: AccountId) -> Option<(Revision, Revision)> {
        self.ahead.lock().get(&account).copied()
    }

    /// A page, requested again if the index was missing or not complete: another one may have just replaced it.
    async fn page_of_any(&self, account: AccountId, query: &Query) -> Result<Page, Error> {
        for wait in REPLACED_WAITS {
            match self.page(account, query).await {
                Ok(page) => return Ok(page),
                Err(Failure::Missing | Failure::Replaced(_)) => sleep(wait).await,
                Err(failure) => return Err(failure.into_error()),
            }
        }
        match self.page(account, query).await {
            Err(Failure::Missing) => Err(self.found_missing()),
            page => page.map_err(Failure::into_error),
        }
    }

    async fn page(&self, account: AccountId, query: &Query) -> Result<Page, Failure> {
        // The state of the account, and one more hit that shows whether there are more.
        let wanted = query.limit + 2;
        let first = self.search(account, query, wanted.min(WINDOW), None, None).await?;
        if first.len() < WINDOW.min(wanted) || wanted <= WINDOW {
            return Ok(page_of(first, query.limit));
        }
        self.long_page(account, query, wanted).await
    }

    /// A page of more hits than one request returns, from one snapshot.
    async fn long_page(&self, account: AccountId, query: &Query, wanted: usize) -> Result<Page, Failure> {
        let snapshot = self.open_snapshot(account).await?;
        let rows = self.all_rows(account, query, wanted, &snapshot).await;
        // Otherwise it would be closed after a minute.
        let body = Body::Json(json!({"pit_id": [snapshot]}));
        let closed =
            self.reader.ask(Method::DELETE, "/_search/point_in_time", body, self.query_limit()).await;
        if let Err(error) = closed {
            tracing::debug!(%error, "a snapshot of the search index was not closed");
        }
        Ok(page_of(rows?, query.limit))
    }

    async fn all_rows(
        &self,
        account: AccountId,
        query: &Query,
        wanted: usize,
        snapshot: &str,
    ) -> Result<Vec<Row>, Failure> {
        let mut rows: Vec<Row> = Vec::new();
        loop {
            let size = (wanted - rows.len()).min(WINDOW);
            let part = self.search(account, query, size, Some(snapshot), rows.last().copied()).await?;
            let is_last = part.len() < size;
            rows.extend(part);
            if is_last || rows.len() >= wanted {
                return Ok(rows);
            }
        }
    }

    async fn open_snapshot(&self, account: AccountId) -> Result<String, Failure> {
        let path = format!(
            "/{}/_search/point_in_time?keep_alive={SNAPSHOT_KEPT}&routing={}",
            self.config.prefix, account.0
        );
        let answer = self.reader.ask(Method::POST, &path, Body::Nothing, self.query_limit()).await?;
        let opened = of_query(&answer)?;
        let id = opened.get("pit_id").and_then(Value::as_str).map(str::to_owned);
        let none = "OpenSearch gives no snapshot: it must be at least version 2.4";
        id.ok_or_else(|| Error::unavailable(none).into())
    }

    /// Sends one request.
    async fn search(
        &self,
        account: AccountId,
        query: &Query,
        size: usize,
        snapshot: Option<&str>,
        after: Option<Row>,
    ) -> Result<Vec<Row>, Failure> {
        let mut body = json!({
            "size": size,
            "timeout": format!("{}ms", self.config.timeout_ms),
            "_source": false,
            "stored_fields": "_none_",
            "track_total_hits": false,
            "query": query_of(account, query),
            "sort": sort(query.order),
        });
        let mut path = "/_search".to_owned();
        if let Some(fields) = body.as_object_mut() {
            if let Some(after) = after {
                fields.insert("search_after".to_owned(), after.sort_values(query.order));
            }
            match snapshot {
                Some(id) => {
                    drop(fields.insert("pit".to_owned(), json!({"id": id, "keep_alive": SNAPSHOT_KEPT})))
                }
                None => path = format!("/{}/_search?routing={}", self.config.prefix, account.0),
            }
        }
        let joint = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{joint}allow_partial_search_results=false");
        let answer = self.reader.ask(Method::POST, &path, Body::Json(body), self.query_limit()).await?;
        let found = of_query(&answer)?;
        let is_whole = found.get("timed_out") == Some(&Value::Bool(false))
            && found.pointer("/_shards/failed").and_then(Value::as_u64) == Some(0);
        let hits = found.pointer("/hits/hits").and_then(Value::as_array).filter(|_| is_whole);
        let rows = hits.and_then(|hits| hits.iter().map(|hit| Row::of(hit, query.order)).collect());
        let late = "OpenSearch did not answer a query in time, or not as a whole";
        rows.ok_or_else(|| Error::unavailable(late).into())
    }

    /// Accounts that are marked as unfinished.
    pub(super) async fn unfinished(&self, index: &IndexName, count: usize) -> Result<Vec<AccountId>, Error> {
        let states = self.states(index, &json!({"term": {"unfinished": true}}), None, count).await?;
        Ok(states.into_iter().map(|(account, _)| account).collect())
    }

    /// Accounts with their revisions, beginning after one of them.
    pub(super) async fn states(
        &self,
        index: &IndexName,
        filter: &Value,
        after: Option<AccountId>,
        count: usize,
    ) -> Result<Vec<(AccountId, Revision)>, Error> {
        let behind = after.map_or_else(
            || json!({"exists": {"field": "state"}}),
            |after| json!({"range": {"state": {"gt": after.0}}}),
        );
        let body = json!({
            "size": count,
            "_source": false,
            "stored_fields": "_none_",
            "track_total_hits": false,
            "query": {"bool": {"filter": [filter, behind]}},
            "sort": [{"state": "asc"}, {"revision": "asc"}],
        });
        let path = format!("/{}/_search?allow_partial_search_results=false", index.as_str());
        let answer = self.client.ask(Method::POST, &path, Body::Json(body), self.write_limit()).await?;
        let found = answer.success("list the states of accounts")?;
        let state = |hit: &Value| {
            let account = u32::try_from(hit.pointer("/sort/0")?.as_u64()?).ok()?;
            Some((AccountId(account), Revision(hit.pointer("/sort/1")?.as_u64()?)))
        };
        let hits = found.pointer("/hits/hits").and_then(Value::as_array);
        let states = hits.and_then(|hits| hits.iter().map(state).collect());
        states.ok_or_else(|| Error::unavailable("OpenSearch did not list the states of accounts"))
    }
}

/// The response to a query. Our queries are always valid: if OpenSearch rejects one, the index is not the one that we created.
fn of_query(answer: &Answer) -> Result<Value, Failure> {
    const WHAT: &str = "answer a query";
    if answer.is_missing() {
        return Err(Failure::Missing);
    }
    let error = match answer.success(WHAT) {
        Ok(found) => return Ok(found),
        Err(error) => Error::unavailable(error.to_string()),
    };
    match answer.status {
        StatusCode::SERVICE_UNAVAILABLE => Err(Failure::Replaced(error)),
        _ => Err(Failure::Failed(error)),
    }
}

/// The hits of a page from the rows that were found. One row is the state of the account if it has one.
fn page_of(rows: Vec<Row>, limit: usize) -> Page {
    let mut page = Page::default();
    for row in rows {
        match u64::try_from(row.revision) {
            Ok(revision) => page.revision = Revision(revision),
            Err(_) if page.hits.len() == limit => page.has_more = true,
            Err(_) => page.hits.push(Hit { id: RecordId(unsigned(row.number)), received: row.received }),
        }
    }
    page
}

impl Row {
    fn of(hit: &Value, order: Order) -> Option<Self> {
        let value = |index: usize| hit.get("sort")?.get(index)?.as_i64();
        let (first, revision, last) = (value(0)?, value(1)?, value(2)?);
        Some(match order {
            Order::ById => Self { number: first, revision, received: last },
            Order::NewestFirst => Self { received: first, revision, number: last },
        })
    }

    fn sort_values(self, order: Order) -> Value {
        match order {
            Order::ById => json!([self.number, self.revision, self.received]),
            Order::NewestFirst => json!([self.received, self.revision, self.number]),
        }
    }
}

/// The state of an account has the least number and the latest time. An email with the same values follows it, as it has no revision.
fn sort(order: Order) -> Value {
    let state_first = json!({"revision": {"order": "desc", "missing": "_last"}});
    match order {
        Order::ById => json!([{"number": "asc"}, state_first, {"received": "asc"}]),
        Order::NewestFirst => json!([{"received": "desc"}, state_first, {"number": "desc"}]),
    }
}

fn query_of(account: AccountId, query: &Query) -> Value {
    let state = json!({"term": {"state": account.0}});
    let is_email = json!({"bool": {"must_not": [{"exists": {"field": "state"}}]}});
    let emails = json!({"bool": {"filter": [is_email, translate(&query.filter), behind(query)]}});
    json!({"bool": {"filter": [
        {"term": {"account": account.0.to_string()}},
        {"bool": {"should": [state, emails]}},
    ]}})
}

/// The condition for hits that follow [`Query::after`].
fn behind(query: &Query) -> Value {
    let Some(Hit { id, received }) = query.after else { return json!({"match_all": {}}) };
    let number = signed(id.0);
    match query.order {
        Order::ById => json!({"range": {"number": {"gt": number}}}),
        Order::NewestFirst => json!({"bool": {"should": [
            {"range": {"received": {"lt": received}}},
            {"bool": {"filter": [{"term": {"received": received}}, {"range": {"number": {"lt": number}}}]}},
        ]}}),
    }
}

fn translate(filter: &Filter) -> Value {
    match filter {
        Filter::And(filters) => all_of(filters.iter().map(translate).collect()),
        Filter::Or(filters) => any_of(filters.iter().map(translate).collect()),
        Filter::Not(filters) => {
            let excluded: Vec<Value> = filters.iter().map(translate).collect();
            json!({"bool": {"must_not": excluded}})
        }
        Filter::Text(text) => all_of(text.phrases().iter().map(anywhere).collect()),
        Filter::In(field, text) => everything(text, text_field(*field), ""),
        Filter::Header(name, text) => {
            let prefix = header_prefix(name);
            match text {
                Some(text) if !text.phrases().is_empty() => everything(text, "headers", &prefix),
                _ => json!({"term": {"headers": prefix}}),
            }
        }
    }
}

/// A phrase in one of the fields. OpenSearch counts the clauses of a query: a word is one of them.
fn anywhere(phrase: &Phrase) -> Value {
    let field = text_field(Field::Body);
    match phrase.words() {
        [(_, word)] => {
            let words: Vec<String> = ANYWHERE.iter().map(|prefix| format!("{prefix}{word}")).collect();
            json!({"terms": {field: words}})
        }
        _ => any_of(ANYWHERE.iter().map(|prefix| phrase_query(phrase, field, prefix)).collect()),
    }
}

fn everything(text: &SearchText, field: &str, prefix: &str) -> Value {
    all_of(text.phrases().iter().map(|phrase| phrase_query(phrase, field, prefix)).collect())
}

fn phrase_query(phrase: &Phrase, field: &str, prefix: &str) -> Value {
    match phrase.words() {
        [] => json!({"match_none": {}}),
        [(_, word)] => json!({"term": {field: format!("{prefix}{word}")}}),
        words => json!({"match_phrase": {field: {"query": phrase_cells(words, prefix)}}}),
    }
}

fn all_of(mut queries: Vec<Value>) -> Value {
    match queries.len() {
        0 => json!({"match_all": {}}),
        1 => queries.pop().unwrap_or_default(),
        _ => json!({"bool": {"filter": queries}}),
    }
}

fn any_of(mut queries: Vec<Value>) -> Value {
    match queries.len() {
        0 => json!({"match_none": {}}),
        1 => queries.pop().unwrap_or_default(),
        _ => json!({"bool": {"should": queries}}),
    }
}
