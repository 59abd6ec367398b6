//! Counts the mail of all accounts, for the metrics.

use std::time::Duration;

use prometheus_client::{metrics::gauge::Gauge, registry::Registry};
use restante_core::Error;
use restante_directory::{Actor, Answer, Directory, Operation, PAGE_MAX};
use restante_mail::{Mail, MailError};
use restante_records::AccountId;
use tokio::time::{Instant, sleep};
use tracing::debug;

use crate::signals::Stop;

/// Counting takes at most one part in this many of the time, within the minimum and maximum intervals.
const COST_PARTS: u32 = 1_000;
const INTERVAL_MIN: Duration = Duration::from_secs(60);
const INTERVAL_MAX: Duration = Duration::from_secs(6 * 3_600);

/// The metrics of how much mail there is. Clones share the values.
#[derive(Clone, Debug, Default)]
pub(crate) struct UsageMetrics {
    accounts: Gauge,
    emails: Gauge,
    bytes: Gauge,
    vault_emails: Gauge,
    vault_bytes: Gauge,
}

impl UsageMetrics {
    /// Registers the metrics in `registry` as `restante_mail_...`.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("restante_mail");
        registry.register("accounts", "Accounts of users", self.accounts.clone());
        registry.register("stored_emails", "Emails of all accounts", self.emails.clone());
        let help = "Bytes of the emails of all accounts; recipients of one message share its blob";
        registry.register("stored_bytes", help, self.bytes.clone());
        let help = "Destroyed emails that can be restored";
        registry.register("vault_emails", help, self.vault_emails.clone());
        registry.register("vault_bytes", "Bytes of those emails", self.vault_bytes.clone());
    }

    fn show(&self, total: Total) {
        let Total { accounts, emails, bytes, vault_emails, vault_bytes } = total;
        let values = [accounts, emails, bytes, vault_emails, vault_bytes];
        let gauges = [&self.accounts, &self.emails, &self.bytes, &self.vault_emails, &self.vault_bytes];
        for (gauge, value) in gauges.into_iter().zip(values) {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
    }
}

/// The mail of all accounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Total {
    accounts: u64,
    emails: u64,
    bytes: u64,
    vault_emails: u64,
    vault_bytes: u64,
}

/// Counts at once and then repeatedly, until the server stops. If records fail, the last values remain.
pub(crate) async fn run(mail: Mail, directory: Directory, metrics: UsageMetrics, stop: Stop) {
    let counting = async {
        loop {
            let begun = Instant::now();
            match count(&mail, &directory).await {
                Ok(total) => metrics.show(total),
                Err(error) => debug!(%error, "the mail of accounts is not counted"),
            }
            sleep(pause(begun.elapsed())).await;
        }
    };
    tokio::select! {
        () = counting => {}
        () = stop.requested() => {}
    }
}

/// How long to wait after a count that took this long.
pub(super) fn pause(took: Duration) -> Duration {
    took.saturating_mul(COST_PARTS).clamp(INTERVAL_MIN, INTERVAL_MAX)
}

async fn count(mail: &Mail, directory: &Directory) -> Result<Total, MailError> {
    let actor = Actor(String::new()); // reads are not logged
    let (mut total, mut after) = (Total::default(), None);
    loop {
        let page = Operation::Accounts { domain: None, after, limit: PAGE_MAX };
        let Answer::Accounts(page) = directory.operate(&actor, page).await? else {
            return Err(Error::internal("the directory answered another operation").into());
        };
        for account in page.items.iter().map(|account| AccountId(account.account)) {
            let usage = mail.usage(account).await?;
            let vault = mail.vault_usage(account, u64::MAX).await?;
            total.accounts += 1;
            total.emails += usage.emails;
            total.bytes += usage.bytes;
            total.vault_emails += vault.emails;
            total.vault_bytes += vault.bytes;
            tokio::task::yield_now().await;
        }
        after = page.next;
        if after.is_none() {
            return Ok(total);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counting_that_takes_long_is_done_less_often() {
        let cases = [(0, 60), (59, 60), (600, 600), (3_600_000, 21_600)];
        for (took_ms, wait) in cases {
            assert_eq!(pause(Duration::from_millis(took_ms)), Duration::from_secs(wait), "{took_ms}");
        }
    }

    #[test]
    fn totals_are_shown() {
        let metrics = UsageMetrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        metrics.show(Total { accounts: 2, emails: 3, bytes: 4, vault_emails: 5, vault_bytes: u64::MAX });
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "restante_mail_accounts 2",
            "restante_mail_stored_emails 3",
            "restante_mail_stored_bytes 4",
            "restante_mail_vault_emails 5",
            "restante_mail_vault_bytes 9223372036854775807",
        ] {
            assert!(text.lines().any(|known| known == line), "{line} is not in\n{text}");
        }
    }
}
