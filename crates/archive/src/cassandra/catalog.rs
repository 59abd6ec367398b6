//! The catalogue: epochs, the windows that have messages, and the topics of each epoch. Each server has a copy of it in memory.
//!
//! Before a server stores the first message of a window or a topic, it writes the new entry into the table `catalog`, under the
//! next of its own numbers, and then this number into the table `state` (its *head*). A query reads `state` in parallel with its
//! slices. If a head is higher than the last entry read from `catalog`, or the list of epochs has changed, the query reads the
//! new entries and starts again.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use foldhash::fast::RandomState;
use parking_lot::RwLock;
use restante_core::{NANOS_PER_SECOND, Timestamp, TopicBits};
use tokio::time::Instant;

use super::{
    Shared,
    connect::Applied,
    epochs::{Epoch, EpochList, Stage},
    schema::{self, EpochId, STATE, ServerId, Statement, TopicKey, VERSION},
};
use crate::{
    Error, Query, TopicName,
    topics::{Dictionary, Selection, TopicId},
};

const MAKING_PAUSE: Duration = Duration::from_millis(100);
/// How long an append waits for the table of a new epoch.
const EPOCH_WAIT_MAX: Duration = Duration::from_secs(120);
/// Heads of servers expire after a day. A server that has not read `state` for half a day reads the whole catalogue again.
const FORGET_AFTER_NS: i64 = schema::HEAD_SECONDS as i64 / 2 * NANOS_PER_SECOND;
/// Rows of the catalogue in one batch.
const REGISTER_ROWS: usize = 100;

/// The contents of the table `state`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    epochs: Option<Vec<u8>>,
    heads: Vec<(EpochId, ServerId, i64)>,
}

/// The windows and topics of an epoch.
#[derive(Clone, Debug, Default)]
pub(super) struct Contents {
    pub(super) windows: BTreeSet<i64>,
    topics: BTreeSet<TopicId>,
    /// The highest number read from each server.
    read: HashMap<ServerId, i64, RandomState>,
}

/// The copy in memory.
pub(super) struct Catalog {
    known: RwLock<Known>,
    /// One change at a time.
    syncing: tokio::sync::Mutex<()>,
    registering: tokio::sync::Mutex<i64>,
}

struct Known {
    encoded: Option<Vec<u8>>,
    list: Arc<EpochList>,
    contents: HashMap<EpochId, Arc<Contents>, RandomState>,
    topics: Dictionary,
    ids: HashMap<TopicKey, TopicId, RandomState>,
    keys: HashMap<TopicId, TopicKey, RandomState>,
    /// When the last state was read whose entries are all in this copy: by the wall clock, which also runs while the machine
    /// sleeps.
    looked: Option<Timestamp>,
}

/// An epoch as a query sees it.
pub(super) struct View {
    pub(super) epoch: Epoch,
    pub(super) contents: Arc<Contents>,
    /// The wanted topics that occur in it; `None` for all.
    pub(super) wanted: Option<Vec<TopicKey>>,
    pub(super) topics: usize,
}

/// A window or a topic, new in an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Item {
    Window(i64),
    Topic(TopicName),
}

impl Catalog {
    pub(super) fn new(topic_bits: fn(&str) -> TopicBits) -> Self {
        let known = Known {
            encoded: None,
            list: Arc::default(),
            contents: HashMap::default(),
            topics: Dictionary::new(topic_bits),
            ids: HashMap::default(),
            keys: HashMap::default(),
            looked: None,
        };
        Self {
            known: RwLock::new(known),
            syncing: tokio::sync::Mutex::new(()),
            registering: tokio::sync::Mutex::new(0),
        }
    }

    /// Whether a state has nothing new.
    fn is_current(&self, state: &State, now: Timestamp) -> bool {
        let known = self.known.read();
        if known.encoded != state.epochs || known.is_old(now) {
            return false;
        }
        state.heads.iter().all(|(epoch, server, n)| match known.contents.get(epoch) {
            Some(contents) => contents.read.get(server).is_some_and(|read| read >= n),
            None => true, // an epoch that was dropped, or is being created
        })
    }

    pub(super) fn list(&self) -> Arc<EpochList> {
        self.known.read().list.clone()
    }

    pub(super) fn contents(&self, epoch: EpochId) -> Arc<Contents> {
        self.known.read().contents.get(&epoch).cloned().unwrap_or_default()
    }

