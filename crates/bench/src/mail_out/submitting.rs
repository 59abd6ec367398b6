//! Clients that submit mail: each mail is durable when its time ends.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;

use super::{
    fill::{domain, message},
    sink::{Arrivals, is_measured},
    stores::Stores,
};
use crate::jmap::corpus::Corpus;

/// Bytes of a mail.
const MAIL_BYTES: usize = 4_096;
const TEXTS: u64 = 64;

/// The next message number in this process: no two loads queue the same message.
static MESSAGES: AtomicU64 = AtomicU64::new(0);

/// Submits mails, each to one recipient.
pub(super) struct Submitter {
    stores: Stores,
    corpus: Corpus,
    texts: Vec<String>,
    arrivals: Arc<Arrivals>,
    domains: u64,
}

impl Submitter {
    pub(super) fn new(stores: &Stores, corpus: Corpus, arrivals: Arc<Arrivals>, domains: u64) -> Self {
        Self { stores: stores.clone(), corpus, texts: corpus.texts(TEXTS, MAIL_BYTES), arrivals, domains }
    }

    /// Submits a mail; returns the time until it was in the queue.
    pub(super) async fn submit(&self) -> anyhow::Result<Duration> {
        let number = self.arrivals.next();
        let unique = MESSAGES.fetch_add(1, Ordering::Relaxed);
        let to = number % self.domains;
        let raw = Bytes::from(format!("{}\r\n", self.corpus.plain(unique, &self.texts, MAIL_BYTES - 2)));
        let size = raw.len() as u64;
        let is_measured = is_measured(to, self.arrivals.servers);
        if is_measured {
            self.arrivals.queued(number);
        }
        let begun = Instant::now();
        let put = self.stores.blobs.blobs.put(&mut raw.clone()).await?;
        let address = format!("{}{number}@{}", if is_measured { "mail" } else { "other" }, domain(to));
        let message = message(unique, put.id, size, 0, vec![address]);
        self.stores.queue.add(message).await?;
        Ok(begun.elapsed())
    }
}
