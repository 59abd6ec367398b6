//! An engine and the model beside it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::Arc,
};

use restante_core::{BlobId, Timestamp};
use restante_records::{
    AccountId, Change, Changes, ChangesSince, Checkpoint, Commit, Config, Cursor, Direction, EngineUrl,
    Error, FeedRequest, Get, Index, Kind, Opened, Position, Query, RESTORE_JUMP, RecordId, Revision, Schema,
    Stats, TOUCHED_MAX, Touched, Upkeep, copy, open, open_moving,
};

use crate::{
    common::{
        BY_ALL, BY_HASH, EMAIL, PAGES_MAX, email_schema,
        engines::TestStore,
        mailbox_schema,
        mirror::{Mirror, all_of, dump},
        moving::{close, copy_interrupted, differences, move_store, open_both},
        schema,
    },
    history::{self, History},
    operations::{ACCOUNTS, Asked, Expected, Operation, Pick, Wanted},
};

const FOLLOWERS: [&str; 4] = ["search", "sea", "push", "search\0"];

pub(crate) struct Pair {
    place: Arc<TestStore>,
    /// Where the store is now.
    config: Config,
    engine: Opened,
    model: Opened,
    /// Whether the engine has all indexes that the model has.
    has_all_indexes: bool,
    moves: usize,
    /// Cursors that were returned, and the indexes that they belong to.
    cursors: Vec<((Kind, Index), Cursor)>,
    /// What a client has of each account of the engine.
    clients: Vec<Mirror>,
    /// Accounts that are half erased: their records are removed without a revision until the last step, so clients lag
    /// until then.
    erasing: BTreeSet<AccountId>,
    history: History,
    /// The model's position for each position of the engine that was seen.
    positions: BTreeMap<Position, Position>,
    now_seconds: i64,
}

/// Both must return the same, or refuse for the same reason.
fn agreed<T: PartialEq + Debug>(
    what: &impl Debug,
    engine: Result<T, Error>,
    model: Result<T, Error>,
) -> Option<T> {
    match (engine, model) {
        (Ok(engine), Ok(model)) => {
            assert_eq!(engine, model, "{what:?}");
            Some(engine)
        }
        (Err(engine), Err(model)) => {
            assert_eq!(engine.kind(), model.kind(), "{what:?}: engine {engine}, model {model}");
            None
        }
        (engine, model) => panic!("{what:?}: engine {engine:?}, model {model:?}"),
    }
}

/// One of these, or `None` if there are none.
fn picked<T: Copy>(of: &[T], pick: Pick) -> Option<T> {
    (!of.is_empty()).then(|| of[usize::from(pick) % of.len()])
}

impl Pair {
    pub(crate) async fn open(place: Arc<TestStore>) -> Self {
        let config = Config { url: "memory:".parse().unwrap(), ..place.config.clone() };
        Self {
            engine: place.open().await,
            model: open(config).await.unwrap(),
            config: place.config.clone(),
            place,
            has_all_indexes: true,
            moves: 0,
            cursors: Vec::new(),
            clients: vec![Mirror::default(); ACCOUNTS as usize],
            history: History::default(),
            positions: BTreeMap::new(),
            now_seconds: 0,
            erasing: BTreeSet::new(),
        }
    }

    pub(crate) async fn run(&mut self, operation: Operation) {
        match operation {
            Operation::Commit { account, expect, changes } => {
                self.commit(AccountId(account), expect, changes).await
            }
            Operation::Get { account, kind, picks, with_body } => {
                self.get(AccountId(account), kind, &picks, with_body).await;
            }
            Operation::Query(asked) => self.query(*asked).await,
            Operation::Changes { account, kind, since, limit } => {
                self.changes(AccountId(account), kind, since, limit).await;
            }
            Operation::Follow { account, since, began, limit } => {
                self.follow(AccountId(account), since, began, limit).await;
            }
            Operation::KeepUp { account, limit } => self.keep_up(AccountId(account), limit).await,
            Operation::Touched { after, limit } => self.touched(after, limit).await,
            Operation::Save { follower, position, accounts } => {
                self.save(follower, position, &accounts).await
            }
            Operation::Forget { follower } => {
                let name = FOLLOWERS[follower];
                agreed(&name, self.engine.feed.forget(name).await, self.model.feed.forget(name).await);
            }
            Operation::Clean { seconds_ago, limit } => self.clean(seconds_ago, limit).await,
            Operation::Erase { account, limit } => self.erase(AccountId(account), limit).await,
            Operation::Wait { seconds } => {
                self.now_seconds += seconds;
                self.place.set_seconds(self.now_seconds);
            }
            Operation::Dump { after, limit } => self.dump(after, limit).await,
            Operation::Reopen { is_closed_before, has_all_indexes } => {
                self.reopen(is_closed_before, has_all_indexes).await;
            }
            Operation::Backup => self.backup().await,
            Operation::Move { interruptions } => self.move_away_and_back(&interruptions).await,
            Operation::Check => assert_sound(&self.engine).await,
        }
    }

