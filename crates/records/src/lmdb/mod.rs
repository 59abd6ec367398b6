//! The LMDB engine. `schema` describes its tables, `docs/design/records.md` gives the reasons.
//!
//! Reads are closures on a view and run on the calling thread; those that may take longer than about half a millisecond run on
//! the blocking pool. A commit is checked and packed on the calling thread; the part that depends on existing rows runs on the
//! writer thread of the store.

mod bodies;
mod changes;
mod check;
mod clean;
mod commit;
mod dictionary;
mod dump;
mod erase;
mod feed;
pub(crate) mod fuzz;
mod get;
mod origin;
mod query;
mod reindex;
mod schema;
mod stats;
#[cfg(test)]
mod testing;
mod training;
mod transfer;
mod unsynced;
mod walk;

use std::{
    ops::Bound,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use restante_core::{Clock, Identity, Timestamp};
use restante_lmdb::{Direction, Options, Store, SyncOthers};
use tokio::task::{spawn_blocking, yield_now};

use crate::{
    AccountId, Changes, ChangesSince, Checkpoint, Cleaned, Commit, Committed, Config, Count, Dumped, Erased,
    Error, Feed, FeedRequest, Gate, Get, Moving, Opened, Page, Position, Query, Record, RecordKey, Records,
    Referenced, Report, Revision, Schema, States, Stats, Touched, UnsyncedBlobs, Upkeep, Watch,
    open::Purpose, transfer::incomplete, validate, watch::Announcer,
};

use self::{
    bodies::Bodies,
    origin::Origin,
    schema::{
        ACCOUNT, BodyNumber, FORMAT, INCOMPLETE_NEW, META, META_FORMAT, META_IDENTITY, META_INCOMPLETE,
        decode_number, encode_number,
    },
};

/// The most records that are read on the calling thread: each takes some microseconds, more with a long body.
const RECORDS_INLINE_MAX: usize = 32;
/// The most rows of an index or of the history that are read on the calling thread: each takes a quarter of a microsecond.
const ROWS_INLINE_MAX: usize = 1_024;
/// A larger page is first tried with this many rows on the calling thread. Most such pages end before that: a query for a thread
/// allows for thousands of emails, and finds two.
const ROWS_TRIED_MAX: u64 = 128;
/// Up to this many queries are answered together on the calling thread, if each reads no more than this many rows: some thousand
/// rows in all, as above.
const QUERIES_INLINE_MAX: usize = 64;
const QUERY_ROWS_TRIED_MAX: u64 = 16;
/// The most changes that are read on the calling thread: finding that many may mean walking over several times as many rows.
const CHANGES_INLINE_MAX: usize = 256;
/// On the calling thread, a reader of changes may lag behind by this many revisions: each may have many rows to skip.
const REVISIONS_INLINE_MAX: u64 = 128;

/// How far positions jump for each restore: more than the commits between two restores.
const POSITIONS_PER_RESTORE: u64 = 1 << 40;

pub(crate) use origin::DATA_FILE;

/// Opens the store of a folder.
pub(crate) async fn open(folder: &Path, config: Config, purpose: Purpose) -> Result<Moving, Error> {
    let folder = folder.to_owned();
    let engine = blocking(move || {
        let engine = Engine::open(&folder, &config, purpose)?;
        let checked = match purpose {
            Purpose::Serve if engine.is_incomplete()? => Err(incomplete()),
            Purpose::Serve => Ok(()),
            Purpose::Move => unsynced::check_none(&engine.store),
        };
        if let Err(error) = checked {
            engine.bodies.close();
            return Err(error);
        }
        Ok(engine)
    });
    let faces = Arc::new(Faces(Arc::new(engine.await?)));
    let opened = Opened { records: faces.clone(), feed: faces.clone(), upkeep: faces.clone(), peers: None };
    Ok(Moving { opened, transfer: faces })
}

/// Runs `work` on the blocking pool.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let done = spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Error::internal(format!("work on records broke off: {error}"))))
}

/// An open store.
pub(super) struct Engine {
    store: Store,
    bodies: Bodies,
    ledger: Arc<Ledger>,
    announcer: Announcer,
    identity: Identity,
    /// Whether commits may make blobs durable that were put without a sync.
    can_make_blobs_durable: bool,
    /// Whether they do: it is known that the blobs are those of these records.
    makes_blobs_durable: AtomicBool,
}

