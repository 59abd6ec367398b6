//! Two servers; the second one is killed in the middle of the load and started again: it must fetch what it missed from the
//! first.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use restante_waku::Multiaddr;

use super::load::{self, Load, Published, missing, stored, wait_until_stored};
use crate::{
    location::Location,
    peers::{Peer, close_many, history::History, start_many},
    scrape::Scrape,
    server::Server,
};

/// The interval of the second server's syncs from the first: short, to shorten the run.
const SYNC_SECONDS: u64 = 2;
/// The time limit for having all messages.
const SYNC_PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(200);
/// The second server is killed when it has this share of all messages...
const KILL_SHARE: f64 = 1.0 / 3.0;
/// ...and is down for this long.
const AWAY: Duration = Duration::from_secs(2);
const AWAY_QUICK: Duration = Duration::from_millis(300);

/// Two archives and how to start servers on them.
pub(super) struct Pair<'a> {
    pub(super) program: &'a Path,
    pub(super) folder: &'a Path,
    pub(super) first: &'a Location,
    pub(super) second: &'a Location,
    pub(super) is_quick: bool,
}

/// The result.
#[derive(Debug)]
pub(super) struct Killed {
    pub(super) load: Load,
    pub(super) published: Published,
    pub(super) publishing: Duration,
    /// Messages that the first server lacks at the end.
    pub(super) lost_first: u64,
    /// Messages that the second had when it was killed, by its own metrics.
    pub(super) stored_before: u64,
    /// How long it was down, until it was healthy again.
    pub(super) away: Duration,
    /// Messages that it received by relay after its restart.
    pub(super) arrived_after: u64,
    /// From its restart, and from the last published message, until it had all messages.
    pub(super) complete_after_start: Option<Duration>,
    pub(super) complete_after_last: Option<Duration>,
    /// Messages that the second server lacks at the end.
    pub(super) lost_second: u64,
    pub(super) stored_second: u64,
}

impl Pair<'_> {
    /// Publishes the load to both.
    pub(super) async fn run(&self, load: Load) -> anyhow::Result<Killed> {
        const STREAM: u64 = 1_000;
        let first = Server::start_with(
            self.program,
            &self.first.url,
            self.folder,
            "first",
            &super::node_settings(&[]),
        )
        .await?;
        let first_node = first.peer_address().await?;
        let second = self.start_second(&first_node, None).await?;
        let second_node = second.peer_address().await?;
        let servers = [first_node.clone(), second_node.clone()];
        let peers = start_many(load.publishers, load.role, &servers).await?;

        let begun = Instant::now();
        let publishing = tokio::spawn(publish(peers.clone(), load, STREAM));
        let expected = (load.messages() as f64 * KILL_SHARE) as u64;
        wait_until_stored(second.address, expected).await?;
        let stored_before = Scrape::of(second.address).await?.stored();
        second.kill()?;
        let gone = Instant::now();
        tokio::time::sleep(if self.is_quick { AWAY_QUICK } else { AWAY }).await;
        let second = self.start_second(&first_node, Some(&second_node)).await?;
        let (away, started) = (gone.elapsed(), Instant::now());
        let published = publishing.await??;
        let (took, last) = (begun.elapsed(), Instant::now());

        wait_until_stored(first.address, published.hashes.len() as u64).await?;
        let history = History::start(&second_node).await?;
        let complete = wait_until_complete(&history, &published, STREAM).await?;
        let have = stored(&history, STREAM, &published).await?;
        history.close().await;
        let history = History::start(&first_node).await?;
        let lost_first = missing(&published, &stored(&history, STREAM, &published).await?);
        history.close().await;
        let killed = Killed {
            load,
            publishing: took,
            lost_first,
            stored_before,
            away,
            arrived_after: Scrape::of(second.address).await?.arrived(),
            complete_after_start: complete.map(|at| at.saturating_duration_since(started)),
            complete_after_last: complete.map(|at| at.saturating_duration_since(last)),
            lost_second: missing(&published, &have),
            stored_second: have.len() as u64,
            published,
        };
        close_many(peers).await;
        for server in [second, first] {
            server.stop().await?;
        }
        Ok(killed)
    }

    /// Starts the second server, the second time on the same port: publishers reconnect to its address.
    async fn start_second(&self, first: &Multiaddr, again: Option<&Multiaddr>) -> anyhow::Result<Server> {
        let mut flags = vec!["--staticnode".to_owned(), first.to_string()];
        flags.extend(["--storenode".to_owned(), first.to_string()]);
        if let Some(again) = again {
            flags.extend(["--tcp-port".to_owned(), port_of(again)?]);
        }
        let mut settings = super::node_settings(&flags);
        settings.variables.push(("RESTANTE_WAKU__SYNC__INTERVAL_SECONDS", SYNC_SECONDS.to_string()));
        // The node's key is in the folder, so the same folder has the same node.
        let server =
            Server::start_with(self.program, &self.second.url, self.folder, "second", &settings).await?;
        let address = server.peer_address().await?;
        ensure!(
            again.is_none_or(|before| *before == address),
            "the restarted server has another peer id: {address}"
        );
        Ok(server)
    }
}

async fn publish(peers: Vec<Arc<Peer>>, load: Load, stream: u64) -> anyhow::Result<Published> {
    load::publish(&peers, load, stream).await
}

fn port_of(address: &Multiaddr) -> anyhow::Result<String> {
    let text = address.to_string();
    let port = text.split_once("/tcp/").and_then(|(_, rest)| rest.split('/').next());
    port.map(str::to_owned).with_context(|| format!("{text} names no port"))
}

/// When a server had all messages; `None` after the time limit.
async fn wait_until_complete(
    history: &History,
    published: &Published,
    stream: u64,
) -> anyhow::Result<Option<Instant>> {
    let begun = Instant::now();
    loop {
        let looked = Instant::now();
        let have = stored(history, stream, published).await?;
        if missing(published, &have) == 0 {
            return Ok(Some(looked));
        }
        if begun.elapsed() > SYNC_PATIENCE {
            return Ok(None);
        }
        tokio::time::sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_of_a_node_is_read() {
        let address: Multiaddr = "/ip4/127.0.0.1/tcp/4711".parse().unwrap();
        assert_eq!(port_of(&address).unwrap(), "4711");
        assert!(port_of(&"/ip4/127.0.0.1".parse().unwrap()).is_err());
    }
}
