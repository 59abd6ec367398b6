//! What can't be seen from outside: failing disks and power cuts, by way of the [`Disk`](super::disk::Disk) seam.

pub(super) mod faults;
mod power_cut;

use std::sync::Arc;

use restante_core::{ManualClock, MessageHash, Timestamp};

use super::{disk::Disk, open::open_on};
use crate::{Config, LogConfig, Message, Opened, Query, Walk};

const SECOND: i64 = 1_000_000_000;

/// Windows of a second and segments of twenty messages, so that a small workload crosses many.
pub(super) fn config() -> Config {
    let mut config = Config::new("memory:".parse().unwrap());
    config.clock = Arc::new(ManualClock::new(Timestamp(100 * SECOND)));
    config.log =
        LogConfig { window_seconds: 1, segment_messages: 20, open_segments: 2, ..LogConfig::default() };
    config
}

fn open(disk: Arc<dyn Disk>) -> Result<Opened, crate::Error> {
    open_on(disk, &config(), None)
}

/// Message number `n`, a few in each second; the body repeats its number.
pub(super) fn message(n: u32, body_len: usize) -> Message {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&n.wrapping_mul(2_654_435_761).to_be_bytes());
    hash[4..8].copy_from_slice(&n.to_be_bytes());
    Message {
        message_hash: MessageHash(hash),
        channel: "chan".into(),
        topic: format!("topic {}", n % 11).into(),
        timestamp: Timestamp(i64::from(n) * SECOND / 32),
        body: n.to_le_bytes().iter().copied().cycle().take(body_len).collect::<Vec<u8>>().into(),
    }
}

/// Everything that the archive serves.
async fn everything(opened: &Opened) -> Vec<Message> {
    let mut walk = Walk::new(Query { limit: 100, ..Query::default() });
    let mut messages = Vec::new();
    while let Some(page) = walk.next(&*opened.archive).await.unwrap() {
        messages.extend(page.rows().map(|row| Message {
            message_hash: row.message_hash,
            channel: row.channel.into(),
            topic: row.topic.into(),
            timestamp: row.timestamp,
            body: row.body.to_vec().into(),
        }));
    }
    messages
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}