    /// The existing records, as far as a commit needs to know.
    async fn known(&self, account: AccountId) -> Vec<(Kind, RecordId)> {
        let all = dump(&*self.model.upkeep, 1_000).await.into_iter();
        all.filter(|(place, _)| place.account == account).map(|(place, _)| (place.kind, place.id)).collect()
    }

    async fn revision(&self, account: AccountId) -> Revision {
        self.model.records.states(account).await.unwrap().revision
    }

    /// A revision of an account; may be the one after its last.
    async fn pick_revision(&self, account: AccountId, pick: Pick) -> Revision {
        Revision(u64::from(pick) % (self.revision(account).await.0 + 2))
    }

    async fn commit(&mut self, account: AccountId, expect: Vec<(Kind, Expected)>, changes: Vec<Wanted>) {
        let known = self.known(account).await;
        let states = self.model.records.states(account).await.unwrap();
        let mut commit = Commit::of(changes.into_iter().filter_map(|wanted| change(wanted, &known)));
        for (kind, expected) in expect {
            let state = match expected {
                Expected::AsItIs => states.of(kind),
                Expected::Other(state) => Revision(state),
            };
            commit = commit.if_in_state(kind, state);
        }
        let before = all_of(&*self.model.upkeep, account).await;
        let engine = self.engine.records.commit(account, commit.clone()).await;
        let committed = agreed(&commit, engine, self.model.records.commit(account, commit.clone()).await);
        if let Some(committed) = committed {
            for change in &commit.changes {
                if let Change::Destroy { kind, id } = change {
                    let record = &before[&(*kind, *id)];
                    self.history.destroyed(account, record, committed.revision, self.now_seconds);
                }
            }
        }
        let engine = self.engine.records.states(account).await;
        agreed(&commit, engine, self.model.records.states(account).await);
    }

    async fn get(&self, account: AccountId, kind: Kind, picks: &[Pick], with_body: bool) {
        let mut ids: Vec<RecordId> = self.known(account).await.into_iter().map(|(_, id)| id).collect();
        ids.extend([RecordId(0), RecordId(u64::MAX)]);
        let ids = picks.iter().filter_map(|pick| picked(&ids, *pick)).collect();
        let get = Get { kind, ids, with_body };
        agreed(
            &get,
            self.engine.records.get(account, &get).await,
            self.model.records.get(account, &get).await,
        );
    }

    async fn query(&mut self, asked: Asked) {
        let of = (asked.kind, asked.index);
        let account = AccountId(asked.account);
        let mut query = Query {
            kind: asked.kind,
            index: asked.index,
            after: asked.after.and_then(|pick| self.pick_cursor(of, pick)),
            equals: asked.equals,
            range: asked.range,
            direction: if asked.is_descending { Direction::Descending } else { Direction::Ascending },
            skip: asked.skip,
            limit: asked.limit,
            with_values: asked.limit.is_multiple_of(2),
        };
        let counted = self.engine.records.count(account, &query).await;
        if self.has_all_indexes || ![(EMAIL, BY_ALL), (EMAIL, BY_HASH)].contains(&of) {
            agreed(&query, counted, self.model.records.count(account, &query).await);
        }
        for _ in 0..PAGES_MAX {
            let engine = self.engine.records.query(account, &query).await;
            if !self.has_all_indexes && [(EMAIL, BY_ALL), (EMAIL, BY_HASH)].contains(&of) {
                assert!(engine.is_err(), "the engine doesn't have this index now");
                return;
            }
            let page = agreed(&query, engine, self.model.records.query(account, &query).await);
            let Some(next) = page.and_then(|page| page.next) else { return };
            self.cursors.push((of, next.clone()));
            if !asked.is_walked {
                return;
            }
            query.after = Some(next);
            query.skip = 0;
        }
        panic!("the walk of {query:?} doesn't end");
    }

