use super::*;

/// RFC 8463, appendix A.3.
const SIGNED_TWICE: &str = "\
DKIM-Signature: v=1; a=ed25519-sha256; c=relaxed/relaxed;\r
 d=football.example.com; i=@football.example.com;\r
 q=dns/txt; s=brisbane; t=1528637909; h=from : to :\r
 subject : date : message-id : from : subject : date;\r
 bh=2jUSOH9NhtVGCQWNr9BrIAPreKQjO6Sn7XIkfJVOzv8=;\r
 b=/gCrinpcQOoIfuHNQIbq4pgh9kyIK3AQUdt9OdqQehSwhEIug4D11Bus\r
 Fa3bT3FY5OsU7ZbnKELq+eXdp1Q1Dw==\r
DKIM-Signature: v=1; a=rsa-sha256; c=relaxed/relaxed;\r
 d=football.example.com; i=@football.example.com;\r
 q=dns/txt; s=test; t=1528637909; h=from : to : subject :\r
 date : message-id : from : subject : date;\r
 bh=2jUSOH9NhtVGCQWNr9BrIAPreKQjO6Sn7XIkfJVOzv8=;\r
 b=F45dVWDfMbQDGHJFlXUNB2HKfbCeLRyhDXgFpEL8GwpsRe0IeIixNTe3\r
 DhCVlUrSjV4BwcVcOF6+FF3Zo9Rpo1tFOeS9mPYQTnGdaSGsgeefOsk2Jz\r
 dA+L10TeYt9BgDfQNZtKdN1WO//KgIqXP7OdEFE4LjFYNcUxZQ4FADY+8=\r
From: Joe SixPack <joe@football.example.com>\r
To: Suzie Q <suzie@shopping.example.net>\r
Subject: Is dinner ready?\r
Date: Fri, 11 Jul 2003 21:00:37 -0700 (PDT)\r
Message-ID: <20030712040037.46341.5F8J@football.example.com>\r
\r
Hi.\r
\r
We lost the game.  Are you hungry yet?\r
\r
Joe.\r
";

/// RFC 6376, appendix A.2, with erratum 3192.
const SIGNED_SIMPLY: &str = "\
DKIM-Signature: v=1; a=rsa-sha256; s=brisbane; d=example.com;\r
      c=simple/simple; q=dns/txt; i=joe@football.example.com;\r
      h=Received : From : To : Subject : Date : Message-ID;\r
      bh=2jUSOH9NhtVGCQWNr9BrIAPreKQjO6Sn7XIkfJVOzv8=;\r
      b=AuUoFEfDxTDkHlLXSZEpZj79LICEps6eda7W3deTVFOk4yAUoqOB\r
      4nujc7YopdG5dWLSdNg6xNAZpOPr+kHxt1IrE+NahM6L/LbvaHut\r
      KVdkLLkpVaVVQPzeRDI009SO2Il5Lu7rDNH6mZckBdrIx0orEtZV\r
      4bmp/YzhwvcubU4=;\r
Received: from client1.football.example.com  [192.0.2.1]\r
      by submitserver.example.com with SUBMISSION;\r
      Fri, 11 Jul 2003 21:01:54 -0700 (PDT)\r
From: Joe SixPack <joe@football.example.com>\r
To: Suzie Q <suzie@shopping.example.net>\r
Subject: Is dinner ready?\r
Date: Fri, 11 Jul 2003 21:00:37 -0700 (PDT)\r
Message-ID: <20030712040037.46341.5F8J@football.example.com>\r
\r
Hi.\r
\r
We lost the game. Are you hungry yet?\r
\r
Joe.\r
";

