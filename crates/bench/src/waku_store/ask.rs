//! Users: each query reads a few pages by cursor, as clients do.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{bail, ensure};
use tokio::{task::JoinSet, time::timeout};

use super::posts::{CONTENT_TOPIC, PUBSUB_TOPIC};
use crate::{
    answer::{beginning, next_cursor},
    dataset::{DAYS, Dataset, START, day_start},
    http::{Connection, get},
    measure::Latencies,
    pace::Tickets,
    random::Random,
};

/// The time limit of a request.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a user waits before connecting again.
const BACK_OFF: Duration = Duration::from_millis(50);
/// The time range of most queries: that of a client that was offline for a day.
const AWAY_NANOS: i64 = 86_400 * 1_000_000_000;
/// Ranks of the queried content topics: frequent ones and rare ones.
const RANKS: [usize; 7] = [1, 2, 3, 4, 9, 61, 601];

/// The load of users.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Habit {
    /// Queries a second of a user; if `None`, there is no pause between queries.
    pub(super) per_second: Option<f64>,
    /// The most pages of a query.
    pub(super) pages: usize,
}

/// The result of the queries.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    /// Times of single pages. The first of a query counts from when the query was due.
    pub(super) pages: Latencies,
    /// Times of whole queries.
    pub(super) walks: Latencies,
    /// Pages that were answered in each second.
    pub(super) each_second: Vec<u64>,
    pub(super) errors: u64,
    /// The first error.
    pub(super) first_error: Option<String>,
}

impl Asked {
    fn note_page(&mut self, begun: Instant, from: Instant) {
        let now = Instant::now();
        self.pages.record(now.duration_since(from));
        let second = now.duration_since(begun).as_secs() as usize;
        if self.each_second.len() <= second {
            self.each_second.resize(second + 1, 0);
        }
        if let Some(pages) = self.each_second.get_mut(second) {
            *pages += 1;
        }
    }

    fn add(&mut self, other: Self) {
        self.pages.add(&other.pages);
        self.walks.add(&other.walks);
        self.each_second.resize(self.each_second.len().max(other.each_second.len()), 0);
        for (all, more) in self.each_second.iter_mut().zip(&other.each_second) {
            *all += more;
        }
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
    }
}

/// Lets this many users query, spread over the servers.
pub(super) async fn ask(
    addresses: &[SocketAddr],
    dataset: &Arc<Dataset>,
    users: usize,
    habit: Habit,
    length: Duration,
) -> anyhow::Result<Asked> {
    let mut asking = JoinSet::new();
    let begun = Instant::now();
    for (user, address) in addresses.iter().cycle().take(users).enumerate() {
        let stagger = habit.per_second.unwrap_or(f64::MAX).recip() * user as f64 / users as f64;
        let user = User {
            address: *address,
            connection: None,
            random: Random::new(user as u64, 12),
            dataset: dataset.clone(),
            habit,
            begun,
            asked: Asked::default(),
        };
        asking.spawn(user.run(begun + Duration::from_secs_f64(stagger), begun + length));
    }
    let mut all = Asked::default();
    while let Some(done) = asking.join_next().await {
        all.add(done?);
    }
    Ok(all)
}

struct User {
    address: SocketAddr,
    connection: Option<Connection>,
    random: Random,
    dataset: Arc<Dataset>,
    habit: Habit,
    /// When all users began.
    begun: Instant,
    asked: Asked,
}

impl User {
    async fn run(mut self, first: Instant, until: Instant) -> Asked {
        match self.habit.per_second {
            Some(per_second) => {
                let tickets = Tickets::new(first, per_second, until);
                while let Some(ticket) = tickets.take().await {
                    self.query(ticket.from).await;
                }
            }
            None => loop {
                self.query(Instant::now()).await;
                if Instant::now() >= until {
                    break;
                }
            },
        }
        self.asked
    }

    async fn query(&mut self, from: Instant) {
        let question = question(&self.dataset, &mut self.random);
        match self.walk(&question, from).await {
            Ok(()) => self.asked.walks.record(from.elapsed()),
            Err(error) => {
                self.asked.errors += 1;
                self.asked.first_error.get_or_insert_with(|| format!("{error:#}"));
                self.connection = None;
                tokio::time::sleep(BACK_OFF).await;
            }
        }
    }

