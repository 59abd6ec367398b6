//! Relay: gossipsub with Waku's protocol id, message id and parameters (`11/WAKU2-RELAY`).

use std::{collections::HashSet, sync::Arc, time::Duration};

use libp2p::gossipsub::{
    self, ConfigBuilder, IdentTopic, IdentityTransform, MaxCountSubscriptionFilter, MessageAuthenticity,
    MessageId, PeerScoreParams, PeerScoreThresholds, TopicHash, TopicScoreParams, TopicSubscriptionFilter,
    ValidationMode, Version,
};
use parking_lot::RwLock;
use restante_waku_wire::PubsubTopic;
use sha2::{Digest, Sha256};

use super::NodeError;

/// The only protocol id that is supported.
const ID: &str = "/vac/waku/relay/2.0.0";
/// The most bytes of a frame beyond the message: gossip, and the beginning of the next frame, which the library counts too.
const FRAME_EXTRA_BYTES: usize = 256 << 10;
/// The most bytes of gossip in a frame: more than 5,000 message ids, which go-libp2p sends at once.
const CONTROL_BYTES_MAX: usize = 256 << 10;
/// The most message ids that we send at once: their bytes stay below the 150 KiB that go-waku accepts.
const IDS_AT_ONCE_MAX: usize = 2_000;
/// The most pubsub topics that a peer may follow: all shards of a cluster, and some others.
const TOPICS_PER_PEER_MAX: usize = 1_200;
/// The longest pubsub topic that a peer may follow; the names of shards have at most 22 bytes.
const TOPIC_BYTES_MAX: usize = 128;
/// The most messages that wait for one peer; more are dropped and counted.
const QUEUE_MESSAGES_MAX: usize = 1_000;
/// The most pubsub topics in [`KnownTopics`]; further topics to which the node only publishes are not added.
const KNOWN_TOPICS_MAX: usize = 4_096;
/// How long our own message may wait for a slow peer: long, so that a burst arrives.
const PUBLISH_WAIT: Duration = Duration::from_secs(60);
/// How long a forwarded message may wait for a slow peer: short, because peers get it from others as well.
const FORWARD_WAIT: Duration = Duration::from_secs(5);

/// How long a peer may take to send a message that it offered: it may wait in the peer's queue like others.
const PROMISE_TIME: Duration = Duration::from_secs(6);
/// The number of peers of a mesh.
const MESH_PEERS: usize = 6;

pub(crate) type Relay = gossipsub::Behaviour<IdentityTransform, MaxCountSubscriptionFilter<WakuTopics>>;

/// Accepts subscriptions of peers to valid pubsub topics of bounded length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WakuTopics;

impl TopicSubscriptionFilter for WakuTopics {
    fn can_subscribe(&mut self, topic: &TopicHash) -> bool {
        topic.as_str().len() <= TOPIC_BYTES_MAX && topic.as_str().parse::<PubsubTopic>().is_ok()
    }
}

/// The pubsub topics that this node follows or has published to.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownTopics(Arc<RwLock<HashSet<TopicHash>>>);

impl KnownTopics {
    /// The node follows a topic.
    pub(crate) fn followed(&self, topic: &IdentTopic) {
        self.0.write().insert(topic.hash());
    }

    /// The node no longer follows a topic.
    pub(crate) fn unfollowed(&self, topic: &IdentTopic) {
        self.0.write().remove(&topic.hash());
    }

    /// The node publishes to a topic.
    pub(crate) fn published(&self, topic: &IdentTopic) {
        let is_new = !self.0.read().contains(&topic.hash());
        if is_new {
            let mut known = self.0.write();
            if known.len() < KNOWN_TOPICS_MAX {
                known.insert(topic.hash());
            }
        }
    }

    /// The id of a message: SHA-256 of its bytes, as all nodes of the network compute it, without the topic.
    ///
    /// The library stores the ids of messages of all topics. A peer that sends the bytes of a message on a topic that this node
    /// does not use would make the message itself a duplicate, so on such topics the id is a different one. It stays internal.
    fn message_id(&self, message: &gossipsub::Message) -> MessageId {
        let digest = Sha256::new();
        let is_known = self.0.read().contains(&message.topic);
        let digest =
            if is_known { digest } else { digest.chain_update(message.topic.as_str()).chain_update([0]) };
        MessageId::new(&digest.chain_update(&message.data).finalize())
    }
}

