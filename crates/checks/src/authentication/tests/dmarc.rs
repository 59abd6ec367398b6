use super::*;

/// The outcome and policy of a message from this address, whose envelope sender is `sender`.
async fn judge(world: &World, from: &str, sender: &str) -> (Outcome, DmarcPolicy) {
    let found = world.authenticate("192.0.2.1", "mail.example.net", sender, &mail(from)).await;
    (found.dmarc, found.policy)
}

#[tokio::test]
async fn chk4_spf_or_a_signature_must_be_of_the_domain_in_from() {
    use Outcome::{Fail, None, Pass};
    let world = World::new();
    for domain in ["example.com", "mail.example.com", "other.example"] {
        world.txt(domain, &["v=spf1 ip4:192.0.2.1 -all"]);
    }
    world.txt("_dmarc.example.com", &["v=DMARC1; p=reject"]);
    world.txt("_dmarc.strict.example", &["v=DMARC1; p=quarantine; aspf=s; adkim=s"]);
    world.txt("mail.strict.example", &["v=spf1 ip4:192.0.2.1 -all"]);
    for (from, sender, expected) in [
        ("a@example.com", "x@example.com", Pass),
        ("a@Example.COM", "x@mail.example.com", Pass),
        ("a@mail.example.com", "x@example.com", Pass),
        ("a@example.com", "x@other.example", Fail),
        ("a@example.com", "", Fail),
        ("a@notexample.com", "x@example.com", None),
        ("a@none.example", "x@none.example", None),
    ] {
        let (dmarc, policy) = judge(&world, from, sender).await;
        assert_eq!(dmarc, expected, "{from} {sender}");
        assert_eq!(policy == DmarcPolicy::Reject, expected != None, "{from} {sender}");
    }
    assert_eq!(
        judge(&world, "a@strict.example", "x@mail.strict.example").await,
        (Fail, DmarcPolicy::Quarantine)
    );
    for (domain, from, is_aligned) in [
        ("example.com", "a@example.com", true),
        ("mail.example.com", "a@example.com", true),
        ("example.com", "a@mail.example.com", true),
        ("other.example", "a@example.com", false),
        ("xexample.com", "a@example.com", false),
        ("strict.example", "a@strict.example", true),
        ("mail.strict.example", "a@strict.example", false),
    ] {
        let signer = Signer::ed25519(domain, "s");
        signer.publish(&world, "");
        let found = world.of(&signer.sign("", &mail(from))).await;
        assert_eq!(outcomes(&found), [Pass]);
        assert_eq!((found.is_dkim_aligned, found.is_spf_aligned), (is_aligned, false), "{domain} {from}");
        assert_eq!(found.dmarc, if is_aligned { Pass } else { Fail }, "{domain} {from}");
    }
}

#[tokio::test]
async fn chk4_subdomains_have_a_policy_of_their_own() {
    use DmarcPolicy::{None, Quarantine, Reject};
    let world = World::new();
    world.txt("_dmarc.example.com", &["v=DMARC1; p=reject; sp=quarantine; np=reject"]);
    world.txt("_dmarc.own.example.com", &["v=DMARC1; p=none"]);
    world.addresses("there.example.com", &["192.0.2.7"]);
    world.txt("_dmarc.plain.example", &["v=DMARC1; p=reject"]);
    world.txt("_dmarc.reports.example", &["v=DMARC1; rua=mailto:a@reports.example"]);
    for (from, expected) in [
        ("a@example.com", Reject),
        ("a@there.example.com", Quarantine),
        ("a@not.there.example.com", Reject),
        ("a@own.example.com", None),
        ("a@below.plain.example", Reject),
        ("a@reports.example", None),
    ] {
        assert_eq!(judge(&world, from, "").await, (Outcome::Fail, expected), "{from}");
    }
    let found = world.of(&mail("a@deep.down.there.example.com")).await;
    assert_eq!(found.dmarc_domain.as_deref(), Some("example.com"));
    assert_eq!(found.dmarc_record.as_deref(), Some("v=DMARC1; p=reject; sp=quarantine; np=reject"));
    let labels = "a.".repeat(100);
    assert_eq!(judge(&world, &format!("a@{labels}example.com"), "").await.0, Outcome::Fail, "a long way up");
}

#[tokio::test]
async fn chk4_a_public_suffix_ends_the_way_up() {
    let world = World::new();
    world.txt("_dmarc.co.example", &["v=DMARC1; p=reject; psd=y"]);
    world.txt("shop.co.example", &["v=spf1 ip4:192.0.2.1 -all"]);
    world.txt("mail.bank.co.example", &["v=spf1 ip4:192.0.2.1 -all"]);
    let bank = "a@bank.co.example";
    assert_eq!(judge(&world, bank, "x@shop.co.example").await, (Outcome::Fail, DmarcPolicy::Reject));
    assert_eq!(judge(&world, bank, "x@mail.bank.co.example").await.0, Outcome::Pass);
    world.txt("_dmarc.branch.bank.co.example", &["v=DMARC1; p=none; psd=n"]);
    let branch = "a@branch.bank.co.example";
    assert_eq!(judge(&world, branch, "x@mail.bank.co.example").await, (Outcome::Fail, DmarcPolicy::None));
}

