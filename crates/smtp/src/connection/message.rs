//! Receiving a message: `DATA` and `BDAT`.

use std::{io, mem, sync::Arc};

use restante_mail_wire::smtp::{Body, ChunkDecoder, DataDecoder, Newlines, Reply};
use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout_at};

use super::{Client, Next, TIMED_OUT, envelope::Transaction, wire::Wire};
use crate::{
    door::Server,
    memory::Reservation,
    metrics::MessageResult,
    refusal::Refusal,
    trace::{Trace, With, message_id},
};

const SEND_DATA: Reply<'_> = Reply::new(354, "", "send the message, and end it with a dot alone on a line");
const NO_RECIPIENTS: Reply<'_> = Reply::new(503, "5.5.1", "no recipient was accepted");
const CHUNKS_BEGAN: Reply<'_> = Reply::new(503, "5.5.1", "the message has begun with BDAT: go on with it");
const BINARY_BY_CHUNKS: Reply<'_> = Reply::new(503, "5.5.1", "BODY=BINARYMIME needs BDAT");
const BEHIND_DATA: Reply<'_> = Reply::new(554, "5.5.0", "closed: nothing may follow DATA before its reply");
const ENDLESS: Reply<'_> = Reply::new(421, "4.3.0", "closed: the message is far too big");
pub(super) const TOO_SLOW: Reply<'_> =
    Reply::new(421, "4.3.1", "closed: the message comes too slowly for its memory");
const CHUNK_OK: Reply<'_> = Reply::new(250, "2.0.0", "chunk ok");

/// The memory that is first reserved for a message: most messages fit.
const FIRST_BYTES: usize = 16 << 10;
/// Messages with less memory than this may stall although others wait for memory.
const SMALL_BYTES: usize = 1 << 20;
/// What a client must send within [`MemoryBudget::patience`](crate::memory::MemoryBudget::patience) while others wait for its memory.
const STEP_BYTES: usize = 64 << 10;

/// A message that is being received.
pub(super) struct Incoming {
    server: Arc<Server>,
    /// Our trace fields, and the decoded message.
    pub(super) raw: Vec<u8>,
    pub(super) trace_bytes: usize,
    /// Of the decoded bytes.
    digest: Sha256,
    pub(super) memory: Option<Reservation>,
    pub(super) refusal: Option<Refusal>,
    /// The Message-ID of a message that was refused.
    refused_id: Option<String>,
    /// The length so far, including what was dropped.
    pub(super) received_bytes: u64,
    /// Bytes that came after the message was refused.
    dropped_bytes: u64,
    chunks: ChunkDecoder,
    deadline: Instant,
    /// When the current [`STEP_BYTES`] began, and how many of them came.
    step: (Instant, usize),
}

/// How receiving ended.
enum Received {
    Whole,
    /// The client closed the connection, or it has to be closed, with this reply.
    BrokenOff(Option<Reply<'static>>),
}

impl Incoming {
    fn new(server: Arc<Server>, trace: String, body: Body, deadline: Instant) -> Self {
        let chunks = ChunkDecoder::new(body != Body::Binary);
        let raw = trace.into_bytes();
        Self {
            server,
            trace_bytes: raw.len(),
            raw,
            digest: Sha256::new(),
            memory: None,
            refusal: None,
            refused_id: None,
            received_bytes: 0,
            dropped_bytes: 0,
            chunks,
            deadline,
            step: (Instant::now(), 0),
        }
    }

    /// The length of the message so far.
    pub(super) fn bytes(&self) -> u64 {
        self.raw.len().saturating_sub(self.trace_bytes) as u64
    }

    /// The Message-ID as far as it was received, for the journal.
    pub(super) fn message_id(&self) -> Option<String> {
        let message = self.raw.get(self.trace_bytes..).unwrap_or_default();
        self.refused_id.clone().or_else(|| message_id(message))
    }

    /// SHA-256 of the message.
    pub(super) fn digest(&mut self) -> [u8; 32] {
        mem::take(&mut self.digest).finalize().into()
    }

