//! When a recipient is tried again, and when it expires.

use restante_mail::queue::{QueuedId, QueuedRecipient, Reply};

use crate::DeliveryConfig;

/// What follows an attempt that may succeed later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It is tried again.
    Retry {
        /// When, in seconds since 1970.
        due: u64,
        /// Whether the delay is to be reported now.
        is_delay_due: bool,
    },
    /// It has been tried for long enough, and fails with this reply.
    Expired(Reply),
}

/// What follows an attempt that got `reply`. The last attempt is made when the time ends. Its time counts from when the
/// recipient first became due: a delay that its sender asked for does not.
pub(crate) fn next(config: &DeliveryConfig, recipient: &QueuedRecipient, reply: &Reply, now: u64) -> Next {
    let expires = expires(config, recipient);
    if now >= expires {
        return Next::Expired(expired(recipient, reply, now));
    }
    let wait = wait(config, recipient.id, recipient.attempts);
    let due = now.saturating_add(wait.max(1)).min(expires);
    let waited = now.saturating_sub(recipient.first_due);
    let is_delay_due = config.delay_notice_seconds > 0
        && waited >= config.delay_notice_seconds
        && !recipient.is_delay_reported;
    Next::Retry { due, is_delay_due }
}

/// Until when a recipient is tried, in seconds since 1970.
pub(crate) fn expires(config: &DeliveryConfig, recipient: &QueuedRecipient) -> u64 {
    recipient.first_due.saturating_add(config.expire_seconds.get())
}

fn expired(recipient: &QueuedRecipient, reply: &Reply, now: u64) -> Reply {
    let hours = now.saturating_sub(recipient.first_due) / 3_600;
    let text = format!(
        "delivery was tried for {hours} hours; the last reply was {} {} {}",
        reply.code, reply.enhanced, reply.text
    );
    Reply { code: 554, enhanced: "5.4.7".to_owned(), text, from: reply.from.clone() }
}

/// How long to wait after so many attempts, in seconds.
fn wait(config: &DeliveryConfig, id: QueuedId, attempts: u32) -> u64 {
    let n = usize::try_from(attempts).unwrap_or(usize::MAX);
    let base = config.retry_seconds.get(n).or(config.retry_seconds.last()).copied().unwrap_or(14_400);
    let span = base.saturating_mul(config.retry_jitter_percent) / 100;
    if span == 0 {
        return base;
    }
    // From -span to +span, the same for a recipient and an attempt on every server.
    let chance = mixed(id.record.0 ^ u64::from(id.account.0) << 48 ^ u64::from(attempts) << 32);
    base - span + chance % (2 * span + 1)
}

/// The finalizer of SplitMix64.
fn mixed(mut bits: u64) -> u64 {
    bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
