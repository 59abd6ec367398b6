//! RabbitMQ 3.10 or later.
//!
//! - [`address`]: how connections are opened. [`topology`]: the queues.
//! - [`link`]: the connections of the queue of work, and the task that reconnects. [`dead`]: dead items. [`fanout`]: announcements.
//!
//! `docs/design/queue.md` has the reasons.

mod address;
mod dead;
mod fanout;
mod link;
mod topology;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::RwLock;
use tokio::{
    sync::{Mutex, mpsc, watch},
    task::JoinHandle,
    time::timeout,
};
use tracing::{info, warn};

use self::{
    address::Address,
    link::{Delivered, Link},
    topology::Names,
};
use crate::{
    Config, DeadItem, Dealer, Error, ITEM_BYTES_MAX, Metrics, OpenedAnnouncements, OpenedWork, Received,
    Stats, Upkeep, Work, bus, check_items,
};

/// Opens the queue of work, and waits until the first attempt to reach the broker has succeeded or failed.
///
/// # Errors
/// `Invalid`: the URL or the certificates can't be used.
pub(crate) async fn open_work(url: &str, config: &Config) -> Result<OpenedWork, Error> {
    let prefetch = config.shared.prefetch.get();
    let (delivered, receiver) = mpsc::channel(usize::from(prefetch));
    let shared = Arc::new(Shared {
        address: Address::new(url, config)?,
        names: Names::new(&config.shared.prefix),
        prefetch,
        receives: config.receives,
        metrics: config.metrics.clone(),
        link: RwLock::new(None),
        settled: watch::Sender::new(false),
        delivered,
        closing: watch::Sender::new(false),
    });
    let mut settled = shared.settled.subscribe();
    let task = tokio::spawn(link::supervise(shared.clone()));
    let _ = settled.wait_for(|is_settled| *is_settled).await;
    let rabbitmq = Arc::new(Rabbitmq {
        shared,
        delivered: Mutex::new(receiver),
        task: parking_lot::Mutex::new(Some(task)),
    });
    Ok(OpenedWork { work: rabbitmq.clone(), upkeep: rabbitmq })
}

/// Opens announcements.
///
/// # Errors
/// As [`open_work`].
pub(crate) async fn open_announcements(url: &str, config: &Config) -> Result<OpenedAnnouncements, Error> {
    let exchange = Names::new(&config.shared.prefix).announcements;
    let fanout = fanout::Fanout { address: Address::new(url, config)?, exchange };
    Ok(bus::open(Arc::new(fanout), config.metrics.clone()).await)
}

/// The state that the task and the callers share.
struct Shared {
    address: Address,
    names: Names,
    prefetch: u16,
    receives: bool,
    metrics: Metrics,
    /// The link, or why there is none; `None` before the first attempt.
    link: RwLock<Option<Result<Arc<Link>, String>>>,
    /// Whether the first attempt has ended.
    settled: watch::Sender<bool>,
    delivered: mpsc::Sender<Delivered>,
    closing: watch::Sender<bool>,
}

impl Shared {
    fn set_link(&self, link: Result<Arc<Link>, String>) {
        let is_first_failure = !matches!(&*self.link.read(), Some(Err(_)));
        match &link {
            Ok(_) => info!("the queue is connected to RabbitMQ"),
            Err(why) if is_first_failure && !*self.closing.borrow() => {
                warn!(why, "the queue is without RabbitMQ: each server looks for its own work")
            }
            Err(_) => {}
        }
        *self.link.write() = Some(link);
        self.settled.send_replace(true);
    }

    fn link(&self) -> Result<Arc<Link>, Error> {
        if *self.closing.borrow() {
            return Err(crate::closed());
        }
        match &*self.link.read() {
            Some(Ok(link)) => Ok(link.clone()),
            Some(Err(why)) => Err(Error::unavailable(why.clone())),
            None => Err(Error::unavailable("the queue is not connected to RabbitMQ yet")),
        }
    }
}

/// The queue of one server.
struct Rabbitmq {
    shared: Arc<Shared>,
    delivered: Mutex<mpsc::Receiver<Delivered>>,
    task: parking_lot::Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Rabbitmq {
    fn drop(&mut self) {
        // The task ends by itself, and closes its connections.
        self.shared.closing.send_replace(true);
    }
}

#[async_trait]
impl Work for Rabbitmq {
    async fn publish(&self, items: &[Bytes]) -> Result<(), Error> {
        check_items(items)?;
        self.health()?;
        let published = self.shared.link()?.publish(&self.shared, &self.shared.names.work, items).await;
        let metrics = &self.shared.metrics;
        let counter = if published.is_ok() { &metrics.published } else { &metrics.publish_failed };
        counter.inc_by(items.len() as u64);
        published
    }

    async fn next(&self) -> Received {
        let mut delivered = self.delivered.lock().await;
        loop {
            let Some((term, received)) = delivered.recv().await else { return std::future::pending().await };
            // What arrived over a link that is lost was returned by the broker.
            if self.shared.link().is_ok_and(|link| link.term == term) {
                if received.item.len() <= ITEM_BYTES_MAX {
                    return received;
                }
                received.ticket.reject(); // not published by a server
            }
        }
    }

    fn dealer(&self) -> Dealer {
        match self.shared.link() {
            Ok(link) if link.is_blocked() => Dealer::Unknown,
            Ok(link) if link.is_dealer() => Dealer::ThisServer(link.term),
            Ok(_) => Dealer::AnotherServer,
            Err(_) => Dealer::Unknown,
        }
    }
}

#[async_trait]
impl Upkeep for Rabbitmq {
    fn health(&self) -> Result<(), Error> {
        match self.shared.link()?.is_blocked() {
            true => Err(Error::unavailable("RabbitMQ takes no items: it is short of memory or disk space")),
            false => Ok(()),
        }
    }

    async fn stats(&self) -> Result<Stats, Error> {
        dead::stats(&self.shared).await
    }

    async fn dead(&self, limit: usize) -> Result<Vec<DeadItem>, Error> {
        dead::list(&self.shared, limit).await
    }

    async fn requeue_dead(&self) -> Result<u64, Error> {
        dead::requeue(&self.shared).await
    }

    async fn drop_dead(&self) -> Result<u64, Error> {
        dead::drop_all(&self.shared).await
    }

    async fn close(&self) {
        self.shared.closing.send_replace(true);
        let task = self.task.lock().take();
        if let Some(task) = task {
            // The task closes two connections, each within the time-out.
            let limit = self.shared.address.timeout * 2 + Duration::from_secs(1);
            let _ = timeout(limit, task).await;
        }
    }
}
