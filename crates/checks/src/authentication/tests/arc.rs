use super::*;

/// Adds a set to the chain of a message.
fn seal(signer: &Signer, instance: usize, validation: &str, raw: &str) -> String {
    let results =
        format!("ARC-Authentication-Results: i={instance}; lists.example; arc={validation}\r\n{raw}");
    let signed = signer.sign_as("ARC-Message-Signature", &format!("i={instance}; "), &results);
    let (algorithm, domain, selector) = (signer.algorithm(), &signer.domain, &signer.selector);
    let unsigned =
        format!("ARC-Seal: i={instance}; a={algorithm}; cv={validation}; d={domain}; s={selector}; t=1; b=");
    let whole = format!("{unsigned}\r\n{signed}");
    let message = Message::parse(Bytes::from(whole)).unwrap();
    // The sets are stored in reverse order.
    let mut data = Vec::new();
    let nth = |name: &str, at: usize| message.all(name).nth(at);
    for at in (0..instance).rev() {
        for name in ["arc-authentication-results", "arc-message-signature"] {
            nth(name, at).unwrap().append(Canonical::Relaxed, &mut data);
            data.extend_from_slice(b"\r\n");
        }
        nth("arc-seal", at).unwrap().append(Canonical::Relaxed, &mut data);
        if at > 0 {
            data.extend_from_slice(b"\r\n");
        }
    }
    format!("{unsigned}{}\r\n{signed}", signer.signature(&data))
}

fn arc(found: &Authentication) -> (Outcome, Option<&str>) {
    (found.arc, found.arc_domain.as_deref())
}

#[tokio::test]
async fn chk3_a_chain_holds_when_each_of_its_seals_does() {
    let world = World::new();
    let (first, second) = (Signer::rsa("lists.example", "a"), Signer::ed25519("forward.example", "b"));
    first.publish(&world, "");
    second.publish(&world, "");
    let raw = mail("a@example.com");
    assert_eq!(arc(&world.of(&raw).await), (Outcome::None, None));
    let one = seal(&first, 1, "none", &raw);
    assert_eq!(arc(&world.of(&one).await), (Outcome::Pass, Some("lists.example")));
    // The list's changes break the signature of the first set, but the chain stays valid.
    let changed = format!("{}Unsubscribe\r\n", one.replace("Subject: Hello", "Subject: [list] Hello"));
    assert_eq!(arc(&world.of(&changed).await), (Outcome::Fail, Some("lists.example")));
    let two = seal(&second, 2, "pass", &changed);
    assert_eq!(arc(&world.of(&two).await), (Outcome::Pass, Some("forward.example")));
    let three = seal(&first, 3, "pass", &two);
    assert_eq!(arc(&world.of(&three).await), (Outcome::Pass, Some("lists.example")));
    for (what, broken) in [
        ("the body", three.replace("Hi Bert", "Hi Carl")),
        ("results of an earlier set", three.replace("i=2; lists.example", "i=2; other.example")),
        (
            "an earlier seal",
            three.replacen("i=1; a=rsa-sha256; cv=none; ", "i=1; a=rsa-sha256; cv=none; x=1; ", 1),
        ),
        ("a set is missing", three.replacen("ARC-Seal: i=2", "X-Seal: i=2", 1)),
        ("a set twice", three.replacen("ARC-Seal: i=2", "ARC-Seal: i=1", 1)),
        ("a gap", two.replace(": i=2;", ": i=3;")),
    ] {
        assert_eq!(world.of(&broken).await.arc, Outcome::Fail, "{what}");
    }
}

#[tokio::test]
async fn chk3_what_the_sealers_saw_must_fit() {
    let world = World::new();
    let signer = Signer::ed25519("lists.example", "a");
    signer.publish(&world, "");
    let raw = mail("a@example.com");
    for validation in ["pass", "fail", "other"] {
        assert_eq!(
            world.of(&seal(&signer, 1, validation, &raw)).await.arc,
            Outcome::Fail,
            "{validation} first"
        );
    }
    let one = seal(&signer, 1, "none", &raw);
    for validation in ["none", "fail"] {
        assert_eq!(
            world.of(&seal(&signer, 2, validation, &one)).await.arc,
            Outcome::Fail,
            "{validation} second"
        );
    }
}

#[tokio::test]
async fn chk3_keys_that_are_missing_or_not_known_now() {
    let world = World::new();
    let (first, second) = (Signer::ed25519("lists.example", "a"), Signer::ed25519("forward.example", "b"));
    second.publish(&world, "");
    let two = seal(&second, 2, "pass", &seal(&first, 1, "none", &mail("a@example.com")));
    assert_eq!(world.of(&two).await.arc, Outcome::Fail, "no key");
    world.resolver.set_txt("a._domainkey.lists.example", Answer::Temporary("later".into()));
    assert_eq!(world.of(&two).await.arc, Outcome::TempError);
    assert_eq!(world.of(&two.replace("Hi Bert", "Hi Carl")).await.arc, Outcome::Fail);
    first.publish(&world, "");
    assert_eq!(world.of(&two).await.arc, Outcome::Pass);
}

#[tokio::test]
async fn chk3_a_chain_has_fifty_sets_at_most() {
    let world = World::new();
    let signer = Signer::ed25519("lists.example", "a");
    signer.publish(&world, "");
    let mut raw = mail("a@example.com");
    for instance in 1..=50 {
        raw = seal(&signer, instance, if instance == 1 { "none" } else { "pass" }, &raw);
    }
    assert_eq!(world.of(&raw).await.arc, Outcome::Pass);
    assert_eq!(world.of(&seal(&signer, 51, "pass", &raw)).await.arc, Outcome::Fail);
}
