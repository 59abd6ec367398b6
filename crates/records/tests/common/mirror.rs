//! A client that keeps up with an account from its changes alone.

use std::collections::BTreeMap;

use restante_records::{
    AccountId, Changed, Changes, ChangesSince, DUMP_RECORDS_MAX, Feed, FeedRequest, Get, Kind, Record,
    RecordId, RecordKey, Records, Revision, Upkeep,
};

use super::PAGES_MAX;

/// What a client has of an account.
#[derive(Clone, Default)]
pub struct Mirror {
    pub records: BTreeMap<(Kind, RecordId), Record>,
    pub revision: Revision,
}

impl Mirror {
    /// Applies page after page of changes until there are no more.
    pub async fn keep_up(&mut self, records: &dyn Records, account: AccountId, limit: usize) {
        for _ in 0..PAGES_MAX {
            let since = ChangesSince { kind: None, since: self.revision, limit };
            let page = records.changes(account, &since).await.unwrap();
            check_page(&page, self.revision, limit);
            self.apply(records, account, &page).await;
            if !page.has_more {
                return;
            }
        }
        panic!("the changes of {account:?} don't end");
    }

    /// The same, as a follower.
    pub async fn follow(&mut self, records: &dyn Records, feed: &dyn Feed, account: AccountId, limit: usize) {
        let began = if self.records.is_empty() && self.revision == Revision(0) {
            records.states(account).await.unwrap().revision
        } else {
            Revision(0)
        };
        for _ in 0..PAGES_MAX {
            let request = FeedRequest { since: self.revision, began, limit };
            let page = feed.follow(account, &request).await.unwrap();
            check_page(&page, self.revision, limit);
            self.apply(records, account, &page).await;
            if !page.has_more {
                return;
            }
        }
        panic!("the changes of {account:?} don't end");
    }

    async fn apply(&mut self, records: &dyn Records, account: AccountId, page: &Changes) {
        for gone in &page.destroyed {
            self.records.remove(&(gone.kind, gone.id));
        }
        for changed in page.created.iter().chain(&page.updated) {
            let get = Get::whole(changed.kind, vec![changed.id]);
            match records.get(account, &get).await.unwrap().remove(0) {
                Some(record) => self.records.insert((changed.kind, changed.id), record),
                None => self.records.remove(&(changed.kind, changed.id)), // gone since the page was read
            };
        }
        self.revision = page.revision;
    }

    /// Whether this is what the store has now.
    pub async fn assert_equals(&self, upkeep: &dyn Upkeep, account: AccountId) {
        let there = all_of(upkeep, account).await;
        assert_eq!(self.records.keys().collect::<Vec<_>>(), there.keys().collect::<Vec<_>>());
        assert_eq!(self.records, there);
    }
}

/// What holds for every page of changes.
fn check_page(page: &Changes, since: Revision, limit: usize) {
    assert!(page.revision > since || !page.has_more, "a page with more after it leads on");
    let count = page.created.len() + page.updated.len() + page.destroyed.len();
    assert!(count <= limit || page.revision > since, "more than the limit is one revision");
    let mut changed: Vec<Changed> =
        page.created.iter().chain(&page.updated).chain(&page.destroyed).copied().collect();
    changed.sort();
    changed.dedup();
    assert_eq!(changed.len(), count, "nothing is on one page twice");
}

/// All records of an account.
pub async fn all_of(upkeep: &dyn Upkeep, account: AccountId) -> BTreeMap<(Kind, RecordId), Record> {
    let all = dump(upkeep, DUMP_RECORDS_MAX).await.into_iter();
    let own = all.filter(|(place, _)| place.account == account);
    own.map(|(place, record)| ((place.kind, place.id), record)).collect()
}

/// All records, by pages of at most `limit`.
pub async fn dump(upkeep: &dyn Upkeep, limit: usize) -> Vec<(RecordKey, Record)> {
    let mut all: Vec<(RecordKey, Record)> = Vec::new();
    for _ in 0..PAGES_MAX {
        let after = all.last().map(|(place, _)| *place);
        let page = upkeep.dump(after, limit).await.unwrap();
        assert!(page.len() <= limit, "a page is not longer than its limit");
        if page.is_empty() {
            return all;
        }
        for dumped in page {
            all.push((dumped.key, dumped.record.unwrap()));
        }
    }
    panic!("the dump doesn't end");
}