    pub(super) fn topics_len(&self) -> u64 {
        self.known.read().topics.len()
    }

    pub(super) fn name(&self, key: &TopicKey) -> Option<TopicName> {
        let known = self.known.read();
        known.topics.name(*known.ids.get(key)?).cloned()
    }

    /// Whether a topic is registered in an epoch.
    pub(super) fn has_topic(&self, epoch: EpochId, key: &TopicKey) -> bool {
        let known = self.known.read();
        let (Some(id), Some(contents)) = (known.ids.get(key), known.contents.get(&epoch)) else {
            return false;
        };
        contents.topics.contains(id)
    }

    /// The identity of a topic, computed unless it is known.
    pub(super) fn key(&self, channel: &str, topic: &str) -> TopicKey {
        let known = self.known.read();
        let key = known.topics.find(channel, topic).and_then(|id| known.keys.get(&id).copied());
        drop(known);
        key.unwrap_or_else(|| schema::topic_key(channel, topic))
    }

    /// The open epochs in the order of time, each with the wanted topics of a query; epochs that have none of them are left out.
    pub(super) fn views(&self, query: &Query) -> Vec<View> {
        let known = self.known.read();
        let selection = known.topics.select(query);
        let mut views = Vec::new();
        for epoch in known.list.open() {
            let Some(contents) = known.contents.get(&epoch.id) else { continue };
            let wanted = match &selection {
                Selection::All => None,
                Selection::Topics(set) => {
                    let ids = set.ids().iter().filter(|id| contents.topics.contains(id));
                    Some(ids.filter_map(|id| known.keys.get(id).copied()).collect::<Vec<_>>())
                }
            };
            if wanted.as_ref().is_some_and(Vec::is_empty) {
                continue;
            }
            views.push(View {
                epoch: *epoch,
                contents: contents.clone(),
                wanted,
                topics: contents.topics.len(),
            });
        }
        views
    }
}

impl Known {
    /// Whether heads may have expired since they were last read.
    fn is_old(&self, now: Timestamp) -> bool {
        self.looked.is_none_or(|looked| now.0.saturating_sub(looked.0).saturating_abs() > FORGET_AFTER_NS)
    }

    fn take(&mut self, epoch: EpochId, server: ServerId, n: i64, item: Option<Item>) {
        let contents = Arc::make_mut(self.contents.entry(epoch).or_default());
        let read = contents.read.entry(server).or_insert(0);
        *read = n.max(*read);
        match item {
            Some(Item::Window(window)) => {
                contents.windows.insert(window);
            }
            Some(Item::Topic(name)) => {
                let found = self.topics.find(&name.channel, &name.topic);
                if found.is_some_and(|id| contents.topics.contains(&id)) {
                    return;
                }
                // A topic counts once for each epoch in which it occurs.
                let (id, name) = self.topics.count(&name.channel, &name.topic, 1);
                contents.topics.insert(id);
                let key = schema::topic_key(&name.channel, &name.topic);
                self.ids.insert(key, id);
                self.keys.insert(id, key);
            }
            None => {}
        }
    }

    fn forget(&mut self, epoch: EpochId) {
        let Some(contents) = self.contents.remove(&epoch) else { return };
        for id in &contents.topics {
            self.topics.discount(*id, 1);
            if self.topics.name(*id).is_none()
                && let Some(key) = self.keys.remove(id)
            {
                self.ids.remove(&key);
            }
        }
    }
}

type CatalogRow = (Vec<u8>, i64, Option<i64>, Option<String>, Option<String>);

impl Shared {
    /// Reads the table `state`.
    pub(super) async fn state(&self) -> Result<State, Error> {
        type Row = (Option<Vec<u8>>, Option<i32>, Option<Vec<u8>>, Option<i64>);
        let rows: Vec<Row> = self.database.read("read its state", Statement::ReadState, (STATE,)).await?;
        let mut state = State { epochs: None, heads: Vec::new() };
        for (epochs, epoch, server, n) in rows {
            state.epochs = epochs;
            let server = server.as_deref().and_then(|server| server.try_into().ok());
            if let (Some(epoch), Some(server), Some(n)) = (epoch, server, n) {
                state.heads.push((epoch, server, n));
            }
        }
        Ok(state)
    }

