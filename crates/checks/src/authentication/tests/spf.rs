use super::*;

/// The zone of RFC 7208, appendix A.
fn example() -> World {
    let world = World::new();
    world.resolver.add_mx("example.com", &[(10, "mail-a.example.com"), (20, "mail-b.example.com")]);
    world.addresses("example.com", &["192.0.2.10", "192.0.2.11"]);
    world.addresses("amy.example.com", &["192.0.2.65"]);
    world.addresses("bob.example.com", &["192.0.2.66"]);
    world.addresses("mail-a.example.com", &["192.0.2.129"]);
    world.addresses("mail-b.example.com", &["192.0.2.130"]);
    world.resolver.add_mx("example.org", &[(10, "mail-c.example.org")]);
    world.addresses("mail-c.example.org", &["192.0.2.140"]);
    world.names("192.0.2.10", &["example.com"]);
    world.names("192.0.2.65", &["amy.example.com"]);
    world.names("192.0.2.129", &["mail-a.example.com"]);
    world.names("192.0.2.130", &["mail-b.example.com"]);
    world.names("192.0.2.140", &["mail-c.example.org"]);
    world.names("10.0.0.4", &["bob.example.com"]);
    world
}

async fn spf(world: &World, address: &str, sender: &str) -> Outcome {
    world.authenticate(address, "mail.example.net", sender, &mail("a@example.com")).await.spf
}

/// The outcome for an address if `example.com` has this record.
async fn with_record(record: &str, address: &str) -> Outcome {
    let world = example();
    world.txt("example.com", &[record]);
    spf(&world, address, "strong-bad@example.com").await
}

#[tokio::test]
async fn chk1_the_examples_of_rfc_7208_appendix_a() {
    use Outcome::{Fail, None, Pass, TempError};
    for (record, address, expected) in [
        // A.1
        ("v=spf1 +all", "192.0.2.1", Pass),
        ("v=spf1 a -all", "192.0.2.10", Pass),
        ("v=spf1 a -all", "192.0.2.11", Pass),
        ("v=spf1 a -all", "192.0.2.12", Fail),
        ("v=spf1 a:example.org -all", "192.0.2.10", Fail),
        ("v=spf1 mx -all", "192.0.2.129", Pass),
        ("v=spf1 mx -all", "192.0.2.130", Pass),
        ("v=spf1 mx -all", "192.0.2.140", Fail),
        ("v=spf1 mx:example.org -all", "192.0.2.140", Pass),
        ("v=spf1 mx mx:example.org -all", "192.0.2.129", Pass),
        ("v=spf1 mx mx:example.org -all", "192.0.2.140", Pass),
        ("v=spf1 mx/30 mx:example.org/30 -all", "192.0.2.131", Pass),
        ("v=spf1 mx/30 mx:example.org/30 -all", "192.0.2.143", Pass),
        ("v=spf1 mx/30 mx:example.org/30 -all", "192.0.2.144", Fail),
        ("v=spf1 ptr -all", "192.0.2.10", Pass),
        ("v=spf1 ptr -all", "192.0.2.65", Pass),
        ("v=spf1 ptr -all", "192.0.2.140", Fail),
        ("v=spf1 ptr -all", "10.0.0.4", Fail),
        ("v=spf1 ip4:192.0.2.128/28 -all", "192.0.2.129", Pass),
        ("v=spf1 ip4:192.0.2.128/28 -all", "192.0.2.65", Fail),
        ("no record", "192.0.2.1", None),
    ] {
        assert_eq!(with_record(record, address).await, expected, "{record} {address}");
    }
    let unknown = example();
    unknown.resolver.set_txt("example.com", Answer::Temporary("later".into()));
    assert_eq!(spf(&unknown, "192.0.2.1", "a@example.com").await, TempError);
}