/// Creates the relay with the parameters of the network's nodes, except that our own messages go only to the mesh (no flood
/// publishing): otherwise a client that publishes here could fill the queues to all peers.
pub(crate) fn build(max_message_bytes: usize, known: KnownTopics) -> Result<Relay, NodeError> {
    let wrong = |error: &dyn ToString| NodeError::Config(format!("relay: {}", error.to_string()));
    let config = ConfigBuilder::default()
        .protocol_id(ID, Version::V1_1)
        .validation_mode(ValidationMode::Anonymous)
        .validate_messages()
        .message_id_fn(move |message| known.message_id(message))
        .max_transmit_size(max_message_bytes.saturating_add(FRAME_EXTRA_BYTES))
        .mesh_n(MESH_PEERS)
        .mesh_n_low(4)
        .mesh_n_high(8)
        .mesh_outbound_min(3)
        .gossip_lazy(6)
        .gossip_factor(0.25)
        .heartbeat_interval(Duration::from_secs(1))
        .history_length(6)
        .history_gossip(3)
        .fanout_ttl(Duration::from_secs(60))
        .duplicate_cache_time(Duration::from_secs(120))
        .prune_backoff(Duration::from_secs(60))
        .flood_publish(false)
        .max_control_message_size(CONTROL_BYTES_MAX)
        .max_control_messages_sent(IDS_AT_ONCE_MAX)
        .iwant_followup_time(PROMISE_TIME)
        .connection_handler_queue_len(QUEUE_MESSAGES_MAX)
        .publish_queue_duration(PUBLISH_WAIT)
        .forward_queue_duration(FORWARD_WAIT)
        .build()
        .map_err(|error| wrong(&error))?;
    let filter = MaxCountSubscriptionFilter {
        filter: WakuTopics,
        max_subscribed_topics: TOPICS_PER_PEER_MAX,
        max_subscriptions_per_request: TOPICS_PER_PEER_MAX,
    };
    // StrictNoSign: messages have no author and no signature.
    let mut relay = Relay::new_with_subscription_filter(MessageAuthenticity::Anonymous, config, filter)
        .map_err(|error| wrong(&error))?;
    relay.with_peer_score(score_params(), score_thresholds()).map_err(|error| wrong(&error))?;
    Ok(relay)
}

/// A pubsub topic in gossipsub's form.
pub(crate) fn topic(name: &str) -> IdentTopic {
    IdentTopic::new(name)
}

/// nwaku's weights, except that peers of one IP address have no penalty: they may be behind a load balancer or share a NAT,
/// and connections per address are bounded anyway.
fn score_params() -> PeerScoreParams {
    PeerScoreParams {
        ip_colocation_factor_weight: 0.0,
        app_specific_weight: 0.0,
        ..PeerScoreParams::default()
    }
}

fn score_thresholds() -> PeerScoreThresholds {
    PeerScoreThresholds {
        gossip_threshold: -100.0,
        publish_threshold: -1_000.0,
        graylist_threshold: -10_000.0,
        ..PeerScoreThresholds::default()
    }
}

/// Within a topic only invalid messages lower the score of a peer, with nwaku's weight.
pub(crate) fn topic_score_params() -> TopicScoreParams {
    TopicScoreParams {
        topic_weight: 1.0,
        mesh_message_deliveries_weight: 0.0,
        mesh_failure_penalty_weight: 0.0,
        invalid_message_deliveries_weight: -100.0,
        invalid_message_deliveries_decay: 0.5,
        ..TopicScoreParams::default()
    }
}

/// The number of peers to which a message is sent.
pub(crate) fn recipients(relay: &Relay, topic: &IdentTopic, followers: usize) -> usize {
    relay.mesh_peers(&topic.hash()).count().max(followers.min(MESH_PEERS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(topic: &str, data: &[u8]) -> gossipsub::Message {
        gossipsub::Message {
            source: None,
            data: data.to_vec(),
            sequence_number: None,
            topic: TopicHash::from_raw(topic),
        }
    }

    /// All nodes must compute the same id: SHA-256 of the bytes alone.
    #[test]
    fn ids_of_known_topics_are_those_of_the_network() {
        let known = KnownTopics::default();
        known.followed(&topic("/waku/2/rs/42/0"));
        let id = known.message_id(&message("/waku/2/rs/42/0", b"abc"));
        assert_eq!(
            hex::encode(&id.0),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            "the test vector of FIPS 180 for abc"
        );
        known.unfollowed(&topic("/waku/2/rs/42/0"));
        assert_ne!(known.message_id(&message("/waku/2/rs/42/0", b"abc")), id, "the topic is no longer known");
        let elsewhere = known.message_id(&message("/waku/2/rs/42/1", b"abc"));
        assert_ne!(id, elsewhere, "the same bytes elsewhere don't make the message known");
    }

    #[test]
    fn long_and_foreign_topics_are_not_followed() {
        let follows = |name: &str| WakuTopics.can_subscribe(&TopicHash::from_raw(name));
        assert!(follows("/waku/2/rs/65535/1023") && follows("/waku/2/default-waku/proto"));
        assert!(!follows("other") && !follows(&format!("/waku/2/{}", "x".repeat(200))));
    }

    #[test]
    fn the_parameters_are_accepted() {
        assert!(build(150 << 10, KnownTopics::default()).is_ok());
        assert!(score_params().validate().is_ok() && score_thresholds().validate().is_ok());
        assert!(topic_score_params().validate().is_ok());
    }
}
