//! Relay: gossipsub with Waku's protocol id, message id and parameters (`11/WAKU2-RELAY`).

use std::time::Duration;

use libp2p::gossipsub::{
    self, AllowAllSubscriptionFilter, ConfigBuilder, IdentTopic, IdentityTransform,
    MaxCountSubscriptionFilter, MessageAuthenticity, MessageId, PeerScoreParams, PeerScoreThresholds,
    TopicScoreParams, ValidationMode, Version,
};
use sha2::{Digest, Sha256};

use super::NodeError;

/// The one protocol id; no other gossipsub is spoken.
const ID: &str = "/vac/waku/relay/2.0.0";
/// What a frame may have beside the message.
const FRAME_EXTRA_BYTES: usize = 64 << 10;
/// Pubsub topics that a peer may follow: all shards of a cluster, and as many others.
const TOPICS_PER_PEER_MAX: usize = 2_048;
/// Messages that wait for one peer at most; more are dropped and counted.
const QUEUE_MESSAGES_MAX: usize = 2_000;
/// A message of our own waits for a slow peer until the queue is full: a burst shall arrive.
const PUBLISH_WAIT: Duration = Duration::from_secs(60);
/// A message of others is worth less when it is late: peers have others to get it from.
const FORWARD_WAIT: Duration = Duration::from_secs(5);

pub(crate) type Relay =
    gossipsub::Behaviour<IdentityTransform, MaxCountSubscriptionFilter<AllowAllSubscriptionFilter>>;

/// The relay, with the parameters that the network's nodes share.
pub(crate) fn build(max_message_bytes: usize) -> Result<Relay, NodeError> {
    let wrong = |error: &dyn ToString| NodeError::Config(format!("relay: {}", error.to_string()));
    let config = ConfigBuilder::default()
        .protocol_id(ID, Version::V1_1)
        .validation_mode(ValidationMode::Anonymous)
        .validate_messages()
        .message_id_fn(|message| MessageId::new(&Sha256::digest(&message.data)))
        .max_transmit_size(max_message_bytes.saturating_add(FRAME_EXTRA_BYTES))
        .mesh_n(6)
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
        .flood_publish(true)
        .connection_handler_queue_len(QUEUE_MESSAGES_MAX)
        .publish_queue_duration(PUBLISH_WAIT)
        .forward_queue_duration(FORWARD_WAIT)
        .build()
        .map_err(|error| wrong(&error))?;
    let filter = MaxCountSubscriptionFilter {
        filter: AllowAllSubscriptionFilter {},
        max_subscribed_topics: TOPICS_PER_PEER_MAX,
        max_subscriptions_per_request: TOPICS_PER_PEER_MAX,
    };
    // StrictNoSign: a message says nothing of who sent it.
    let mut relay = Relay::new_with_subscription_filter(MessageAuthenticity::Anonymous, config, filter)
        .map_err(|error| wrong(&error))?;
    relay.with_peer_score(score_params(), score_thresholds()).map_err(|error| wrong(&error))?;
    Ok(relay)
}

/// A pubsub topic as gossipsub names it.
pub(crate) fn topic(name: &str) -> IdentTopic {
    IdentTopic::new(name)
}

/// nwaku's weights, but that peers of one IP address are not thought less of: they may be a load balancer's or one house's,
/// and how many connections there are is bounded anyway.
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

/// In a topic only invalid messages count against a peer, as much as in nwaku.
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
