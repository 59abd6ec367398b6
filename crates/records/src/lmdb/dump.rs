//! Pages over the whole store: of all records, and of the blobs that they refer to.

use std::ops::{Bound, ControlFlow};

use super::{
    Engine,
    bodies::blobs_of,
    schema::{BODY, BodyNumber, STATE, body_key, corrupt, decode_body_key, decode_state_key, state_key},
    walk::walk,
};
use crate::{Damage, Dumped, Error, RecordKey, Referenced, validate};

/// A page of references ends after this many blobs; those of its last body are all returned.
const REFERENCED_BLOBS: usize = 4_096;
/// A page of references ends after this many bodies, however few blobs they refer to, so that it takes only milliseconds.
const REFERENCED_BODIES: usize = 16_384;

impl Engine {
    /// A page of all records, from the record that follows `after`.
    pub(super) fn dump(&self, after: Option<RecordKey>, limit: usize) -> Result<Vec<Dumped>, Error> {
        validate::check_dump(limit)?;
        let after = after.map(|place| state_key(place.account, place.kind, place.id));
        let from = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut page = Vec::new();
        walk(&self.store, STATE, from, &mut |view, key, _| {
            let (account, kind, id) = decode_state_key(key).ok_or_else(|| corrupt(STATE, key))?;
            let read = self.read_record(view, account, kind, id, true);
            if let Some(record) = Damage::separate(read)?.transpose() {
                page.push(Dumped { key: RecordKey { account, kind, id }, record });
            }
            Ok(if page.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        Ok(page)
    }

    /// A page of the blobs that bodies refer to, from the body that follows `after`. A body that is written meanwhile gets a
    /// higher number than all existing ones, so no walk misses it.
    pub(super) fn referenced(&self, after: Option<u64>) -> Result<Referenced, Error> {
        let after = after.map(|number| body_key(BodyNumber(number)));
        let from = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut page = Referenced::default();
        let mut bodies = 0;
        walk(&self.store, BODY, from, &mut |_, key, row| {
            let number = decode_body_key(key).ok_or_else(|| corrupt(BODY, key))?;
            page.blobs.extend(blobs_of(row)?);
            bodies += 1;
            if bodies < REFERENCED_BODIES && page.blobs.len() < REFERENCED_BLOBS {
                return Ok(ControlFlow::Continue(()));
            }
            page.next = Some(number.0);
            Ok(ControlFlow::Break(()))
        })?;
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, sync::Arc};

    use restante_core::{BlobId, ErrorKind};
    use restante_lmdb::Batch;

    use super::*;
    use crate::{
        AccountId, BODY_BLOBS_MAX, Body, Change, Commit, DUMP_RECORDS_MAX, Properties, RecordId,
        lmdb::{
            commit::commit,
            testing::{ACCOUNT as OURS, EMAIL, MAILBOX_KIND, create, destroy, email, engine, make},
        },
    };

    /// The records of all pages of a dump.
    fn dump_all(engine: &Engine, limit: usize) -> Vec<Dumped> {
        let mut all: Vec<Dumped> = Vec::new();
        loop {
            let page = engine.dump(all.last().map(|last| last.key), limit).unwrap();
            assert!(page.len() <= limit);
            if page.is_empty() {
                return all;
            }
            all.extend(page);
        }
    }

    fn blob(n: usize) -> BlobId {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&n.to_be_bytes());
        BlobId(bytes)
    }

    fn all_blobs(engine: &Engine) -> (BTreeSet<BlobId>, usize) {
        let (mut blobs, mut pages, mut after) = (BTreeSet::new(), 0, None);
        loop {
            let page = engine.referenced(after).unwrap();
            assert!(page.blobs.len() < REFERENCED_BLOBS + BODY_BLOBS_MAX);
            blobs.extend(page.blobs);
            pages += 1;
            after = page.next;
            if after.is_none() {
                return (blobs, pages);
            }
        }
    }

    async fn refer_to(engine: &Arc<Engine>, blobs: impl Iterator<Item = usize>) -> RecordId {
        let body = Body { bytes: "some text".into(), blobs: blobs.map(blob).collect() };
        make(engine, [Change::Create { kind: EMAIL, body, properties: Properties::default() }]).await[0]
    }

    #[tokio::test]
    async fn pages_of_a_dump_have_all_records_of_all_accounts_in_order() {
        let (_folder, engine) = engine();
        let mailbox = Change::Create {
            kind: MAILBOX_KIND,
            body: Body::new("inbox"),
            properties: Properties::default(),
        };
        commit(&engine, AccountId(300), Commit::of([mailbox])).await.unwrap();
        let ids = make(&engine, (0..300).map(|n| create(email(1, n)))).await;
        make(&engine, [destroy(ids[7])]).await;
        for limit in [1, 100, 300, DUMP_RECORDS_MAX] {
            let mut places = Vec::new();
            for dumped in dump_all(&engine, limit) {
                assert!(!dumped.record.unwrap().body.bytes.is_empty());
                places.push((dumped.key.account, dumped.key.kind, dumped.key.id));
            }
            assert_eq!(places.len(), 300, "{limit}");
            assert!(places.is_sorted());
            assert!(places[..299].iter().all(|(account, ..)| *account == OURS));
        }
        for limit in [0, DUMP_RECORDS_MAX + 1] {
            assert_eq!(engine.dump(None, limit).unwrap_err().kind(), ErrorKind::Invalid);
        }
    }

    /// Regression test: the dump ended at the damaged record.
    #[tokio::test]
    async fn a_damaged_record_is_in_a_dump_as_damaged_and_the_next_ones_follow() {
        let (_folder, engine) = engine();
        let ids = make(&engine, (0..5).map(|n| create(email(1, n)))).await;
        for id in [ids[1], ids[4]] {
            let damage = move |batch: &mut Batch<'_>| {
                batch.put(STATE, &state_key(OURS, EMAIL, id), b"");
                Ok(())
            };
            engine.store.write(damage).await.unwrap();
        }
        for limit in [1, 2, 5, DUMP_RECORDS_MAX] {
            let (mut read, mut damaged) = (Vec::new(), Vec::new());
            for dumped in dump_all(&engine, limit) {
                match dumped.record {
                    Ok(record) => read.push(record.id),
                    Err(Damage(what)) => {
                        assert!(what.contains("is damaged"), "{what}");
                        damaged.push(dumped.key);
                    }
                }
            }
            assert_eq!(read, [ids[0], ids[2], ids[3]], "{limit}");
            assert_eq!(damaged, [ids[1], ids[4]].map(|id| RecordKey { account: OURS, kind: EMAIL, id }));
        }
    }

    #[tokio::test]
    async fn pages_of_references_have_the_blobs_of_all_bodies_that_are_there() {
        let (_folder, engine) = engine();
        assert_eq!(engine.referenced(None).unwrap(), Referenced::default());
        let many = 20 * BODY_BLOBS_MAX;
        for n in 0..20 {
            refer_to(&engine, n * BODY_BLOBS_MAX..(n + 1) * BODY_BLOBS_MAX).await;
        }
        let gone = refer_to(&engine, 1_000_000..1_000_001).await;
        refer_to(&engine, 5..6).await;
        make(&engine, [destroy(gone)]).await;
        let (blobs, pages) = all_blobs(&engine);
        assert_eq!(blobs, (0..many).map(blob).collect());
        assert_eq!(pages, 2);
    }

    #[tokio::test]
    async fn a_body_that_moves_behind_the_page_is_in_a_later_one() {
        let (_folder, engine) = engine();
        for n in 0..17 {
            refer_to(&engine, n * BODY_BLOBS_MAX..(n + 1) * BODY_BLOBS_MAX).await;
        }
        let first = engine.referenced(None).unwrap();
        let body = Some(Body { bytes: "new".into(), blobs: vec![blob(77_777)] });
        make(&engine, [Change::Update { kind: EMAIL, id: RecordId(1), body, properties: None }]).await;
        let second = engine.referenced(first.next).unwrap();
        assert!(second.blobs.contains(&blob(77_777)));
        assert_eq!(second.next, None);
    }
}