    /// Whether a state has nothing new.
    pub(super) fn is_current(&self, state: &State) -> bool {
        self.catalog.is_current(state, self.now())
    }

    /// Reads new entries; returns whether there were any.
    pub(super) async fn sync(&self) -> Result<bool, Error> {
        if self.is_current(&self.state().await?) {
            return Ok(false);
        }
        let _one = self.catalog.syncing.lock().await;
        // Another task may have read a newer state meanwhile, which this one must not undo.
        let looked = self.now();
        let state = self.state().await?;
        if self.is_current(&state) {
            return Ok(true);
        }
        let list = match &state.epochs {
            Some(encoded) => EpochList::decode(encoded).map_err(|version| self.not_understood(version))?,
            None => EpochList::default(),
        };
        for epoch in list.open() {
            self.read_contents(epoch.id, &state).await?;
        }
        let mut known = self.catalog.known.write();
        let is_open = |id: EpochId| list.get(id).is_some_and(|epoch| epoch.stage == Stage::Open);
        let gone: Vec<EpochId> = known.contents.keys().copied().filter(|id| !is_open(*id)).collect();
        for id in gone {
            known.forget(id);
            self.database.forget(id);
        }
        known.encoded = state.epochs;
        known.list = Arc::new(list);
        known.looked = Some(looked);
        Ok(true)
    }

    /// Reads the new entries of an epoch.
    async fn read_contents(&self, epoch: EpochId, state: &State) -> Result<(), Error> {
        let what = "read its catalogue";
        let known = {
            let catalog = self.catalog.known.read();
            catalog.contents.get(&epoch).filter(|_| !catalog.is_old(self.now())).cloned()
        };
        let Some(known) = known else {
            let rows: Vec<CatalogRow> = self.database.read(what, Statement::ReadCatalog, (epoch,)).await?;
            let mut catalog = self.catalog.known.write();
            catalog.contents.entry(epoch).or_default();
            take_all(&mut catalog, epoch, rows);
            return Ok(());
        };
        for (_, server, n) in state.heads.iter().filter(|(of, ..)| *of == epoch) {
            let read = known.read.get(server).copied().unwrap_or(0);
            if read >= *n {
                continue;
            }
            let values = (epoch, server.as_slice(), read);
            let rows: Vec<CatalogRow> = self.database.read(what, Statement::ReadCatalogSince, values).await?;
            let mut catalog = self.catalog.known.write();
            take_all(&mut catalog, epoch, rows);
            catalog.take(epoch, *server, *n, None);
        }
        Ok(())
    }

    /// The windows that are registered in an epoch, in any stage.
    pub(super) async fn windows_of(&self, epoch: EpochId) -> Result<BTreeSet<i64>, Error> {
        let what = "read its catalogue";
        let rows: Vec<CatalogRow> = self.database.read(what, Statement::ReadCatalog, (epoch,)).await?;
        Ok(rows.into_iter().filter_map(|(_, _, window, ..)| window).collect())
    }

    fn not_understood(&self, version: Option<u8>) -> Error {
        let keyspace = self.database.keyspace();
        match version {
            Some(version) if version > VERSION => Error::corrupt(format!(
                "the archive in the keyspace {keyspace} has version {version} and this restante knows {VERSION}: use a newer one"
            )),
            _ => Error::corrupt(format!("the list of epochs in the keyspace {keyspace} is damaged")),
        }
    }

