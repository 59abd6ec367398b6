//! The Sender Rewriting Scheme: a forwarded message leaves with a sender of this server's domain, so that SPF passes, and bounces
//! to that sender reach the original sender.
//!
//! - `SRS0=HASH=DAY=DOMAIN=LOCAL@OURS` stands for `LOCAL@DOMAIN`.
//! - `SRS1=HASH=FORWARDER=REST@OURS` stands for `SRS0REST@FORWARDER`: if an address was rewritten before, only the first forwarder is kept.
//!
//! Because of the hash, only addresses that this server has written are accepted; because of the day, only for a bounded time.

use std::sync::Arc;

use restante_core::Clock;
use ring::hmac::{HMAC_SHA256, Key, sign};

/// How many days a rewritten address is valid. Queues keep a message for five days, and those of further forwarders do so, too.
const AGE_DAYS_MAX: i64 = 21;
/// The number of days that a time stamp can distinguish: two digits of base32.
const DAYS: i64 = 1_024;
/// The digits of a hash: 30 bits. Each guess costs the attacker a message.
const HASH_DIGITS: usize = 6;
/// RFC 5321 §4.5.3.1.1.
const LOCAL_BYTES_MAX: usize = 64;
/// RFC 4648 §6, in lowercase. Servers on the way may change the case, so it is ignored.
const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

const SECONDS_PER_DAY: i64 = 86_400;

/// Rewrites senders, and restores them.
#[derive(Clone)]
pub struct Srs {
    key: Key,
    clock: Arc<dyn Clock>,
}

impl Srs {
    /// A rewriter with the secret that all servers of a cluster share, see `Directory::server_secret`.
    pub fn new(secret: &[u8], clock: Arc<dyn Clock>) -> Self {
        Self { key: Key::new(HMAC_SHA256, secret), clock }
    }

    /// The envelope sender of a forwarded message, in a domain of this server. It is empty if the sender is empty or invalid, or if
    /// its rewritten local part would be longer than 64 bytes, which servers refuse: then failures are not reported, but the
    /// message arrives.
    pub fn rewrite(&self, sender: &str, our_domain: &str) -> String {
        let Some((local, domain)) = sender.rsplit_once('@') else { return String::new() };
        if local.is_empty() || domain.is_empty() || local.starts_with('"') {
            return String::new();
        }
        let rewritten = match (prefixed(local, "SRS0"), prefixed(local, "SRS1")) {
            (Some(rest), _) => self.again(&format!("{domain}={rest}")),
            // The first forwarder stays; the hash of the last one is replaced.
            (None, Some(rest)) => match rest.get(1..).and_then(|rest| rest.split_once('=')) {
                Some((_, kept)) => self.again(kept),
                None => return String::new(),
            },
            (None, None) => {
                let rest = format!("{}={domain}={local}", day_digits(self.today()));
                format!("SRS0={}={rest}", self.hash("0", &rest))
            }
        };
        match rewritten.len() <= LOCAL_BYTES_MAX {
            true => format!("{rewritten}@{our_domain}"),
            false => String::new(),
        }
    }

    fn again(&self, rest: &str) -> String {
        format!("SRS1={}={rest}", self.hash("1", rest))
    }

    /// The address that a rewritten local part stands for. `None` if this server has not written it, or too long ago.
    pub fn restore(&self, local_part: &str) -> Option<String> {
        if let Some(rest) = prefixed(local_part, "SRS0") {
            let (hash, rest) = rest.get(1..)?.split_once('=')?;
            if !self.is_hash(hash, "0", rest) {
                return None;
            }
            let (day, rest) = rest.split_once('=')?;
            let (domain, local) = rest.split_once('=')?;
            let age = (self.today() - day_of(day)?).rem_euclid(DAYS);
            let is_fresh = age <= AGE_DAYS_MAX || age == DAYS - 1; // another server's clock may be ahead
            return (is_fresh && !domain.is_empty() && !local.is_empty())
                .then(|| format!("{local}@{domain}"));
        }
        let (hash, rest) = prefixed(local_part, "SRS1")?.get(1..)?.split_once('=')?;
        if !self.is_hash(hash, "1", rest) {
            return None;
        }
        let (forwarder, rest) = rest.split_once('=')?;
        (!forwarder.is_empty() && !rest.is_empty()).then(|| format!("SRS0{rest}@{forwarder}"))
    }

    fn today(&self) -> i64 {
        self.clock.now().seconds().div_euclid(SECONDS_PER_DAY)
    }

    /// The hash of what follows it, in lowercase.
    fn hash(&self, kind: &str, rest: &str) -> String {
        let tag = sign(&self.key, format!("{kind}{}", rest.to_lowercase()).as_bytes());
        tag.as_ref().iter().take(HASH_DIGITS).map(|byte| digit(i64::from(*byte))).collect()
    }

    fn is_hash(&self, hash: &str, kind: &str, rest: &str) -> bool {
        let (given, right) = (hash.to_ascii_lowercase(), self.hash(kind, rest));
        // In constant time for all hashes of the right length.
        let differs = given.bytes().zip(right.bytes()).fold(0, |all, (one, other)| all | (one ^ other));
        given.len() == right.len() && differs == 0
    }
}

