//! Which users have open event streams and WebSockets.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};
use restante_records::AccountId;

/// The open connections of a user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// Event streams (RFC 8620 §7.3).
    pub event_streams: u64,
    /// WebSockets (RFC 8887).
    pub web_sockets: u64,
}

/// What kind of connection is open.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ConnectionKind {
    EventStream,
    WebSocket,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

impl ConnectionKind {
    const ALL: [Self; 2] = [Self::EventStream, Self::WebSocket];

    const fn as_str(self) -> &'static str {
        match self {
            Self::EventStream => "event_stream",
            Self::WebSocket => "web_socket",
        }
    }
}

/// The open event streams and WebSockets by user. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct OpenConnections {
    /// Users without open connections are not in the map.
    users: Arc<Mutex<HashMap<AccountId, Connections>>>,
    open: Family<KindLabel, Gauge>,
}

impl OpenConnections {
    /// Registers the number of connections in `registry` as `restante_jmap_connections{kind}`.
    pub fn register(&self, registry: &mut Registry) {
        for kind in ConnectionKind::ALL {
            drop(self.gauge(kind)); // creates the series before the first connection is opened
        }
        let registry = registry.sub_registry_with_prefix("restante_jmap");
        registry.register("connections", "Open event streams and WebSockets", self.open.clone());
    }

    /// The connections that a user has open on this server.
    pub fn of(&self, user: AccountId) -> Connections {
        self.users.lock().get(&user).copied().unwrap_or_default()
    }

    /// Counts a connection until the guard is dropped; `None` when the user has `max` open already, streams and sockets together.
    pub(crate) fn open(&self, kind: ConnectionKind, user: AccountId, max: usize) -> Option<OpenConnection> {
        let mut users = self.users.lock();
        if users.get(&user).is_some_and(|open| open.total() >= max as u64) {
            return None;
        }
        *users.entry(user).or_default().of(kind) += 1;
        drop(users);
        self.gauge(kind).inc();
        Some(OpenConnection { all: self.clone(), kind, user })
    }

    fn gauge(&self, kind: ConnectionKind) -> Gauge {
        self.open.get_or_create_owned(&KindLabel { kind: kind.as_str() })
    }
}

impl Connections {
    fn total(self) -> u64 {
        self.event_streams + self.web_sockets
    }

    fn of(&mut self, kind: ConnectionKind) -> &mut u64 {
        match kind {
            ConnectionKind::EventStream => &mut self.event_streams,
            ConnectionKind::WebSocket => &mut self.web_sockets,
        }
    }
}

/// An open connection, until it is dropped.
#[derive(Debug)]
pub(crate) struct OpenConnection {
    all: OpenConnections,
    kind: ConnectionKind,
    user: AccountId,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.all.gauge(self.kind).dec();
        let mut users = self.all.users.lock();
        let Some(connections) = users.get_mut(&self.user) else { return };
        *connections.of(self.kind) -= 1;
        if *connections == Connections::default() {
            users.remove(&self.user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_what_they_have_open() {
        let all = OpenConnections::default();
        let (one, other) = (AccountId(1), AccountId(2));
        let streams = [0, 1].map(|_| all.open(ConnectionKind::EventStream, one, 3).unwrap());
        let socket = all.open(ConnectionKind::WebSocket, one, 3).unwrap();
        assert_eq!(all.of(one), Connections { event_streams: 2, web_sockets: 1 });
        assert_eq!(all.of(other), Connections::default());
        assert_eq!(all.gauge(ConnectionKind::EventStream).get(), 2);
        drop((streams, socket));
        assert_eq!((all.of(one), all.gauge(ConnectionKind::WebSocket).get()), (Connections::default(), 0));
        assert!(all.users.lock().is_empty(), "users without connections take no memory");
    }

    #[test]
    fn a_user_opens_no_more_than_the_bound_of_both_kinds_together() {
        let all = OpenConnections::default();
        let (one, other) = (AccountId(1), AccountId(2));
        let stream = all.open(ConnectionKind::EventStream, one, 2).unwrap();
        let socket = all.open(ConnectionKind::WebSocket, one, 2).unwrap();
        for kind in ConnectionKind::ALL {
            assert!(all.open(kind, one, 2).is_none(), "{kind:?}");
        }
        assert_eq!(
            all.of(one),
            Connections { event_streams: 1, web_sockets: 1 },
            "what is refused does not count"
        );
        assert!(all.open(ConnectionKind::WebSocket, other, 2).is_some(), "others have a bound of their own");
        drop(stream);
        assert!(all.open(ConnectionKind::WebSocket, one, 2).is_some());
        drop(socket);
    }
}