#[tokio::test]
async fn chk2_the_message_of_rfc_6376_is_signed_in_simple_form() {
    let world = World::new();
    world.txt(
        "brisbane._domainkey.example.com",
        &["v=DKIM1; p=MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDwIRP/UC3SBsEmGqZ9ZJW3/DkMoGeLnQg1fWn7/zYtIxN2SnFCjxOCKG9v3b4jYfcTNh5ijSsq631uBItLa7od+v\
           /RtdC2UzJ1lWT947qR+Rcac2gbto/NMqJ0fzfVjH4OuKhitdY9tf6mcwGjaNBcWToIMmPSPDdQPNUYckcQ2QIDAQAB"],
    );
    let found = world.of(SIGNED_SIMPLY).await;
    assert_eq!(outcomes(&found), [Outcome::Pass]);
    assert_eq!(outcomes(&world.of(&SIGNED_SIMPLY.replace("Suzie Q", "Suzie  Q")).await), [Outcome::Fail]);
    assert_eq!(
        outcomes(&world.of(&SIGNED_SIMPLY.replace("SUBMISSION;\r\n  ", "SUBMISSION; ")).await),
        [Outcome::Fail]
    );
}

fn football() -> World {
    let world = World::new();
    world.txt(
        "brisbane._domainkey.football.example.com",
        &["v=DKIM1; k=ed25519; p=11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="],
    );
    world.txt(
        "test._domainkey.football.example.com",
        &["v=DKIM1; k=rsa; p=MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDkHlOQoBTzWRiGs5V6NpP3idY6Wk08a5qhdR6wy5bdOKb2jLQiY/J16JYi0Qvx/byYzCNb3W91y3FutAC\
           DfzwQ/BC/e/8uBsCR+yz1Lxj+PL6lHvqMKrM3rG4hstT5QjvHO9PzoxZyVYLzBfO2EeC3Ip3G+2kryOTIKT+l/K4w3QIDAQAB"],
    );
    world
}

#[tokio::test]
async fn chk2_the_message_of_rfc_8463_is_signed_by_ed25519_and_rsa() {
    let world = football();
    let found = world.of(SIGNED_TWICE).await;
    assert_eq!(outcomes(&found), [Outcome::Pass, Outcome::Pass]);
    let first = &found.dkim[0];
    assert_eq!((first.domain.as_str(), first.selector.as_str()), ("football.example.com", "brisbane"));
    assert_eq!(first.signature, "/gCrinpcQOoIfuHN");
    for (what, changed, expected) in [
        (
            "white space and a field below",
            SIGNED_TWICE.replace("Suzie Q", "Suzie  Q").replace("Subject: ", "Subject:\r\n  "),
            Outcome::Pass,
        ),
        ("lines at the end", format!("{SIGNED_TWICE}\r\n \t\r\n\r\n"), Outcome::Pass),
        ("the subject", SIGNED_TWICE.replace("dinner", "supper"), Outcome::Fail),
        ("the body", SIGNED_TWICE.replace("hungry", "thirsty"), Outcome::Fail),
        ("a second subject", SIGNED_TWICE.replace("To: Suzie", "Subject: More\r\nTo: Suzie"), Outcome::Fail),
        ("the time of the signature", SIGNED_TWICE.replace("t=1528637909", "t=1528637908"), Outcome::Fail),
    ] {
        assert_eq!(outcomes(&world.of(&changed).await), [expected, expected], "{what}");
    }
}

#[tokio::test]
async fn chk2_both_canonical_forms() {
    let world = World::new();
    let signer = Signer::ed25519("example.com", "s");
    signer.publish(&world, "");
    let raw = mail("a@example.com");
    let simple = signer.sign("c=simple/simple; ", &raw);
    assert_eq!(outcomes(&world.of(&simple).await), [Outcome::Pass]);
    assert_eq!(outcomes(&world.of(&format!("{simple}\r\n\r\n")).await), [Outcome::Pass]);
    assert_eq!(outcomes(&world.of(&simple.replace("Subject: ", "Subject:  ")).await), [Outcome::Fail]);
    assert_eq!(outcomes(&world.of(&simple.replace("Hi Bert", "Hi  Bert")).await), [Outcome::Fail]);
    let empty = "From: a@example.com\r\n\r\n";
    for form in ["c=simple/simple; ", "c=relaxed/relaxed; "] {
        assert_eq!(outcomes(&world.of(&signer.sign(form, empty)).await), [Outcome::Pass], "{form}");
    }
    // RFC 6376 §3.4.4: a line of white space at the end counts as an empty one, which is ignored.
    let relaxed = signer.sign("", &format!("{raw} \r\n\t \r\n"));
    let shorter = relaxed.strip_suffix(" \r\n\t \r\n").unwrap();
    assert_eq!(outcomes(&world.of(shorter).await), [Outcome::Pass]);
}