    /// Adds decoded bytes, or drops them when the message is refused.
    async fn append(&mut self, bytes: &[u8]) {
        let bytes_max = self.server.config.message_bytes_max.get();
        let needed = self.raw.len() + bytes.len();
        self.received_bytes = self.received_bytes.saturating_add(bytes.len() as u64);
        if self.refusal.is_some() {
            return;
        }
        if needed - self.trace_bytes > bytes_max {
            self.refuse(Refusal::TooBig, bytes);
        } else if (self.memory.is_none() || needed > self.raw.capacity()) && !self.grow(needed).await {
            self.refuse(Refusal::Memory, bytes);
        } else {
            self.digest.update(bytes);
            self.raw.extend_from_slice(bytes);
            self.note_progress(bytes.len());
        }
    }

    fn note_progress(&mut self, bytes: usize) {
        self.step.1 += bytes;
        if self.step.1 >= STEP_BYTES {
            self.step = (Instant::now(), 0);
        }
    }

    /// Whether the message stalls while it holds much memory for which others wait. Otherwise a client could block all mail with
    /// a few large messages that it never ends.
    ///
    /// If the client sends next to nothing (`is_slow`), any size counts.
    pub(super) fn is_in_the_way(&self, is_slow: bool) -> bool {
        let memory = &self.server.memory;
        let is_large = self.raw.capacity() > SMALL_BYTES && self.step.0.elapsed() >= memory.patience();
        (is_large || is_slow) && self.memory.is_some() && memory.has_waiters()
    }

    /// Gets memory for fields of `bytes` bytes that are put before the message.
    pub(super) async fn make_room(&mut self, bytes: usize) -> bool {
        let needed = self.raw.len() + bytes;
        needed <= self.raw.capacity() || self.grow(needed).await
    }

    /// Gets memory for `needed` bytes and some more, within the budget of all messages.
    async fn grow(&mut self, needed: usize) -> bool {
        let longest = self.trace_bytes + self.server.config.message_bytes_max.get();
        let capacity = needed.max(2 * self.raw.capacity()).max(FIRST_BYTES).min(longest.max(needed));
        let held = self.memory.take();
        self.memory = self.server.memory.grow(held, capacity).await;
        self.step = (Instant::now(), 0); // waiting for memory is not the client's fault
        self.raw.reserve_exact(if self.memory.is_some() { capacity - self.raw.len() } else { 0 });
        self.memory.is_some()
    }

    /// Refuses the message: everything from now on is dropped, beginning with `next`.
    fn refuse(&mut self, refusal: Refusal, next: &[u8]) {
        let is_begin = self.bytes() == 0; // a short message may arrive at once
        self.refused_id = if is_begin { message_id(next) } else { self.message_id() };
        self.raw = Vec::new();
        self.trace_bytes = 0;
        self.memory = None;
        self.refusal = Some(refusal);
    }

    /// Whether the client sends far more than it may after the message was refused.
    fn is_endless(&self) -> bool {
        self.dropped_bytes > self.server.config.message_bytes_max.get() as u64
    }
}

impl Client {
    /// `DATA`.
    pub(super) async fn data(&mut self, wire: &mut Wire) -> io::Result<Next> {
        let refusal = match &self.transaction {
            None => Some(NO_RECIPIENTS),
            Some(transaction) if transaction.incoming.is_some() => Some(CHUNKS_BEGAN),
            Some(transaction) if transaction.recipients.is_empty() => Some(NO_RECIPIENTS),
            Some(transaction) if transaction.parameters.body == Body::Binary => Some(BINARY_BY_CHUNKS),
            Some(_) => None,
        };
        let (None, Some(transaction)) = (refusal, &self.transaction) else {
            // RFC 2920 §3.1: a client must wait for this reply. What it sent without waiting is part of a message, and must not
            // be parsed as commands.
            if !wire.unread().is_empty() {
                wire.reply(BEHIND_DATA);
                return Ok(Next::Close);
            }
            return Ok(self.refuse(wire, refusal.unwrap_or(NO_RECIPIENTS)));
        };
        let mut incoming = self.begin_message(transaction);
        wire.reply(SEND_DATA);
        wire.flush().await?;
        let received = self.receive_data(wire, &mut incoming).await;
        self.received(wire, received, incoming).await
    }