#[tokio::test]
async fn chk1_the_examples_of_rfc_7208_appendix_a_with_several_domains() {
    // A.2
    let world = example();
    world.txt("example.org", &["v=spf1 include:example.com include:example.net -all"]);
    world.txt("example.com", &["v=spf1 ip4:192.0.2.128/28 -all"]);
    world.txt("example.net", &["v=spf1 ip4:192.0.2.10 -all"]);
    world.txt("la.example.org", &["v=spf1 redirect=example.org"]);
    for domain in ["example.org", "la.example.org"] {
        let sender = format!("a@{domain}");
        assert_eq!(spf(&world, "192.0.2.129", &sender).await, Outcome::Pass, "{domain}");
        assert_eq!(spf(&world, "192.0.2.10", &sender).await, Outcome::Pass, "{domain}");
        assert_eq!(spf(&world, "192.0.2.11", &sender).await, Outcome::Fail, "{domain}");
    }
    // A.3, A.4
    let world = example();
    world.txt("example.com", &["v=spf1 exists:%{i}._spf.%{d2} -all"]);
    world.addresses("192.0.2.3._spf.example.com", &["127.0.0.2"]);
    assert_eq!(spf(&world, "192.0.2.3", "a@example.com").await, Outcome::Pass);
    assert_eq!(spf(&world, "192.0.2.4", "a@example.com").await, Outcome::Fail);
    let world = example();
    world.txt("example.com", &["v=spf1 mx -exists:%{ir}.sbl.example.org ?all"]);
    world.addresses("3.2.0.192.sbl.example.org", &["127.0.0.2"]);
    assert_eq!(spf(&world, "192.0.2.3", "a@example.com").await, Outcome::Fail);
    assert_eq!(spf(&world, "192.0.2.4", "a@example.com").await, Outcome::Neutral);
}

#[tokio::test]
async fn chk1_an_empty_sender_is_judged_by_the_name_of_the_client() {
    let world = World::new();
    world.txt("mail.example.net", &["v=spf1 ip4:192.0.2.1 -all"]);
    world.txt("example.com", &["v=spf1 -all"]);
    let raw = mail("a@example.com");
    for (hello, sender, spf, domain) in [
        ("mail.example.net", "", Outcome::Pass, "mail.example.net"),
        ("MAIL.example.net.", "", Outcome::Pass, "mail.example.net"),
        ("mail.example.net", "a@Example.com", Outcome::Fail, "example.com"),
        ("[192.0.2.1]", "", Outcome::None, "[192.0.2.1]"),
        ("localhost", "", Outcome::None, "localhost"),
        ("", "", Outcome::None, ""),
    ] {
        let found = world.authenticate("192.0.2.1", hello, sender, &raw).await;
        assert_eq!((found.spf, found.spf_domain.as_str()), (spf, domain), "{hello} {sender}");
    }
    let mapped = world.authenticate("::ffff:192.0.2.1", "mail.example.net", "", &raw).await;
    assert_eq!(mapped.spf, Outcome::Pass, "IPv4 in IPv6 is IPv4");
}

