//! What a stream gives, one piece after the other: first what the walk sends, then what arrives.

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

/// How often a stream that has nothing to give says that it is there: proxies close what is silent for a minute as a rule.
pub(super) const BEAT: Duration = Duration::from_secs(15);
/// Messages are sent together up to so many bytes, and one message more.
pub(super) const CHUNK_BYTES: usize = 64 << 10;

/// A message of a stream.
#[derive(Debug)]
pub(super) struct Item {
    /// Where the stream goes on when it breaks off after this message. `None` for what is never archived.
    pub(super) cursor: Option<Key>,
    /// The message as JSON, in one line.
    pub(super) json: Bytes,
}

/// What a stream gives next.
#[derive(Debug)]
pub(super) enum Piece {
    /// Messages, in order.
    Messages(Vec<Item>),
    /// From here on messages are given as they arrive.
    Live(Key),
    /// No more comes.
    End(End),
}

/// Why a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Its session has ended.
    Session(Ended),
    /// The archive can't go on.
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
    /// The archive is walked by a task of its own, which sends what it finds.
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
    /// The next piece; after the end there is none. Nothing is lost when the wait is given up.
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
                None => Piece::End(End::Unavailable), // the walk has failed
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

    /// Where a stream that is silent now would go on.
    pub(super) fn cursor(&mut self) -> Option<Key> {
        match self {
            Self::Live(live) => Some(live.cursor()),
            Self::CatchingUp(_) | Self::Over => None,
        }
    }
}

/// Messages as they arrive, as they are given to a client.
pub(super) struct LiveMessages {
    member: Member,
    marks: Marks,
    /// Taken from the subscription, and not given yet.
    taken: VecDeque<Arc<Event>>,
    /// What the walk has given, which may be announced again for a while.
    given: Option<(Given, Instant)>,
    metrics: LiveMetrics,
    is_announced: bool,
}

impl LiveMessages {
    /// A stream without a walk.
    pub(super) fn from_now(member: Member, marks: Marks, metrics: LiveMetrics) -> Self {
        Self { member, marks, taken: VecDeque::new(), given: None, metrics, is_announced: false }
    }

    /// A stream after a walk, which has `held` left.
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

    /// Waits for events, or for the end.
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

    /// The next messages of those that were taken.
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
            self.taken = VecDeque::new(); // an idle stream holds no memory for what was
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

/// An event as JSON, made by the first stream that gives it.
pub(super) fn json_of(event: &Event) -> Bytes {
    event.form(Form::Json, |event| json::write_event(event).into()).clone()
}

/// How far a stream has come: before which place in the archive's order nothing can come any more that it has not given.
///
/// Messages come in the order of their arrival, and their times are off from that: what comes next may stand far before what was
/// given last. So a cursor is not the place of the last message, but the earliest place at which a message could stand that
/// arrives after all that was given had arrived.
pub(super) struct Marks {
    clock: Arc<dyn Clock>,
    times: Times,
    low: Key,
    /// When so many further events are given, everything is given that had arrived by then.
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

    /// Everything before this was given, and nothing will come there.
    pub(super) fn low(&self) -> Key {
        self.low
    }

    /// Notes that so many events were taken from the subscription.
    pub(super) fn taken(&mut self, events: usize, subscription: &Subscription) {
        match &mut self.ahead {
            Some((_, left)) => *left = left.saturating_sub(events),
            None => {
                let now = self.clock.now(); // before the look at the queue: what comes between the two is counted
                let waiting = subscription.waiting();
                // What waited at a session's end is gone without having been given.
                if subscription.ended().is_none() {
                    self.ahead = Some((now, waiting));
                }
            }
        }
    }

    /// Notes that all that was taken has been given.
    pub(super) fn given(&mut self) {
        if let Some((now, 0)) = self.ahead {
            self.low = self.low.max(place_at(self.times.earliest_after(now)));
            self.ahead = None;
        }
    }

    /// The cursor of an event while others wait to be given after it.
    fn cursor_of(&self, event: &Event) -> Option<Key> {
        (!is_ephemeral(event)).then_some(self.low)
    }
}

fn place_at(timestamp: Timestamp) -> Key {
    Key { timestamp, message_hash: MessageHash::MIN }
}
