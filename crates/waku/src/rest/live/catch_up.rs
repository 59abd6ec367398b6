//! The walk through the archive, until a stream switches to live messages. For why that is exact, see [`super::hand_over`].

use std::{pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use restante_archive::Page;
use restante_core::{Cursor, Key};
use restante_sessions::{
    Ended,
    hub::{Event, Next},
};
use tokio::{
    sync::mpsc,
    task::yield_now,
    time::{Instant, error::Elapsed, sleep, sleep_until, timeout, timeout_at},
};
use tracing::warn;

use super::{
    ask::Wants,
    feed::{CHUNK_BYTES, End, Item, LiveMessages, Marks, Step, json_of},
    hand_over::{Bounds, HandOver, OTHERS_LAG, Times, TooSlow},
    member::Member,
};
use crate::{
    rest::{App, json, reply::Refusal},
    validate::is_pubsub_topic,
};

/// Pieces that wait for the client: the next one is built while one is sent.
const STEPS_WAITING: usize = 1;
/// How often to check whether the spool is empty.
const SPOOL_PAUSE: Duration = Duration::from_millis(50);
/// How long events that must be sent at once may be delayed while the walk waits for something to be archived.
const LATE_PAUSE: Duration = Duration::from_millis(50);

/// The sizes of a walk's pieces.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pages {
    /// Rows of the first page. Pages grow while their rows are small, so that a walk through small messages, or through many that
    /// are not wanted, takes few of them.
    pub(super) rows_first: usize,
    /// The most rows of a page.
    pub(super) rows_max: usize,
    /// Messages are sent together up to this many bytes, and one message more.
    pub(super) chunk_bytes: usize,
    /// The most events that are held, within what the settings allow.
    pub(super) held_max: usize,
}

impl Default for Pages {
    fn default() -> Self {
        Self { rows_first: 32, rows_max: 512, chunk_bytes: CHUNK_BYTES, held_max: usize::MAX }
    }
}

/// See the module.
pub(super) struct CatchUp {
    app: Arc<App>,
    member: Member,
    wants: Wants,
    hand_over: HandOver,
    marks: Marks,
    page_rows: usize,
    /// Whether other nodes may archive announced messages.
    has_others: bool,
    /// The last time when a message was announced that other nodes may not have archived yet and that only the walk sends: before
    /// the stream joined, or when an event was dropped.
    last_announced: Instant,
    page_timeout: Duration,
}

/// Why a walk ends early.
enum Stop {
    /// The session has ended.
    Ended(Ended),
    /// The archive failed.
    Unavailable,
    /// The client has disconnected.
    Gone,
}

impl From<TooSlow> for Stop {
    fn from(_: TooSlow) -> Self {
        Self::Ended(Ended::Slow)
    }
}

/// What was found in one page.
struct Found {
    items: Vec<Item>,
    is_end: bool,
}

impl CatchUp {
    /// Creates a walk from after a key, for a stream that has joined the hub.
    pub(super) async fn new(
        app: Arc<App>,
        member: Member,
        wants: Wants,
        behind: Key,
        marks: Marks,
        times: Times,
    ) -> Self {
        let last_announced = Instant::now();
        let config = &app.rest.config;
        let bounds = Bounds {
            events_max: config.live_queue_messages.get(),
            bytes_max: config.live_queue_bytes.get(),
            held_max: app.live.pages.held_max,
        };
        let page_timeout = Duration::from_millis(config.request_timeout_ms.get());
        Self {
            hand_over: HandOver::new(behind, marks.now(), times, bounds),
            has_others: has_others(&app).await,
            page_rows: app.live.pages.rows_first,
            app,
            member,
            wants,
            marks,
            last_announced,
            page_timeout,
        }
    }

    /// Waits until the archive has everything that was announced before the stream joined.
    pub(super) async fn begin(&mut self, deadline: Instant) -> Result<(), Refusal> {
        match self.settle(deadline).await {
            Ok(()) => Ok(()),
            Err(Stop::Ended(why)) => {
                self.member.note_end(End::Session(why));
                Err(Refusal::unavailable(why.text()))
            }
            Err(Stop::Unavailable | Stop::Gone) => {
                self.member.note_end(End::Unavailable);
                Err(Refusal::unavailable("messages still wait to be archived: try again later"))
            }
        }
    }

    /// Walks in a separate task, which sends its results to the receiver. The task ends when the receiver is dropped.
    pub(super) fn start(self) -> mpsc::Receiver<Step> {
        let (sender, receiver) = mpsc::channel(STEPS_WAITING);
        tokio::spawn(self.run(sender));
        receiver
    }

