//! Power cuts while documents are written, removed and committed: afterwards the index contains exactly one commit, complete, and
//! none older than the last that was acknowledged.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

use std::{collections::BTreeSet, path::Path, sync::Arc};

use bytes::Bytes;
use restante_power_cut::{Child, child, cuts, record};
use restante_search::{
    AccountId, Batch, Config, Document, EngineUrl, Filter, Opened, Query, RecordId, Revision, open,
};

const ACCOUNT: AccountId = AccountId(3);
const COMMITS: u64 = 24;

/// The contents of the index after a commit: each has two emails of its own and removes one of an earlier commit.
fn emails_at(commit: u64) -> BTreeSet<u64> {
    let mut emails = BTreeSet::new();
    for n in 1..=commit {
        emails.extend(written_by(n));
        emails.remove(&removed_by(n));
    }
    emails
}

fn written_by(commit: u64) -> [u64; 2] {
    [2 * commit, 2 * commit + 1]
}

fn removed_by(commit: u64) -> u64 {
    commit // an email of the commit with half this number
}

async fn open_at(folder: &Path) -> Opened {
    let mut config = Config::new(EngineUrl::Tantivy(folder.to_owned()));
    config.tantivy.commit_ms = 3_600_000;
    open(config).await.unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

async fn run(child: Arc<Child>) {
    let opened = open_at(&child.folder().join("search")).await;
    let series = opened.index.begin().await.unwrap().series;
    for commit in 1..=COMMITS {
        let document = |number: u64| Document {
            id: RecordId(number),
            body: vec![format!("the words of email {number}")],
            ..Document::default()
        };
        let documents = written_by(commit).map(document).to_vec();
        let removed = vec![RecordId(removed_by(commit))];
        let batch = Batch { removed, documents, revision: Some(Revision(commit)) };
        opened.index.write(series, ACCOUNT, batch).await.unwrap();
        opened.index.save(series, Bytes::copy_from_slice(&commit.to_be_bytes())).await.unwrap();
        opened.index.commit(series).await.unwrap();
        child.acknowledge(&format!("committed {commit}")).unwrap();
    }
    opened.upkeep.close().await.unwrap();
}

async fn verify(folder: &Path, acknowledged: u64) {
    let opened = open_at(folder).await;
    let page = opened.search.query(ACCOUNT, &Query::new(Filter::And(vec![]))).await.unwrap();
    let found: BTreeSet<u64> = page.hits.iter().map(|hit| hit.id.0).collect();
    let begun = opened.index.begin().await.unwrap();
    match &begun.checkpoint {
        Some(saved) => {
            let commit = u64::from_be_bytes(saved.as_ref().try_into().unwrap());
            assert!(commit >= acknowledged, "{commit} is before {acknowledged}, which was acknowledged");
            assert_eq!((page.revision, found), (Revision(commit), emails_at(commit)));
        }
        None => {
            assert_eq!(acknowledged, 0, "a commit was acknowledged");
            assert_eq!((page.revision, found), (Revision(0), BTreeSet::new()));
        }
    }
    // The index works.
    let batch = Batch { documents: vec![Document::default()], ..Batch::default() };
    opened.index.write(begun.series, AccountId(9), batch).await.unwrap();
    opened.index.commit(begun.series).await.unwrap();
    let page = opened.search.query(AccountId(9), &Query::new(Filter::And(vec![]))).await.unwrap();
    assert_eq!(page.hits.len(), 1);
    opened.upkeep.close().await.unwrap();
}

#[test]
fn acknowledged_commits_survive_power_cuts_and_each_is_whole() {
    if let Some(child) = child().unwrap() {
        runtime().block_on(run(Arc::new(child)));
        return;
    }
    let log = record("acknowledged_commits_survive_power_cuts_and_each_is_whole").unwrap();
    log.replay(cuts(60), 11, |cut| {
        let last = cut.acknowledged().last().map_or("committed 0", |line| *line);
        let acknowledged = last.strip_prefix("committed ").unwrap().parse().unwrap();
        runtime().block_on(verify(&cut.folder().join("search"), acknowledged));
    })
    .unwrap();
}
