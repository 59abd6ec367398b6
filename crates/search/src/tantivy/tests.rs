use bytes::Bytes;
use restante_core::ErrorKind;

use super::*;
use crate::{Batch, Document, EngineUrl, Filter, Index, Upkeep};

/// How a query behaves that reads a damaged file: no test can damage a mapped file so that the damage is noticed for sure.
#[tokio::test]
async fn an_index_that_is_found_damaged_while_it_runs_begins_from_zero() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config::new(EngineUrl::Tantivy(folder.path().into()));
    let handle = open_handle(folder.path().into(), config).await.unwrap();
    let account = AccountId(1);
    let series = handle.begin().await.unwrap().series;
    let batch = Batch { documents: vec![Document::default()], ..Batch::default() };
    handle.write(series, account, batch).await.unwrap();
    handle.save(series, Bytes::from_static(b"old")).await.unwrap();
    handle.commit(series).await.unwrap();

    assert_eq!(handle.engine.found_damaged("a test").kind(), ErrorKind::Unavailable);
    handle.ended(series).await;
    let query = Query::new(Filter::And(vec![]));
    assert_eq!(handle.query(account, &query).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(handle.health().unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(handle.commit(series).await.unwrap_err().kind(), ErrorKind::Conflict);

    assert_eq!(handle.begin().await.unwrap().checkpoint, None);
    handle.health().unwrap();
    assert_eq!(handle.query(account, &query).await.unwrap(), Page::default());
}