    /// A cursor of an index; sometimes that of another one.
    fn pick_cursor(&self, of: (Kind, Index), pick: Pick) -> Option<Cursor> {
        let is_any = pick.is_multiple_of(16);
        let own = self.cursors.iter().filter(|(cursor_of, _)| is_any || *cursor_of == of);
        let own: Vec<&Cursor> = own.map(|(_, cursor)| cursor).collect();
        picked(&own, pick).cloned()
    }

    async fn changes(&self, account: AccountId, kind: Option<Kind>, since: Pick, limit: usize) {
        let since = ChangesSince { kind, since: self.pick_revision(account, since).await, limit };
        self.compare_changes(account, &since).await;
    }

    async fn compare_changes(&self, account: AccountId, since: &ChangesSince) {
        let engine = self.engine.records.changes(account, since).await;
        let model = self.model.records.changes(account, since).await;
        let ChangesSince { kind, since, limit } = *since;
        let asked = history::Asked { account, kind, since, limit, with_unknown: false };
        self.compare_pages(&asked, engine, model).await;
    }

    async fn follow(&self, account: AccountId, since: Pick, began: Pick, limit: usize) {
        let (since, began) =
            (self.pick_revision(account, since).await, self.pick_revision(account, began).await);
        let request = FeedRequest { since, began, limit };
        let engine = self.engine.feed.follow(account, &request).await;
        let model = self.model.feed.follow(account, &request).await;
        let asked = history::Asked { account, kind: None, since, limit, with_unknown: true };
        self.compare_pages(&asked, engine, model).await;
    }

    /// Engines may choose where a page ends: each must be right by itself.
    async fn compare_pages(
        &self,
        asked: &history::Asked,
        engine: Result<Changes, Error>,
        model: Result<Changes, Error>,
    ) {
        let pages = match (engine, model) {
            (Ok(engine), Ok(model)) => [engine, model],
            (engine, model) => {
                agreed(asked, engine, model);
                return;
            }
        };
        let records = all_of(&*self.model.upkeep, asked.account).await;
        let revision = self.revision(asked.account).await;
        for page in &pages {
            self.history.assert_right(page, asked, &records, revision);
        }
    }

    /// A client that can't continue from its state starts again, as a follower.
    async fn keep_up(&mut self, account: AccountId, limit: usize) {
        let client = &mut self.clients[account.0 as usize];
        let since = ChangesSince { kind: None, since: client.revision, limit };
        if self.engine.records.changes(account, &since).await.is_ok() {
            client.keep_up(&*self.engine.records, account, limit).await;
        } else {
            *client = Mirror::default();
            client.follow(&*self.engine.records, &*self.engine.feed, account, limit).await;
        }
        if !self.erasing.contains(&account) {
            client.assert_equals(&*self.engine.upkeep, account).await;
        }
    }

    /// Positions are specific to a store, so those of both are recorded side by side.
    async fn note_positions(&mut self) {
        let engine = self.engine.feed.touched(Position::default(), TOUCHED_MAX).await.unwrap();
        let model = self.model.feed.touched(Position::default(), TOUCHED_MAX).await.unwrap();
        assert_eq!(without_positions(engine.clone()), without_positions(model.clone()));
        self.positions
            .extend(engine.iter().zip(&model).map(|(engine, model)| (engine.position, model.position)));
    }

    fn picked_position(&self, pick: Pick) -> (Position, Position) {
        let known: Vec<_> = self.positions.iter().map(|(engine, model)| (*engine, *model)).collect();
        picked(&known, pick).unwrap_or_default()
    }

    async fn touched(&mut self, after: Pick, limit: usize) {
        self.note_positions().await;
        let (engine, model) = self.picked_position(after);
        let engine = self.engine.feed.touched(engine, limit).await.map(without_positions);
        agreed(&after, engine, self.model.feed.touched(model, limit).await.map(without_positions));
    }

    /// A follower is never ahead of the store: the check would find that.
    async fn save(&mut self, follower: usize, position: Pick, accounts: &[(u32, Pick)]) {
        self.note_positions().await;
        let (of_engine, of_model) = self.picked_position(position);
        let mut checkpoint = Checkpoint { position: of_engine, accounts: Vec::new() };
        for (account, pick) in accounts {
            let account = AccountId(*account);
            let last = self.revision(account).await.0;
            checkpoint.accounts.push((account, Revision(u64::from(*pick) % (last + 1))));
        }
        let name = FOLLOWERS[follower];
        let engine = self.engine.feed.save(name, &checkpoint).await;
        let of_model = Checkpoint { position: of_model, ..checkpoint.clone() };
        agreed(&checkpoint, engine, self.model.feed.save(name, &of_model).await);
        self.compare_followers().await;
    }