    async fn run(mut self, sender: mpsc::Sender<Step>) {
        let end = match self.walk(&sender).await {
            Ok(permit) => {
                permit.send(Step::Live(self.finish()));
                return;
            }
            Err(Stop::Ended(why)) => End::Session(why),
            Err(Stop::Unavailable) => End::Unavailable,
            Err(Stop::Gone) => return,
        };
        self.member.note_end(end);
        // The session is closed first: a client that has not read everything yet may be slow to receive the end.
        drop(self);
        let _ = sender.send(Step::End(end)).await;
    }

    /// Walks to the end, and returns a permit to send the last step. Events may be dropped while it waits for the permit.
    async fn walk<'s>(&mut self, sender: &'s mpsc::Sender<Step>) -> Result<mpsc::Permit<'s, Step>, Stop> {
        self.wait_for_others(sender).await?;
        loop {
            let Found { items, is_end } = self.look().await?;
            if !items.is_empty() {
                self.reserve(sender).await?.send(Step::Messages(items));
            }
            if !is_end && sender.is_closed() {
                return Err(Stop::Gone); // a walk that finds nothing to send would not notice
            }
            if !is_end {
                continue;
            }
            let permit = self.reserve(sender).await?;
            if self.hand_over.end().is_none() {
                return Ok(permit);
            }
            drop(permit);
            self.settle_all(sender).await?;
        }
    }

    fn finish(self) -> Box<LiveMessages> {
        let (held, given) = self.hand_over.finish();
        let metrics = self.app.rest.metrics.live.clone();
        Box::new(LiveMessages::behind_walk(self.member, self.marks, held.collect(), given, metrics))
    }

    /// Queries a page and collects what is to be sent of its first rows. The page is dropped before anything waits for the
    /// client.
    async fn look(&mut self) -> Result<Found, Stop> {
        let app = self.app.clone();
        let mut chunk = Chunk::new(app.live.pages.chunk_bytes);
        self.take_late(&mut chunk);
        if chunk.is_full() {
            return Ok(Found { items: chunk.items, is_end: false });
        }
        self.meanwhile(yield_now()).await?; // an engine may return at once, again and again
        let turn = self.meanwhile(app.live.walks.acquire()).await?;
        let query = self.wants.query(self.hand_over.position(), self.hand_over.end(), self.page_rows);
        let asked = timeout(self.page_timeout, app.archive.query(&query));
        let page = match self.meanwhile(asked).await? {
            Ok(Ok(page)) => page,
            Ok(Err(error)) => {
                warn!(kind = error.kind().as_str(), %error, "a live stream broke off");
                return Err(Stop::Unavailable);
            }
            Err(_) => {
                warn!("a live stream broke off: the archive did not answer in time");
                return Err(Stop::Unavailable);
            }
        };
        let found = self.read(&page, chunk);
        drop((page, turn));
        Ok(found)
    }

    fn read(&mut self, page: &Page, mut chunk: Chunk) -> Found {
        let (mut rows, mut is_cut) = (0, false);
        for row in page.rows() {
            let key = row.key();
            // Something may have been dropped while the page was queried.
            is_cut = self.hand_over.is_uncertain(key) || !self.take_passed(key, &mut chunk);
            if is_cut {
                break;
            }
            if self.wants.has(&row) {
                self.hand_over.give(&row);
                chunk.push(Some(key.min(self.marks.low())), json::write_row(&row).into());
                chunk.archived += 1;
            } else {
                self.hand_over.pass(key);
            }
            rows += 1;
        }
        match page.next {
            // A damaged row at the page's end is not among its rows.
            Some(Cursor::At(next)) if !is_cut && next > self.hand_over.position() => {
                is_cut = self.hand_over.is_uncertain(next) || !self.take_passed(next, &mut chunk);
                if !is_cut {
                    self.hand_over.pass(next);
                }
            }
            _ => {}
        }
        let rows_max = self.app.live.pages.rows_max;
        self.app.rest.metrics.live.archived().inc_by(chunk.archived);
        self.page_rows = if is_cut { rows.max(1) } else { (self.page_rows * 2).min(rows_max) };
        Found { items: chunk.items, is_end: page.next.is_none() && !is_cut }
    }

    /// Takes events that nothing else will send, as many as fit. Once all of them are sent, and none is held, the stream's cursor
    /// advances.
    fn take_late(&mut self, chunk: &mut Chunk) {
        while !chunk.is_full() {
            let Some(event) = self.hand_over.take_late() else { break };
            chunk.push_event(&event);
        }
        if self.hand_over.has_nothing_waiting() {
            self.marks.taken(0, &self.member.subscription);
            self.marks.given();
        }
    }

    /// Takes the events that the walk passes on its way to `key`. Returns whether it may go there: there is space left, and
    /// everything before `key` has been taken.
    fn take_passed(&mut self, key: Key, chunk: &mut Chunk) -> bool {
        while !chunk.is_full() {
            let Some(event) = self.hand_over.take_passed(key) else { return true };
            chunk.push_event(&event);
        }
        false
    }

    /// Waits until everything that was announced at this node is archived.
    async fn settle(&mut self, deadline: Instant) -> Result<(), Stop> {
        let settled = settled(self.app.clone(), deadline);
        self.hand_over.settle();
        self.meanwhile(settled).await?.map_err(|_| Stop::Unavailable)
    }

    /// Waits until this node and others have archived what they announced. Events that are dropped meanwhile count for the next time.
    async fn settle_all(&mut self, sender: &mpsc::Sender<Step>) -> Result<(), Stop> {
        let app = self.app.clone();
        self.has_others = self.has_others || self.meanwhile(has_others(&app)).await?;
        self.hand_over.settle();
        self.wait_for_others(sender).await?;
        let settled = settled(app, Instant::now() + self.page_timeout);
        self.giving_late(sender, settled).await?.map_err(|_| Stop::Unavailable)
    }

    /// Waits until other nodes must have archived what was announced so far.
    async fn wait_for_others(&mut self, sender: &mpsc::Sender<Step>) -> Result<(), Stop> {
        if !self.has_others {
            return Ok(());
        }
        self.giving_late(sender, sleep_until(self.last_announced + OTHERS_LAG)).await
    }

    /// Runs `work`, which may take long, and meanwhile sends what must be sent at once.
    async fn giving_late<T>(
        &mut self,
        sender: &mpsc::Sender<Step>,
        work: impl Future<Output = T>,
    ) -> Result<T, Stop> {
        let mut work = pin!(work);
        loop {
            if let Ok(done) = self.meanwhile(timeout(LATE_PAUSE, &mut work)).await? {
                return Ok(done);
            }
            if sender.is_closed() {
                return Err(Stop::Gone);
            }
            while self.hand_over.has_late() {
                let permit = self.reserve(sender).await?;
                let mut chunk = Chunk::new(self.app.live.pages.chunk_bytes);
                self.take_late(&mut chunk);
                permit.send(Step::Messages(chunk.items));
            }
        }
    }

    /// Waits until the client has received what was sent before.
    async fn reserve<'s>(&mut self, sender: &'s mpsc::Sender<Step>) -> Result<mpsc::Permit<'s, Step>, Stop> {
        self.meanwhile(sender.reserve()).await?.map_err(|_| Stop::Gone)
    }

    /// Runs `work`, and takes what arrives meanwhile.
    async fn meanwhile<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Stop> {
        let mut work = pin!(work);
        loop {
            let next = tokio::select! {
                biased;
                next = self.member.subscription.next() => next,
                done = &mut work => return Ok(done),
            };
            match next {
                Next::Ended(why) => return Err(Stop::Ended(why)),
                Next::Events(events) => self.take(&events)?,
            }
        }
    }

    fn take(&mut self, events: &[Arc<Event>]) -> Result<(), TooSlow> {
        self.marks.taken(events.len(), &self.member.subscription);
        let now = self.marks.now();
        for event in events.iter().filter(|event| is_pubsub_topic(&event.channel)) {
            // An event that may be held for long must not count against the hub's limit.
            let is_dropped = self.hand_over.arrived(Arc::new(event.to_unmetered()), now)?;
            if is_dropped {
                self.last_announced = Instant::now();
            }
        }
        Ok(())
    }
}

