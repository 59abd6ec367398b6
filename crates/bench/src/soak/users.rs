//! Users who stay connected and query the newest messages once a second.

use std::time::{Duration, Instant};

use restante_waku::Multiaddr;
use tokio::task::JoinSet;

use super::traffic::CONTENT_TOPIC;
use crate::{
    measure::Latencies,
    pace::Tickets,
    peers::history::{History, PAGE_MAX, question},
};

/// Queries of a user in a second, and the most pages of a query, as in nwaku's measurements.
const PER_SECOND: f64 = 1.0;
const WALK_PAGES: usize = 5;

/// The result of the queries.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    pub(super) pages: Latencies,
    pub(super) errors: u64,
    pub(super) first_error: Option<String>,
}

impl Asked {
    fn add(&mut self, other: Self) {
        self.pages.add(&other.pages);
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
    }
}

/// Lets users query until the end.
pub(super) async fn ask(server: Multiaddr, users: usize, until: Instant) -> anyhow::Result<Asked> {
    let mut asking = JoinSet::new();
    for user in 0..users {
        let history = History::start(&server).await?;
        let stagger = Duration::from_secs_f64(user as f64 / users as f64 / PER_SECOND);
        let tickets = Tickets::new(Instant::now() + stagger, PER_SECOND, until);
        asking.spawn(ask_often(history, tickets));
    }
    let mut all = Asked::default();
    while let Some(done) = asking.join_next().await {
        all.add(done?);
    }
    Ok(all)
}

async fn ask_often(history: History, tickets: Tickets) -> Asked {
    let mut asked = Asked::default();
    while tickets.take().await.is_some() {
        if let Err(error) = walk(&history, &mut asked.pages).await {
            asked.errors += 1;
            asked.first_error.get_or_insert_with(|| format!("{error:#}"));
        }
    }
    history.close().await;
    asked
}

async fn walk(history: &History, pages: &mut Latencies) -> anyhow::Result<()> {
    let mut request = question(CONTENT_TOPIC, PAGE_MAX);
    for _ in 0..WALK_PAGES {
        let begun = Instant::now();
        let answer = history.page(&request).await?;
        pages.record(begun.elapsed());
        match answer.pagination_cursor {
            Some(cursor) => request.pagination_cursor = Some(cursor),
            None => break,
        }
    }
    Ok(())
}
