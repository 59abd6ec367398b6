//! Archives in the embedded engine that tests fill in their own process.

use std::path::Path;

use bytes::Bytes;
use restante_archive::{Config, Message, Opened};
use restante_core::{MessageHash, Timestamp};

pub(crate) fn message(number: u32) -> Message {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&number.wrapping_mul(2_654_435_761).to_be_bytes());
    Message {
        message_hash: MessageHash(hash),
        channel: "/waku/2/rs/1/0".into(),
        topic: format!("/toy/1/room-{}/proto", number % 7).into(),
        timestamp: Timestamp(1_700_000_000_000_000_000 + i64::from(number / 3) * 10_000_000_000),
        body: Bytes::from(format!("body {number}")),
    }
}

/// Runs `work` on an archive, in this process.
fn with_archive<F: Future<Output = ()>>(folder: &Path, name: &str, work: impl FnOnce(Opened) -> F) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let url = format!("log:{}", folder.join(name).display()).parse().unwrap();
        let opened = restante_archive::open(Config::new(url)).await.unwrap();
        let upkeep = opened.upkeep.clone();
        work(opened).await;
        upkeep.close().await.unwrap();
    });
}

pub(crate) fn fill(folder: &Path, name: &str, messages: impl Iterator<Item = Message>) {
    let messages: Vec<Message> = messages.collect();
    with_archive(folder, name, |opened| async move {
        for batch in messages.chunks(10_000) {
            opened.archive.append(batch.to_vec()).await.unwrap();
        }
    });
}
