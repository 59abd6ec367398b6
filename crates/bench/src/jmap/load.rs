//! Loads of clients: closed loops, where each sends a request as soon as it is answered, and open ones at a fixed rate.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::task::JoinSet;

use crate::{machine::processor_time, measure::Latencies, pace::Tickets, server::Server};

/// A client with a connection of its own.
pub(super) trait Client: Send + 'static {
    /// Makes one request; returns its time. Other work of the client is not included.
    fn once(&mut self) -> impl Future<Output = anyhow::Result<Duration>> + Send;
}

/// The result of a load.
#[derive(Clone, Debug, Default)]
pub(super) struct Load {
    pub(super) connections: u64,
    /// From a request to its complete answer; in an open loop from when the request was due.
    pub(super) times: Latencies,
    pub(super) duration: Duration,
    /// Processor time of the server and of the clients.
    pub(super) server_cpu: Option<Duration>,
    pub(super) client_cpu: Option<Duration>,
}

impl Load {
    pub(super) fn per_second(&self) -> f64 {
        self.times.len() as f64 / self.duration.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Microseconds per request.
    pub(super) fn of_one(&self, all: Option<Duration>) -> Option<f64> {
        all.map(|all| all.as_secs_f64() * 1e6 / self.times.len().max(1) as f64)
    }
}

/// When clients send requests.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pace {
    /// As soon as they are answered.
    Closed,
    /// This many a second, together, whether the server keeps up or not.
    Open(f64),
}

/// Lets all clients send requests for some time.
pub(super) async fn run<C: Client>(
    server: &Server,
    clients: Vec<C>,
    pace: Pace,
    length: Duration,
) -> anyhow::Result<Load> {
    let mut load = Load { connections: clients.len() as u64, ..Load::default() };
    let before = (server.worked(), processor_time("self"));
    let begun = Instant::now();
    let until = begun + length;
    let mut tasks = JoinSet::new();
    match pace {
        Pace::Closed => clients.into_iter().for_each(|client| {
            tasks.spawn(ask_until(client, until));
        }),
        Pace::Open(per_second) => {
            let tickets = Arc::new(Tickets::new(begun, per_second, until));
            for client in clients {
                tasks.spawn(ask_when_due(client, tickets.clone()));
            }
        }
    }
    while let Some(done) = tasks.join_next().await {
        load.times.add(&done??);
    }
    load.duration = begun.elapsed();
    let since = |now: Option<Duration>, before: Option<Duration>| Some(now?.saturating_sub(before?));
    load.server_cpu = since(server.worked(), before.0);
    load.client_cpu = since(processor_time("self"), before.1);
    Ok(load)
}

async fn ask_until(mut client: impl Client, until: Instant) -> anyhow::Result<Latencies> {
    let mut times = Latencies::default();
    while times.len() == 0 || Instant::now() < until {
        times.record(client.once().await?);
    }
    Ok(times)
}

async fn ask_when_due(mut client: impl Client, tickets: Arc<Tickets>) -> anyhow::Result<Latencies> {
    let mut times = Latencies::default();
    while let Some(ticket) = tickets.take().await {
        let waited = ticket.from.elapsed();
        times.record(waited + client.once().await?);
    }
    Ok(times)
}
