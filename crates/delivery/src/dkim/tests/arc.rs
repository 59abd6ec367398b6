//! ARC sets, verified by the tags of the fields alone; dkimpy does it in `tests/interop/mail/test_sending.py`.

use super::*;

const HOST: &str = "mail.example.org";

/// A message as it is forwarded, with fields that this server has put before it.
fn forwarded(results: &str, fields: &str) -> String {
    format!(
        "Delivered-To: team@example.org\r\nReceived: from a by b\r\n{results}{fields}Received: from c by a\r\n\
         DKIM-Signature: v=1; d=other.example; b=x\r\nFrom: eve@other.example\r\nSubject: x\r\n\r\nHello\r\n"
    )
}

fn results(arc: &str) -> String {
    format!(
        "Authentication-Results: {HOST};\r\n\tdkim=pass header.d=\"a;arc=pass\" (;arc=fail);\r\n\tarc={arc}\r\n"
    )
}

struct Sealing {
    world: World,
    public: Vec<u8>,
}

impl Sealing {
    async fn new() -> Self {
        let world = world().await;
        let key = world.create(Algorithm::Ed25519, "one").await;
        world.activate("one").await;
        let signer = DomainSigner::new(world.keys.clone()).sealing(HOST);
        Self { world: World { signer, ..world }, public: decode(&key.public_key) }
    }

    /// The message with its new set; the set is checked.
    async fn seal(&self, message: &str) -> String {
        let values = self.world.sign_as(SourceKind::Forward, message).await;
        let [seal, signature, results] = &values[..] else { panic!("{values:?}") };
        verify_field("ARC-Message-Signature", signature, message, &self.public, &ED25519).unwrap();
        let names = tag(signature, "h");
        assert!(
            names.contains("DKIM-Signature") && !names.contains("ARC-") && !names.contains("Authentication")
        );
        for value in [seal, signature] {
            assert_eq!((tag(value, "d"), tag(value, "s")), ("example.org".to_owned(), "one".to_owned()));
            assert_eq!((tag(value, "t"), tag(value, "v")), (NOW.to_string(), String::new()));
        }
        assert_eq!((tag(seal, "i"), tag(seal, "h")), (tag(signature, "i"), String::new()));
        assert!(results.trim_start().starts_with(&format!("i={};", tag(seal, "i"))), "{results}");
        let sealed = format!(
            "ARC-Seal:{seal}\r\nARC-Message-Signature:{signature}\r\nARC-Authentication-Results:{results}\r\n{message}"
        );
        self.verify_seal(&sealed).unwrap();
        sealed
    }

    /// Checks the newest seal (RFC 8617 §5.1.1, §5.1.2).
    fn verify_seal(&self, message: &str) -> Result<(), String> {
        let header = Header::parse(message.as_bytes());
        let newest = header.all("ARC-Seal").next().unwrap();
        let newest = std::str::from_utf8(newest.value).unwrap();
        let count: usize = tag(newest, "i").parse().unwrap();
        let first = if tag(newest, "cv") == "fail" { count } else { 1 };
        let mut data = Vec::new();
        for instance in first..=count {
            for name in ["ARC-Authentication-Results", "ARC-Message-Signature", "ARC-Seal"] {
                let values = header.all(name).map(|field| std::str::from_utf8(field.value).unwrap());
                let value = values.into_iter().find(|value| tag(value, "i") == instance.to_string());
                let value = value.ok_or("a field is missing")?;
                match (name, instance == count) {
                    ("ARC-Seal", true) => {
                        canonical::field(name, &without_signature(value.as_bytes()), &mut data)
                    }
                    _ => {
                        canonical::field(name, value.as_bytes(), &mut data);
                        data.extend(b"\r\n");
                    }
                }
            }
        }
        let key = UnparsedPublicKey::new(&ED25519, &self.public);
        key.verify(digest(&SHA256, &data).as_ref(), &decode(&tag(newest, "b"))).map_err(|_| "seal".to_owned())
    }
}

/// The tags i and cv of the first seal.
fn newest(message: &str) -> (String, String) {
    let header = Header::parse(message.as_bytes());
    let seal = header.all("ARC-Seal").next().unwrap();
    let seal = std::str::from_utf8(seal.value).unwrap();
    (tag(seal, "i"), tag(seal, "cv"))
}

fn is(instance: &str, cv: &str) -> (String, String) {
    (instance.to_owned(), cv.to_owned())
}

/// A message that this server has sealed comes back to another alias, with these results.
fn again(sealed: &str, arc: &str) -> String {
    format!("Delivered-To: other@example.org\r\nReceived: from d by b\r\n{}{sealed}", results(arc))
}

