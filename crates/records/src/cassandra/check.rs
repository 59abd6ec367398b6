//! Verifies all rows against each other, account by account, each as of one moment.

use std::collections::BTreeMap;

use scylla::value::CqlValue;

use super::{
    Shared,
    accounts::ACCOUNTS,
    connect::{number, text},
    schema::{
        FORMAT, GONE, META_FORMAT, META_IDENTITY, META_SCHEMA, account_number, decode_gone_key, slot_of,
    },
    view::{View, ViewError},
};
use crate::{
    AccountId, Body, Error, Report, indexes,
    map::{
        check::{Account, PageRow, relations, verify, verify_head},
        keys::{self, STATE},
    },
    rows::{StateRow, decode_number},
};

/// Bodies that are read at once.
const BODIES: usize = 256;

const WHAT: &str = "check its records";
const IN_FEED: &str = "SELECT account FROM feed WHERE store = ? AND segment = ? AND slot = ?";

type Progress<'c> = &'c (dyn Fn(u64, u64) + Send + Sync);

/// Verifies that every record can be read, and that all other rows agree with the records.
pub(super) async fn check(shared: &Shared, progress: Progress<'_>) -> Result<Report, Error> {
    let mut check = Check { shared, progress, done: 0, report: Report::default() };
    let mut accounts: Vec<AccountId> = Vec::new();
    loop {
        let page = shared.next_accounts(accounts.last().copied()).await?;
        for account in &page {
            check.account(*account).await?;
        }
        let is_last = page.len() < ACCOUNTS;
        accounts.extend(page);
        if is_last {
            break;
        }
    }
    check.followers(&accounts).await?;
    check.meta().await?;
    progress(check.done, check.done);
    Ok(check.report)
}

struct Check<'c> {
    shared: &'c Shared,
    progress: Progress<'c>,
    done: u64,
    report: Report,
}