    /// Follows the cursor for a few pages.
    async fn walk(&mut self, question: &str, from: Instant) -> anyhow::Result<()> {
        let mut path = question.to_owned();
        let mut from = from;
        for _ in 0..self.habit.pages {
            let body = timeout(PATIENCE, self.page(&path)).await??;
            self.asked.note_page(self.begun, from);
            let Some(cursor) = next_cursor(&body) else { break };
            path = format!("{question}&cursor={cursor}");
            from = Instant::now();
        }
        Ok(())
    }

    async fn page(&mut self, path: &str) -> anyhow::Result<Vec<u8>> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(Connection::open(self.address).await?),
        };
        let mut body = Vec::new();
        let status = connection.ask(get(path).as_bytes(), |piece| body.extend_from_slice(piece)).await?;
        if status != 200 {
            bail!("a page was answered with status {status}: {}", beginning(&body));
        }
        ensure!(body.starts_with(b"{"), "a page is not a JSON object: {}", beginning(&body));
        Ok(body)
    }
}

/// A typical client query: one topic of a day, from its start or from its end, in pages of 20 or 100. One in
/// four queries the newest of the messages that are being published.
fn question(dataset: &Dataset, random: &mut Random) -> String {
    const PATH: &str = "/store/v3/messages?includeData=true";
    if random.below(4) == 0 {
        return format!(
            "{PATH}&pubsubTopic={PUBSUB_TOPIC}&contentTopics={CONTENT_TOPIC}&pageSize=20&ascending=false"
        );
    }
    let rank = RANKS.get(random.below(RANKS.len() as u64) as usize).copied().unwrap_or(1);
    let topic = dataset.topic(rank);
    let span = day_start(DAYS).nanos() - START.nanos() - AWAY_NANOS;
    let start = START.nanos() + random.below(span as u64) as i64;
    let end = start + AWAY_NANOS;
    let size = if random.below(2) == 0 { 20 } else { 100 };
    let ascending = random.below(2) == 0;
    format!(
        "{PATH}&contentTopics={topic}&startTime={start}&endTime={end}&pageSize={size}&ascending={ascending}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::tests::{serve, sized};

    const PACED: Habit = Habit { per_second: Some(50.0), pages: 5 };

    fn dataset() -> Arc<Dataset> {
        Arc::new(Dataset::new(0, 1_000))
    }

    /// Two pages for each query.
    fn two_pages(line: &str, _: &str) -> Vec<u8> {
        assert!(line.starts_with("GET /store/v3/messages?includeData=true&"), "{line}");
        let is_second = line.contains("&cursor=0xab");
        sized("200 OK", if is_second { "{}" } else { "{\"paginationCursor\":\"0xab\"}" })
    }

    #[tokio::test]
    async fn a_query_walks_its_pages_and_each_is_counted() {
        let addresses = [serve(two_pages).await, serve(two_pages).await];
        let asked = ask(&addresses, &dataset(), 4, PACED, Duration::from_millis(100)).await.unwrap();
        // Each user begins five queries in a tenth of a second.
        assert_eq!(asked.walks.len(), 20);
        assert_eq!(asked.pages.len(), asked.walks.len() * 2);
        assert_eq!(asked.each_second.iter().sum::<u64>(), asked.pages.len());
        let habit = Habit { per_second: Some(50.0), pages: 1 };
        let asked = ask(&addresses, &dataset(), 1, habit, Duration::from_millis(100)).await.unwrap();
        assert_eq!(asked.pages.len(), asked.walks.len());
    }

    #[tokio::test]
    async fn an_error_is_counted_and_reported() {
        let address = serve(|_, _| sized("500 Internal Server Error", "no")).await;
        let unpaced = Habit { per_second: None, pages: 5 };
        let asked = ask(&[address], &dataset(), 2, unpaced, Duration::from_millis(1)).await.unwrap();
        assert_eq!(asked.walks.len(), 0);
        assert!(asked.errors >= 1 && asked.first_error.unwrap().contains("500"));
    }

    #[test]
    fn questions_are_of_several_kinds() {
        let (dataset, mut random) = (Dataset::new(0, 1_000), Random::new(0, 0));
        let questions: Vec<String> = (0..100).map(|_| question(&dataset, &mut random)).collect();
        for part in
            ["pageSize=20", "pageSize=100", "ascending=true", "ascending=false", CONTENT_TOPIC, "0x5c6c9b56"]
        {
            assert!(questions.iter().any(|question| question.contains(part)), "{part}");
        }
    }
}
