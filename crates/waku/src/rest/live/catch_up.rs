//! The walk through the archive, up to where a stream goes over to what arrives. Why that is exact: see [`super::hand_over`].

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
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};
use tracing::warn;

use super::{
    ask::Wants,
    feed::{Arriving, CHUNK_BYTES, End, Item, Marks, Step, json_of},
    hand_over::{Bounds, HandOver, OTHERS_LAG, Times, TooSlow},
    member::Member,
};
use crate::rest::{App, json, reply::Refusal};

/// Pieces that wait for the client: the next one is made while one is sent.
const STEPS_WAITING: usize = 1;
/// How often to look whether the spool has been emptied.
const SPOOL_PAUSE: Duration = Duration::from_millis(50);

/// How large the pieces of a walk are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pages {
    /// Rows of the first page. Pages grow while their rows are few bytes, so that a walk through small messages, or through many
    /// that are not wanted, takes few of them.
    pub(super) rows_first: usize,
    /// Rows of a page at most.
    pub(super) rows_max: usize,
    /// Messages are sent together up to so many bytes, and one message more.
    pub(super) chunk_bytes: usize,
    /// Events that are held at most, beside what the settings allow.
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
    joined: Instant,
    has_others: bool,
    page_timeout: Duration,
}

/// Why a walk ends early.
enum Stop {
    /// The session has ended.
    Ended(Ended),
    /// The archive can't go on.
    Unavailable,
    /// The client has gone.
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
    /// A walk that begins behind a place, for a stream that has joined the hub.
    pub(super) async fn new(
        app: Arc<App>,
        member: Member,
        wants: Wants,
        behind: Key,
        marks: Marks,
        times: Times,
    ) -> Self {
        let joined = Instant::now();
        let config = &app.rest.config;
        let bounds = Bounds {
            events_max: config.live_queue_messages,
            bytes_max: config.live_queue_bytes,
            held_max: app.live.pages.held_max,
        };
        let page_timeout = Duration::from_millis(config.request_timeout_ms);
        let nodes = app.rest.waku.live.nodes.nodes().await;
        Self {
            hand_over: HandOver::new(behind, marks.now(), times, bounds),
            has_others: nodes.is_ok_and(|nodes| nodes.len() > 1),
            page_rows: app.live.pages.rows_first,
            app,
            member,
            wants,
            marks,
            joined,
            page_timeout,
        }
    }

    /// Waits until the archive has what was told before the stream had joined.
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

    /// Walks in a task of its own; what it finds comes by the receiver. The task ends when that is dropped.
    pub(super) fn start(self) -> mpsc::Receiver<Step> {
        let (sender, receiver) = mpsc::channel(STEPS_WAITING);
        tokio::spawn(self.run(sender));
        receiver
    }

    async fn run(mut self, sender: mpsc::Sender<Step>) {
        let end = match self.walk(&sender).await {
            Ok(room) => {
                room.send(Step::Live(self.finish()));
                return;
            }
            Err(Stop::Ended(why)) => End::Session(why),
            Err(Stop::Unavailable) => End::Unavailable,
            Err(Stop::Gone) => return,
        };
        self.member.note_end(end);
        // A client that has everything that waits for it may be slow to take the end: the session is closed meanwhile.
        drop(self);
        let _ = sender.send(Step::End(end)).await;
    }