    /// Registers new windows and topics; every query that starts afterwards, on any server, sees them.
    pub(super) async fn register(&self, items: Vec<(EpochId, Item)>) -> Result<(), Error> {
        if items.is_empty() {
            return Ok(());
        }
        let mut next = self.catalog.registering.lock().await;
        let what = "register a topic or a window";
        let mut heads: HashMap<EpochId, i64, RandomState> = HashMap::default();
        let mut windows: HashMap<EpochId, Vec<_>, RandomState> = HashMap::default();
        let mut topics: HashMap<EpochId, Vec<_>, RandomState> = HashMap::default();
        let server = self.server.as_slice();
        let mut taken = Vec::new();
        for (epoch, item) in items {
            *next += 1;
            let n = *next;
            heads.insert(epoch, n);
            match &item {
                Item::Window(window) => windows.entry(epoch).or_default().push((epoch, server, n, *window)),
                Item::Topic(name) => {
                    let row = (epoch, server, n, name.channel.to_string(), name.topic.to_string());
                    topics.entry(epoch).or_default().push(row);
                }
            }
            taken.push((epoch, n, item));
        }
        for rows in windows.values() {
            for rows in rows.chunks(REGISTER_ROWS) {
                self.database.write_rows(what, Statement::PutWindow, rows).await?;
            }
        }
        for rows in topics.values() {
            for rows in rows.chunks(REGISTER_ROWS) {
                self.database.write_rows(what, Statement::PutTopic, rows).await?;
            }
        }
        for (epoch, n) in heads {
            let values = (STATE, epoch, server, n, self.micros());
            self.database.write(what, Statement::PutHead, values).await?;
        }
        let mut known = self.catalog.known.write();
        for (epoch, n, item) in taken {
            // Otherwise the epoch was dropped meanwhile, and its entries with it.
            if known.contents.contains_key(&epoch) {
                known.take(epoch, self.server, n, Some(item));
            }
        }
        Ok(())
    }

    /// The open epoch of a timestamp; it is created if there is none.
    pub(super) async fn epoch_for(&self, timestamp: i64) -> Result<Epoch, Error> {
        let deadline = Instant::now() + EPOCH_WAIT_MAX;
        loop {
            let list = self.catalog.list();
            match list.find(timestamp) {
                Some(epoch) if epoch.stage == Stage::Open => return Ok(*epoch),
                Some(epoch) => {
                    if epoch.is_to_be_finished_by(self.server, self.now().0) {
                        self.make_table(epoch.id).await?;
                    } else {
                        tokio::time::sleep(MAKING_PAUSE).await;
                    }
                }
                None => {
                    let wanted = list.with_place_for(timestamp, self.cut, self.server, self.now().0);
                    self.replace_list(&list, &wanted).await?;
                }
            }
            if Instant::now() > deadline {
                return Err(Error::unavailable(
                    "cassandra can't make the table of a new epoch: another server has begun it and does not end",
                ));
            }
            self.sync().await?;
        }
    }

    /// Creates the table of an epoch unless it exists, and opens the epoch.
    pub(super) async fn make_table(&self, id: EpochId) -> Result<(), Error> {
        let _one = self.changing_schema.lock().await;
        self.sync().await?;
        let list = self.catalog.list();
        if list.get(id).is_none_or(|epoch| epoch.stage != Stage::Making) {
            return Ok(());
        }
        self.create_table(&schema::table(id), schema::EPOCH_COLUMNS).await?;
        let wanted = list.with_stage(id, Stage::Open, self.server, self.now().0);
        let is_open = self.replace_list(&list, &wanted).await? == Applied::Yes;
        if is_open {
            tracing::info!(table = schema::table(id), "epoch made");
        }
        Ok(())
    }

    /// Whether an epoch is open, according to a state that is read now.
    pub(super) async fn is_open(&self, id: EpochId) -> Result<bool, Error> {
        self.sync().await?;
        Ok(self.catalog.list().get(id).is_some_and(|epoch| epoch.stage == Stage::Open))
    }

    /// Replaces the list of epochs, unless it has changed. If the outcome is unknown, the state that is read next decides. A
    /// replacement that takes effect late must do no harm: it is applied only while the list is still `old`.
    pub(super) async fn replace_list(&self, old: &EpochList, new: &EpochList) -> Result<Applied, Error> {
        let what = "change its list of epochs";
        let new = new.encode();
        if *old == EpochList::default() {
            let values = (new.as_slice(), STATE);
            return self.database.compare(what, Statement::SetFirstEpochs, values).await;
        }
        let old = old.encode();
        self.database.compare(what, Statement::SetEpochs, (new.as_slice(), STATE, old.as_slice())).await
    }
}

fn take_all(known: &mut Known, epoch: EpochId, rows: Vec<CatalogRow>) {
    for (server, n, window, channel, topic) in rows {
        let Ok(server) = ServerId::try_from(server.as_slice()) else { continue };
        let item = match (window, channel, topic) {
            (Some(window), ..) => Some(Item::Window(window)),
            (_, Some(channel), Some(topic)) => {
                Some(Item::Topic(TopicName { channel: channel.into(), topic: topic.into() }))
            }
            _ => None,
        };
        known.take(epoch, server, n, item);
    }
}
