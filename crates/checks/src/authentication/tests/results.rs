use super::*;
use crate::{ClientFacts, Envelope, Reverse};

fn field(found: &Authentication, peer: &Peer, sender: &str, reverse: Reverse) -> String {
    let facts = ClientFacts { reverse, listings: Vec::new() };
    let envelope = Envelope { peer, facts: &facts, id: "1", sender, recipients: &[], received: 0 };
    results_field("mail.example.org", envelope, found)
}

fn found() -> Authentication {
    let signature = |domain: &str, outcome| DkimSignature {
        domain: domain.to_owned(),
        selector: "s1".to_owned(),
        signature: "abcd/+==".to_owned(),
        outcome,
    };
    Authentication {
        spf: Outcome::SoftFail,
        spf_domain: "example.com".to_owned(),
        dkim: vec![signature("example.com", Outcome::Pass), signature("", Outcome::Neutral)],
        arc: Outcome::Pass,
        arc_domain: Some("lists.example".to_owned()),
        dmarc: Outcome::Pass,
        is_dkim_aligned: true,
        policy: DmarcPolicy::Reject,
        from: Some("example.com".to_owned()),
        from_fields: 1,
        dmarc_domain: Some("example.com".to_owned()),
        dmarc_record: Some("v=DMARC1; p=reject".to_owned()),
        ..Authentication::UNKNOWN
    }
}

#[test]
fn chk5_a_message_gets_a_field_of_ours() {
    let confirmed = Reverse::Confirmed("mail.example.net".to_owned());
    let written = field(&found(), &peer("192.0.2.1", "mail.example.net"), "a@example.com", confirmed);
    let expected = "Authentication-Results: mail.example.org;\r\n\
        \tspf=softfail smtp.mailfrom=example.com;\r\n\
        \tdkim=pass header.d=example.com header.s=s1 header.b=\"abcd/+==\";\r\n\
        \tdkim=neutral header.s=s1 header.b=\"abcd/+==\";\r\n\
        \tarc=pass;\r\n\
        \tdmarc=pass header.from=example.com policy.dmarc=reject;\r\n\
        \tiprev=pass policy.iprev=192.0.2.1\r\n";
    assert_eq!(written, expected);
    assert!(claims_to_be_ours("mail.example.org", written.split_once(':').unwrap().1.as_bytes()));
    let nothing = field(&Authentication::UNKNOWN, &peer("::ffff:192.0.2.1", ""), "", Reverse::Unknown);
    let expected = "Authentication-Results: mail.example.org;\r\n\
        \tspf=none;\r\n\tdkim=none;\r\n\tdmarc=none;\r\n\tiprev=temperror policy.iprev=192.0.2.1\r\n";
    assert_eq!(nothing, expected);
    for (reverse, word) in [(Reverse::None, "permerror"), (Reverse::Unconfirmed("x".to_owned()), "fail")] {
        let written = field(&found(), &peer("2001:db8::1", "x"), "", reverse);
        assert!(written.contains(&format!("iprev={word} policy.iprev=\"2001:db8::1\"")), "{written}");
        assert!(written.contains("smtp.helo=example.com"), "{written}");
    }
}

#[test]
fn chk5_what_comes_from_outside_adds_no_field_and_no_result() {
    let evil = "a\";\r\nX: y\r\n\tdmarc=pass (\\ \u{e4} \0 header.from=bank.example";
    let mut found = found();
    found.spf_domain = evil.to_owned();
    found.from = Some(evil.repeat(100));
    for signature in &mut found.dkim {
        (signature.domain, signature.selector, signature.signature) = (evil.into(), evil.into(), evil.into());
    }
    let written = field(&found, &peer("192.0.2.1", evil), evil, Reverse::Unconfirmed(evil.to_owned()));
    assert!(written.bytes().all(|byte| matches!(byte, b'\r' | b'\n' | b'\t' | b' '..=b'~')));
    for line in written.trim_end().split("\r\n").skip(1) {
        assert!(line.starts_with('\t') && line.len() <= 998, "{line}");
    }
    // Outside of quotes there are only our own results.
    let (mut outside, mut is_quoted, mut is_escaped) = (String::new(), false, false);
    for character in written.chars() {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            _ if is_quoted => {}
            character => outside.push(character),
        }
    }
    assert!(!is_quoted);
    assert_eq!(outside.matches(';').count(), 6, "{outside}");
    assert_eq!(outside.matches("dmarc=").count(), 2, "{outside}");
}

#[test]
fn chk5_fields_that_claim_our_name_are_known() {
    let ours = "mail.example.org";
    for value in [
        " mail.example.org; spf=pass",
        "mail.example.org;spf=pass",
        " MAIL.Example.ORG 1; none",
        "\r\n\tmail.example.org\r\n\t; none",
        " (a (nested \\) comment)) mail.example.org (v) 1 ; none",
        " \"mail.example.org\"; none",
        " \"mail\\.example.org\" 1; none",
        " mail.example.org.; none",
        " mail.example.org",
        " mail . example . org; none",
        " mail.\"example\".org; none",
        " mail.(comment)example.org; none",
        "(;)mail.example.org; none",
        " mail.example.org spf=pass",
    ] {
        assert!(claims_to_be_ours(ours, value.as_bytes()), "{value:?}");
    }
    for value in [
        " other.example.org; spf=pass smtp.mailfrom=mail.example.org",
        " xmail.example.org; none",
        " mail.example.org.example; none",
        " (mail.example.org) other.example; none",
        " example.org; none",
        " \"mail.example.org; none\"; none",
        "",
        ";",
        " (mail.example.org; none",
    ] {
        assert!(!claims_to_be_ours(ours, value.as_bytes()), "{value:?}");
    }
    assert!(claims_to_be_ours("mail.xn--bcher-kva.example", " mail.BÜCHER.example; none".as_bytes()));
    assert!(!claims_to_be_ours(ours, b" \xff\xfe; none"));
}
