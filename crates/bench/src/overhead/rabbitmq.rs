//! RabbitMQ: items that are published and received through the queue of work, compared with a bounded producer and a
//! consumer.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, bail, ensure};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, stream::FuturesUnordered};
use lapin::{
    BasicProperties, Channel, Confirmation,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
        QueueDeleteOptions,
    },
    types::FieldTable,
};
use restante_queue::{Config, EngineUrl, OpenedWork, PUBLISH_ITEMS_MAX, QueueConfig, open_work};
use tokio::{task::AbortHandle, time::timeout};

use super::{
    Bench, OverheadArgs, RAW, Server, Subject,
    pairs::{Bound, Load},
};
use crate::engines::{
    fresh_name,
    rabbitmq::{Access, make_queue},
    target,
};

const NAME: &str = "rabbitmq";
/// The variable that dev/services sets.
const VARIABLE: &str = "RESTANTE_RABBITMQ_URL";
/// Messages that wait for their confirms.
const WINDOW: usize = 100;
const MESSAGE_BYTES: usize = 1_000;
const PERSISTENT: u8 = 2;
const QUORUM: &str = "quorum";
/// How long the last messages may take.
const END_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(1);

/// Connects to the broker that is named.
pub(super) async fn connect(args: &OverheadArgs) -> anyhow::Result<Option<Box<dyn Server>>> {
    let Some(url) = target::named(None, VARIABLE) else { return Ok(None) };
    let access = Access::new(&url, &args.engines())?;
    access.open().await?;
    Ok(Some(Box::new(Rabbitmq { url, access, prefix: fresh_name() })))
}

struct Rabbitmq {
    url: String,
    access: Access,
    /// The prefix of the names of all queues of this run.
    prefix: String,
}

#[async_trait(?Send)]
impl Server for Rabbitmq {
    fn name(&self) -> &'static str {
        NAME
    }

    fn created(&self) -> String {
        self.queues().map(|queue| format!("rabbitmqctl delete_queue {queue}")).join("; ")
    }

    async fn measure(&self, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        let config = Config {
            shared: QueueConfig { prefix: self.prefix.clone(), ..QueueConfig::default() },
            ..Config::new(EngineUrl::Rabbitmq(self.url.clone()))
        };
        let prefetch = config.shared.prefetch.get();
        let opened = open_work(config).await?;
        opened.upkeep.health().context("the queue of work is not connected")?;
        let base = async |span| self.raw(span, prefetch).await;
        let ours = async |span| ours(&opened, span).await;
        let subject = Subject { what: "publish and receive messages of 1 kB, 100 unconfirmed", beside: RAW };
        let compared = bench.compare(subject, &[Bound::Rate(0.9)], base, ours).await;
        opened.upkeep.close().await;
        compared
    }

    /// A new connection, as a broker may block those that sent messages.
    async fn clean_up(&self) -> anyhow::Result<()> {
        let channel = self.access.open().await?.create_channel().await?;
        for queue in self.queues() {
            channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await?;
        }
        Ok(())
    }
}

impl Rabbitmq {
    fn raw_queue(&self) -> String {
        format!("{}-raw", self.prefix)
    }

    /// The engine's queues, and that of the raw client.
    fn queues(&self) -> [String; 4] {
        let prefix = &self.prefix;
        [
            format!("{prefix}-work"),
            format!("{prefix}-work-dead"),
            format!("{prefix}-dealer"),
            self.raw_queue(),
        ]
    }

    /// One producer and one consumer, each with a connection.
    async fn raw(&self, span: Duration, prefetch: u16) -> anyhow::Result<Load> {
        let queue = self.raw_queue();
        let (publishing, consuming) = (self.access.open().await?, self.access.open().await?);
        let (publisher, channel) = (publishing.create_channel().await?, consuming.create_channel().await?);
        make_queue(&publisher, QUORUM, &queue).await?;
        publisher.confirm_select(ConfirmSelectOptions::default()).await?;
        channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
        let options = BasicConsumeOptions::default();
        let mut consumer =
            channel.basic_consume(queue.as_str().into(), "".into(), options, FieldTable::default()).await?;
        let received = Arc::new(AtomicU64::new(0));
        let counted = received.clone();
        let consuming = tokio::spawn(async move {
            while let Some(Ok(delivery)) = consumer.next().await {
                if delivery.acker.ack(BasicAckOptions::default()).await.is_err() {
                    break; // the missing messages are noticed then
                }
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        let consuming = Consuming { received, task: consuming.abort_handle() };
        let begun = Instant::now();
        let sent = tokio::spawn(async move { raw_publish(&publisher, &queue, span).await }).await??;
        consuming.finish(begun, sent).await
    }
}

/// Sends messages for some time, with a bounded number of them unconfirmed; returns how many.
async fn raw_publish(channel: &Channel, queue: &str, span: Duration) -> anyhow::Result<u64> {
    let (begun, body) = (Instant::now(), vec![b'm'; MESSAGE_BYTES]);
    let publish = async || {
        // Without it, a message for which there is no queue is confirmed.
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
        let written = channel.basic_publish("".into(), queue.into(), options, &body, properties).await?;
        match written.await? {
            Confirmation::Ack(None) => Ok(()),
            _ => Err(anyhow!("the broker did not take a message")),
        }
    };
    let (mut sent, mut unconfirmed) = (0, FuturesUnordered::new());
    loop {
        while unconfirmed.len() < WINDOW && begun.elapsed() < span {
            unconfirmed.push(publish());
        }
        match unconfirmed.next().await {
            Some(confirmed) => confirmed?,
            None => return Ok(sent),
        }
        sent += 1;
    }
}

/// The same by restante.
async fn ours(opened: &OpenedWork, span: Duration) -> anyhow::Result<Load> {
    let received = Arc::new(AtomicU64::new(0));
    let (work, counted) = (opened.work.clone(), received.clone());
    let task = tokio::spawn(async move {
        loop {
            work.next().await.ticket.done();
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let consuming = Consuming { received, task: task.abort_handle() };
    let (begun, work) = (Instant::now(), opened.work.clone());
    let publishing = tokio::spawn(async move {
        let items = vec![Bytes::from(vec![b'm'; MESSAGE_BYTES]); PUBLISH_ITEMS_MAX];
        let mut sent = 0;
        while begun.elapsed() < span {
            work.publish(&items).await?;
            sent += items.len() as u64;
        }
        anyhow::Ok(sent)
    });
    consuming.finish(begun, publishing.await??).await
}

/// A consumer, which stops when this is dropped.
struct Consuming {
    received: Arc<AtomicU64>,
    task: AbortHandle,
}

impl Drop for Consuming {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Consuming {
    /// Waits until all has arrived.
    async fn finish(self, begun: Instant, sent: u64) -> anyhow::Result<Load> {
        let all_received = async {
            while self.received.load(Ordering::Relaxed) < sent {
                tokio::time::sleep(POLL).await;
            }
        };
        if timeout(END_MAX, all_received).await.is_err() {
            let received = self.received.load(Ordering::Relaxed);
            bail!("{received} of {sent} messages were received within {} s", END_MAX.as_secs());
        }
        ensure!(sent > 0, "no message was sent");
        // The time of a single message is not measured.
        Ok(Load { per_second: sent as f64 / begun.elapsed().as_secs_f64(), p50_ms: 0.0 })
    }
}
