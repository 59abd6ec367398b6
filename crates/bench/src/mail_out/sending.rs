//! A sender of the queue, with restante's transport, to the servers of the bench.

use std::{num::NonZero, sync::Arc};

use anyhow::Context;
use async_trait::async_trait;
use restante_core::Error;
use restante_delivery::{
    Attempted, BlobPreparing, DeliveryConfig, Local, Outgoing, Recipient, ReportNotices, Sender,
    SenderMetrics, SenderParts, Signer, Submissions,
    route::OwnHost,
    transport::{NoPolicies, RemoteConfig, RemoteMetrics, RemoteParts, SmtpRemote, TcpNetwork},
};
use restante_mail::queue::Reply;
use restante_net::dns::{Answer, FixedResolver};
use restante_records::{AccountId, RecordId};
use tokio::{sync::oneshot, task::JoinHandle};

use super::{CONNECTIONS, Servers, fill::domain, sink::ip, stores::Stores};

const HOSTNAME: &str = "bench.example";

/// A running sender.
pub(super) struct Sending {
    task: JoinHandle<()>,
    stop: oneshot::Sender<()>,
    servers: Servers,
}

impl Sending {
    /// Starts a sender to the servers of this many domains, which listen on this port.
    pub(super) fn start(stores: &Stores, port: u16, domains: u64, servers: Servers) -> anyhow::Result<Self> {
        let resolver = FixedResolver::new();
        for number in 0..domains {
            resolver.set_addresses(&domain(number), Answer::Found(vec![ip(number, servers)]));
        }
        let parts = RemoteParts {
            resolver: Arc::new(resolver),
            network: Arc::new(TcpNetwork),
            policies: Arc::new(NoPolicies),
            signer: Arc::new(NoKeys),
            own: OwnHost { names: vec![HOSTNAME.to_owned()], listeners: Vec::new() },
            seed: 0,
            metrics: RemoteMetrics::default(),
        };
        let port = NonZero::new(port).context("the servers have no port")?;
        let remote = SmtpRemote::new(&RemoteConfig { port, ..RemoteConfig::default() }, parts)?;
        let parts = SenderParts {
            queue: stores.queue.clone(),
            blobs: stores.blobs.blobs.clone(),
            remote: Arc::new(remote),
            local: Arc::new(Nobody),
            submissions: Arc::new(Nobody),
            preparing: Arc::new(BlobPreparing::new(stores.blobs.blobs.clone())),
            notices: Arc::new(ReportNotices::new(HOSTNAME)),
            work: None,
            outcomes: None,
            metrics: SenderMetrics::default(),
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let sender = Sender::new(parts, config(domains));
        let task = tokio::spawn(sender.run(async {
            let _ = stopped.await;
        }));
        Ok(Self { task, stop, servers })
    }

    /// Ends the sender.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        if self.servers == Servers::SomeFail {
            self.task.abort(); // it would wait for the servers that never answer
            return Ok(());
        }
        let _ = self.stop.send(());
        Ok(self.task.await?)
    }
}

/// The settings of a sender with as many connections as the bench needs, also to a single domain.
fn config(domains: u64) -> DeliveryConfig {
    let defaults = DeliveryConfig::default();
    let of_one = NonZero::new(CONNECTIONS / usize::try_from(domains).unwrap_or(CONNECTIONS).max(1));
    DeliveryConfig {
        connections_max: NonZero::new(CONNECTIONS).unwrap_or(defaults.connections_max),
        connections_per_domain_max: of_one
            .max(Some(defaults.connections_per_domain_max))
            .unwrap_or(NonZero::<usize>::MIN),
        ..defaults
    }
}

/// A signer without keys.
struct NoKeys;

#[async_trait]
impl Signer for NoKeys {
    async fn sign(&self, _: &Outgoing) -> Result<Vec<u8>, Error> {
        Ok(Vec::new())
    }
}

/// No address is local, and no mail was submitted by JMAP.
struct Nobody;

#[async_trait]
impl Local for Nobody {
    async fn is_local(&self, _: &str) -> Result<bool, Error> {
        Ok(false)
    }

    async fn deliver(&self, _: &Outgoing, _: &Recipient) -> Attempted {
        Attempted {
            reply: Reply::own(550, "5.1.1", "nobody is here"),
            is_reported_further: false,
            is_forwarded: false,
        }
    }
}

#[async_trait]
impl Submissions for Nobody {
    async fn release(&self, _: AccountId, _: RecordId) -> Result<bool, Error> {
        Ok(true)
    }

    async fn report(&self, _: AccountId, _: RecordId, _: &str, _: &Reply, _: bool) -> Result<(), Error> {
        Ok(())
    }
}
