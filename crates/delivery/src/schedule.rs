//! When a recipient is tried again, and when it expires.

use restante_mail::queue::{QueuedId, QueuedRecipient, Reply};

use crate::DeliveryConfig;

/// How long a recipient that could not be tried waits, in seconds: at least, and at most.
const RETURN_SECONDS: u64 = 60;
const RETURN_SECONDS_MAX: u64 = 3_600;

/// What follows an attempt that may succeed later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It is tried again.
    Retry {
        /// When it is tried, in seconds since 1970.
        due: u64,
        /// Whether the delay must be reported now.
        is_delay_due: bool,
    },
    /// It has been tried for long enough, and fails: the reason, in words of this server.
    Expired(String),
}

/// What follows an attempt. The last attempt is made when the recipient expires. The time until then counts from when the recipient
/// first became due: a delay that its sender asked for does not count.
pub(crate) fn next(config: &DeliveryConfig, recipient: &QueuedRecipient, now: u64) -> Next {
    let expires = expires(config, recipient);
    if now >= expires {
        let tried = duration(now.saturating_sub(recipient.first_due));
        return Next::Expired(format!("delivery was tried for {tried}"));
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

/// How long a recipient that could not be tried for a reason of this server waits, in seconds: longer each time, as after attempts, and at most an hour.
pub(crate) fn return_wait(config: &DeliveryConfig, recipient: &QueuedRecipient) -> u64 {
    wait(config, recipient.id, recipient.returns).clamp(RETURN_SECONDS, RETURN_SECONDS_MAX)
}

/// The one reply that stands for an expired recipient where only one can be shown: with the reason, and the last reply.
pub(crate) fn expired(why: &str, reply: &Reply) -> Reply {
    let Reply { code, enhanced, text, .. } = reply;
    Reply::own(554, "5.4.7", format!("{why}; the last reply was {code} {enhanced} {text}"))
}

/// A number of seconds in the largest unit that gives at least two.
fn duration(seconds: u64) -> String {
    let (number, unit) = match seconds {
        172_800.. => (seconds / 86_400, "days"),
        7_200.. => (seconds / 3_600, "hours"),
        120.. => (seconds / 60, "minutes"),
        1 => (1, "second"),
        _ => (seconds, "seconds"),
    };
    format!("{number} {unit}")
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

#[cfg(test)]
mod tests {
    use super::*;

    /// With an expiry of seconds the text was "0 hours".
    #[test]
    fn durations_are_in_units_that_say_something() {
        for (seconds, text) in [
            (0, "0 seconds"),
            (1, "1 second"),
            (119, "119 seconds"),
            (120, "2 minutes"),
            (7_200, "2 hours"),
            (172_799, "47 hours"),
            (432_000, "5 days"),
        ] {
            assert_eq!(duration(seconds), text);
        }
    }
}
