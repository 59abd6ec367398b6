//! The reference model: plain maps, every answer computed from all records. It is written to be obviously correct; the other
//! engines are compared with it.

mod account;
mod feed;
mod transfer;
mod upkeep;

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use parking_lot::Mutex;
use restante_core::{Clock, Identity};

use crate::{
    AccountId, Announcement, Changes, ChangesSince, Commit, Committed, Config, Count, Error, Get, Moving,
    Opened, Page, Position, Query, Record, Records, Revision, Schema, States, Watch,
    memory::account::{Account, Moment},
    validate,
    watch::Announcer,
};

pub(crate) fn open(config: &Config) -> Moving {
    let model = Arc::new(Model {
        schema: config.schema.clone(),
        clock: config.clock.clone(),
        identity: config.identity,
        announcer: Announcer::new(),
        state: Mutex::default(),
    });
    let opened = Opened { records: model.clone(), feed: model.clone(), upkeep: model.clone(), peers: None };
    Moving { opened, transfer: model }
}

struct Model {
    schema: Schema,
    clock: Arc<dyn Clock>,
    identity: Identity,
    announcer: Announcer,
    state: Mutex<State>,
}

/// Everything that the store contains.
#[derive(Default)]
struct State {
    is_closed: bool,
    accounts: BTreeMap<AccountId, Account>,
    /// The position of the last commit of all accounts, which equals the number of commits.
    position: Position,
    /// How many bodies were ever stored.
    bodies: u64,
    followers: BTreeMap<String, Follower>,
    /// Whether it is an incomplete copy. Only the copying code uses such a store.
    is_incomplete: bool,
    /// Rows of accounts whose copy is not finished.
    unfinished: BTreeMap<AccountId, Account>,
}

/// The progress of a follower.
#[derive(Default)]
struct Follower {
    position: Position,
    accounts: BTreeMap<AccountId, Revision>,
}

impl State {
    fn check_open(&self) -> Result<(), Error> {
        if self.is_closed {
            return Err(Error::unavailable("the record store is closed"));
        }
        Ok(())
    }

    /// The state of an account; empty when nothing was ever committed in it.
    fn account(&self, account: AccountId) -> &Account {
        self.accounts.get(&account).unwrap_or(&account::NEW)
    }
}

#[async_trait]
impl Records for Model {
    async fn commit(&self, account: AccountId, commit: Commit) -> Result<Committed, Error> {
        validate::check_commit(&self.schema, &commit)?;
        let mut state = self.state.lock();
        state.check_open()?;
        state.account(account).check(account, &commit)?;
        if commit.changes.is_empty() {
            return Ok(Committed { revision: state.account(account).revision, created: Vec::new() });
        }
        state.position.0 += 1;
        let moment = Moment { position: state.position, first_body: state.bodies + 1, now: self.clock.now() };
        state.bodies += commit.changes.len() as u64; // unused numbers do no harm
        let committed = state.accounts.entry(account).or_insert_with(Account::new).apply(commit, &moment)?;
        self.announcer.announce(Announcement { account, revision: committed.revision });
        Ok(committed)
    }

    async fn get(&self, account: AccountId, get: &Get) -> Result<Vec<Option<Record>>, Error> {
        validate::check_get(&self.schema, get)?;
        let state = self.state.lock();
        Ok(state.account(account).get(get))
    }

    async fn query(&self, account: AccountId, query: &Query) -> Result<Page, Error> {
        let checked = validate::check_query(&self.schema, query)?;
        let state = self.state.lock();
        state.account(account).query(query, &checked)
    }

    async fn count(&self, account: AccountId, query: &Query) -> Result<Count, Error> {
        let checked = validate::check_query(&self.schema, query)?;
        let state = self.state.lock();
        state.account(account).count(query, &checked)
    }

    async fn changes(&self, account: AccountId, since: &ChangesSince) -> Result<Changes, Error> {
        validate::check_changes(&self.schema, since)?;
        let state = self.state.lock();
        state.account(account).changes(account, since)
    }

    async fn states(&self, account: AccountId) -> Result<States, Error> {
        let state = self.state.lock();
        Ok(state.account(account).states())
    }

    fn watch(&self) -> Watch {
        self.announcer.watch()
    }
}
