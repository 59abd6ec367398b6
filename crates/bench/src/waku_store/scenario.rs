//! The scenarios that nwaku was measured with: users that query while messages are published.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use restante_core::{Clock, SystemClock};
use tokio::task::JoinSet;

use super::{
    ask::{Asked, Habit, ask},
    posts::Posts,
    publish::{Published, publish},
};
use crate::{dataset::Dataset, pace::Tickets};

/// The published messages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Traffic {
    pub(super) name: &'static str,
    pub(super) per_second: f64,
    pub(super) payload_bytes: usize,
    /// Connections: enough for appends of some tens of milliseconds.
    pub(super) connections: usize,
}

impl Traffic {
    /// The rate and size of nwaku's relay clients.
    pub(super) const LARGE: Self =
        Self { name: "10/s of 10 kB", per_second: 10.0, payload_bytes: 10_240, connections: 4 };
    /// A hundred times as many messages, of the size in nwaku's test of inserts.
    pub(super) const MANY: Self =
        Self { name: "1,000/s of 1.4 kB", per_second: 1_000.0, payload_bytes: 1_400, connections: 32 };
}

/// The users and their load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scenario {
    /// `none`, `paced`, `unpaced` or `hammer`.
    pub(super) name: &'static str,
    pub(super) users: usize,
    pub(super) habit: Habit,
}

/// Pages of a query: nwaku's clients followed the cursor too, and had more requests than queries for it.
const WALK_PAGES: usize = 5;
/// Queries of a client of nwaku's select hammer, in a second.
const HAMMER_PER_SECOND: f64 = 10.0;

impl Scenario {
    /// No queries: the times of appends alone.
    pub(super) const NONE: Self =
        Self { name: "none", users: 0, habit: Habit { per_second: None, pages: WALK_PAGES } };

    /// Each user starts a query a second.
    pub(super) fn paced(users: usize) -> Self {
        Self { name: "paced", users, habit: Habit { per_second: Some(1.0), pages: WALK_PAGES } }
    }

    /// Each user starts a query when the one before is over.
    pub(super) fn unpaced(users: usize) -> Self {
        Self { name: "unpaced", users, habit: Habit { per_second: None, pages: WALK_PAGES } }
    }

    /// Each client requests single pages, ten a second.
    pub(super) fn hammer(users: usize) -> Self {
        Self { name: "hammer", users, habit: Habit { per_second: Some(HAMMER_PER_SECOND), pages: 1 } }
    }
}

/// The result of a scenario.
pub(super) struct Outcome {
    pub(super) traffic: Traffic,
    pub(super) scenario: Scenario,
    pub(super) length: Duration,
    pub(super) posts: Arc<Posts>,
    pub(super) published: Published,
    pub(super) asked: Asked,
}

/// The load on some servers.
pub(super) struct Site<'a> {
    pub(super) addresses: &'a [SocketAddr],
    pub(super) dataset: &'a Arc<Dataset>,
}

impl Site<'_> {
    /// Publishes and queries for this long. Each server gets the same messages, as relay would deliver them.
    ///
    /// `load` is a number that is unique within this run.
    pub(super) async fn run(
        &self,
        traffic: Traffic,
        scenario: Scenario,
        length: Duration,
        load: u64,
    ) -> anyhow::Result<Outcome> {
        let posts = Arc::new(Posts::new(load, traffic.payload_bytes, SystemClock.now()));
        let publishing = publish_to_all(self.addresses, &posts, traffic, length);
        let asking = ask(self.addresses, self.dataset, scenario.users, scenario.habit, length);
        let (published, asked) = tokio::try_join!(publishing, asking)?;
        Ok(Outcome { traffic, scenario, length, posts, published, asked })
    }
}

async fn publish_to_all(
    addresses: &[SocketAddr],
    posts: &Arc<Posts>,
    traffic: Traffic,
    length: Duration,
) -> anyhow::Result<Published> {
    let begun = Instant::now();
    let mut publishing = JoinSet::new();
    for address in addresses {
        let tickets = Arc::new(Tickets::new(begun, traffic.per_second, begun + length));
        publishing.spawn(publish(*address, posts.clone(), tickets, traffic.connections));
    }
    let mut all = Published::default();
    while let Some(done) = publishing.join_next().await {
        all.add(done??);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::tests::{serve, sized};

    #[tokio::test]
    async fn each_server_gets_the_same_messages_while_users_query() {
        let answer = |_: &str, _: &str| sized("200 OK", "{}");
        let addresses = [serve(answer).await, serve(answer).await];
        let dataset = Arc::new(Dataset::new(0, 100));
        let site = Site { addresses: &addresses, dataset: &dataset };
        let length = Duration::from_millis(50);
        let outcome = site.run(Traffic::MANY, Scenario::hammer(3), length, 1).await.unwrap();
        let mut acknowledged = outcome.published.acknowledged;
        acknowledged.sort_unstable();
        let twice: Vec<u64> = (0..50).flat_map(|number| [number, number]).collect();
        assert_eq!(acknowledged, twice);
        // The third client is due when the time is over.
        assert_eq!((outcome.asked.walks.len(), outcome.asked.errors), (2, 0));
        let alone = site.run(Traffic::LARGE, Scenario::NONE, length, 2).await.unwrap();
        assert_eq!((alone.published.sent, alone.asked.pages.len()), (2, 0));
    }
}
