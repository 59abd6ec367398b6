//! `GET /admin/v1/mail/outgoing`: the mail that waits to be sent, by domain, and the accounts that reached a limit on sending.

use std::{sync::Arc, time::Duration};

use axum::{Json, response::IntoResponse};
use restante_core::Error;
use restante_directory::Directory;
use restante_http::{Audience, Route};
use restante_mail::{
    queue::{DomainCount, Queue, QueueAccount},
    sending::{LimitedAccount, SendingLimits},
};
use restante_operate::cached::Cached;
use serde_json::{Value, json};

use crate::doors::mail::commands::directory::refusal;

const PATH: &str = "/admin/v1/mail/outgoing";
/// The most domains that are shown, those with the most recipients.
const DOMAINS: usize = 10;
/// The most accounts that are shown, those that were refused last.
const ACCOUNTS: usize = 50;
/// How long a count of the queue is valid, longer when the queue is large: counting walks through it, see [`Cached`].
const COUNTED_FOR: Duration = Duration::from_secs(5);
/// How long a request waits for the first count.
const COUNTED_WITHIN: Duration = Duration::from_secs(2);
/// The queue's name for all domains that it does not count separately.
const OTHERS: &str = "…";

/// The sources of the page of outgoing mail.
#[derive(Clone)]
pub(crate) struct Outgoing {
    queue: Queue,
    limits: SendingLimits,
    directory: Directory,
    counts: Arc<Cached<Counted>>,
}

/// The counts, or why counting failed.
type Counted = Result<Value, Arc<Error>>;

impl Outgoing {
    pub(crate) fn new(queue: Queue, limits: SendingLimits, directory: Directory) -> Self {
        let counts = Arc::new(Cached::new(COUNTED_FOR, COUNTED_WITHIN));
        Self { queue, limits, directory, counts }
    }

    pub(crate) fn route(self) -> Route {
        let answer = move || {
            let outgoing = self.clone();
            async move {
                match outgoing.show().await {
                    Ok(shown) => Json(shown).into_response(),
                    Err(error) => refusal(&error),
                }
            }
        };
        Route::get(PATH, "outgoing mail at a glance, and accounts that reached a limit on sending", answer)
            .with_audience(Audience::Operators)
    }

    async fn show(&self) -> Result<Value, Error> {
        let queue = self.queue.clone();
        let counted = self.counts.get(move || async move { count(&queue).await.map_err(Arc::new) }).await;
        let counts = counted.transpose().map_err(|error| error.duplicate())?;
        let held = self.queue.gate().await?;
        let limited = self.limits.limited();
        let mut shown = Vec::new();
        for account in limited.iter().take(ACCOUNTS) {
            let address = self.directory.address_of(account.account).await?;
            shown.push(show_limited(account, address.map(|address| address.to_string())));
        }
        Ok(json!({
            "counts": counts,
            "held": held.map(|held| json!({"since": held.since, "why": held.why})),
            "limited": shown,
            "limitedInAll": limited.len(),
        }))
    }
}

async fn count(queue: &Queue) -> Result<Value, Error> {
    let at = queue.now();
    let domains = queue.domains().await?;
    let mut oldest = None;
    for account in QueueAccount::all() {
        let due = queue.next_due(account, None).await?;
        oldest = [oldest, due].into_iter().flatten().min();
    }
    Ok(show_counts(at, &domains, oldest))
}

/// The queue at a time: all of it, and the domains with the most recipients. `oldest` is the earliest due time of those that are not held.
fn show_counts(at: u64, domains: &[DomainCount], oldest: Option<u64>) -> Value {
    let held: u64 = domains.iter().map(|domain| domain.held).sum();
    let waiting = domains.iter().map(|domain| domain.recipients.saturating_sub(domain.held)).sum::<u64>();
    let shown = domains.iter().filter(|domain| domain.domain != OTHERS).take(DOMAINS).map(|domain| {
        // A record that was gone when it was read has no due time.
        let oldest = (domain.oldest_due < u64::MAX).then_some(domain.oldest_due);
        let DomainCount { domain, recipients, held, .. } = domain;
        json!({"domain": domain, "recipients": recipients, "held": held, "oldestDue": oldest})
    });
    json!({
        "at": at,
        "waiting": waiting,
        "held": held,
        "oldestDue": oldest,
        "domains": shown.collect::<Vec<Value>>(),
        "domainsInAll": domains.len(),
    })
}

/// An account that was removed in the meantime has no address.
fn show_limited(limited: &LimitedAccount, address: Option<String>) -> Value {
    let LimitedAccount { account, limit, since, last, until, refused } = limited;
    json!({
        "account": account.0,
        "address": address,
        "limit": limit,
        "since": since,
        "last": last,
        "until": until,
        "refused": refused,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_domains_with_the_most_are_shown_and_all_are_counted() {
        let count = |domain: &str, recipients, held, oldest_due| DomainCount {
            domain: domain.to_owned(),
            recipients,
            held,
            oldest_due,
        };
        let mut domains = vec![count(OTHERS, 1_000, 1, 5), count("big.example", 900, 300, u64::MAX)];
        domains.extend((0..20).map(|number| count(&format!("{number}.example"), 2, 0, 7)));
        let shown = show_counts(9, &domains, Some(5));
        assert_eq!((&shown["at"], &shown["oldestDue"]), (&json!(9), &json!(5)));
        assert_eq!((&shown["waiting"], &shown["held"]), (&json!(1_639), &json!(301)));
        assert_eq!(shown["domainsInAll"], 22);
        let top = shown["domains"].as_array().unwrap();
        assert_eq!(top.len(), DOMAINS);
        let big = json!({"domain": "big.example", "recipients": 900, "held": 300, "oldestDue": null});
        assert_eq!(top[0], big);
        assert_eq!(
            top[1],
            json!({"domain": "0.example", "recipients": 2, "held": 0, "oldestDue": 7}),
            "not those beyond the ones that are counted apart"
        );
    }
}