#[tokio::test]
async fn chk2_a_signature_that_can_not_be_verified_is_neutral() {
    let world = World::new();
    let signer = Signer::rsa("example.com", "s");
    signer.publish(&world, "");
    let raw = mail("a@example.com");
    assert_eq!(outcomes(&world.of(&signer.sign("", &raw)).await), [Outcome::Pass]);
    for (tags, expected) in [
        ("i=anna@mail.example.com; ", Outcome::Pass),
        ("i=anna@other.example; ", Outcome::Neutral),
        ("h=subject; ", Outcome::Neutral),
        ("q=dns/other; ", Outcome::Neutral),
        ("x=1699999999; ", Outcome::Fail),
        ("t=1699999990; x=1700000001; ", Outcome::Pass),
        ("t=1700000009; x=1700000001; ", Outcome::Neutral),
        ("x=soon; ", Outcome::Neutral),
        ("c=other/simple; ", Outcome::Neutral),
        ("x1=a; x1=b; ", Outcome::Neutral),
        ("bh=AAAA; ", Outcome::Fail),
    ] {
        assert_eq!(outcomes(&world.of(&signer.sign(tags, &raw)).await), [expected], "{tags}");
    }
    let signed = signer.sign("", &raw);
    for (from, to) in [
        ("v=1", "v=2"),
        ("v=1; ", ""),
        ("a=rsa-sha256", "a=rsa-sha1"),
        ("a=rsa-sha256", "a=rsa-md5"),
        ("d=example.com", "d=com"),
        ("d=example.com", "d=exa mple.com"),
        ("s=s;", "s=;"),
        ("bh=", "xx="),
    ] {
        let changed = signed.replacen(from, to, 1);
        assert_eq!(outcomes(&world.of(&changed).await), [Outcome::Neutral], "{from} {to}");
    }
}

#[tokio::test]
async fn chk2_a_length_counts_only_when_it_covers_the_whole_body() {
    let world = World::new();
    let signer = Signer::ed25519("example.com", "s");
    signer.publish(&world, "");
    let raw = "From: a@example.com\r\nSubject: Hello\r\n\r\nHi!\r\n"; // 5 bytes
    let signed = signer.sign("l=5; ", raw);
    assert_eq!(outcomes(&world.of(&signed).await), [Outcome::Pass]);
    let more = format!("{signed}Buy this!\r\n");
    assert_eq!(outcomes(&world.of(&more).await), [Outcome::Neutral], "anyone could have added to it");
    assert_eq!(outcomes(&world.of(&signer.sign("l=0; ", raw)).await), [Outcome::Neutral]);
    assert_eq!(outcomes(&world.of(&signer.sign("l=6; ", raw)).await), [Outcome::Fail]);
}