impl Check<'_> {
    /// Verifies an account as of one moment. All its rows are held in memory meanwhile.
    async fn account(&mut self, account: AccountId) -> Result<(), Error> {
        let shared = self.shared;
        let views = shared.views(account);
        let mut before: Option<Account> = None;
        loop {
            let view = views.begin().await?;
            let read = self.verify_view(&view).await;
            let Some(found) = views.accept(&view, read).await? else { continue };
            // A body may have been replaced after its state was read. A finding is real only if it is still there when the check
            // is repeated.
            let is_moved = !found.findings.is_empty()
                && before.as_ref().is_none_or(|before| before.findings != found.findings);
            if is_moved {
                before = Some(found);
                continue;
            }
            self.report.records += found.records;
            for (place, what) in found.findings {
                self.report.note(place, what);
            }
            self.done += found.rows + 1;
            (self.progress)(self.done, self.done);
            return Ok(());
        }
    }

    async fn verify_view(&self, view: &View<'_>) -> Result<Account, ViewError> {
        let shared = self.shared;
        let account = view.account();
        let mut found = Account::of(account);
        let rows = view.whole(&[STATE], &[u8::MAX]).await?;
        let all: BTreeMap<Vec<u8>, Vec<u8>> = rows.into_iter().collect();
        let bodies = self.lengths(account, &all).await?;
        for (key, value) in &all {
            if decode_gone_key(key).is_some() && value.is_empty() {
                found.rows += 1; // the row of a body that is being removed
                continue;
            }
            let named = (key.first() == Some(&STATE)).then(|| StateRow::decode(value)).flatten();
            let named = named.map(|state| state.body.0).filter(|body| *body != 0);
            let row = PageRow {
                key: key.clone(),
                value: value.clone(),
                body: named.map(keys::to_sql),
                found: named
                    .and_then(|body| bodies.get(&body))
                    .map(|(length, blobs)| (account_number(account), *length, Some(blobs.clone()))),
            };
            debug_assert!(
                relations(&shared.schema, &row).iter().all(|key| key.first() < Some(&GONE)),
                "all rows are there"
            );
            verify(&shared.schema, &mut found, &row, &all);
        }
        let (segment, slot) = slot_of(view.head.row.position);
        if view.head.row.commits() > 0 {
            let values =
                vec![text(shared.store()), CqlValue::BigInt(keys::to_sql(segment)), CqlValue::Int(slot)];
            let rows = shared.database.read(WHAT, IN_FEED, values).await?;
            let is_in_feed = rows.first().and_then(|row| number(row, 0)) == Some(u64::from(account.0));
            let last = shared.last_counter(shared.restores()).await?.map_or(0, |counter| counter.last().0);
            let position = keys::to_sql(view.head.row.position.0);
            let feed = is_in_feed.then(|| (position, keys::to_sql(view.head.row.revision.0)));
            verify_head(
                &mut found,
                &view.head.row.encode(),
                feed,
                keys::to_sql(last.max(view.head.row.position.0)),
            );
        }
        Ok(found)
    }

    /// The lengths and the blobs of the bodies that records refer to.
    async fn lengths(
        &self,
        account: AccountId,
        rows: &BTreeMap<Vec<u8>, Vec<u8>>,
    ) -> Result<BTreeMap<u64, (i32, Vec<u8>)>, Error> {
        let states = rows.iter().filter(|(key, _)| key.first() == Some(&STATE));
        let numbers = states.filter_map(|(_, value)| StateRow::decode(value)).map(|state| state.body.0);
        let numbers: Vec<u64> = numbers.filter(|number| *number != 0).collect();
        let mut lengths = BTreeMap::new();
        for numbers in numbers.chunks(BODIES) {
            let bodies = self.shared.read_bodies(account, numbers.to_vec(), false).await?;
            let length = |(number, body): (u64, Body)| {
                let blobs = body.blobs.iter().flat_map(|blob| blob.0).collect::<Vec<u8>>();
                (number, (i32::try_from(body.bytes.len()).unwrap_or(i32::MAX), blobs))
            };
            lengths.extend(bodies.into_iter().map(length));
        }
        Ok(lengths)
    }

    /// Checks that no follower is ahead of the accounts that it follows.
    async fn followers(&mut self, accounts: &[AccountId]) -> Result<(), Error> {
        let shared = self.shared;
        let restores = shared.restores();
        for (name, position) in shared.followers().await? {
            let last = shared.last_counter(restores).await?;
            let last = last.map_or((restores << super::schema::RESTORE_BITS).saturating_sub(1), |counter| {
                counter.last().0
            });
            if position.0 > last {
                self.report.note(format!("follower {name}"), "it is ahead of the feed");
            }
            for accounts in accounts.chunks(ACCOUNTS) {
                // Read checkpoints first: meanwhile an account can only move forward.
                let saved = shared.checkpoint(&name, accounts).await?.accounts;
                let heads: BTreeMap<AccountId, _> = shared.heads(accounts).await?.into_iter().collect();
                for (account, revision) in saved {
                    let now = heads.get(&account).map(|head| head.row.clone()).unwrap_or_default();
                    if revision > now.after_restores(restores).revision {
                        let what = format!("it is ahead of account {}", account.0);
                        self.report.note(format!("follower {name}"), what);
                    }
                }
            }
        }
        Ok(())
    }

    async fn meta(&mut self) -> Result<(), Error> {
        for key in [META_FORMAT, META_IDENTITY, META_SCHEMA] {
            let place = format!("table meta key {key}");
            let Some(value) = self.shared.meta(key).await? else {
                self.report.note(place, "it is not there");
                continue;
            };
            let is_sound = match key {
                META_FORMAT => decode_number(&value) == Some(FORMAT),
                META_IDENTITY => value == self.shared.identity.0,
                _ => {
                    indexes::decode(&value).is_some_and(|known| known == indexes::wanted(&self.shared.schema))
                }
            };
            if !is_sound {
                self.report.note(place, "its row is wrong");
            }
        }
        Ok(())
    }
}