    async fn receive_data(&mut self, wire: &mut Wire, incoming: &mut Incoming) -> io::Result<Received> {
        let newlines = if self.is_trusted { Newlines::Repaired } else { Newlines::Strict };
        let (mut decoder, mut decoded) = (DataDecoder::new(newlines), Vec::new());
        loop {
            if wire.unread().is_empty()
                && let Some(end) = self.read_data(wire, incoming.deadline, Some(&*incoming)).await?
            {
                return Ok(end);
            }
            let consumed = decoder.decode(wire.unread(), &mut decoded);
            wire.consume(consumed);
            incoming.append(&decoded).await;
            decoded.clear();
            if decoder.is_done() {
                break;
            }
            if decoder.error().is_some() || incoming.refusal.is_some() {
                incoming.dropped_bytes = incoming.dropped_bytes.saturating_add(consumed as u64);
            }
            if incoming.is_endless() {
                return Ok(Received::BrokenOff(Some(ENDLESS)));
            }
        }
        if let Some(error) = decoder.error()
            && incoming.refusal.is_none()
        {
            incoming.refuse(error.into(), &[]);
        }
        Ok(Received::Whole)
    }

    /// `BDAT`.
    pub(super) async fn chunk(&mut self, wire: &mut Wire, bytes: u64, is_last: bool) -> io::Result<Next> {
        let bytes_max = self.server.config.message_bytes_max.get() as u64;
        if bytes > bytes_max.saturating_mul(2) {
            wire.reply(ENDLESS);
            return Ok(Next::Close);
        }
        let begun = self.transaction.as_mut().filter(|transaction| !transaction.recipients.is_empty());
        let Some(incoming) = begun.map(|transaction| transaction.incoming.take()) else {
            return self.swallow(wire, bytes).await;
        };
        let mut incoming = match (incoming, &self.transaction) {
            (Some(incoming), _) => incoming,
            (None, Some(transaction)) => self.begin_message(transaction),
            (None, None) => return Ok(Next::Close), // there is one: see above
        };
        let received = self.receive_chunk(wire, bytes, &mut incoming).await;
        let is_over = is_last || incoming.refusal.is_some() || !matches!(received, Ok(Received::Whole));
        if is_over {
            if is_last {
                let mut end = Vec::new();
                incoming.chunks.finish(&mut end);
                incoming.append(&end).await;
            }
            return self.received_chunks(wire, received, incoming, is_last).await;
        }
        if let Some(transaction) = &mut self.transaction {
            transaction.incoming = Some(incoming);
        }
        wire.reply(CHUNK_OK);
        Ok(Next::Command)
    }

    /// A chunk that is refused before the last one gets one reply, also in LMTP, and ends the transaction; further chunks are
    /// refused because there is no transaction.
    async fn received_chunks(
        &mut self,
        wire: &mut Wire,
        received: io::Result<Received>,
        incoming: Incoming,
        is_last: bool,
    ) -> io::Result<Next> {
        if let (false, Some(refusal), Ok(Received::Whole)) = (is_last, incoming.refusal, &received) {
            if let Some(transaction) = self.transaction.take() {
                self.note_unfinished(&transaction, &incoming, Some(refusal.reply()));
            }
            self.server.metrics.count_message(self.protocol, MessageResult::of(refusal));
            wire.reply(refusal.reply());
            return Ok(Next::Command);
        }
        self.received(wire, received, incoming).await
    }

    async fn receive_chunk(
        &mut self,
        wire: &mut Wire,
        bytes: u64,
        incoming: &mut Incoming,
    ) -> io::Result<Received> {
        let (mut left, mut decoded) = (bytes, Vec::new());
        wire.flush_before_chunk(left).await?;
        while left > 0 {
            if wire.unread().is_empty()
                && let Some(end) = self.read_data(wire, incoming.deadline, Some(&*incoming)).await?
            {
                return Ok(end);
            }
            let piece = first(wire.unread(), left);
            let consumed = piece.len();
            incoming.chunks.decode(piece, &mut decoded);
            wire.consume(consumed);
            left -= consumed as u64;
            incoming.append(&decoded).await;
            decoded.clear();
        }
        Ok(Received::Whole)
    }

    /// Reads a chunk that belongs to no message, and refuses it.
    async fn swallow(&mut self, wire: &mut Wire, bytes: u64) -> io::Result<Next> {
        let (mut left, deadline) = (bytes, Instant::now() + self.server.message_timeout());
        wire.flush_before_chunk(left).await?;
        while left > 0 {
            if wire.unread().is_empty()
                && let Some(Received::BrokenOff(reply)) = self.read_data(wire, deadline, None).await?
            {
                if let Some(reply) = reply {
                    wire.reply(reply);
                }
                return Ok(Next::Close);
            }
            let consumed = first(wire.unread(), left).len();
            wire.consume(consumed);
            left -= consumed as u64;
        }
        self.transaction = None;
        Ok(self.refuse(wire, NO_RECIPIENTS))
    }