#[tokio::test]
async fn chk2_a_key_must_be_one_for_mail_and_strong() {
    let raw = mail("a@example.com");
    let signer = Signer::ed25519("example.com", "s");
    let record = signer.record("");
    let public = record.rsplit_once("p=").unwrap().1;
    for (records, expected) in [
        (vec![record.clone()], Outcome::Pass),
        (vec!["other".to_owned(), record.clone()], Outcome::Pass),
        (vec![format!("k=ed25519; p={public}; t=other; n=note")], Outcome::Pass),
        (vec![format!("k=ed25519; p={public}; t=y:s")], Outcome::Neutral),
        (vec![format!("k=ed25519; h=sha1:sha256; s=email; p={public}")], Outcome::Pass),
        (vec![format!("k=ed25519; h=sha1; p={public}")], Outcome::PermError),
        (vec![format!("k=ed25519; s=other; p={public}")], Outcome::PermError),
        (vec![format!("k=ed25519; p={public}; v=DKIM1")], Outcome::PermError),
        (vec![format!("v=DKIM2; k=ed25519; p={public}")], Outcome::PermError),
        (vec![format!("k=other; p={public}")], Outcome::PermError),
        (vec!["v=DKIM1; k=ed25519; p=".to_owned()], Outcome::PermError),
        (vec!["v=DKIM1; k=ed25519".to_owned()], Outcome::PermError),
        (vec![format!("p={public}")], Outcome::Fail),
    ] {
        let world = World::new();
        world.resolver.set_txt("s._domainkey.example.com", Answer::Found(records.clone()));
        assert_eq!(outcomes(&world.of(&signer.sign("", &raw)).await), [expected], "{records:?}");
    }
    let world = World::new();
    assert_eq!(outcomes(&world.of(&signer.sign("", &raw)).await), [Outcome::PermError], "no key");
    world.resolver.set_txt("s._domainkey.example.com", Answer::Temporary("later".into()));
    assert_eq!(outcomes(&world.of(&signer.sign("", &raw)).await), [Outcome::TempError]);
    signer.publish(&world, "t=s; ");
    assert_eq!(outcomes(&world.of(&signer.sign("i=@example.com; ", &raw)).await), [Outcome::Pass]);
    assert_eq!(outcomes(&world.of(&signer.sign("i=@m.example.com; ", &raw)).await), [Outcome::PermError]);
}

#[tokio::test]
async fn chk2_a_short_key_of_rsa_does_not_count() {
    let world = World::new();
    let signer = Signer::rsa("example.com", "s");
    signer.publish(&world, "");
    let signed = signer.sign("", &mail("a@example.com"));
    let (before, rest) = signed.split_once(" b=").unwrap();
    let (_, behind) = rest.split_once("\r\n").unwrap();
    let weak = format!("{before} b={}\r\n{behind}", "A".repeat(128));
    assert_eq!(outcomes(&world.of(&weak).await), [Outcome::Neutral], "96 bytes are 768 bits");
}

#[tokio::test]
async fn chk2_thousands_of_signatures_and_long_headers_take_bounded_time() {
    let world = World::new();
    let signer = Signer::ed25519("example.com", "s");
    signer.publish(&world, "");
    let mut many = String::new();
    let signed = signer.sign("", &mail("a@example.com"));
    let (field, _) = signed.split_once("From: ").unwrap();
    for _ in 0..5_000 {
        many.push_str(field);
    }
    many.push_str(&mail("a@example.com"));
    let found = world.of(&many).await;
    assert!(found.dkim.len() <= 10, "{}", found.dkim.len());
    let names = "a:".repeat(10_000);
    let long = signer.sign("", &mail("a@example.com")).replacen("h=from:", &format!("h=from:{names}"), 1);
    assert_eq!(outcomes(&world.of(&long).await), [Outcome::Neutral]);
    let huge = format!("X: {}\r\n{signed}", "x".repeat(2 << 20));
    assert_eq!(outcomes(&world.of(&huge).await), [], "a header of 2 MB is not looked at");
}

#[tokio::test]
async fn chk2_signatures_are_information_alone() {
    let world = World::new();
    let signer = Signer::ed25519("example.com", "s");
    signer.publish(&world, "");
    let broken = signer.sign("", &mail("a@example.com")).replace("Hi Bert", "Hi Carl");
    let found = world.of(&broken).await;
    assert_eq!(outcomes(&found), [Outcome::Fail]);
    assert_eq!(
        (found.dmarc, found.policy),
        (Outcome::None, DmarcPolicy::None),
        "without DMARC nobody asks for anything"
    );
}
