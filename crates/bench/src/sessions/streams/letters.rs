//! Messages that contain their time of sending and their stream, and the account of received ones.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use restante_core::Timestamp;

use crate::measure::Latencies;

/// Bytes of a payload: a short chat message with its envelope.
const PAYLOAD_BYTES: usize = 240;
/// Bytes of a payload that are read, in base64: three numbers of eight bytes.
const STAMP_CHARS: usize = 32;
const BEFORE_PAYLOAD: &[u8] = b"\"payload\":\"";

/// The content of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    stream: u64,
    number: u64,
    /// Since the start of the account, in nanoseconds.
    sent_ns: u64,
}

/// The content topic of a stream.
pub(super) fn topic(stream: u64) -> String {
    format!("/restante-bench/1/stream-{stream}/proto")
}

/// A message, as REST accepts it.
pub(super) fn write(stream: u64, number: u64, sent: Duration, timestamp: Timestamp) -> String {
    let mut payload = [0x5a; PAYLOAD_BYTES];
    let stamp = [stream, number, sent.as_nanos() as u64];
    for (place, number) in payload.as_chunks_mut::<8>().0.iter_mut().zip(stamp) {
        *place = number.to_le_bytes();
    }
    let payload = base64_simd::STANDARD.encode_to_string(payload);
    format!(
        "{{\"payload\":\"{payload}\",\"contentTopic\":\"{}\",\"version\":1,\"timestamp\":{}}}",
        topic(stream),
        timestamp.nanos()
    )
}

/// Reads the stamp of a message in a line of JSON.
fn read(line: &[u8]) -> Option<Stamp> {
    let at = line.windows(BEFORE_PAYLOAD.len()).position(|window| window == BEFORE_PAYLOAD)?;
    let start = at + BEFORE_PAYLOAD.len();
    let bytes = base64_simd::STANDARD.decode_to_vec(line.get(start..start + STAMP_CHARS)?).ok()?;
    let [stream, number, sent_ns] = *bytes.as_chunks::<8>().0 else { return None };
    let number_of = u64::from_le_bytes;
    Some(Stamp { stream: number_of(stream), number: number_of(number), sent_ns: number_of(sent_ns) })
}

/// What all streams have received.
pub(super) struct Account {
    pub(super) base: Instant,
    heard: Mutex<Heard>,
}

/// See [`Account`].
#[derive(Clone, Debug, Default)]
pub(super) struct Heard {
    /// From sending to receiving; the first of each message counts.
    pub(super) times: Latencies,
    /// For each message how often it was received.
    counts: Vec<u8>,
    /// Messages received by a stream of another topic, or never sent.
    pub(super) strays: u64,
}

impl Heard {
    /// Messages received.
    pub(super) fn messages(&self) -> u64 {
        self.counts.iter().filter(|count| **count > 0).count() as u64
    }

    /// Messages received more than once.
    pub(super) fn repeated(&self) -> u64 {
        self.counts.iter().filter(|count| **count > 1).count() as u64
    }
}

impl Account {
    /// An account of no messages.
    pub(super) fn new() -> Self {
        Self { base: Instant::now(), heard: Mutex::default() }
    }

    /// Starts again, for this many messages.
    pub(super) fn begin(&self, messages: u64) {
        *self.heard.lock() = Heard { counts: vec![0; messages as usize], ..Heard::default() };
    }

    /// Records a line of a stream, if it is a message.
    pub(super) fn note(&self, stream: u64, line: &[u8]) {
        if !line.starts_with(b"data:") {
            return;
        }
        let now = self.base.elapsed();
        let stamp = read(line);
        let mut heard = self.heard.lock();
        let right = stamp.filter(|stamp| stamp.stream == stream);
        let Some((stamp, count)) =
            right.and_then(|stamp| Some((stamp, heard.counts.get_mut(stamp.number as usize)?)))
        else {
            heard.strays += 1;
            return;
        };
        *count = count.saturating_add(1);
        if *count == 1 {
            heard.times.record(now.saturating_sub(Duration::from_nanos(stamp.sent_ns)));
        }
    }

    pub(super) fn heard(&self) -> Heard {
        self.heard.lock().clone()
    }

    /// Messages that have been received at least once.
    pub(super) fn arrived(&self) -> u64 {
        self.heard.lock().times.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_messages_are_counted() {
        let account = Account::new();
        account.begin(3);
        let line = |stream, number| {
            let json = write(stream, number, Duration::from_millis(1), Timestamp(1));
            format!("data: {json}").into_bytes()
        };
        account.note(7, &line(7, 0));
        account.note(7, &line(7, 2));
        account.note(7, &line(7, 2));
        account.note(7, b"event: message");
        assert_eq!(account.heard().strays, 0);
        account.note(7, &line(8, 1));
        account.note(7, &line(7, 3));
        account.note(7, b"data: {}");
        let heard = account.heard();
        assert_eq!((heard.messages(), heard.repeated(), heard.strays), (2, 1, 3));
        assert_eq!((heard.times.len(), account.arrived()), (2, 2));
    }
}
