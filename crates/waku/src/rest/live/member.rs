//! A stream as a session: its entry in the table, its subscription at the hub, and its end.

use std::{net::SocketAddr, sync::Arc};

use prometheus_client::metrics::gauge::Gauge;
use restante_core::ErrorKind;
use restante_sessions::{
    Ended, InfoKey, InfoValue, Live, NewSession, NodeId, SessionId, Sessions,
    hub::{HubFull, Overflow, Subscription, SubscriptionConfig},
};
use tokio::{runtime::Handle, sync::OwnedSemaphorePermit};
use tracing::debug;

use super::{
    ask::{LIVE_TOPICS_MAX, Wants},
    feed::End,
    metrics::{LiveMetrics, Transport},
};
use crate::rest::{RestConfig, reply::Refusal};

/// The resource of the live streams of a node: a client's connection has one stream at a time. Two nodes that share a table may
/// see different clients with the same address, behind a proxy, so each node has its own resource.
fn resource_at(node: NodeId) -> String {
    format!("live/{node}")
}

/// The door's name in the table.
const DOOR: &str = "rest_live";

/// A stream's session and subscription. Dropping it leaves the hub and closes the session.
pub(super) struct Member {
    pub(super) subscription: Subscription,
    sessions: Arc<dyn Sessions>,
    end: Option<End>,
    metrics: LiveMetrics,
    gauge: Gauge,
    _permit: OwnedSemaphorePermit,
}

impl Member {
    /// Opens a session and subscribes to the hub: the subscription gets every message that is announced after this.
    pub(super) async fn join(
        live: &Live,
        client: SocketAddr,
        wants: &Wants,
        config: &RestConfig,
        (metrics, transport): (&LiveMetrics, Transport),
        permit: OwnedSemaphorePermit,
    ) -> Result<Self, Refusal> {
        let id = open(live, client, wants).await?;
        let subscription_config = SubscriptionConfig {
            events_max: config.live_queue_messages.get(),
            bytes_max: config.live_queue_bytes.get(),
            interests_max: LIVE_TOPICS_MAX,
            overflow: Overflow::End,
        };
        let subscription = match live.hub.join(id, subscription_config) {
            Ok(subscription) => subscription,
            Err(full) => {
                close(live.sessions.clone(), id, Ended::Left);
                return Err(refusal_of(full));
            }
        };
        let gauge = metrics.streams(transport);
        gauge.inc();
        let (sessions, metrics) = (live.sessions.clone(), metrics.clone());
        let member = Self { subscription, sessions, end: None, metrics, gauge, _permit: permit };
        member.subscription.subscribe(&wants.interests()).map_err(refusal_of)?;
        Ok(member)
    }

    /// Records why the stream ends; without this, the reason is that its client has left.
    pub(super) fn note_end(&mut self, why: End) {
        self.end.get_or_insert(why);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let end = self.end.unwrap_or(End::Session(Ended::Left));
        self.gauge.dec();
        self.metrics.ended(end);
        // Only the hub knows that the stream reads too slowly or does not fit, so the table is notified here. It knows of all
        // other ends.
        let why = match end {
            End::Session(why @ (Ended::Slow | Ended::Full)) => why,
            End::Session(_) | End::Unavailable => Ended::Left,
        };
        close(self.sessions.clone(), self.subscription.id(), why);
    }
}

async fn open(live: &Live, client: SocketAddr, wants: &Wants) -> Result<SessionId, Refusal> {
    let (user, reads) = (client.to_string(), wants.describe());
    let info = [
        (InfoKey::DOOR, Some(InfoValue::Text(DOOR))),
        (InfoKey::ADDRESS, Some(InfoValue::Address(client))),
        (InfoKey::READS, Some(InfoValue::Text(&reads))),
        (InfoKey::TOPICS, Some(InfoValue::Number(i64::try_from(wants.len()).unwrap_or(i64::MAX)))),
    ];
    let resource = resource_at(live.nodes.here());
    let opened = live.sessions.open(NewSession { user: &user, resource: &resource, info: &info }).await;
    opened.map_err(|error| {
        debug!(%error, "no session was opened for a live stream");
        match error.kind() {
            ErrorKind::Full | ErrorKind::Unavailable => NO_SESSION,
            _ => Refusal::internal(),
        }
    })
}

const NO_SESSION: Refusal = Refusal::unavailable("no session can be opened for this stream: try again later");

/// Closes a session without waiting for it: `drop` calls this, too.
fn close(sessions: Arc<dyn Sessions>, id: SessionId, why: Ended) {
    let Ok(runtime) = Handle::try_current() else { return };
    runtime.spawn(async move {
        if let Err(error) = sessions.close(id, why).await {
            debug!(%error, "the session of a live stream was not closed");
        }
    });
}

fn refusal_of(full: HubFull) -> Refusal {
    match full {
        HubFull::Interests(_) | HubFull::SubscriptionBytes(_) => {
            Refusal::field("contentTopics", &full.to_string())
        }
        HubFull::Subscriptions(_) | HubFull::Bytes => {
            Refusal::new(axum::http::StatusCode::SERVICE_UNAVAILABLE, full.to_string())
        }
    }
}
