//! Measurements of opening a long queue.

use std::time::Instant;

use anyhow::ensure;
use restante_mail::queue::{ListFilter, QueueAccount};
use serde::{Deserialize, Serialize};

use super::{child::Task, fill, stores::Stores};
use crate::{
    machine::private_memory,
    measure::{median, ms, rounded},
    random::Random,
};

/// Recipients of a page of a list.
const PAGE: usize = 100;
const LISTS: u64 = 100;
const LOOKS: u64 = 100;
const QUICK: u64 = 5;

/// The figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Opening {
    /// Seconds until the stores are open and it is known when the next recipient is due.
    pub(super) start_s: f64,
    /// Milliseconds of a page of the recipients of a domain, the median.
    pub(super) list_by_domain_ms: f64,
    /// Milliseconds of a search for what is due now in all accounts of the queue, and when the next one is due, the median.
    pub(super) due_next_ms: f64,
    /// Seconds of counting all recipients by domain.
    pub(super) domains_s: f64,
    /// Private memory after all that, in bytes.
    pub(super) memory_private: Option<u64>,
}

/// Opens the long queue and queries it.
pub(super) async fn measure(task: &Task) -> anyhow::Result<Opening> {
    let begun = Instant::now();
    let stores = Stores::open(&task.folder).await?;
    ensure!(stores.queue.gate().await?.is_none(), "the queue is held");
    ensure!(look(&stores).await?.is_some(), "the queue is empty");
    let start_s = rounded(begun.elapsed().as_secs_f64());

    let count = |real| if task.is_quick { QUICK } else { real };
    let mut random = Random::new(task.seed, 0);
    let mut lists = Vec::new();
    for _ in 0..count(LISTS) {
        let domain = Some(fill::domain(random.below(fill::DOMAINS)));
        let filter = ListFilter { domain, ..ListFilter::default() };
        let begun = Instant::now();
        stores.queue.list(&filter, None, PAGE).await?;
        lists.push(ms(begun.elapsed()));
    }
    let mut looks = Vec::new();
    for _ in 0..count(LOOKS) {
        let begun = Instant::now();
        look(&stores).await?;
        looks.push(ms(begun.elapsed()));
    }
    let begun = Instant::now();
    ensure!(!stores.queue.domains().await?.is_empty(), "the queue has no domains");
    let domains_s = rounded(begun.elapsed().as_secs_f64());
    let memory_private = private_memory("self");
    stores.close().await?;
    let (list_by_domain_ms, due_next_ms) = (rounded(median(lists)), rounded(median(looks)));
    Ok(Opening { start_s, list_by_domain_ms, due_next_ms, domains_s, memory_private })
}

/// When the next recipient is due, as a sender finds it: nothing is due now.
async fn look(stores: &Stores) -> anyhow::Result<Option<u64>> {
    let now = stores.queue.now();
    let mut next: Option<u64> = None;
    for account in QueueAccount::all() {
        let due = stores.queue.due(account, (0, now), None, 1).await?;
        ensure!(due.items.is_empty(), "something is due already");
        next = next.into_iter().chain(stores.queue.next_due(account, Some(now)).await?).min();
    }
    Ok(next)
}
