//! Dead items: they are in a queue of their own.

use lapin::{
    Channel,
    message::BasicGetMessage,
    options::{BasicAckOptions, BasicGetOptions},
    types::AMQPValue,
};

use super::{
    Shared,
    address::unavailable,
    topology::{self, Names},
};
use crate::{DEAD_MAX, DeadItem, Error, Stats};

const CLOSED: u16 = 200;
/// The header in which the broker says why an item is dead.
const REASON: &str = "x-first-death-reason";

pub(super) async fn stats(shared: &Shared) -> Result<Stats, Error> {
    let Names { work, dead, .. } = &shared.names;
    let link = shared.link()?;
    let looking = async {
        let channel = link.channel().await?;
        let (waiting, _) = topology::size(&channel, work).await?;
        let (dead, _) = topology::size(&channel, dead).await?;
        close(&channel).await;
        Ok(Stats { waiting, dead })
    };
    shared.address.in_time(looking).await
}

/// Reads items. They are returned to their queue when the channel is closed.
pub(super) async fn list(shared: &Shared, limit: usize) -> Result<Vec<DeadItem>, Error> {
    let channel = shared.address.in_time(shared.link()?.channel()).await?;
    let mut items = Vec::new();
    while items.len() < limit.min(DEAD_MAX) {
        let Some(message) = get(shared, &channel).await? else { break };
        let headers = message.delivery.properties.headers().as_ref();
        let reason = headers.and_then(|headers| headers.inner().get(REASON)).and_then(|value| match value {
            AMQPValue::LongString(reason) => Some(reason.to_string()),
            _ => None,
        });
        let reason = reason.unwrap_or_else(|| "unknown".to_owned());
        items.push(DeadItem { item: message.delivery.data.into(), reason });
    }
    shared
        .address
        .in_time(async {
            close(&channel).await;
            Ok(())
        })
        .await?;
    Ok(items)
}

/// Adds the items that are dead now to the queue again. Each is removed from the dead ones once the queue has it.
pub(super) async fn requeue(shared: &Shared) -> Result<u64, Error> {
    let link = shared.link()?;
    let channel = shared.address.in_time(link.channel()).await?;
    // Items that die meanwhile stay.
    let count = stats(shared).await?.dead;
    let mut requeued = 0;
    while requeued < count {
        let Some(message) = get(shared, &channel).await? else { break };
        let tag = message.delivery.delivery_tag;
        link.publish(shared, &shared.names.work, &[message.delivery.data.into()]).await?;
        let acknowledging = async {
            let sent = channel.basic_ack(tag, BasicAckOptions::default()).await;
            sent.map_err(|error| unavailable("RabbitMQ takes no acknowledgement", error))
        };
        shared.address.in_time(acknowledging).await?;
        requeued += 1;
    }
    shared
        .address
        .in_time(async {
            close(&channel).await;
            Ok(())
        })
        .await?;
    Ok(requeued)
}

pub(super) async fn drop_all(shared: &Shared) -> Result<u64, Error> {
    let link = shared.link()?;
    let dropping = async {
        let channel = link.channel().await?;
        let dropped = topology::purge(&channel, &shared.names.dead).await?;
        close(&channel).await;
        Ok(dropped)
    };
    shared.address.in_time(dropping).await
}

async fn get(shared: &Shared, channel: &Channel) -> Result<Option<BasicGetMessage>, Error> {
    let getting = async {
        let got = channel.basic_get(shared.names.dead.as_str().into(), BasicGetOptions::default()).await;
        got.map_err(|error| unavailable("can't read the dead items", error))
    };
    shared.address.in_time(getting).await
}

async fn close(channel: &Channel) {
    let _ = channel.close(CLOSED, "done".into()).await;
}