#[tokio::test]
async fn chk4_records_that_are_none_or_broken() {
    for (records, expected) in [
        (vec!["v=DMARC1; p=reject", "v=DMARC1; p=none"], Outcome::None),
        (vec!["other", "v=DMARC1;p=reject;"], Outcome::Fail),
        (vec!["v=DMARC1; p=other"], Outcome::None),
        (vec!["v=DMARC1"], Outcome::None),
        (vec!["p=reject; v=DMARC1"], Outcome::None),
        (vec!["v=DMARC2; p=reject"], Outcome::None),
        (vec!["v=DMARC1; p=reject; p=none"], Outcome::None),
    ] {
        let world = World::new();
        world.txt("_dmarc.example.com", &records);
        assert_eq!(judge(&world, "a@example.com", "").await.0, expected, "{records:?}");
    }
}

#[tokio::test]
async fn chk4_a_part_of_the_messages_is_chosen_by_what_they_say() {
    let world = World::new();
    let mut rejected = 0;
    for percent in [0, 25, 100, 1_000] {
        world.txt("_dmarc.example.com", &[&format!("v=DMARC1; p=reject; pct={percent}")]);
        let mut count = 0;
        for number in 0..200 {
            let raw = format!("{}{number}\r\n", mail("a@example.com"));
            let found = world.of(&raw).await;
            assert_eq!(found.dmarc, Outcome::Fail);
            assert_eq!(found.policy, world.of(&raw).await.policy, "the same again");
            assert_ne!(found.policy, DmarcPolicy::None, "one level less");
            count += usize::from(found.policy == DmarcPolicy::Reject);
        }
        match percent {
            0 => assert_eq!(count, 0),
            25 => rejected = count,
            _ => assert_eq!(count, 200),
        }
    }
    assert!((20..=80).contains(&rejected), "{rejected} of 200");
    world.txt("_dmarc.example.com", &["v=DMARC1; p=quarantine; t=y"]);
    assert_eq!(judge(&world, "a@example.com", "").await.1, DmarcPolicy::None, "a test");
}

#[tokio::test]
async fn chk4_what_may_pass_later_is_not_a_failure() {
    let world = World::new();
    world.txt("_dmarc.example.com", &["v=DMARC1; p=reject"]);
    let later = |name: &str| world.resolver.set_txt(name, Answer::Temporary("later".into()));
    later("mail.example.com");
    later("other.example");
    assert_eq!(judge(&world, "a@example.com", "x@mail.example.com").await.0, Outcome::TempError);
    assert_eq!(judge(&world, "a@example.com", "x@other.example").await.0, Outcome::Fail, "it would not help");
    let signer = Signer::ed25519("example.com", "s");
    later("s._domainkey.example.com");
    assert_eq!(world.of(&signer.sign("", &mail("a@example.com"))).await.dmarc, Outcome::TempError);
    let foreign = Signer::ed25519("other.example", "s");
    later("s._domainkey.other.example");
    assert_eq!(world.of(&foreign.sign("", &mail("a@example.com"))).await.dmarc, Outcome::Fail);
    world.txt("_dmarc.own.parent.example", &["v=DMARC1; p=reject"]);
    later("_dmarc.parent.example");
    world.txt("mail.parent.example", &["v=spf1 ip4:192.0.2.1 -all"]);
    let own = "a@own.parent.example";
    assert_eq!(
        judge(&world, own, "x@mail.parent.example").await.0,
        Outcome::TempError,
        "of one organization?"
    );
    assert_eq!(judge(&world, own, "").await.0, Outcome::Fail, "nothing passes");
    later("_dmarc.sub.example.com");
    assert_eq!(
        judge(&world, "a@sub.example.com", "").await.0,
        Outcome::TempError,
        "its own record may differ"
    );
}

#[tokio::test]
async fn chk6_several_from_fields_or_domains_have_no_policy() {
    let world = World::new();
    world.txt("_dmarc.example.com", &["v=DMARC1; p=reject"]);
    world.txt("_dmarc.xn--bcher-kva.example", &["v=DMARC1; p=reject"]);
    let with = |fields: &str| format!("{fields}To: bert@example.org\r\n\r\nHi!\r\n");
    for (fields, from, count) in [
        ("From: a@example.com\r\n", Some("example.com"), 1),
        ("From: a@example.com, B <b@EXAMPLE.com>\r\n", Some("example.com"), 1),
        ("From: \"b@other.example\" <a@example.com>\r\n", Some("example.com"), 1),
        ("From: a@bücher.example\r\n", Some("xn--bcher-kva.example"), 1),
        ("From: a@example.com, b@other.example\r\n", None, 1),
        ("From: a@example.com, nobody\r\n", None, 1),
        ("From: nobody\r\n", None, 1),
        ("From:\r\n", None, 1),
        ("From: a@[192.0.2.1]\r\n", None, 1),
        ("From: a@example.com\r\nFROM : b@example.com\r\n", None, 2),
        ("From: a@example.com\r\nX: y\r\nfrom: b@other.example\r\n", None, 2),
        ("", None, 0),
    ] {
        let found = world.of(&with(fields)).await;
        assert_eq!((found.from.as_deref(), found.from_fields), (from, count), "{fields}");
        assert_eq!(found.dmarc == Outcome::Fail, from.is_some(), "{fields}");
    }
}