    async fn compare_followers(&self) {
        let all: Vec<AccountId> = (0..ACCOUNTS).map(AccountId).collect();
        for name in FOLLOWERS {
            let mut engine = self.engine.feed.checkpoint(name, &all).await.unwrap();
            engine.position = self.of_model(engine.position);
            assert_eq!(engine, self.model.feed.checkpoint(name, &all).await.unwrap(), "{name}");
        }
        let mut engine = self.engine.feed.followers().await.unwrap();
        for (_, position) in &mut engine {
            *position = self.of_model(*position);
        }
        assert_eq!(engine, self.model.feed.followers().await.unwrap());
    }

    fn of_model(&self, position: Position) -> Position {
        let is_default = position == Position::default();
        if is_default { position } else { self.positions[&position] }
    }

    async fn clean(&mut self, seconds_ago: i64, limit: usize) {
        let before = Timestamp::from_seconds(self.now_seconds - seconds_ago);
        let engine = self.engine.upkeep.clean(before, limit).await;
        let cleaned = agreed(&(before, limit), engine, self.model.upkeep.clean(before, limit).await).unwrap();
        self.history.forget(self.now_seconds - seconds_ago, cleaned.tombstones as usize);
    }

    async fn erase(&mut self, account: AccountId, limit: usize) {
        let engine = self.engine.upkeep.erase(account, limit).await;
        let erased =
            agreed(&(account, limit), engine, self.model.upkeep.erase(account, limit).await).unwrap();
        self.history.erased(account, erased.tombstones as usize);
        if erased.has_more {
            self.erasing.insert(account);
        } else {
            self.erasing.remove(&account);
        }
        let engine = self.engine.records.states(account).await;
        agreed(&account, engine, self.model.records.states(account).await);
    }

    async fn dump(&self, after: Pick, limit: usize) {
        let places: Vec<_> =
            dump(&*self.model.upkeep, 1_000).await.into_iter().map(|(place, _)| place).collect();
        let after = picked(&places, after);
        let engine = self.engine.upkeep.dump(after, limit).await;
        agreed(&(after, limit), engine, self.model.upkeep.dump(after, limit).await);
    }

    async fn reopen(&mut self, is_closed_before: bool, has_all_indexes: bool) {
        if is_closed_before {
            self.engine.upkeep.close().await.unwrap();
        }
        // What is not closed is dropped, as by a process that ends.
        self.engine = self.model.clone();
        self.has_all_indexes = has_all_indexes;
        self.engine = open(self.config_with_schema()).await.unwrap();
    }

    fn config_with_schema(&self) -> Config {
        let schema = if self.has_all_indexes { schema() } else { fewer_indexes() };
        Config { schema, ..self.config.clone() }
    }

    /// Continues with a copy of a copy. The first copy is on another engine.
    async fn move_away_and_back(&mut self, interruptions: &[usize]) {
        self.engine.upkeep.close().await.unwrap();
        self.engine = self.model.clone();
        let from = self.config_with_schema();
        let away = EngineUrl::Lmdb(self.place.beside(&format!("away {}", self.moves)));
        let back = Config { schema: from.schema.clone(), ..self.place.other() };
        self.moves += 1;
        if matches!(from.url, EngineUrl::Lmdb(_)) {
            let memory = Config { url: EngineUrl::Memory, ..from.clone() };
            let (source, middle) = open_both(&from, &memory).await;
            let mut is_copied = false;
            for writes in interruptions {
                is_copied = is_copied || copy_interrupted(&source, &middle, *writes).await.is_some();
            }
            if !is_copied {
                copy(&source, &middle, &|_, _| ()).await.unwrap();
            }
            let identity = source.opened.upkeep.identity();
            let end = open_moving(Config { identity, ..back.clone() }).await.unwrap();
            copy(&middle, &end, &|_, _| ()).await.unwrap();
            assert_eq!(differences(&source, &end).await, Vec::<String>::new());
            close([source, end]).await;
        } else {
            let away = Config { url: away, ..from.clone() };
            move_store(&from, &away, interruptions).await;
            move_store(&away, &back, interruptions).await;
        }
        self.config = Config { schema: schema(), ..back };
        self.engine = open(self.config_with_schema()).await.unwrap();
    }

