use restante_net::dns::FixedResolver;

use super::*;

fn resolver() -> Arc<FixedResolver> {
    Arc::new(FixedResolver::new())
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn address(resolver: &FixedResolver, host: &str, addresses: &[&str]) {
    resolver.set_addresses(host, Answer::Found(addresses.iter().map(|text| ip(text)).collect()));
}

fn router(resolver: &Arc<FixedResolver>, seed: u64) -> Router {
    let own = OwnHost {
        names: vec!["mail.example.org".into()],
        listeners: vec!["0.0.0.0:25".parse().unwrap(), "198.51.100.1:25".parse().unwrap()],
    };
    Router::new(resolver.clone(), own, 25, 5, seed)
}

async fn names(resolver: &Arc<FixedResolver>, domain: &str) -> Vec<String> {
    let route = router(resolver, 1).route(domain).await.unwrap();
    route.servers.into_iter().map(|server| server.name).collect()
}

async fn refused(resolver: &Arc<FixedResolver>, domain: &str) -> (u16, String) {
    let reply = router(resolver, 1).route(domain).await.unwrap_err();
    (reply.code, reply.enhanced)
}

fn reply(code: u16, enhanced: &str) -> (u16, String) {
    (code, enhanced.to_owned())
}

#[tokio::test]
async fn out6_servers_are_tried_by_preference() {
    let resolver = resolver();
    resolver.add_mx("example.net", &[(20, "b.example.net"), (10, "a.example.net"), (30, "c.example.net")]);
    for (host, ip) in [("a", "192.0.2.1"), ("b", "192.0.2.2"), ("c", "192.0.2.3")] {
        address(&resolver, &format!("{host}.example.net"), &[ip]);
    }
    assert_eq!(names(&resolver, "Example.NET").await, ["a.example.net", "b.example.net", "c.example.net"]);
    let servers = router(&resolver, 1).route("example.net").await.unwrap().servers;
    assert_eq!(servers[0].address, "192.0.2.1:25".parse().unwrap());
}

#[tokio::test]
async fn out6_equal_servers_are_shuffled() {
    let resolver = resolver();
    resolver.add_mx("example.net", &[(10, "a.example.net"), (10, "b.example.net"), (5, "c.example.net")]);
    for (host, ip) in [("a", "192.0.2.1"), ("b", "192.0.2.2"), ("c", "192.0.2.3")] {
        address(&resolver, &format!("{host}.example.net"), &[ip]);
    }
    let router = router(&resolver, 7);
    let mut seconds = std::collections::BTreeSet::new();
    for _ in 0..50 {
        let servers = router.route("example.net").await.unwrap().servers;
        assert_eq!(servers[0].name, "c.example.net");
        seconds.insert(servers[1].name.clone());
    }
    assert_eq!(seconds.len(), 2);
}

#[tokio::test]
async fn out6_a_domain_without_servers_is_one_itself() {
    let resolver = resolver();
    address(&resolver, "example.net", &["192.0.2.1", "2001:db8::1", "192.0.2.2"]);
    let servers = router(&resolver, 1).route("example.net").await.unwrap().servers;
    let families: Vec<bool> = servers.iter().map(|server| server.address.is_ipv4()).collect();
    assert_eq!(families, [true, false, true], "by turns");
}

#[tokio::test]
async fn out6_so_many_addresses_are_tried_and_no_more() {
    let resolver = resolver();
    let hosts: Vec<String> = (0..20).map(|n| format!("mx{n}.example.net")).collect();
    let records: Vec<(u16, &str)> = hosts.iter().map(|host| (10, host.as_str())).collect();
    resolver.add_mx("example.net", &records);
    for host in &hosts {
        address(&resolver, host, &["192.0.2.1", "192.0.2.2"]);
    }
    assert_eq!(names(&resolver, "example.net").await.len(), 5);
}

#[tokio::test]
async fn out6_addresses_in_brackets_and_names_in_other_scripts_are_servers() {
    let resolver = resolver();
    assert_eq!(names(&resolver, "[192.0.2.1]").await, ["[192.0.2.1]"]);
    assert_eq!(names(&resolver, "[IPv6:2001:db8::1]").await, ["[IPv6:2001:db8::1]"]);
    address(&resolver, "xn--bcher-kva.example", &["192.0.2.1"]);
    assert_eq!(names(&resolver, "bücher.example").await, ["xn--bcher-kva.example"]);
    address(&resolver, "a_b.example", &["192.0.2.1"]);
    assert_eq!(names(&resolver, "a_b.example").await, ["a_b.example"]);
    for wrong in
        ["[]", "[192.0.2.1", "[example.net]", "[0.0.0.0]", "[224.0.0.1]", "[IPv6:]", "192.0.2.1", "", "a b"]
    {
        assert_eq!(refused(&resolver, wrong).await, reply(550, "5.1.2"), "{wrong}");
    }
}

#[tokio::test]
async fn out7_a_domain_that_takes_no_mail_says_so() {
    let resolver = resolver();
    resolver.add_mx("example.net", &[(0, "")]);
    assert_eq!(refused(&resolver, "example.net").await, reply(556, "5.1.10"));
    resolver.add_mx("example.com", &[(0, ""), (10, "a.example.com")]);
    address(&resolver, "a.example.com", &["192.0.2.1"]);
    assert_eq!(names(&resolver, "example.com").await, ["a.example.com"], "it has another one");
}

#[tokio::test]
async fn out8_mail_never_comes_back_to_this_server() {
    let resolver = resolver();
    let records =
        [(10, "a.example.net"), (20, "Mail.Example.org"), (20, "b.example.net"), (30, "c.example.net")];
    resolver.add_mx("example.net", &records);
    for host in ["a.example.net", "b.example.net", "c.example.net", "mail.example.org"] {
        address(&resolver, host, &["192.0.2.1"]);
    }
    assert_eq!(names(&resolver, "example.net").await, ["a.example.net"], "those behind it lead here too");
    resolver.add_mx("example.com", &[(10, "mail.example.org"), (20, "c.example.net")]);
    assert_eq!(refused(&resolver, "example.com").await, reply(554, "5.4.6"));
    for own in ["198.51.100.1", "127.0.0.1"] {
        address(&resolver, "other.example", &[own]);
        assert_eq!(refused(&resolver, "other.example").await, reply(554, "5.4.6"), "{own}");
        assert_eq!(refused(&resolver, &format!("[{own}]")).await, reply(554, "5.4.6"), "{own}");
    }
}

#[tokio::test]
async fn out9_trouble_with_the_dns_is_never_the_end() {
    let resolver = resolver();
    resolver.set_mx("a.example", Answer::Temporary("no answer".into()));
    assert_eq!(refused(&resolver, "a.example").await, reply(450, "4.4.3"));
    resolver.set_mx("b.example", Answer::NoRecords);
    resolver.set_addresses("b.example", Answer::Temporary("no answer".into()));
    assert_eq!(refused(&resolver, "b.example").await, reply(450, "4.4.3"));
    resolver.add_mx("c.example", &[(10, "mx1.c.example"), (20, "mx2.c.example")]);
    resolver.set_addresses("mx1.c.example", Answer::NoRecords);
    assert_eq!(refused(&resolver, "c.example").await, reply(450, "4.4.4"), "no server has an address");
    resolver.set_addresses("mx2.c.example", Answer::Temporary("no answer".into()));
    assert_eq!(refused(&resolver, "c.example").await, reply(450, "4.4.3"));
    address(&resolver, "mx1.c.example", &["192.0.2.1"]);
    assert_eq!(names(&resolver, "c.example").await, ["mx1.c.example"], "one is enough");
}

#[tokio::test]
async fn out9_a_domain_that_certainly_does_not_exist_is_the_end() {
    let resolver = resolver();
    assert_eq!(refused(&resolver, "missing.example").await, reply(550, "5.1.2"));
    resolver.set_mx("empty.example", Answer::NoRecords);
    assert_eq!(refused(&resolver, "empty.example").await, reply(550, "5.4.4"));
}

/// Servers that were not looked up, or that are beyond those tried at once, might have taken the mail.
#[tokio::test]
async fn out14_a_route_says_why_servers_are_missing() {
    let resolver = resolver();
    let missing = async || router(&resolver, 1).route("example.net").await.unwrap().missing;
    resolver.add_mx("example.net", &[(10, "a.example.net"), (20, "b.example.net")]);
    resolver.set_addresses("a.example.net", Answer::NoRecords);
    address(&resolver, "b.example.net", &["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "192.0.2.5"]);
    assert_eq!(missing().await, None);
    resolver.set_addresses("a.example.net", Answer::Temporary("no answer".into()));
    let found = missing().await;
    assert_eq!(found.as_deref(), Some("the server a.example.net can't be looked up now: no answer"));
    address(&resolver, "a.example.net", &["192.0.2.6"]);
    assert_eq!(missing().await.as_deref(), Some("example.net has more servers than are tried at once"));
}