#[tokio::test]
async fn chk1_the_macros_of_rfc_7208_section_7_4() {
    for (macros, expected) in [
        ("%{s}", "strong-bad@email.example.com"),
        ("%{o}", "email.example.com"),
        ("%{d}", "email.example.com"),
        ("%{d4}", "email.example.com"),
        ("%{d3}", "email.example.com"),
        ("%{d2}", "example.com"),
        ("%{d1}", "com"),
        ("%{dr}", "com.example.email"),
        ("%{d2r}", "example.email"),
        ("%{l}", "strong-bad"),
        ("%{l-}", "strong.bad"),
        ("%{lr}", "strong-bad"),
        ("%{lr-}", "bad.strong"),
        ("%{l1r-}", "strong"),
        ("%{ir}.%{v}._spf.%{d2}", "3.2.0.192.in-addr._spf.example.com"),
        ("%{lr-}.lp._spf.%{d2}", "bad.strong.lp._spf.example.com"),
        ("%{lr-}.lp.%{ir}.%{v}._spf.%{d2}", "bad.strong.lp.3.2.0.192.in-addr._spf.example.com"),
        ("%{ir}.%{v}.%{l1r-}.lp._spf.%{d2}", "3.2.0.192.in-addr.strong.lp._spf.example.com"),
        ("%{d2}.trusted-domains.example.net", "example.com.trusted-domains.example.net"),
        (
            "%{S}.%{h}.%%.%_.%-.example.net",
            "strong-bad%40email.example.com.mail.example.net.%. .%20.example.net",
        ),
    ] {
        let world = World::new();
        world.txt("email.example.com", &[&format!("v=spf1 exists:{macros} -all")]);
        world.addresses(expected, &["127.0.0.2"]);
        let outcome = spf(&world, "192.0.2.3", "strong-bad@email.example.com").await;
        let is_name = !expected.contains(' ');
        assert_eq!(outcome == Outcome::Pass, is_name, "{macros}: {outcome:?}");
    }
    let world = World::new();
    world.txt("email.example.com", &["v=spf1 exists:%{ir}.%{v}._spf.%{d2} -all"]);
    let nibbles = "1.0.b.c.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2";
    world.addresses(&format!("{nibbles}.ip6._spf.example.com"), &["127.0.0.2"]);
    assert_eq!(spf(&world, "2001:db8::cb01", "a@email.example.com").await, Outcome::Pass);
    let world = example();
    world.txt("example.com", &["v=spf1 exists:%{p}.allowed.example.net -all"]);
    world.addresses("amy.example.com.allowed.example.net", &["127.0.0.2"]);
    assert_eq!(spf(&world, "192.0.2.65", "a@example.com").await, Outcome::Pass);
    world.addresses("unknown.allowed.example.net", &["127.0.0.2"]);
    assert_eq!(
        spf(&world, "10.0.0.4", "a@example.com").await,
        Outcome::Pass,
        "a name that does not lead back"
    );
}

#[tokio::test]
async fn chk1_ten_lookups_two_that_find_nothing_and_ten_servers_are_the_most() {
    let world = World::new();
    let chain = |count: usize| {
        for number in 0..count {
            let record = match number + 1 == count {
                true => "v=spf1 ip4:192.0.2.1 -all".to_owned(),
                false => format!("v=spf1 include:s{}.example.com -all", number + 1),
            };
            world.txt(&format!("s{number}.example.com"), &[&record]);
        }
    };
    chain(11);
    assert_eq!(spf(&world, "192.0.2.1", "a@s0.example.com").await, Outcome::Pass, "ten includes");
    chain(12);
    assert_eq!(spf(&world, "192.0.2.1", "a@s0.example.com").await, Outcome::PermError);
    world.txt("loop.example.com", &["v=spf1 redirect=loop.example.com"]);
    assert_eq!(spf(&world, "192.0.2.1", "a@loop.example.com").await, Outcome::PermError);
    world.txt(
        "void.example.com",
        &["v=spf1 a:n1.example.com a:n2.example.com ip4:192.0.2.1 a:n3.example.com -all"],
    );
    assert_eq!(spf(&world, "192.0.2.1", "a@void.example.com").await, Outcome::Pass);
    assert_eq!(spf(&world, "192.0.2.2", "a@void.example.com").await, Outcome::PermError);
    let servers: Vec<String> = (0..11).map(|number| format!("m{number}.example.com")).collect();
    for server in &servers {
        world.addresses(server, &["192.0.2.9"]);
    }
    let servers: Vec<(u16, &str)> = servers.iter().map(|server| (10, server.as_str())).collect();
    world.txt("mx.example.com", &["v=spf1 mx ~all"]);
    world.resolver.add_mx("mx.example.com", &servers[..10]);
    assert_eq!(spf(&world, "192.0.2.1", "a@mx.example.com").await, Outcome::SoftFail);
    world.resolver.add_mx("mx.example.com", &servers);
    assert_eq!(spf(&world, "192.0.2.1", "a@mx.example.com").await, Outcome::PermError);
}

