//! The long queue: recipients that are all due later.

use std::path::Path;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use restante_core::{BlobId, RecordId};
use restante_mail::queue::{NewMessage, NewRecipient, Notify, Source, SourceKind, Transmission};
use restante_records::AccountId;

use super::stores::Stores;
use crate::progress;

/// Domains of the recipients of the long queue.
pub(super) const DOMAINS: u64 = 10_000;
/// Recipients of a message.
const RECIPIENTS: u64 = 10;
/// Messages that are queued at once, so that their commits share syncs.
const AT_ONCE: usize = 256;
/// The first recipient is due in a day, the others in the day after.
const DELAY: u64 = 86_400;
/// An account that sends.
pub(super) const ACCOUNT: AccountId = AccountId(1_024);

/// A message with these recipients. The number identifies it.
pub(super) fn message(number: u64, blob: BlobId, size: u64, due: u64, addresses: Vec<String>) -> NewMessage {
    let mut key = [0; 32];
    for (to, from) in key.iter_mut().zip(number.to_be_bytes()) {
        *to = from;
    }
    let recipient = |address| NewRecipient { address, notify: Notify::default(), original: None };
    NewMessage {
        source: Source { kind: SourceKind::Smtp, account: Some(ACCOUNT), record: RecordId(0), key },
        blob,
        size,
        sender: "bench@example.org".to_owned(),
        envelope_id: None,
        returned: None,
        transmission: Transmission::default(),
        due,
        recipients: addresses.into_iter().map(recipient).collect(),
    }
}

/// The domain of a number.
pub(super) fn domain(number: u64) -> String {
    format!("d{number}.example")
}

/// Queues this many recipients in new stores, and closes the stores.
pub(super) async fn fill(folder: &Path, recipients: u64) -> anyhow::Result<()> {
    let stores = Stores::open(folder).await?;
    let raw = Bytes::from_static(b"Subject: later\r\n\r\nbench\r\n");
    let blob = stores.blobs.blobs.put(&mut raw.clone()).await?.id;
    let (now, size) = (stores.queue.now(), raw.len() as u64);
    let bar = progress::bar("queueing mails", recipients);
    let messages = (0..recipients.div_ceil(RECIPIENTS)).map(|number| {
        let numbers = number * RECIPIENTS..recipients.min((number + 1) * RECIPIENTS);
        let addresses = numbers.map(|n| format!("user{n}@{}", domain(n % DOMAINS)));
        message(number, blob, size, now + DELAY + number % DELAY, addresses.collect())
    });
    let add = |message| {
        let (queue, bar) = (&stores.queue, &bar);
        async move {
            let added = queue.add(message).await?;
            bar.inc(added.len() as u64);
            anyhow::Ok(())
        }
    };
    stream::iter(messages).map(add).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
    bar.finish_and_clear();
    stores.close().await
}
