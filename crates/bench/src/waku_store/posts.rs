//! The messages of a load: by number, so that several publishers can send the same ones, as by relay.

use base64_simd::STANDARD;
use restante_core::{MessageHash, Timestamp};
use restante_waku_wire::message_hash;

use crate::{http::post, random::Random};

/// The topic of published messages: another pubsub topic than the data set's.
pub(super) const PUBSUB_TOPIC: &str = "/waku/2/rs/1/0";
const PUBSUB_TOPIC_ESCAPED: &str = "%2Fwaku%2F2%2Frs%2F1%2F0";
pub(super) const CONTENT_TOPIC: &str = "/restante-bench/1/store/proto";
/// Different payloads, apart from the marks at their beginning.
const BODIES: usize = 64;
/// The unique mark of a payload: a multiple of three bytes, so that it has its own base64 characters.
const MARK_BYTES: usize = 18;
/// Distance of timestamps: no two messages of a load have the same one.
const STEP_NANOS: i64 = 1_000;

/// The messages of one load.
pub(super) struct Posts {
    /// Number of the load.
    load: u64,
    first: Timestamp,
    /// The payload after the mark: bytes, and the same in base64.
    bodies: Vec<(Vec<u8>, String)>,
}

impl Posts {
    /// Messages with payloads of this size; times ascend from `first`.
    pub(super) fn new(load: u64, payload_bytes: usize, first: Timestamp) -> Self {
        let mut random = Random::new(load, 11);
        let mut bodies = Vec::with_capacity(BODIES);
        for _ in 0..BODIES {
            let mut body = vec![0; payload_bytes.saturating_sub(MARK_BYTES)];
            random.fill(&mut body);
            let text = STANDARD.encode_to_string(&body);
            bodies.push((body, text));
        }
        Self { load, first, bodies }
    }

    fn mark(&self, number: u64) -> [u8; MARK_BYTES] {
        let mut mark = [0; MARK_BYTES];
        let (load, rest) = mark.split_at_mut(8);
        load.copy_from_slice(&self.load.to_le_bytes());
        rest.split_at_mut(8).0.copy_from_slice(&number.to_le_bytes());
        mark
    }

    fn timestamp(&self, number: u64) -> i64 {
        self.first.nanos() + number as i64 * STEP_NANOS
    }

    fn body(&self, number: u64) -> (&[u8], &str) {
        let body = self.bodies.get(number as usize % BODIES);
        body.map_or((&[], ""), |(bytes, text)| (bytes, text))
    }

    /// The request that publishes the message of this number.
    pub(super) fn request(&self, number: u64) -> String {
        let (mark, timestamp) = (STANDARD.encode_to_string(self.mark(number)), self.timestamp(number));
        let (_, body) = self.body(number);
        let json = format!(
            "{{\"payload\":\"{mark}{body}\",\"contentTopic\":\"{CONTENT_TOPIC}\",\"version\":1,\"timestamp\":{timestamp}}}"
        );
        post(&format!("/relay/v1/messages/{PUBSUB_TOPIC_ESCAPED}"), &json)
    }

    /// The hash that the server computes of it.
    pub(super) fn hash(&self, number: u64) -> MessageHash {
        let payload = [&self.mark(number)[..], self.body(number).0].concat();
        message_hash(PUBSUB_TOPIC, &payload, CONTENT_TOPIC, &[], self.timestamp(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_the_one_whose_hash_it_has() {
        let posts = Posts::new(3, 1_400, Timestamp(1_700_000_000_000_000_000));
        for number in [0, 7, 64, 1_000] {
            let request = posts.request(number);
            let (_, json) = request.split_once("\r\n\r\n").unwrap();
            let json: serde_json::Value = serde_json::from_str(json).unwrap();
            let payload = STANDARD.decode_to_vec(json["payload"].as_str().unwrap()).unwrap();
            assert_eq!(payload.len(), 1_400);
            let topic = json["contentTopic"].as_str().unwrap();
            let timestamp = json["timestamp"].as_i64().unwrap();
            assert_eq!(message_hash(PUBSUB_TOPIC, &payload, topic, &[], timestamp), posts.hash(number));
        }
    }

    #[test]
    fn messages_of_all_numbers_and_loads_differ() {
        let (one, other) = (Posts::new(1, 100, Timestamp(5)), Posts::new(2, 100, Timestamp(5)));
        let mut hashes: Vec<_> = (0..200).flat_map(|number| [one.hash(number), other.hash(number)]).collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), 400);
    }
}
