//! `restante records dump`

use std::{
    collections::BTreeMap,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use clap::{Args, ValueHint};
use indicatif::HumanCount;
use restante_records::{Dumped, KindSchema, Property, Record, RecordKey, Schema, Upkeep, Value};
use serde::Serialize;
use serde_json::json;

use crate::{
    config::RecordsFlags, doors::mail::records, new_file::NewFile, output::write_json, progress::Progress,
};

#[derive(Args, Debug)]
pub(crate) struct DumpFlags {
    #[command(flatten)]
    records: RecordsFlags,
    /// Write to this file instead of stdout
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    out: Option<PathBuf>,
}

/// Records that are read at once. Each has a body of up to 256 KiB, which stands here as it is and as a line.
const PAGE_RECORDS: usize = 64;

/// A record as it is written.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    account: u32,
    kind: String,
    id: u64,
    revision: u64,
    created: u64,
    properties: BTreeMap<String, Vec<serde_json::Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
    blobs: Vec<String>,
}

pub(super) async fn run(flags: &DumpFlags) -> anyhow::Result<ExitCode> {
    let opened = records::open_existing(&flags.records.load()?.config).await?;
    let stats = opened.upkeep.stats().await?;
    let total = stats.kinds.iter().map(|kind| kind.records).sum();
    let progress = Progress::counting("records", "dumping", Some(total));
    let count = match &flags.out {
        Some(path) => to_file(path, &*opened.upkeep, &progress).await?,
        None => {
            let mut out = BufWriter::with_capacity(1 << 20, io::stdout().lock());
            dump(&*opened.upkeep, &progress, &mut out).await?
        }
    };
    drop(progress);
    opened.upkeep.close().await?;
    eprintln!("dumped {} records", HumanCount(count));
    Ok(ExitCode::SUCCESS)
}

/// Writes to a file and returns when it is on disk. A dump that fails leaves no file of that name, or the one of before.
async fn to_file(path: &Path, upkeep: &dyn Upkeep, progress: &Progress) -> anyhow::Result<u64> {
    let failed = || format!("can't write {}", path.display());
    let file = NewFile::create(path).with_context(failed)?;
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let count = dump(upkeep, progress, &mut out).await.with_context(failed)?;
    let file = out.into_inner().map_err(io::Error::from).with_context(failed)?;
    file.finish().with_context(failed)?;
    Ok(count)
}

/// Writes all records and gives their number.
async fn dump(upkeep: &dyn Upkeep, progress: &Progress, out: &mut dyn Write) -> anyhow::Result<u64> {
    let schema = records::schema();
    let (mut after, mut count) = (None, 0);
    loop {
        let page = upkeep.dump(after, PAGE_RECORDS).await?;
        let Some(last) = page.last() else { break };
        after = Some(RecordKey { account: last.account, kind: last.record.kind, id: last.record.id });
        for dumped in &page {
            write_json(&mut *out, &line(dumped, &schema))?;
            out.write_all(b"\n")?;
        }
        count += page.len() as u64;
        progress.set(count);
    }
    out.flush()?;
    Ok(count)
}

fn line<'a>(Dumped { account, record }: &'a Dumped, schema: &Schema) -> Line<'a> {
    let kind = schema.kind(record.kind).ok();
    let text = std::str::from_utf8(&record.body.bytes).ok();
    Line {
        account: account.0,
        kind: kind.map_or_else(|| records::unnamed(record.kind.0), |kind| kind.name.to_owned()),
        id: record.id.0,
        revision: record.revision.0,
        created: record.created.0,
        properties: properties(record, kind),
        body: text,
        body_base64: text.is_none().then(|| base64_simd::STANDARD.encode_to_string(&record.body.bytes)),
        blobs: record.body.blobs.iter().map(ToString::to_string).collect(),
    }
}

fn properties(record: &Record, kind: Option<&KindSchema>) -> BTreeMap<String, Vec<serde_json::Value>> {
    let name = |property: Property| {
        let known = kind.and_then(|kind| kind.properties.iter().find(|(known, _)| *known == property));
        known.map_or_else(|| records::unnamed(property.0), |(_, name)| (*name).to_owned())
    };
    let mut named: BTreeMap<String, Vec<serde_json::Value>> = BTreeMap::new();
    for (property, value) in record.properties.iter() {
        named.entry(name(*property)).or_default().push(shown(value));
    }
    named
}

fn shown(value: &Value) -> serde_json::Value {
    match value {
        Value::Number(number) => json!(number),
        Value::Text(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => json!(text),
            Err(_) => json!({"base64": base64_simd::STANDARD.encode_to_string(bytes)}),
        },
        // It stands for an id in a commit, and is never stored.
        Value::Created(place) => json!({"created": place}),
        Value::Revision => json!("revision"),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use restante_core::BlobId;
    use restante_mail::{email, identity, thread};
    use restante_records::{AccountId, Body, Change, Commit, Config, EngineUrl, Kind, Properties, open};

    use super::*;

    async fn dumped(changes: Vec<Vec<Change>>) -> Vec<String> {
        let opened = open(Config::new(EngineUrl::Memory, records::schema())).await.unwrap();
        for (account, changes) in (1..).zip(changes) {
            opened.records.commit(AccountId(account), Commit::of(changes)).await.unwrap();
        }
        let mut out = Vec::new();
        let progress = Progress::counting("records", "dumping", None);
        let count = dump(&*opened.upkeep, &progress, &mut out).await.unwrap();
        let lines: Vec<String> = String::from_utf8(out).unwrap().lines().map(str::to_owned).collect();
        assert_eq!(lines.len() as u64, count);
        lines
    }

    fn create(kind: Kind, body: Body, properties: Properties) -> Change {
        Change::Create { kind, body, properties }
    }

    #[tokio::test]
    async fn a_line_has_everything_by_name() {
        let body =
            Body { bytes: Bytes::from_static("Grüße\n".as_bytes()), blobs: vec![BlobId([0xab; 32])] };
        let email = Properties::default()
            .with(email::MAILBOX, 7)
            .with(email::MAILBOX, 9)
            .with(email::UNSEEN, 1)
            .with(email::KEYWORD, Bytes::from_static(&[0xff, 0]));
        let identity = Properties::default().with(identity::EMAIL, "me@example.org");
        let changes = vec![
            vec![create(email::KIND, body, email)],
            vec![create(identity::KIND, Body::new(Bytes::from_static(&[0xfe])), identity)],
        ];
        let blob = "ab".repeat(32);
        assert_eq!(
            dumped(changes).await,
            [
                format!(
                    r#"{{"account":1,"kind":"email","id":1,"revision":1,"created":1,"properties":{{"keyword":[{{"base64":"/wA="}}],"mailbox":[7,9],"unseen":[1]}},"body":"Grüße\n","blobs":["{blob}"]}}"#
                ),
                r#"{"account":2,"kind":"identity","id":1,"revision":1,"created":1,"properties":{"email":["me@example.org"]},"bodyBase64":"/g==","blobs":[]}"#.to_owned(),
            ]
        );
    }

    #[tokio::test]
    async fn many_pages_are_one_dump() {
        let create = || create(thread::KIND, Body::default(), Properties::default());
        let changes = vec![(0..PAGE_RECORDS * 2).map(|_| create()).collect(), vec![create()]];
        let lines = dumped(changes).await;
        assert_eq!(lines.len(), PAGE_RECORDS * 2 + 1);
        let distinct: std::collections::BTreeSet<&String> = lines.iter().collect();
        assert_eq!(distinct.len(), lines.len());
    }
}