    /// A backup has what the store has.
    async fn backup(&mut self) {
        let place = self.place.copy(&self.config, &self.engine).await;
        let schema = if self.has_all_indexes { schema() } else { fewer_indexes() };
        let copy = open(Config { schema, ..place }).await.unwrap();
        assert_same(&copy, &self.model, 1).await;
        copy.upkeep.close().await.unwrap();
    }

    /// Everything that can be read is the same at the end.
    pub(crate) async fn finish(mut self) {
        for account in self.erasing.clone() {
            self.erase(account, usize::MAX).await;
        }
        for account in 0..ACCOUNTS {
            let account = AccountId(account);
            self.keep_up(account, 3).await;
            for since in 0..=self.revision(account).await.0 {
                let since = ChangesSince { kind: None, since: Revision(since), limit: 5 };
                self.compare_changes(account, &since).await;
            }
        }
        self.compare_followers().await;
        assert_same(&self.engine, &self.model, 0).await;
        self.engine.upkeep.close().await.unwrap();
    }
}

/// A change of a commit; `None` if there is no record for it.
fn change(wanted: Wanted, known: &[(Kind, RecordId)]) -> Option<Change> {
    match wanted {
        Wanted::Create { kind, body, properties } => Some(Change::Create { kind, body, properties }),
        Wanted::Update { pick, body, properties } => {
            let (kind, id) = picked(known, pick)?;
            let properties = properties.filter(|_| kind == EMAIL);
            Some(Change::Update { kind, id, body, properties })
        }
        Wanted::Destroy { pick } => picked(known, pick).map(|(kind, id)| Change::Destroy { kind, id }),
        Wanted::DestroyMissing { kind, id } => Some(Change::Destroy { kind, id: RecordId(id) }),
    }
}

/// The schema without two of the indexes of emails.
fn fewer_indexes() -> Schema {
    let mut emails = email_schema();
    emails.indexes.retain(|index| ![BY_ALL, BY_HASH].contains(&index.index));
    let threads = schema().kinds().last().unwrap().clone();
    Schema::new(vec![emails, mailbox_schema(), threads]).unwrap()
}

async fn assert_sound(opened: &Opened) {
    let report = opened.upkeep.check(&|_, _| ()).await.unwrap();
    assert_eq!((report.findings, report.wrong), (vec![], 0));
}

async fn references(upkeep: &dyn Upkeep) -> Vec<BlobId> {
    let (mut all, mut after) = (Vec::new(), None);
    for _ in 0..PAGES_MAX {
        let page = upkeep.referenced(after).await.unwrap();
        all.extend(page.blobs);
        after = page.next;
        if after.is_none() {
            all.sort();
            return all;
        }
    }
    panic!("the references don't end");
}

fn without_positions(touched: Vec<Touched>) -> Vec<Touched> {
    touched.into_iter().map(|touched| Touched { position: Position::default(), ..touched }).collect()
}

/// What all engines count alike: the records, and what history remembers.
fn counts(stats: &Stats) -> impl PartialEq + Debug + use<> {
    let kinds = stats.kinds.iter().map(|kind| (kind.kind, kind.records, kind.tombstones));
    let kinds: BTreeSet<_> = kinds.filter(|(_, records, tombstones)| records + tombstones > 0).collect();
    (stats.accounts, kinds, stats.commits)
}

/// The engine has what the model has, and this many restores.
async fn assert_same(engine: &Opened, model: &Opened, restores: u64) {
    assert_sound(engine).await;
    assert_eq!(dump(&*engine.upkeep, 7).await, dump(&*model.upkeep, 1_000).await);
    assert_eq!(references(&*engine.upkeep).await, references(&*model.upkeep).await);
    let (own, theirs) = (engine.upkeep.stats().await.unwrap(), model.upkeep.stats().await.unwrap());
    assert_eq!(counts(&own), counts(&theirs));
    for account in 0..ACCOUNTS {
        let account = AccountId(account);
        let mut states = model.records.states(account).await.unwrap();
        states.revision.0 += restores * RESTORE_JUMP;
        agreed(&account, engine.records.states(account).await, Ok(states));
    }
    let own = engine.feed.touched(Position::default(), 10).await.map(without_positions);
    agreed(&"touched", own, model.feed.touched(Position::default(), 10).await.map(without_positions));
}