    /// Reads bytes of a message. Returns how receiving ends if none come in time.
    async fn read_data(
        &mut self,
        wire: &mut Wire,
        deadline: Instant,
        incoming: Option<&Incoming>,
    ) -> io::Result<Option<Received>> {
        let deadline = deadline.min(Instant::now() + self.server.config.data_timeout());
        loop {
            let begun = Instant::now();
            let check = begun + self.pace_interval();
            let filled = timeout_at(deadline.min(check), wire.fill()).await;
            let bytes = filled.as_ref().ok().and_then(|read| read.as_ref().ok()).copied();
            if self.note_pace(begun.elapsed(), bytes.unwrap_or_default()) {
                wire.flush().await?;
            }
            let is_in_the_way = incoming.is_some_and(|incoming| incoming.is_in_the_way(self.is_slow()));
            return match filled {
                Ok(Ok(0)) => Ok(Some(Received::BrokenOff(None))),
                Ok(Err(error)) => Err(error),
                _ if is_in_the_way => Ok(Some(Received::BrokenOff(Some(TOO_SLOW)))),
                Ok(Ok(_)) => Ok(None),
                Err(_) if Instant::now() < deadline => continue,
                Err(_) => Ok(Some(Received::BrokenOff(Some(TIMED_OUT)))),
            };
        }
    }

    fn begin_message(&self, transaction: &Transaction) -> Incoming {
        let recipient = match transaction.recipients.as_slice() {
            [only] => Some(only.address.as_str()),
            _ => None,
        };
        let with = With {
            protocol: self.protocol,
            is_extended: self.hello.as_ref().is_some_and(|hello| hello.is_extended),
            is_tls: self.is_tls,
            is_utf8: transaction.parameters.is_utf8,
        };
        let trace = Trace {
            sender: &transaction.sender,
            hello: self.hello_name(),
            peer: self.address,
            peer_name: self.confirmed_name(),
            hostname: &self.server.config.hostname,
            with,
            id: &transaction.id,
            recipient,
            time: self.server.clock.now(),
        };
        let deadline = Instant::now() + self.server.message_timeout();
        Incoming::new(self.server.clone(), trace.fields(), transaction.parameters.body, deadline)
    }

    /// Continues after a message was received: stores it if it is complete. Either way the transaction ends.
    async fn received(
        &mut self,
        wire: &mut Wire,
        received: io::Result<Received>,
        incoming: Incoming,
    ) -> io::Result<Next> {
        let mut transaction = self.transaction.take();
        if let Some(transaction) = &mut transaction {
            // From here on the message is not interrupted, however slow the client was.
            transaction.in_use.get_or_insert_with(|| self.activity.begin());
        }
        match (received, transaction) {
            (Ok(Received::Whole), Some(transaction)) => {
                if transaction.submitted.is_some() {
                    return self.submit(wire, transaction, incoming).await;
                }
                self.finish(wire, transaction, incoming).await;
                Ok(Next::Command)
            }
            (Ok(Received::BrokenOff(reply)), transaction) => {
                self.server.metrics.count_message(self.protocol, MessageResult::BrokenOff);
                if let Some(transaction) = &transaction {
                    self.note_unfinished(transaction, &incoming, reply);
                }
                if let Some(reply) = reply {
                    wire.reply(reply);
                }
                Ok(Next::Close)
            }
            (Err(error), transaction) => {
                self.server.metrics.count_message(self.protocol, MessageResult::BrokenOff);
                if let Some(transaction) = &transaction {
                    self.note_unfinished(transaction, &incoming, None);
                }
                Err(error)
            }
            (Ok(Received::Whole), None) => Ok(Next::Close), // no message begins without a transaction
        }
    }
}

/// The first `bytes` bytes of a buffer, or all if there are fewer.
fn first(buffer: &[u8], bytes: u64) -> &[u8] {
    usize::try_from(bytes).ok().and_then(|bytes| buffer.get(..bytes)).unwrap_or(buffer)
}
