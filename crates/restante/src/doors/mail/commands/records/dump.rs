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
use restante_records::{KindSchema, Property, Record, RecordKey, Report, Schema, Upkeep, Value};
use serde::Serialize;
use serde_json::json;

use crate::{
    config::RecordsFlags,
    doors::mail::{commands::findings, records},
    exit,
    new_file::NewFile,
    output::{left_out, write_json},
    progress::Progress,
};

#[derive(Args, Debug)]
pub(crate) struct DumpFlags {
    #[command(flatten)]
    records: RecordsFlags,
    /// Write to this file instead of stdout
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    out: Option<PathBuf>,
}

/// Records that are read at once. Each has a body of up to 256 KiB, which is in memory twice: as it is and as a line.
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
    let report = match &flags.out {
        Some(path) => to_file(path, &*opened.upkeep, &progress).await?,
        None => {
            let mut out = BufWriter::with_capacity(1 << 20, io::stdout().lock());
            dump(&*opened.upkeep, &progress, &mut out).await?
        }
    };
    drop(progress);
    opened.upkeep.close().await?;
    print_summary(&report, &mut io::stderr().lock())?;
    Ok(if report.wrong == 0 { ExitCode::SUCCESS } else { exit::found_wrong() })
}

/// Prints what could not be read, and how much was written.
fn print_summary(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let found = report.findings.iter().map(|finding| (&*finding.place, &*finding.what));
    findings::print(found, report.wrong, out)?;
    writeln!(out, "dumped {} records", HumanCount(report.records))?;
    if report.wrong > 0 {
        writeln!(out, "{}", left_out(report.wrong, "records check"))?;
    }
    Ok(())
}

/// Writes to a file and returns when it is on disk. A failed dump leaves no file of that name, or the previous one. Damaged
/// records do not make it fail.
async fn to_file(path: &Path, upkeep: &dyn Upkeep, progress: &Progress) -> anyhow::Result<Report> {
    let failed = || format!("can't write {}", path.display());
    let file = NewFile::create(path).with_context(failed)?;
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let report = dump(upkeep, progress, &mut out).await.with_context(failed)?;
    let file = out.into_inner().map_err(io::Error::from).with_context(failed)?;
    file.finish().with_context(failed)?;
    Ok(report)
}

/// Writes all records that can be read; reports how many, and the damaged ones.
async fn dump(upkeep: &dyn Upkeep, progress: &Progress, out: &mut dyn Write) -> anyhow::Result<Report> {
    let schema = records::schema();
    let (mut after, mut report) = (None, Report::default());
    loop {
        let page = upkeep.dump(after, PAGE_RECORDS).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.key);
        for dumped in &page {
            match &dumped.record {
                Ok(record) => {
                    write_json(&mut *out, &line(dumped.key, record, &schema))?;
                    out.write_all(b"\n")?;
                    report.records += 1;
                }
                Err(damage) => {
                    report.note(records::place(dumped.key), format!("it can't be read: {}", damage.0));
                }
            }
        }
        progress.set(report.records + report.wrong);
    }
    out.flush()?;
    Ok(report)
}

fn line<'a>(RecordKey { account, .. }: RecordKey, record: &'a Record, schema: &Schema) -> Line<'a> {
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
        let report = dump(&*opened.upkeep, &progress, &mut out).await.unwrap();
        let lines: Vec<String> = String::from_utf8(out).unwrap().lines().map(str::to_owned).collect();
        assert_eq!((lines.len() as u64, 0), (report.records, report.wrong));
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

    #[test]
    fn what_was_left_out_is_reported_with_what_to_do() {
        let mut report = Report { records: 1_234, ..Report::default() };
        let printed = |report: &Report| {
            let mut out = Vec::new();
            print_summary(report, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(printed(&report), "dumped 1,234 records\n");
        report.note("account 1, email 7", "it can't be read: its row is damaged");
        assert_eq!(
            printed(&report),
            "account 1, email 7: it can't be read: its row is damaged\ndumped 1,234 records\n\
             1 damaged record was left out: see restante records check\n"
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