/// What follows the mark of a rewritten address, beginning with the separator, which some servers write as `+` or `-`.
fn prefixed<'l>(local: &'l str, mark: &str) -> Option<&'l str> {
    let (start, rest) = local.split_at_checked(mark.len())?;
    (start.eq_ignore_ascii_case(mark) && rest.starts_with(['=', '+', '-'])).then_some(rest)
}

fn day_digits(day: i64) -> String {
    let day = day.rem_euclid(DAYS);
    [digit(day >> 5), digit(day)].into_iter().collect()
}

fn day_of(text: &str) -> Option<i64> {
    let [high, low] = text.as_bytes() else { return None };
    let value = |byte: &u8| DIGITS.iter().position(|digit| *digit == byte.to_ascii_lowercase());
    i64::try_from(value(high)? * DIGITS.len() + value(low)?).ok()
}

/// The base32 digit of the last five bits.
fn digit(number: i64) -> char {
    let at = usize::try_from(number & 31).unwrap_or_default();
    DIGITS.get(at).copied().map_or('a', char::from)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use restante_core::{ManualClock, Timestamp};

    use super::*;

    const DAY: i64 = SECONDS_PER_DAY * 1_000_000_000;
    const NOW: i64 = 20_780 * DAY;

    fn srs(secret: &str) -> (Srs, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::new(Timestamp(NOW)));
        (Srs::new(secret.as_bytes(), clock.clone()), clock)
    }

    fn restored(srs: &Srs, address: &str) -> Option<String> {
        srs.restore(address.rsplit_once('@').unwrap().0)
    }

    #[test]
    fn srs1_senders_of_forwards_are_rewritten_and_lead_back_for_a_bounded_time() {
        let (ours, clock) = srs("secret");
        let rewritten = ours.rewrite("bob@example.net", "example.org");
        assert!(
            rewritten.starts_with("SRS0=") && rewritten.ends_with("=example.net=bob@example.org"),
            "{rewritten}"
        );
        assert_eq!(restored(&ours, &rewritten).unwrap(), "bob@example.net");
        assert_eq!(restored(&ours, &rewritten.to_lowercase()).unwrap(), "bob@example.net");
        assert_eq!(restored(&ours, &rewritten.to_uppercase()).unwrap(), "BOB@EXAMPLE.NET");
        for (days, leads_back) in
            [(-1, true), (-2, false), (21, true), (22, false), (500, false), (1_022, false)]
        {
            clock.set(Timestamp(NOW + days * DAY));
            assert_eq!(restored(&ours, &rewritten).is_some(), leads_back, "{days}");
        }
        assert_eq!(ours.rewrite("", "example.org"), "");
        let long = format!("{}@example.net", "a".repeat(40));
        assert_eq!(ours.rewrite(&long, "example.org"), "");
        assert_ne!(ours.rewrite(&long[1..].replace("example.net", "e.net"), "example.org"), "");
        // Two forwarders before us: theirs is kept, and only the first one is named.
        let (first, _) = srs("first");
        let (second, _) = srs("second");
        let once = first.rewrite("bob@example.net", "one.org");
        let twice = second.rewrite(&once, "two.org");
        assert!(twice.starts_with("SRS1=") && twice.contains("=one.org=="), "{twice}");
        let (ours, _) = srs("secret");
        let thrice = ours.rewrite(&twice, "example.org");
        assert_eq!(restored(&second, &twice).unwrap(), once);
        assert_eq!(restored(&ours, &thrice).unwrap(), once);
        assert_eq!(restored(&first, &once).unwrap(), "bob@example.net");
    }

    #[test]
    fn srs2_only_what_this_server_has_written_leads_anywhere() {
        let (ours, _) = srs("secret");
        let (other, _) = srs("other");
        let rewritten = ours.rewrite("bob@example.net", "example.org");
        assert_eq!(restored(&other, &rewritten), None);
        let (local, _) = rewritten.rsplit_once('@').unwrap();
        for wrong in [
            local.replace("bob", "eve"),
            local.replace("example.net", "example.com"),
            local.replace("SRS0=", "SRS0=a"),
            local.replace("SRS0", "SRS1"),
            "SRS0".to_owned(),
            "SRS0=".to_owned(),
            "SRS0=aaaaaa=aa=example.net=bob".to_owned(),
            "SRS0=aaaaaa".to_owned(),
            "SRS1=aaaaaa=one.org==aaaaaa=aa=example.net=bob".to_owned(),
            "SRS1=".to_owned(),
            "bob".to_owned(),
            String::new(),
        ] {
            assert_eq!(ours.restore(&wrong), None, "{wrong}");
        }
        assert_eq!(ours.rewrite("SRS1=x@example.net", "example.org"), "");
        assert_eq!(ours.rewrite("\"a b\"@example.net", "example.org"), "");
    }

    proptest! {
        #[test]
        fn srs2_no_text_panics_and_what_is_written_is_read(local in "[a-z0-9.=+_-]{1,20}", domain in "[a-z]{1,8}\\.org", any in ".{0,80}") {
            let (ours, _) = srs("secret");
            ours.restore(&any);
            ours.rewrite(&any, "example.org");
            let sender = format!("{local}@{domain}");
            let rewritten = ours.rewrite(&sender, "example.org");
            prop_assert_eq!(restored(&ours, &rewritten), Some(sender));
        }
    }
}
