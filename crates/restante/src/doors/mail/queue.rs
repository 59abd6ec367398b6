//! The queue between servers: it distributes outgoing mail, and announces commits when the records can't do that themselves.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::Context;
use restante_core::Identity;
use restante_operate::RoleCheck;
use restante_queue::{
    Announcement, Announcements, EngineUrl, Metrics, OpenedAnnouncements, OpenedWork, Upkeep, Work,
};
use restante_records::{PeerCommit, Peers, Position};
use tokio::{task::JoinHandle, time::timeout};

use crate::{config::Config, secrets, signals::Stop};

/// The queue of a server.
pub(super) struct ServerQueue {
    /// Distributes work; `None` when each server finds its own.
    work: Option<OpenedWork>,
    /// Announces commits; `None` when the records do that.
    announcements: Option<(OpenedAnnouncements, Arc<dyn Peers>, Identity)>,
}

impl ServerQueue {
    /// Opens what the settings name and these records need. An unreachable broker is not an error.
    pub(super) async fn open(
        config: &Config,
        records: &restante_records::Opened,
        metrics: &Metrics,
    ) -> anyhow::Result<Self> {
        let queue = &config.queue;
        let work = match queue.url.is_shared() {
            true => Some(open_work(config, metrics.clone(), true).await?),
            false => None,
        };
        let (url, file) = queue.announcements();
        let announcements = match &records.peers {
            Some(peers) if url.is_shared() => {
                let settings = settings(config, url, file, metrics.clone())?;
                let opened = restante_queue::open_announcements(settings).await;
                let opened = opened.with_context(|| format!("can't open the announcements {url}"))?;
                Some((opened, peers.clone(), records.upkeep.identity()))
            }
            _ => None,
        };
        Ok(Self { work, announcements })
    }

    /// Distributes the work.
    pub(super) fn work(&self) -> Option<Arc<dyn Work>> {
        self.work.as_ref().map(|opened| opened.work.clone())
    }

    /// Whether both work. A server continues without them.
    pub(super) fn health(&self) -> Vec<RoleCheck> {
        let work = self.work.as_ref().map(|opened| {
            let upkeep = opened.upkeep.clone();
            let problem = move || upkeep.health().err().map(|error| error.to_string());
            RoleCheck { name: "queue", problem: Arc::new(problem) }
        });
        let announcements = self
            .announcements
            .as_ref()
            .map(|(opened, ..)| RoleCheck { name: "announcements", problem: opened.problem.clone() });
        work.into_iter().chain(announcements).collect()
    }

    /// Passes commits between the servers until this one stops.
    pub(super) fn spawn(&self, stop: &Stop) -> Option<JoinHandle<()>> {
        let (opened, peers, store) = self.announcements.as_ref()?;
        let (announcements, peers, store) = (opened.announcements.clone(), peers.clone(), *store);
        let stop = stop.clone();
        Some(tokio::spawn(async move {
            tokio::select! {
                () = pass_on(announcements, peers, store) => {}
                () = stop.requested() => {}
            }
        }))
    }

    /// Leaves the queue: other servers get what this one holds.
    pub(super) async fn close(&self, limit: Duration) {
        if let Some(work) = &self.work {
            // Work that is not finished in time ends with the process.
            let _ = timeout(limit, work.upkeep.close()).await;
        }
    }
}

/// Announces the commits of this server to the others, and receives theirs.
async fn pass_on(announcements: Arc<dyn Announcements>, peers: Arc<dyn Peers>, store: Identity) {
    let mut heard = announcements.listen();
    let mut commits = peers.commits();
    loop {
        tokio::select! {
            commit = commits.next() => {
                let Some(PeerCommit { account, revision, position }) = commit else { return };
                let position = u64::from_be_bytes(position.to_bytes());
                announcements.announce(Announcement { store, account, revision, position });
            }
            announced = heard.next() => match announced {
                // Servers with other records may use the same prefix.
                Some(Ok(Announcement { store: of, account, revision, position })) if of == store => {
                    let position = Position::from_bytes(position.to_be_bytes());
                    peers.announce(PeerCommit { account, revision, position });
                }
                // Missed announcements are found by the next read of the records.
                Some(_) => {}
                None => return,
            },
        }
    }
}

/// The queue for the commands of operators.
pub(super) async fn open_upkeep(config: &Config) -> anyhow::Result<Arc<dyn Upkeep>> {
    Ok(open_work(config, Metrics::default(), false).await?.upkeep)
}

async fn open_work(config: &Config, metrics: Metrics, receives: bool) -> anyhow::Result<OpenedWork> {
    let queue = &config.queue;
    let mut settings = settings(config, &queue.url, &queue.password_file, metrics)?;
    settings.receives = receives;
    restante_queue::open_work(settings).await.with_context(|| format!("can't open the queue {}", queue.url))
}

fn settings(
    config: &Config,
    url: &EngineUrl,
    file: &Path,
    metrics: Metrics,
) -> anyhow::Result<restante_queue::Config> {
    let has_file = !file.as_os_str().is_empty();
    let password = has_file.then(|| secrets::read("password", file)).transpose()?;
    let shared = config.queue.engine.clone();
    Ok(restante_queue::Config { password, shared, metrics, ..restante_queue::Config::new(url.clone()) })
}

#[cfg(test)]
mod tests {
    use restante_records::{AccountId, PeerCommits, PeerSender, Revision};
    use tokio::sync::mpsc;

    use super::*;

    /// Records of one server that collect the commits to announce.
    struct Noted(PeerSender, mpsc::Sender<PeerCommit>);

    impl Peers for Noted {
        fn commits(&self) -> PeerCommits {
            self.0.commits()
        }

        fn announce(&self, commit: PeerCommit) {
            self.1.try_send(commit).unwrap();
        }
    }

    fn commit(revision: u64) -> PeerCommit {
        let position = Position::from_bytes((revision + 10).to_be_bytes());
        PeerCommit { account: AccountId(3), revision: Revision(revision), position }
    }

    #[tokio::test]
    async fn commits_reach_the_other_servers_of_their_store() {
        let stores = [Identity([1; 16]), Identity([1; 16]), Identity([2; 16])];
        let servers = restante_queue::local_announcements(stores.len());
        let (mut records, mut noted) = (Vec::new(), Vec::new());
        for (server, store) in servers.iter().zip(stores) {
            let (sender, receiver) = mpsc::channel(10);
            let peers = Arc::new(Noted(PeerSender::new(), sender));
            tokio::spawn(pass_on(server.announcements.clone(), peers.clone(), store));
            records.push(peers);
            noted.push(receiver);
        }
        tokio::task::yield_now().await; // they are subscribed then
        records[2].0.send(commit(1));
        records[0].0.send(commit(2));
        records[0].0.send(commit(3));
        assert_eq!([noted[1].recv().await, noted[1].recv().await], [Some(commit(2)), Some(commit(3))]);
        assert!(noted[0].is_empty() && noted[1].is_empty() && noted[2].is_empty());
    }
}