/// Whether other nodes share the table, and perhaps the archive. If that is unknown, there may be some.
async fn has_others(app: &App) -> bool {
    app.rest.waku.live.nodes.nodes().await.map_or(true, |nodes| nodes.len() > 1)
}

/// Waits until what is in the archive's queue and spool now is archived.
async fn settled(app: Arc<App>, deadline: Instant) -> Result<(), Elapsed> {
    let settled = async {
        app.rest.waku.intake.settled().await;
        while app.rest.health.upkeep().health().spooled_messages > 0 {
            sleep(SPOOL_PAUSE).await;
        }
    };
    timeout_at(deadline, settled).await
}

/// Messages that are sent together.
struct Chunk {
    items: Vec<Item>,
    bytes: usize,
    bytes_max: usize,
    archived: u64,
}

impl Chunk {
    fn new(bytes_max: usize) -> Self {
        Self { items: Vec::new(), bytes: 0, bytes_max, archived: 0 }
    }

    /// Whether nothing more should be added.
    fn is_full(&self) -> bool {
        self.bytes >= self.bytes_max
    }

    fn push(&mut self, cursor: Option<Key>, json: Bytes) {
        self.bytes += json.len();
        self.items.push(Item { cursor, json });
    }

    /// An event out of order has no cursor: the stream would resume from it, and may not be that far.
    fn push_event(&mut self, event: &Event) {
        self.push(None, json_of(event));
    }
}