#[tokio::test]
async fn arc1_a_forward_is_sealed_by_the_domain_of_the_alias_with_what_was_found_here() {
    let sealing = Sealing::new().await;
    let first = sealing.seal(&forwarded(&results("none"), "")).await;
    assert_eq!(newest(&first), is("1", "none"));
    let header = Header::parse(first.as_bytes());
    let found = header.all("ARC-Authentication-Results").next().unwrap();
    let expected = format!("i=1;\r\n\t{}", results("none").split_once(": ").unwrap().1.trim_end());
    assert_eq!(std::str::from_utf8(found.value).unwrap().trim(), expected);
    let second = sealing.seal(&again(&first, "pass")).await;
    assert_eq!(newest(&second), is("2", "pass"));
    let third = sealing.seal(&again(&second, "pass (as.2.example.org=pass)")).await;
    assert_eq!(newest(&third), is("3", "pass"));
    for changed in [third.replacen("dkim=pass", "dkim=fail", 1), third.replacen("i=1; a=", "i=1;a =", 1)] {
        assert!(sealing.verify_seal(&changed).is_err(), "{changed}");
    }
}

#[tokio::test]
async fn arc1_without_results_of_this_server_the_set_has_none() {
    let sealing = Sealing::new().await;
    let foreign = "Authentication-Results: other.example; arc=pass\r\n";
    let late = "Received: from x by y\r\nAuthentication-Results: mail.example.org; spf=pass\r\n";
    for results in ["", foreign, late] {
        let sealed = sealing.seal(&forwarded(results, "")).await;
        assert_eq!(newest(&sealed), is("1", "none"));
        assert!(sealed.contains("\r\n\tmail.example.org; none\r\n"), "{sealed}");
    }
}

#[tokio::test]
async fn arc2_a_chain_that_failed_is_sealed_once_as_failed_and_no_further() {
    let sealing = Sealing::new().await;
    let first = sealing.seal(&forwarded(&results("none"), "")).await;
    let failed = sealing.seal(&again(&first, "fail")).await;
    assert_eq!(newest(&failed), is("2", "fail"));
    for arc in ["pass", "fail", "none"] {
        assert_eq!(sealing.world.sign_as(SourceKind::Forward, &again(&failed, arc)).await, [""; 0]);
    }
    // A set without its seal, or one that occurs twice, is sealed as failed if the check found that, and not at all otherwise.
    let half = first.split_once("\r\n").map(|_| first.replacen("ARC-Seal:", "X-Seal:", 1)).unwrap();
    assert_eq!(newest(&sealing.seal(&again(&half, "fail")).await), is("2", "fail"));
    for broken in [
        half,
        first.replacen("i=1;", "i=0;", 1),
        format!("{}{first}", first.split("Delivered-To").next().unwrap()),
    ] {
        assert_eq!(sealing.world.sign_as(SourceKind::Forward, &again(&broken, "pass")).await, [""; 0]);
    }
}

#[tokio::test]
async fn arc2_a_chain_that_was_not_validated_here_or_is_full_is_left_alone() {
    let sealing = Sealing::new().await;
    let first = sealing.seal(&forwarded(&results("none"), "")).await;
    for arc in ["none", "temperror", "passed"] {
        assert_eq!(sealing.world.sign_as(SourceKind::Forward, &again(&first, arc)).await, [""; 0], "{arc}");
    }
    let unchecked = format!("Delivered-To: other@example.org\r\n{first}");
    assert_eq!(sealing.world.sign_as(SourceKind::Forward, &unchecked).await, [""; 0]);
    let mut sets = String::new();
    for instance in 1..=50 {
        sets = format!(
            "ARC-Seal: i={instance}; cv=pass\r\nARC-Message-Signature: i={instance}\r\nARC-Authentication-Results: i={instance}; x\r\n{sets}"
        );
        let message = forwarded(&results("pass"), &sets);
        let fields = sealing.world.sign_as(SourceKind::Forward, &message).await;
        assert_eq!(fields.len(), if instance < 50 { 3 } else { 0 }, "{instance}");
    }
}

#[tokio::test]
async fn arc3_nothing_is_added_without_a_key_of_the_alias_or_to_mail_that_is_no_forward() {
    let sealing = Sealing::new().await;
    let message = forwarded(&results("none"), "");
    for other in
        [message.replace("team@example.org", "team@other.org"), message.replacen("Delivered-To", "To", 1)]
    {
        assert_eq!(sealing.world.sign_as(SourceKind::Forward, &other).await, [""; 0]);
    }
    assert_eq!(sealing.world.sign_as(SourceKind::Smtp, &message).await, [""; 0]);
    let retire = Operation::Retire { domain: domain(), selector: "one".to_owned() };
    sealing.world.operate(retire).await.unwrap();
    assert_eq!(sealing.world.sign_as(SourceKind::Forward, &message).await, [""; 0]);
}
