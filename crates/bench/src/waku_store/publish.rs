//! Publishers: messages are due at a fixed rate, and acknowledged ones are recorded for the check.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{task::JoinSet, time::timeout};

use super::posts::Posts;
use crate::{answer::beginning, http::Connection, measure::Latencies, pace::Tickets};

/// The time limit of a request: an unanswered message counts as lost.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a publisher waits before it connects again.
const BACK_OFF: Duration = Duration::from_millis(50);

/// The result of publishing.
#[derive(Clone, Debug, Default)]
pub(super) struct Published {
    pub(super) sent: u64,
    /// Numbers of the messages that were answered with success.
    pub(super) acknowledged: Vec<u64>,
    /// Other answers.
    pub(super) refused: u64,
    /// Not answered: the connection broke, or was silent for too long.
    pub(super) unanswered: u64,
    /// From when a message was due to its answer, if that was success.
    pub(super) times: Latencies,
    /// The first error.
    pub(super) first_error: Option<String>,
}

impl Published {
    pub(super) fn add(&mut self, other: Self) {
        self.sent += other.sent;
        self.acknowledged.extend(other.acknowledged);
        self.refused += other.refused;
        self.unanswered += other.unanswered;
        self.times.add(&other.times);
        self.first_error = self.first_error.take().or(other.first_error);
    }
}

/// Publishes a message for each ticket, over `connections` connections.
pub(super) async fn publish(
    address: SocketAddr,
    posts: Arc<Posts>,
    tickets: Arc<Tickets>,
    connections: usize,
) -> anyhow::Result<Published> {
    let mut publishers = JoinSet::new();
    for _ in 0..connections {
        publishers.spawn(publish_all(address, posts.clone(), tickets.clone()));
    }
    let mut all = Published::default();
    while let Some(done) = publishers.join_next().await {
        all.add(done?);
    }
    Ok(all)
}

async fn publish_all(address: SocketAddr, posts: Arc<Posts>, tickets: Arc<Tickets>) -> Published {
    let mut publisher = Publisher::new(address);
    while let Some(ticket) = tickets.take().await {
        publisher.send(&posts, ticket.number, ticket.from).await;
    }
    publisher.published
}

/// One connection, reopened when it breaks.
pub(super) struct Publisher {
    address: SocketAddr,
    connection: Option<Connection>,
    pub(super) published: Published,
}

impl Publisher {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self { address, connection: None, published: Published::default() }
    }

    /// Publishes one message; its time counts from `from`.
    pub(super) async fn send(&mut self, posts: &Posts, number: u64, from: Instant) {
        self.published.sent += 1;
        let request = posts.request(number);
        let answer = timeout(PATIENCE, self.ask(request.as_bytes())).await;
        let answer = answer.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer within a minute")));
        let published = &mut self.published;
        match answer {
            Ok((200, _)) => {
                published.times.record(from.elapsed());
                published.acknowledged.push(number);
            }
            Ok((status, answer)) => {
                published.refused += 1;
                published.first_error.get_or_insert_with(|| format!("status {status}: {answer}"));
            }
            Err(error) => {
                published.unanswered += 1;
                published.first_error.get_or_insert_with(|| format!("{error:#}"));
                self.connection = None;
                tokio::time::sleep(BACK_OFF).await;
            }
        }
    }

    async fn ask(&mut self, request: &[u8]) -> anyhow::Result<(u16, String)> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(Connection::open(self.address).await?),
        };
        let mut body = Vec::new();
        let status = connection.ask(request, |piece| body.extend_from_slice(piece)).await?;
        Ok((status, beginning(&body)))
    }
}

#[cfg(test)]
mod tests {
    use restante_core::Timestamp;

    use super::*;
    use crate::http::tests::{serve, sized};

    async fn publish_for_a_moment(address: SocketAddr) -> Published {
        let begun = Instant::now();
        let tickets = Tickets::new(begun, 500.0, begun + Duration::from_millis(40));
        let posts = Arc::new(Posts::new(0, 100, Timestamp(1)));
        publish(address, posts, Arc::new(tickets), 3).await.unwrap()
    }

    #[tokio::test]
    async fn each_ticket_is_one_message() {
        let address = serve(|_, _| sized("200 OK", "OK")).await;
        let mut published = publish_for_a_moment(address).await;
        published.acknowledged.sort_unstable();
        assert_eq!(published.acknowledged, (0..20).collect::<Vec<u64>>());
        assert_eq!((published.sent, published.refused, published.times.len()), (20, 0, 20));
    }

    #[tokio::test]
    async fn refusals_are_counted_by_reason() {
        let address = serve(|_, _| sized("503 Service Unavailable", "full")).await;
        let published = publish_for_a_moment(address).await;
        assert_eq!((published.sent, published.refused, published.acknowledged.len()), (20, 20, 0));
        assert_eq!(published.first_error.unwrap(), "status 503: full");
    }

    #[tokio::test]
    async fn a_stopped_server_does_not_answer() {
        let published = publish_for_a_moment("127.0.0.1:1".parse().unwrap()).await;
        assert_eq!((published.sent, published.unanswered), (20, 20));
    }
}