#[tokio::test]
async fn chk1_a_record_that_breaks_the_syntax_is_not_used_in_parts() {
    for broken in [
        "ip4:192.0.2.1 foo -all",
        "ip4:192.0.2.1 ipv4:192.0.2.2",
        "ip4:192.0.2.1 ip4:192.0.2",
        "ip4:192.0.2.1 ip4:300.0.2.1",
        "ip4:192.0.2.1 ip4:192.0.2.0/33",
        "ip4:192.0.2.1 ip4:192.0.2.0/08",
        "ip4:192.0.2.1 ip6:192.0.2.1",
        "ip4:192.0.2.1 ip6:2001:db8::/129",
        "ip4:192.0.2.1 a:/24",
        "ip4:192.0.2.1 a:example",
        "ip4:192.0.2.1 a:example.123",
        "ip4:192.0.2.1 a/",
        "ip4:192.0.2.1 include",
        "ip4:192.0.2.1 include:",
        "ip4:192.0.2.1 exists:%{c}.example.com",
        "ip4:192.0.2.1 exists:%{d0}.example.com",
        "ip4:192.0.2.1 exists:%(d).example.com",
        "ip4:192.0.2.1 exists:%{d",
        "ip4:192.0.2.1 all:example.com",
        "ip4:192.0.2.1 redirect=a.example redirect=b.example",
        "ip4:192.0.2.1 exp=a.example exp=b.example",
        "ip4:192.0.2.1 redirect=",
        "ip4:192.0.2.1 more=%x",
        "ip4:192.0.2.1 \u{fffd}",
        "ip4:192.0.2.1 include:missing.example -all extra",
    ] {
        assert_eq!(
            with_record(&format!("v=spf1 {broken}"), "192.0.2.1").await,
            Outcome::PermError,
            "{broken}"
        );
    }
    for sound in [
        "ip4:192.0.2.1",
        "IP4:192.0.2.0/24 -ALL",
        "  ip4:192.0.2.1   -all ",
        "unknown=man:dog/cat%{d} ip4:192.0.2.1",
        "exp=explain.%{d} ip4:192.0.2.1",
        "redirect=missing.example ip4:192.0.2.1",
        "-a:other.example.com/24//64 +a:EXAMPLE.com/28 ip4:192.0.2.1 -all",
        "ip6:::ffff:0:0/96 ip4:192.0.2.1",
    ] {
        assert_eq!(with_record(&format!("v=spf1 {sound}"), "192.0.2.1").await, Outcome::Pass, "{sound}");
    }
    assert_eq!(with_record("v=spf10 ip4:192.0.2.1", "192.0.2.1").await, Outcome::None);
    let world = World::new();
    world.txt("example.com", &["other", "v=spf1 ip4:192.0.2.1", "v=spf1 -all"]);
    assert_eq!(spf(&world, "192.0.2.1", "a@example.com").await, Outcome::PermError, "two records");
}

#[tokio::test]
async fn chk1_the_outcome_of_an_included_record_is_that_of_its_include() {
    let world = World::new();
    world.txt("a.example.com", &["v=spf1 -include:b.example.com ?all"]);
    world.txt("b.example.com", &["v=spf1 ~include:c.example.com +all"]);
    world.txt("c.example.com", &["v=spf1 ip4:192.0.2.1 -all"]);
    // c passes, so b is a soft failure, which does not match in a.
    assert_eq!(spf(&world, "192.0.2.1", "a@a.example.com").await, Outcome::Neutral);
    // c fails, so b passes, which is a failure in a.
    assert_eq!(spf(&world, "192.0.2.2", "a@a.example.com").await, Outcome::Fail);
    world.txt("d.example.com", &["v=spf1 include:none.example.com +all"]);
    assert_eq!(spf(&world, "192.0.2.1", "a@d.example.com").await, Outcome::PermError);
    world.resolver.set_txt("later.example.com", Answer::Temporary("later".into()));
    world.txt("e.example.com", &["v=spf1 include:later.example.com +all"]);
    assert_eq!(spf(&world, "192.0.2.1", "a@e.example.com").await, Outcome::TempError);
}