    /// Walks to the end, and until there is room to say so: while that is waited for something may be dropped, too.
    async fn walk<'s>(&mut self, sender: &'s mpsc::Sender<Step>) -> Result<mpsc::Permit<'s, Step>, Stop> {
        loop {
            let Found { items, is_end } = self.look().await?;
            if !items.is_empty() {
                self.room(sender).await?.send(Step::Messages(items));
            }
            if !is_end && sender.is_closed() {
                return Err(Stop::Gone); // a walk that finds nothing to send would not notice
            }
            if !is_end {
                continue;
            }
            let room = self.room(sender).await?;
            if self.hand_over.end().is_none() && !self.has_others {
                return Ok(room);
            }
            drop(room);
            self.settle_all().await?;
        }
    }

    fn finish(self) -> Box<Arriving> {
        let (held, given) = self.hand_over.finish();
        let metrics = self.app.rest.metrics.live.clone();
        Box::new(Arriving::behind_walk(self.member, self.marks, held.collect(), given, metrics))
    }

    /// Asks for a page and makes of its first rows what is to be sent. The page is let go of before anybody waits for the
    /// client.
    async fn look(&mut self) -> Result<Found, Stop> {
        let app = self.app.clone();
        self.meanwhile(yield_now()).await?; // an engine may answer at once, again and again
        let turn = self.meanwhile(app.live.walks.acquire()).await?;
        let query = self.wants.query(self.hand_over.position(), self.hand_over.end(), self.page_rows);
        let asked = timeout(self.page_timeout, app.rest.archive.query(&query));
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
        let found = self.read(&page);
        drop((page, turn));
        Ok(found)
    }

    fn read(&mut self, page: &Page) -> Found {
        let mut chunk = Chunk::default();
        let pages = self.app.live.pages;
        self.take_late(&mut chunk);
        let (mut rows, mut is_cut) = (0, false);
        for row in page.rows() {
            let key = row.key();
            // What was dropped while the page was asked for may be missing in it from there on.
            let is_uncertain = self.hand_over.end().is_some_and(|end| key.timestamp >= end);
            if is_uncertain || chunk.bytes >= pages.chunk_bytes {
                is_cut = true;
                break;
            }
            self.take_passed(key, &mut chunk);
            if self.wants.has(&row) {
                self.hand_over.give(key);
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
                self.take_passed(next, &mut chunk);
                self.hand_over.pass(next);
            }
            _ => {}
        }
        self.app.rest.metrics.live.archived().inc_by(chunk.archived);
        self.page_rows = if is_cut { rows.max(1) } else { (self.page_rows * 2).min(pages.rows_max) };
        Found { items: chunk.items, is_end: page.next.is_none() && !is_cut }
    }

    /// Events that nothing else will give. Once all of them are, and none is held, the stream has come so far.
    fn take_late(&mut self, chunk: &mut Chunk) {
        while let Some(event) = self.hand_over.take_late() {
            chunk.push_event(&event);
        }
        if self.hand_over.has_nothing_held() {
            self.marks.taken(0, &self.member.seat);
            self.marks.given();
        }
    }

    fn take_passed(&mut self, key: Key, chunk: &mut Chunk) {
        while let Some(event) = self.hand_over.take_passed(key) {
            chunk.push_event(&event);
        }
    }

    /// Waits until all is archived that was told.
    async fn settle(&mut self, deadline: Instant) -> Result<(), Stop> {
        let app = self.app.clone();
        let settled = async {
            app.rest.waku.intake.settled().await;
            while app.rest.upkeep.health().spooled_messages > 0 {
                sleep(SPOOL_PAUSE).await;
            }
        };
        self.hand_over.settle();
        self.meanwhile(timeout_at(deadline, settled)).await?.map_err(|_| Stop::Unavailable)
    }

    /// The same, and until other nodes must have archived what they told before this stream had joined.
    async fn settle_all(&mut self) -> Result<(), Stop> {
        if self.has_others {
            self.meanwhile(sleep_until(self.joined + OTHERS_LAG)).await?;
            self.has_others = false;
        }
        self.settle(Instant::now() + self.page_timeout).await
    }

    /// Waits until the client has taken what was sent before.
    async fn room<'s>(&mut self, sender: &'s mpsc::Sender<Step>) -> Result<mpsc::Permit<'s, Step>, Stop> {
        self.meanwhile(sender.reserve()).await?.map_err(|_| Stop::Gone)
    }

    /// Does something, and takes what arrives meanwhile.
    async fn meanwhile<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Stop> {
        let mut work = pin!(work);
        loop {
            let next = tokio::select! {
                biased;
                next = self.member.seat.next() => next,
                done = &mut work => return Ok(done),
            };
            match next {
                Next::Ended(why) => return Err(Stop::Ended(why)),
                Next::Events(events) => self.take(&events)?,
            }
        }
    }

    fn take(&mut self, events: &[Arc<Event>]) -> Result<(), TooSlow> {
        self.marks.taken(events.len(), &self.member.seat);
        let now = self.marks.now();
        for event in events {
            // What may be held for long takes none of the hub's room.
            self.hand_over.arrived(Arc::new(event.to_kept()), now)?;
        }
        Ok(())
    }
}

/// What is sent together.
#[derive(Default)]
struct Chunk {
    items: Vec<Item>,
    bytes: usize,
    archived: u64,
}

impl Chunk {
    fn push(&mut self, cursor: Option<Key>, json: Bytes) {
        self.bytes += json.len();
        self.items.push(Item { cursor, json });
    }

    /// An event out of its place has no cursor: the stream would go on from there, and may not have come so far.
    fn push_event(&mut self, event: &Event) {
        self.push(None, json_of(event));
    }
}