/// What the writer thread needs besides the tables.
struct Ledger {
    schema: Schema,
    clock: Arc<dyn Clock>,
    /// The number of the last body. Only the writer thread assigns numbers, so they rise in the order of the commits.
    last_body: AtomicU64,
    /// The position of the last commit, likewise.
    last_position: AtomicU64,
    /// How many restores the store has been through.
    restores: u64,
}

impl Ledger {
    /// The next body's number. The numbers of commits that fail are skipped.
    fn next_body(&self) -> BodyNumber {
        BodyNumber(self.last_body.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// The number of the last body.
    fn last_body(&self) -> BodyNumber {
        BodyNumber(self.last_body.load(Ordering::Relaxed))
    }

    /// The next commit's position.
    fn next_position(&self) -> Position {
        Position(self.last_position.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

impl Engine {
    fn open(folder: &Path, config: &Config, purpose: Purpose) -> Result<Self, Error> {
        let metrics = config.metrics.lmdb.clone();
        let origin = Origin::of(folder)?;
        let blobs = config.unsynced_blobs.as_ref();
        let sync_others = blobs.cloned().map(|blobs| SyncOthers(Arc::new(move || blobs.sync())));
        let options =
            Options { log_bytes: config.lmdb.log_bytes, sync_others, metrics, ..Options::default() };
        let store = Store::open(folder, &schema::TABLES, options)?;
        let is_target = purpose == Purpose::Move && !config.must_exist;
        check_format(&store, config.identity, is_target)?;
        let restores = origin.settle(&store)?;
        let identity = identify(&store, config.identity)?;
        reindex::adapt(&store, &config.schema)?;
        let bodies = Bodies::open(&store, config.lmdb.is_compressed)?;
        let (last_body, last_position) =
            store.read(|view| Ok((commit::last_body(view)?, feed::position(view)?)))?;
        let last_position = last_position.max(Position(restores.saturating_mul(POSITIONS_PER_RESTORE)));
        let ledger = Ledger {
            schema: config.schema.clone(),
            clock: config.clock.clone(),
            last_body: AtomicU64::new(last_body.0),
            last_position: AtomicU64::new(last_position.0),
            restores,
        };
        let can_make_blobs_durable =
            blobs.is_some() && config.lmdb.log_bytes > 0 && config.lmdb.has_blobs_in_log;
        let makes_blobs_durable = AtomicBool::new(false);
        let (ledger, announcer) = (Arc::new(ledger), Announcer::new());
        Ok(Self { store, bodies, ledger, announcer, identity, can_make_blobs_durable, makes_blobs_durable })
    }
}

impl Engine {
    fn makes_blobs_durable(&self) -> bool {
        self.makes_blobs_durable.load(Ordering::Relaxed)
    }
}

/// Fails for a store with another layout; writes the layout and the identity of a new one.
///
/// A new store that another one is to be copied into is marked as an incomplete copy in the same commit. Otherwise, when a copy
/// is killed right after this, a server would take what it left for an empty store, and fill it.
fn check_format(store: &Store, new: Identity, is_target: bool) -> Result<(), Error> {
    let found = store.read(|view| {
        let format = view.get(META, META_FORMAT)?.map(decode_number);
        let is_new =
            view.range(ACCOUNT, Bound::Unbounded, Bound::Unbounded, Direction::Ascending)?.next()?.is_none();
        Ok((format, is_new))
    })?;
    match found {
        (Some(Some(FORMAT)), _) => Ok(()),
        (None, true) => store.write_blocking(move |batch| {
            batch.put(META, META_FORMAT, &encode_number(FORMAT));
            batch.put(META, META_IDENTITY, &new.0);
            if is_target {
                batch.put(META, META_INCOMPLETE, &encode_number(INCOMPLETE_NEW));
            }
            Ok(())
        }),
        (Some(Some(other)), _) => Err(Error::corrupt(format!(
            "the records have format version {other}, and this program knows version {FORMAT}: use the version that wrote them"
        ))),
        (Some(None), _) | (None, false) => {
            Err(Error::corrupt("the records don't say which format they have: restore a backup"))
        }
    }
}

/// Reads the identity of the store. If there is none, the store is of an older version without identities, and gets a new one.
fn identify(store: &Store, new: Identity) -> Result<Identity, Error> {
    let found = store.read(|view| Ok(view.get(META, META_IDENTITY)?.map(|row| row.to_vec())))?;
    let Some(row) = found else {
        store.write_blocking(move |batch| {
            batch.put(META, META_IDENTITY, &new.0);
            Ok(())
        })?;
        return Ok(new);
    };
    let known = row.try_into().map(Identity);
    known.map_err(|_| {
        Error::corrupt("the records don't say which they are: their identity is damaged: restore a backup")
    })
}

/// Implements the traits of the crate.
#[derive(Clone)]
struct Faces(Arc<Engine>);

impl Faces {
    /// Runs a read on the blocking pool if it is long, otherwise on the calling thread.
    async fn read<T: Send + 'static>(
        &self,
        is_long: bool,
        read: impl FnOnce(&Engine) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        if !is_long {
            return read(&self.0);
        }
        let engine = self.0.clone();
        blocking(move || read(&engine)).await
    }

    /// Whether a page of changes may take long: it is large, or the reader lags far behind and many records changed several times
    /// since. Their deleted rows are skipped one by one as long as they are in the commit log.
    fn has_many_changes(&self, account: AccountId, since: Revision, limit: usize) -> Result<bool, Error> {
        if limit > CHANGES_INLINE_MAX {
            return Ok(true);
        }
        let revision = self.0.states(account)?.revision;
        Ok(revision.0.saturating_sub(since.0) > REVISIONS_INLINE_MAX)
    }
}

#[async_trait]
impl Records for Faces {
    async fn commit(&self, account: AccountId, commit: Commit) -> Result<Committed, Error> {
        commit::commit(&self.0, account, commit).await
    }

    async fn commit_after(
        &self,
        gates: &[Gate],
        account: AccountId,
        commit: Commit,
    ) -> Result<Committed, Error> {
        commit::commit_after(&self.0, gates, account, commit).await
    }

    fn makes_blobs_durable(&self) -> bool {
        self.0.makes_blobs_durable()
    }

    async fn get(&self, account: AccountId, get: &Get) -> Result<Vec<Option<Record>>, Error> {
        validate::check_get(&self.0.ledger.schema, get)?;
        if get.ids.len() <= RECORDS_INLINE_MAX {
            return self.0.get(account, get);
        }
        let (engine, get) = (self.0.clone(), get.clone());
        blocking(move || engine.get(account, &get)).await
    }

    async fn query(&self, account: AccountId, query: &Query) -> Result<Page, Error> {
        let rows = query.skip.saturating_add(query.limit as u64); // skipped rows are read, too
        if rows <= ROWS_INLINE_MAX as u64 {
            return self.0.query(account, query);
        }
        if let Some(page) = self.0.query_short(account, query, ROWS_TRIED_MAX)? {
            return Ok(page);
        }
        let (engine, query) = (self.0.clone(), query.clone());
        blocking(move || engine.query(account, &query)).await
    }

    async fn query_each(&self, account: AccountId, queries: &[Query]) -> Result<Vec<Page>, Error> {
        validate::check_queries(queries)?;
        let mut pages = Vec::with_capacity(queries.len());
        for queries in queries.chunks(QUERIES_INLINE_MAX) {
            if !pages.is_empty() {
                yield_now().await;
            }
            let short = self.0.query_each_short(account, queries, QUERY_ROWS_TRIED_MAX)?;
            for (query, page) in queries.iter().zip(short) {
                pages.push(match page {
                    Some(page) => page,
                    None => self.query(account, query).await?,
                });
            }
        }
        Ok(pages)
    }

    async fn count(&self, account: AccountId, query: &Query) -> Result<Count, Error> {
        let (engine, query) = (self.0.clone(), query.clone());
        blocking(move || engine.count(account, &query)).await
    }

    async fn changes(&self, account: AccountId, since: &ChangesSince) -> Result<Changes, Error> {
        let since = *since;
        let is_long = self.has_many_changes(account, since.since, since.limit)?;
        self.read(is_long, move |engine| engine.changes(account, &since)).await
    }

    async fn states(&self, account: AccountId) -> Result<States, Error> {
        self.0.states(account)
    }

    fn watch(&self) -> Watch {
        self.0.announcer.watch()
    }
}

#[async_trait]
impl Feed for Faces {
    async fn touched(&self, after: Position, limit: usize) -> Result<Vec<Touched>, Error> {
        // Always on the blocking pool: when an account changes again, its old row is deleted, and deleted rows are skipped one by
        // one as long as they are in the commit log.
        self.read(true, move |engine| engine.touched(after, limit)).await
    }

    async fn follow(&self, account: AccountId, request: &FeedRequest) -> Result<Changes, Error> {
        let request = *request;
        let is_long = self.has_many_changes(account, request.since, request.limit)?;
        self.read(is_long, move |engine| engine.follow(account, &request)).await
    }

    async fn checkpoint(&self, follower: &str, accounts: &[AccountId]) -> Result<Checkpoint, Error> {
        validate::check_checkpoint(follower, accounts.len())?;
        if accounts.len() <= ROWS_INLINE_MAX {
            return self.0.checkpoint(follower, accounts);
        }
        let (engine, follower, accounts) = (self.0.clone(), follower.to_owned(), accounts.to_vec());
        blocking(move || engine.checkpoint(&follower, &accounts)).await
    }

    async fn save(&self, follower: &str, checkpoint: &Checkpoint) -> Result<(), Error> {
        self.0.save(follower, checkpoint).await
    }

    async fn forget(&self, follower: &str) -> Result<(), Error> {
        self.0.forget(follower).await
    }

    async fn followers(&self) -> Result<Vec<(String, Position)>, Error> {
        self.read(true, Engine::followers).await
    }
}

#[async_trait]
impl Upkeep for Faces {
    async fn stats(&self) -> Result<Stats, Error> {
        self.read(true, Engine::stats).await
    }

    fn health(&self) -> Result<(), Error> {
        self.0.store.health()
    }

    async fn check(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
        self.0.check(progress)
    }

    async fn clean(&self, before: Timestamp, limit: usize) -> Result<Cleaned, Error> {
        let engine = self.0.clone();
        blocking(move || engine.clean(before, limit)).await
    }

    async fn erase(&self, account: AccountId, limit: usize) -> Result<Erased, Error> {
        let engine = self.0.clone();
        blocking(move || engine.erase(account, limit)).await
    }

    async fn dump(&self, after: Option<RecordKey>, limit: usize) -> Result<Vec<Dumped>, Error> {
        self.read(true, move |engine| engine.dump(after, limit)).await
    }

    async fn referenced(&self, after: Option<u64>) -> Result<Referenced, Error> {
        self.read(true, move |engine| engine.referenced(after)).await
    }

    fn identity(&self) -> Identity {
        self.0.identity
    }

    fn restores(&self) -> u64 {
        self.0.ledger.restores
    }

    async fn has_blobs_to_put(&self) -> Result<bool, Error> {
        unsynced::has_some(&self.0.store)
    }

    async fn put_blobs_again(&self, blobs: Arc<dyn UnsyncedBlobs>) -> Result<u64, Error> {
        let engine = self.0.clone();
        let count = blocking(move || unsynced::put_again(&engine.store, &*blobs)).await?;
        self.0.makes_blobs_durable.store(self.0.can_make_blobs_durable, Ordering::Relaxed);
        Ok(count)
    }

    async fn backup(&self, folder: &Path) -> Result<(), Error> {
        refuse_full(folder)?;
        self.0.store.backup(folder).await
    }

    async fn close(&self) -> Result<(), Error> {
        let engine = self.0.clone();
        let close_bodies = move || {
            engine.bodies.close(); // waits for the current read or write of a training
            Ok(())
        };
        blocking(close_bodies).await?;
        self.0.store.close().await
    }
}

/// Fails if the folder is not empty: a copy must not be mixed with anything else.
fn refuse_full(folder: &Path) -> Result<(), Error> {
    let name = folder.display().to_string();
    let mut entries = std::fs::read_dir(folder).map_err(|error| Error::io("read", &name, error))?;
    match entries.next() {
        None => Ok(()),
        Some(_) => Err(Error::conflict(format!("the folder {name} is not empty: back up into a new one"))),
    }
}

#[cfg(test)]
mod tests {
    use restante_core::ErrorKind;

    use super::*;
    use crate::QUERY_ROWS_MAX;

    #[tokio::test]
    async fn a_page_with_much_room_is_the_same_however_many_rows_there_are() {
        let (_folder, engine) = testing::engine();
        let emails =
            |mailbox: u64, count: u64| (0..count).map(move |n| testing::create(testing::email(mailbox, n)));
        let counts = [0, 1, ROWS_TRIED_MAX - 1, ROWS_TRIED_MAX, ROWS_TRIED_MAX + 1, 1_500];
        let mut ids = Vec::new();
        for (mailbox, count) in (1..).zip(counts) {
            ids.push(testing::make(&engine, emails(mailbox, count)).await);
        }
        let records = Faces(engine);
        for (mailbox, ids) in (1_u64..).zip(&ids) {
            let query = Query::new(testing::EMAIL, testing::BY_MAILBOX).equals(mailbox).limit(QUERY_ROWS_MAX);
            for skip in [0, 1, ROWS_TRIED_MAX, 1_400] {
                let rest = ids.get(skip as usize..).unwrap_or_default();
                let query = query.clone().skip(skip);
                let page = records.query(testing::ACCOUNT, &query).await.unwrap();
                assert_eq!((&page.ids[..], page.next), (rest, None), "{} after {skip}", ids.len());
                let page = records.query(testing::ACCOUNT, &query.limit(1_100)).await.unwrap();
                assert_eq!(page.ids, rest[..rest.len().min(1_100)]);
                assert_eq!(page.next.is_some(), rest.len() > 1_100);
            }
            let error = records.query(testing::ACCOUNT, &query.limit(QUERY_ROWS_MAX + 1)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
        }
    }

    /// Writes a row of the meta table, or removes it.
    async fn set_format(engine: &Engine, format: Option<u64>) {
        let write = move |batch: &mut restante_lmdb::Batch<'_>| {
            match format {
                Some(format) => batch.put(META, META_FORMAT, &encode_number(format)),
                None => batch.delete(META, META_FORMAT),
            }
            Ok(())
        };
        engine.store.write(write).await.unwrap();
    }

    #[tokio::test]
    async fn a_store_of_another_format_is_refused_and_left_alone() {
        let (folder, engine) = testing::engine();
        testing::make(&engine, [testing::create(testing::email(1, 100))]).await;
        for format in [Some(FORMAT + 1), None] {
            set_format(&engine, format).await;
            let before = testing::rows(&engine);
            let error = check_format_of(&engine).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{format:?}");
            if format.is_some() {
                let refusal = "the records have format version 5, and this program knows version 4";
                assert!(error.to_string().contains(refusal), "{error}");
            }
            assert_eq!(testing::rows(&engine), before);
        }
        set_format(&engine, Some(FORMAT)).await;
        drop(engine);
        testing::open(folder.path()).unwrap();
    }

    async fn set_identity(engine: &Engine, row: Option<&'static [u8]>) {
        let write = move |batch: &mut restante_lmdb::Batch<'_>| {
            match row {
                Some(row) => batch.put(META, META_IDENTITY, row),
                None => batch.delete(META, META_IDENTITY),
            }
            Ok(())
        };
        engine.store.write(write).await.unwrap();
    }

    #[tokio::test]
    async fn a_store_of_before_there_were_identities_gets_one_and_keeps_it() {
        let (folder, engine) = testing::engine();
        set_identity(&engine, None).await;
        drop(engine);
        let open_as = |new: [u8; 16]| {
            let mut config = Config::new(crate::EngineUrl::Memory, testing::schema());
            config.identity = Identity(new);
            let folder = folder.path().to_owned();
            std::thread::spawn(move || {
                Engine::open(&folder, &config, Purpose::Serve).map(|engine| engine.identity)
            })
            .join()
            .unwrap()
        };
        assert_eq!(open_as([1; 16]).unwrap(), Identity([1; 16]));
        assert_eq!(open_as([2; 16]).unwrap(), Identity([1; 16]));
    }

    #[tokio::test]
    async fn a_store_whose_identity_is_damaged_is_refused_and_found_by_the_check() {
        let (folder, engine) = testing::engine();
        set_identity(&engine, Some(b"short")).await;
        assert_eq!(engine.check(&|_, _| ()).unwrap().wrong, 1);
        drop(engine);
        assert_eq!(testing::open(folder.path()).err().unwrap().kind(), ErrorKind::Corrupt);
    }

    fn check_format_of(engine: &Engine) -> Result<(), Error> {
        std::thread::scope(|scope| {
            scope.spawn(|| check_format(&engine.store, engine.identity, false)).join().unwrap()
        })
    }
}
