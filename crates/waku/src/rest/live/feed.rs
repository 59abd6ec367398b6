//! What a stream sends, piece by piece: first what the walk finds, then messages as they arrive.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use restante_core::{Clock, Key, MessageHash, Timestamp};
use restante_sessions::{
    Ended,
    hub::{Event, Form, Next, Subscription},
};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};

use super::{
    hand_over::{Given, REMEMBERED_FOR, Times, is_ephemeral},
    member::Member,
    metrics::LiveMetrics,
};
use crate::{rest::json, validate::is_pubsub_topic};

/// How often an idle stream sends a sign of life: proxies usually close connections that are silent for a minute.
pub(super) const BEAT: Duration = Duration::from_secs(15);
/// Messages are sent together up to this many bytes, and one message more.
pub(super) const CHUNK_BYTES: usize = 64 << 10;

/// A message of a stream.
#[derive(Debug)]
pub(super) struct Item {
    /// Where the stream resumes when it breaks off after this message. `None` for a message that is never archived.
    pub(super) cursor: Option<Key>,
    /// The message as JSON, in one line.
    pub(super) json: Bytes,
}

/// What a stream sends next.
#[derive(Debug)]
pub(super) enum Piece {
    /// Messages, in order.
    Messages(Vec<Item>),
    /// From here on messages are sent as they arrive.
    Live(Key),
    /// Nothing follows.
    End(End),
}

/// Why a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Its session has ended.
    Session(Ended),
    /// The archive failed.
    Unavailable,
}

impl End {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Session(why) => why.as_str(),
            Self::Unavailable => "unavailable",
        }
    }

    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Session(why) => why.text(),
            Self::Unavailable => "the archive is unavailable: go on from your cursor later",
        }
    }

    /// The reason that is sent to the client, as the fields of a JSON object.
    pub(super) fn fields(self) -> String {
        format!(r#""reason":"{}","text":"{}""#, self.as_str(), self.text())
    }
}

/// See the module.
pub(super) enum Feed {
    /// A separate task walks the archive and sends what it finds.
    CatchingUp(mpsc::Receiver<Step>),
    /// Messages come from the subscription.
    Live(Box<LiveMessages>),
    Over,
}

/// What the walk sends.
pub(super) enum Step {
    Messages(Vec<Item>),
    Live(Box<LiveMessages>),
    End(End),
}

impl Feed {
    /// The next piece; none after the end. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<Piece> {
        let piece = match self {
            Self::CatchingUp(steps) => match steps.recv().await {
                Some(Step::Messages(items)) => Piece::Messages(items),
                Some(Step::Live(live)) => {
                    let cursor = live.marks.low();
                    *self = Self::Live(live);
                    Piece::Live(cursor)
                }
                Some(Step::End(end)) => Piece::End(end),
                None => Piece::End(End::Unavailable), // the walk failed
            },
            Self::Live(live) if !live.is_announced => live.announce(),
            Self::Live(live) => live.next().await,
            Self::Over => return None,
        };
        if let Piece::End(_) = piece {
            *self = Self::Over;
        }
        Some(piece)
    }

    /// Where a stream that is idle now would resume.
    pub(super) fn cursor(&mut self) -> Option<Key> {
        match self {
            Self::Live(live) => Some(live.cursor()),
            Self::CatchingUp(_) | Self::Over => None,
        }
    }
}

/// Messages as they arrive, prepared for a client.
pub(super) struct LiveMessages {
    member: Member,
    marks: Marks,
    /// Taken from the subscription, and not sent yet.
    taken: VecDeque<Arc<Event>>,
    /// What the walk has sent, and may be announced again for a while.
    given: Option<(Given, Instant)>,
    metrics: LiveMetrics,
    is_announced: bool,
}

impl LiveMessages {
    /// A stream without a walk.
    pub(super) fn from_now(member: Member, marks: Marks, metrics: LiveMetrics) -> Self {
        Self { member, marks, taken: VecDeque::new(), given: None, metrics, is_announced: false }
    }

    /// A stream after a walk, with the events that the walk still `held`.
    pub(super) fn behind_walk(
        member: Member,
        marks: Marks,
        held: VecDeque<Arc<Event>>,
        given: Given,
        metrics: LiveMetrics,
    ) -> Self {
        let given = (!given.is_empty()).then(|| (given, Instant::now() + REMEMBERED_FOR));
        Self { member, marks, taken: held, given, metrics, is_announced: true }
    }

