//! The interface for operators.

use std::sync::atomic::Ordering;

use async_trait::async_trait;
use hyper::Method;
use serde_json::{Value, json};

use super::{Engine, Handle, client::Body, place::IndexName};
use crate::{Error, Report, Stats, Upkeep};

#[async_trait]
impl Upkeep for Handle {
    fn health(&self) -> Result<(), Error> {
        self.engine.check_open()?;
        if self.engine.is_missing.load(Ordering::Acquire) {
            return Err(super::Failure::Missing.into_error());
        }
        match &*self.engine.failure.lock() {
            Some(failure) => Err(failure.duplicate()),
            None => Ok(()),
        }
    }

    async fn stats(&self) -> Result<Stats, Error> {
        let engine = &self.engine;
        engine.check_open()?;
        let index = engine.live().await?;
        let emails = json!({"query": {"bool": {
            "filter": [{"exists": {"field": "received"}}],
            "must_not": [{"exists": {"field": "state"}}],
        }}});
        let path = format!("/{}/_count", index.as_str());
        let counted =
            engine.client.ask(Method::POST, &path, Body::Json(emails), engine.write_limit()).await?;
        let counted = counted.success("count emails")?;
        let documents = counted.get("count").and_then(Value::as_u64);
        let documents = documents.ok_or_else(|| Error::unavailable("OpenSearch did not count emails"))?;
        let (segments, disk_bytes) = engine.size(&index).await?;
        // From the metric and not from the writer, which may be waiting for a response.
        let uncommitted = engine.metrics.uncommitted.get();
        Ok(Stats { documents, uncommitted, segments, disk_bytes })
    }

    async fn check(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
        self.engine.check_open()?;
        let Some(index) = self.engine.find().await?.live else {
            let damaged = vec![format!("index {}", self.engine.config.prefix)];
            return Ok(Report { damaged, ..Report::default() });
        };
        let damaged = self.engine.missing_shards(&index).await?;
        let (_, bytes) = self.engine.size(&index).await?;
        progress(bytes, bytes);
        Ok(Report { bytes, damaged })
    }

    async fn clear(&self) -> Result<(), Error> {
        let mut writer = self.engine.writer.lock().await;
        self.engine.clear(&mut writer).await
    }

    async fn rebuild(&self) -> Result<(), Error> {
        let mut writer = self.engine.writer.lock().await;
        self.engine.rebuild(&mut writer).await
    }

    async fn close(&self) -> Result<(), Error> {
        self.engine.is_closed.store(true, Ordering::Release);
        let mut writer = self.engine.writer.lock().await;
        self.engine.close(&mut writer).await
    }
}

impl Engine {
    /// The index that queries read.
    async fn live(&self) -> Result<IndexName, Error> {
        let live = self.find().await?.live;
        live.ok_or_else(|| self.found_missing())
    }

    /// The segments of an index, and the bytes of all its copies.
    async fn size(&self, index: &IndexName) -> Result<(u64, u64), Error> {
        let path = format!("/{}/_stats/store,segments", index.as_str());
        let answer = self.client.ask(Method::GET, &path, Body::Nothing, self.write_limit()).await?;
        let found = answer.success("read the size of the search index")?;
        let number = |path: &str| found.pointer(path).and_then(Value::as_u64).unwrap_or_default();
        Ok((number("/_all/primaries/segments/count"), number("/_all/total/store/size_in_bytes")))
    }

    /// The shards of an index that are missing.
    async fn missing_shards(&self, index: &IndexName) -> Result<Vec<String>, Error> {
        let path = format!("/_cluster/health/{}?level=shards", index.as_str());
        let answer = self.client.ask(Method::GET, &path, Body::Nothing, self.write_limit()).await?;
        let found = answer.success("read the health of the search index")?;
        let shards =
            found.get("indices").and_then(|indexes| indexes.get(index.as_str())?.get("shards")?.as_object());
        let Some(shards) = shards else {
            return Err(Error::unavailable("OpenSearch did not list the shards"));
        };
        let is_there = |shard: &Value| shard.get("primary_active") == Some(&Value::Bool(true));
        let missing = shards.iter().filter(|(_, shard)| !is_there(shard));
        Ok(missing.map(|(number, _)| format!("shard {number} of {}", index.as_str())).collect())
    }
}
