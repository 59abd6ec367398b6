use std::{
    future::pending,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use restante_net::dns::{Answer, FixedResolver, MxRecord, Resolver, SrvRecord};

use super::*;
use crate::{ChecksConfig, ClientChecking, Peer};

const CLIENT: &str = "192.0.2.1";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn found(addresses: &[&str]) -> Answer<IpAddr> {
    Answer::Found(addresses.iter().map(|address| ip(address)).collect())
}

fn names(names: &[&str]) -> Answer<String> {
    Answer::Found(names.iter().map(|name| (*name).to_owned()).collect())
}

fn temporary<T>() -> Answer<T> {
    Answer::Temporary("no server answers".to_owned())
}

/// Adds a list that works and has an entry for [`CLIENT`].
fn add_list(resolver: &FixedResolver, zone: &str, answer: &str) {
    resolver.set_addresses(&format!("2.0.0.127.{zone}"), found(&["127.0.0.2"]));
    resolver.set_addresses(&format!("1.2.0.192.{zone}"), found(&[answer]));
}

fn lookups(resolver: Arc<dyn Resolver>, zones: &[&str]) -> ClientLookups {
    let list = |zone: &&str| BlockList { zone: (*zone).to_owned(), action: Action::Refuse };
    let lists: Vec<BlockList> = zones.iter().map(list).collect();
    ClientLookups::new(resolver, &lists, Duration::from_secs(5))
}

async fn zones_of(resolver: &Arc<FixedResolver>, zones: &[&str], client: &str) -> Vec<String> {
    let facts = lookups(resolver.clone(), zones).look_up(ip(client)).await;
    facts.listings.into_iter().map(|listing| listing.zone).collect()
}

#[tokio::test]
async fn chk9_a_name_counts_when_it_leads_back() {
    let resolver = Arc::new(FixedResolver::new());
    let lookups = lookups(resolver.clone(), &[]);
    let reverse = async || lookups.look_up(ip(CLIENT)).await.reverse;
    assert_eq!(reverse().await, Reverse::None);
    resolver.set_ptr(ip(CLIENT), names(&["a.example", "b.example"]));
    assert_eq!(reverse().await, Reverse::Unconfirmed("a.example".to_owned()));
    resolver.set_addresses("a.example", found(&["192.0.2.9"]));
    resolver.set_addresses("b.example", found(&["2001:db8::1", CLIENT]));
    assert_eq!(reverse().await, Reverse::Confirmed("b.example".to_owned()));
    resolver.set_addresses("b.example", temporary());
    assert_eq!(reverse().await, Reverse::Unknown, "it may be that one");
    resolver.set_ptr(ip(CLIENT), temporary());
    assert_eq!(reverse().await, Reverse::Unknown);
    for wrong in ["a b.example", "a\r\nb.example", "localhost", "", "a..example"] {
        resolver.set_ptr(ip(CLIENT), names(&[wrong]));
        resolver.set_addresses(wrong, found(&[CLIENT]));
        assert_eq!(reverse().await, Reverse::None, "{wrong:?}");
    }
}

#[tokio::test]
async fn chk10_a_list_that_works_lists_a_client() {
    let resolver = Arc::new(FixedResolver::new());
    add_list(&resolver, "list.example", "127.0.0.4");
    resolver.set_txt("1.2.0.192.list.example", names(&["see https://list.example/\r\n550 \u{e9}"]));
    let facts = lookups(resolver.clone(), &["list.example."]).look_up(ip("::ffff:192.0.2.1")).await;
    let text = Some("see https://list.example/??550 ?".to_owned());
    assert_eq!(facts.listings, [Listing { zone: "list.example".to_owned(), action: Action::Refuse, text }]);
    assert!(zones_of(&resolver, &["list.example"], "192.0.2.2").await.is_empty());
}

#[tokio::test]
async fn chk10_addresses_of_ipv6_are_looked_up_by_nibbles() {
    let resolver = Arc::new(FixedResolver::new());
    let of = |address: &str| format!("{}.list.example", restante_net::dns::reversed(ip(address)));
    resolver.set_addresses(&of("2001:db8::1"), found(&["127.0.0.2"]));
    assert!(zones_of(&resolver, &["list.example"], "2001:db8::1").await.is_empty(), "no test entry yet");
    // RFC 5782 §5: the test entry of a list of IPv6 addresses.
    let test = restante_net::dns::reversed(IpAddr::V6("::ffff:7f00:2".parse().unwrap()));
    resolver.set_addresses(&format!("{test}.list.example"), found(&["127.0.0.2"]));
    assert_eq!(zones_of(&resolver, &["list.example"], "2001:db8::1").await, ["list.example"]);
}

#[tokio::test]
async fn chk10_only_answers_of_loopback_count_and_errors_do_not() {
    let resolver = Arc::new(FixedResolver::new());
    for answer in ["203.0.113.9", "10.0.0.1", "127.255.255.254", "127.255.255.252"] {
        add_list(&resolver, "list.example", answer);
        assert!(zones_of(&resolver, &["list.example"], CLIENT).await.is_empty(), "{answer}");
    }
    for answer in ["127.0.0.2", "127.0.1.255", "127.255.254.1"] {
        add_list(&resolver, "list.example", answer);
        assert_eq!(zones_of(&resolver, &["list.example"], CLIENT).await, ["list.example"], "{answer}");
    }
}

#[tokio::test]
async fn chk10_dead_and_wildcarding_lists_block_nobody() {
    let resolver = Arc::new(FixedResolver::new());
    // Its domain was sold: everything is listed.
    add_list(&resolver, "wildcard.example", "127.0.0.2");
    resolver.set_addresses("1.0.0.127.wildcard.example", found(&["127.0.0.2"]));
    // It was abandoned, and left an entry behind.
    resolver.set_addresses("1.2.0.192.dead.example", found(&["127.0.0.2"]));
    // It does not answer.
    for name in ["1.2.0.192", "2.0.0.127", "1.0.0.127"] {
        resolver.set_addresses(&format!("{name}.away.example"), temporary());
    }
    // It answers, but not the queries that show whether it works.
    resolver.set_addresses("1.2.0.192.half.example", found(&["127.0.0.2"]));
    resolver.set_addresses("2.0.0.127.half.example", temporary());
    add_list(&resolver, "good.example", "127.0.0.3");
    let all = ["wildcard.example", "dead.example", "away.example", "half.example", "good.example"];
    assert_eq!(zones_of(&resolver, &all, CLIENT).await, ["good.example"]);
}

#[tokio::test(start_paused = true)]
async fn chk10_whether_a_list_works_is_looked_at_now_and_then() {
    let resolver = Arc::new(FixedResolver::new());
    add_list(&resolver, "list.example", "127.0.0.2");
    let lookups = lookups(resolver.clone(), &["list.example"]);
    let is_listed = async || !lookups.look_up(ip(CLIENT)).await.listings.is_empty();
    assert!(is_listed().await);
    resolver.set_addresses("1.0.0.127.list.example", found(&["127.0.0.2"]));
    assert!(is_listed().await, "it was good a moment ago");
    tokio::time::advance(Duration::from_secs(3_601)).await;
    assert!(!is_listed().await);
    resolver.set_addresses("1.0.0.127.list.example", Answer::NoSuchName);
    assert!(!is_listed().await, "it is left alone for a while");
    tokio::time::advance(Duration::from_secs(301)).await;
    assert!(is_listed().await);
}

#[tokio::test]
async fn chk10_private_addresses_are_not_shown_to_lists() {
    let resolver = Arc::new(FixedResolver::new());
    resolver.set_addresses("2.0.0.127.list.example", found(&["127.0.0.2"]));
    resolver.set_addresses("1.0.0.10.list.example", found(&["127.0.0.2"]));
    assert!(zones_of(&resolver, &["list.example"], "10.0.0.1").await.is_empty());
}

/// A resolver that never answers, and counts waiting queries.
#[derive(Default)]
struct Silent {
    asked: AtomicUsize,
}

#[async_trait]
impl Resolver for Silent {
    async fn mx(&self, _: &str) -> Answer<MxRecord> {
        pending().await
    }
    async fn addresses(&self, _: &str) -> Answer<IpAddr> {
        pending().await
    }
    async fn txt(&self, _: &str) -> Answer<String> {
        pending().await
    }
    async fn srv(&self, _: &str) -> Answer<SrvRecord> {
        pending().await
    }
    async fn ipv4_addresses(&self, _: &str) -> Answer<IpAddr> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        pending().await
    }
    async fn ipv6_addresses(&self, _: &str) -> Answer<IpAddr> {
        pending().await
    }
    async fn ptr(&self, _: IpAddr) -> Answer<String> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn chk9_chk10_a_dns_that_is_silent_delays_a_client_only_so_long() {
    let resolver = Arc::new(Silent::default());
    let lookups = lookups(resolver.clone(), &["a.example", "b.example", "c.example"]);
    let begun = tokio::time::Instant::now();
    assert_eq!(lookups.look_up(ip(CLIENT)).await, ClientFacts::UNKNOWN);
    assert_eq!(begun.elapsed().as_secs(), 5, "all wait at once");
    assert_eq!(resolver.asked.load(Ordering::Relaxed), 1 + 3 * 3);
    assert_eq!(lookups.has_name("a.example").await, None);
}

fn peer(hello: &str) -> Peer {
    Peer { address: ip(CLIENT), hello: hello.to_owned(), is_tls: false }
}

fn facts(reverse: Reverse) -> ClientFacts {
    ClientFacts { reverse, listings: Vec::new() }
}

#[tokio::test]
async fn chk9_chk10_what_the_settings_refuse_is_refused_with_its_reason() {
    let resolver = Arc::new(FixedResolver::new());
    resolver.set_addresses("mail.example", found(&["192.0.2.9"]));
    resolver.add_mx("example", &[(10, "mail.example")]);
    resolver.add_mx("domain.example", &[(10, "mail.example")]);
    resolver.set_addresses("slow.example", temporary());
    let config = ChecksConfig { reverse: Action::Refuse, hello: Action::Refuse, ..ChecksConfig::default() };
    let checks = ClientChecks::new(lookups(resolver, &[]), None, &config);
    let good = facts(Reverse::Confirmed("a.example".to_owned()));
    for hello in [
        "mail.example",
        "MAIL.example.",
        "domain.example",
        "slow.example",
        "[192.0.2.1]",
        "[IPv6:2001:db8::1]",
    ] {
        assert_eq!(checks.sender(&peer(hello), &good, "a@b").await, Ok(()), "{hello}");
        assert!(checks.has_good_hello(&peer(hello)).await, "{hello}");
    }
    for hello in ["", "localhost", "nowhere.example", "[192.0.2]", "[IPv6:x]", "a b.example", "192.0.2.1"] {
        let refused = checks.sender(&peer(hello), &good, "a@b").await.unwrap_err();
        assert_eq!((refused.code, refused.check), (550, "hello"), "{hello}");
    }
    for reverse in [Reverse::None, Reverse::Unconfirmed("a.example".to_owned())] {
        let refused = checks.sender(&peer("mail.example"), &facts(reverse), "a@b").await.unwrap_err();
        assert_eq!((refused.code, refused.enhanced, refused.check), (550, "5.7.25", "reverse"));
    }
    assert_eq!(checks.sender(&peer("mail.example"), &facts(Reverse::Unknown), "a@b").await, Ok(()));
    let listing = |action| Listing { zone: "l.example".to_owned(), action, text: Some("why".to_owned()) };
    let listings = vec![listing(Action::Junk), listing(Action::Refuse)];
    let listed = ClientFacts { listings, ..good.clone() };
    let refused = checks.sender(&peer("mail.example"), &listed, "a@b").await.unwrap_err();
    assert_eq!(
        (refused.code, refused.check, refused.text.as_str()),
        (550, "block_list", "your address 192.0.2.1 is on the block list l.example: why")
    );
    let only_junk = ClientFacts { listings: vec![listing(Action::Junk)], ..good };
    assert_eq!(checks.sender(&peer("mail.example"), &only_junk, "a@b").await, Ok(()));
    // By default nothing is refused.
    let lenient =
        ClientChecks::new(lookups(Arc::new(FixedResolver::new()), &[]), None, &ChecksConfig::default());
    assert_eq!(lenient.sender(&peer("x"), &facts(Reverse::None), "a@b").await, Ok(()));
    assert!(lenient.has_good_hello(&peer("x")).await);
    assert_eq!(lenient.recipient(&peer("x"), &facts(Reverse::None), "a@b", "c@d").await, Ok(()));
}