    fn announce(&mut self) -> Piece {
        self.is_announced = true;
        Piece::Live(self.marks.low())
    }

    async fn next(&mut self) -> Piece {
        loop {
            let items = self.take_chunk();
            if !items.is_empty() {
                self.metrics.arrived().inc_by(items.len() as u64);
                return Piece::Messages(items);
            }
            if let Some(why) = self.wait().await {
                self.member.note_end(End::Session(why));
                return Piece::End(End::Session(why));
            }
        }
    }

    /// Waits for events or the end.
    async fn wait(&mut self) -> Option<Ended> {
        let next = self.member.subscription.next();
        let next = match &self.given {
            None => next.await,
            Some((_, until)) => match timeout_at(*until, next).await {
                Ok(next) => next,
                Err(_) => {
                    self.given = None;
                    return None;
                }
            },
        };
        match next {
            Next::Ended(why) => Some(why),
            Next::Events(events) => {
                self.marks.taken(events.len(), &self.member.subscription);
                self.taken = events.into();
                self.taken.retain(|event| is_pubsub_topic(&event.channel));
                None
            }
        }
    }

    /// The next messages among those that were taken.
    fn take_chunk(&mut self) -> Vec<Item> {
        let (mut items, mut bytes) = (Vec::new(), 0);
        while bytes < CHUNK_BYTES {
            let Some(event) = self.taken.pop_front() else { break };
            if self.given.as_ref().is_some_and(|(given, _)| given.has(&event)) {
                continue;
            }
            let json = json_of(&event);
            bytes += json.len();
            items.push(Item { cursor: self.marks.cursor_of(&event), json });
        }
        if self.taken.is_empty() {
            self.taken = VecDeque::new(); // an idle stream keeps no memory of earlier events
            self.marks.given();
        }
        if self.taken.is_empty()
            && let Some(last) = items.last_mut()
            && last.cursor.is_some()
        {
            last.cursor = Some(self.marks.low());
        }
        items
    }

    fn cursor(&mut self) -> Key {
        if self.taken.is_empty() {
            self.marks.taken(0, &self.member.subscription);
            self.marks.given();
        }
        self.marks.low()
    }
}

/// An event as JSON, made by the first stream that sends it.
pub(super) fn json_of(event: &Event) -> Bytes {
    event.form(Form::Json, |event| json::write_event(event).into()).clone()
}

/// How far a stream is: the key in the archive's order before which nothing can arrive any more that it has not sent.
///
/// Messages arrive in another order than that of their times: the next one may have a much earlier key than the last one sent. So
/// a cursor is not the key of the last message, but the earliest key that a message can have that arrives after everything sent
/// so far had arrived.
pub(super) struct Marks {
    clock: Arc<dyn Clock>,
    times: Times,
    low: Key,
    /// After this many further events, everything that had arrived at this time is sent.
    ahead: Option<(Timestamp, usize)>,
}

impl Marks {
    /// The marks of a stream that begins now.
    pub(super) fn new(clock: Arc<dyn Clock>, times: Times) -> Self {
        let low = place_at(times.earliest_after(clock.now()));
        Self { clock, times, low, ahead: None }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Everything before this was sent, and nothing will arrive there.
    pub(super) fn low(&self) -> Key {
        self.low
    }

    /// Records that this many events were taken from the subscription.
    pub(super) fn taken(&mut self, events: usize, subscription: &Subscription) {
        match &mut self.ahead {
            Some((_, left)) => *left = left.saturating_sub(events),
            None => {
                let now = self.clock.now(); // before the queue is read: what arrives in between is counted
                let waiting = subscription.waiting();
                // What waited when the session ended is lost without having been sent.
                if subscription.ended().is_none() {
                    self.ahead = Some((now, waiting));
                }
            }
        }
    }

    /// Records that everything that was taken has been sent.
    pub(super) fn given(&mut self) {
        if let Some((now, 0)) = self.ahead {
            self.low = self.low.max(place_at(self.times.earliest_after(now)));
            self.ahead = None;
        }
    }

    /// The cursor of an event while others wait to be sent after it.
    fn cursor_of(&self, event: &Event) -> Option<Key> {
        (!is_ephemeral(event)).then_some(self.low)
    }
}

fn place_at(timestamp: Timestamp) -> Key {
    Key { timestamp, message_hash: MessageHash::MIN }
}
