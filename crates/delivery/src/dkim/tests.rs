use std::sync::Arc;

use aws_lc_rs::{
    digest::{SHA256, digest},
    signature::{
        ED25519, Ed25519KeyPair, KeyPair, RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY, UnparsedPublicKey,
        VerificationAlgorithm,
    },
};
use bytes::Bytes;
use restante_core::{ErrorKind, ManualClock, Timestamp};
use restante_directory::{
    Actor, Directory, DirectoryConfig, DirectoryMetrics, Domain, Operation as DirectoryOperation,
};
use restante_mail::queue::SourceKind;
use restante_mail_wire::{canonical::without_signature, header::Header};
use restante_records::{Config, EngineUrl, Opened, RecordId, Schema, open};

mod arc;

use super::{
    canonical,
    keys::Operation,
    pair::Pair,
    signature::{signed_data, signed_names},
    *,
};
use crate::{Outgoing, Signer};

const NOW: i64 = 1_795_000_000;

/// The message of RFC 8463, appendix A.3, with its two signatures.
const SIGNED: &str = "\
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
/// RFC 8463, appendix A.2.
const ED25519_SECRET: &str = "nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=";
const RSA_PUBLIC: &str = "MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDkHlOQoBTzWRiGs5V6NpP3idY6Wk08a5qhdR6wy5bdOKb2jLQiY/J16JYi0Qvx/byYzCNb3W91y3FutACDfzwQ/BC/e/8uBsCR+yz1Lxj+PL6lHvqMKrM3rG4hstT5QjvHO9PzoxZyVYLzBfO2EeC3Ip3G+2kryOTIKT+l/K4w3QIDAQAB";

fn decode(text: &str) -> Vec<u8> {
    let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    base64_simd::STANDARD.decode_to_vec(text).unwrap()
}

/// The value of a tag in a signature.
fn tag(value: &str, name: &str) -> String {
    let tags = value.split(';').filter_map(|tag| tag.split_once('='));
    let mut found = tags.filter(|(known, _)| known.trim() == name).map(|(_, content)| content.trim());
    found.next_back().unwrap_or_default().to_owned()
}

/// Checks a signature of a message as a verifier does that reads nothing but its tags; the key is that of `p=`.
fn verify(
    value: &str,
    message: &str,
    key: &[u8],
    algorithm: &'static dyn VerificationAlgorithm,
) -> Result<(), String> {
    verify_field("DKIM-Signature", value, message, key, algorithm)
}

/// The same of a field with another name.
fn verify_field(
    own_name: &str,
    value: &str,
    message: &str,
    key: &[u8],
    algorithm: &'static dyn VerificationAlgorithm,
) -> Result<(), String> {
    let header = Header::parse(message.as_bytes());
    let body = &message.as_bytes()[header.bytes()..];
    if canonical::body_hash(body).as_ref() != decode(&tag(value, "bh")) {
        return Err("body".into());
    }
    let names = tag(value, "h");
    let names: Vec<&str> = names.split(':').map(str::trim).collect();
    let data = signed_data(&header, &names, own_name, &unsigned(value));
    let data = match tag(value, "a").starts_with("ed25519") {
        true => digest(&SHA256, &data).as_ref().to_vec(),
        false => data,
    };
    let signature = decode(&tag(value, "b"));
    UnparsedPublicKey::new(algorithm, key).verify(&data, &signature).map_err(|_| "signature".into())
}

fn unsigned(value: &str) -> String {
    String::from_utf8(without_signature(value.as_bytes())).unwrap()
}

struct World {
    opened: Opened,
    clock: Arc<ManualClock>,
    keys: DkimKeys,
    signer: DomainSigner,
    folder: tempfile::TempDir,
}

fn actor() -> Actor {
    Actor("a test".to_owned())
}

async fn world() -> World {
    let mut kinds = restante_directory::kinds();
    kinds.extend(restante_mail::kinds());
    let opened = open(Config::new(EngineUrl::Memory, Schema::new(kinds).unwrap())).await.unwrap();
    let clock = Arc::new(ManualClock::new(Timestamp(NOW * 1_000_000_000)));
    let (config, metrics) = (DirectoryConfig::default(), DirectoryMetrics::default());
    let (directory, _) = Directory::open(&opened, config, clock.clone(), metrics).await.unwrap();
    for domain in ["example.org", "other.org"] {
        let domain = domain.parse().unwrap();
        let add = DirectoryOperation::AddDomain { domain, separator: None, catch_all: None };
        directory.operate(&actor(), add).await.unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let key_file = folder.path().join("secrets.key");
    let keys = DkimKeys::new(opened.records.clone(), clock.clone(), directory, key_file);
    let signer = DomainSigner::new(keys.clone());
    World { opened, clock, keys, signer, folder }
}

fn domain() -> Domain {
    "example.org".parse().unwrap()
}

impl World {
    async fn operate(&self, operation: Operation) -> Result<Vec<KeyInfo>, restante_core::Error> {
        self.keys.operate(&actor(), operation).await.map(|answer| answer.keys)
    }

    async fn create(&self, algorithm: Algorithm, selector: &str) -> KeyInfo {
        let (algorithms, selector) = (vec![algorithm], Some(selector.to_owned()));
        self.operate(Operation::Create { domain: domain(), algorithms, selector }).await.unwrap().remove(0)
    }

    async fn activate(&self, selector: &str) -> Vec<KeyInfo> {
        let selector = selector.to_owned();
        self.operate(Operation::Activate { domain: domain(), selector }).await.unwrap()
    }

    async fn sign(&self, message: &str) -> Vec<String> {
        self.sign_as(SourceKind::Smtp, message).await
    }

    /// The values of the signatures of a message.
    async fn sign_as(&self, source: SourceKind, message: &str) -> Vec<String> {
        let outgoing = Outgoing {
            bytes: Bytes::copy_from_slice(message.as_bytes()),
            sender: "anna@example.org".to_owned(),
            envelope_id: None,
            returned: None,
            transmission: Default::default(),
            source,
            account: None,
            record: RecordId(0),
            key: [0; 32],
        };
        let fields = String::from_utf8(self.signer.sign(&outgoing).await.unwrap()).unwrap();
        assert!(fields.is_empty() || fields.ends_with("\r\n"));
        assert!(fields.lines().all(|line| line.len() <= 78), "{fields}");
        let header = Header::parse(fields.as_bytes());
        header.fields().map(|field| String::from_utf8(field.value.to_vec()).unwrap()).collect()
    }
}

fn message(from: &str) -> String {
    format!(
        "Received: from x by y; Mon, 23 Nov 2026 19:00:00 +0000\r\n{from}To: Bob <bob@example.net>\r\nSubject:  two\r\n words \r\n\
         Date: Mon, 23 Nov 2026 19:00:00 +0000\r\nMessage-ID: <1@example.org>\r\n\r\nHello  Bob,\t\r\n\r\n \t\r\n\r\n"
    )
}

#[tokio::test]
async fn dk1_the_domain_of_from_signs_and_nothing_else() {
    let world = world().await;
    world.create(Algorithm::Ed25519, "one").await;
    world.activate("one").await;
    let signed = world.sign(&message("From: Anna <anna@Example.ORG>\r\n")).await;
    assert_eq!((signed.len(), tag(&signed[0], "d")), (1, "example.org".to_owned()));
    let both = world.sign(&message("From: anna@example.org, Otto <otto@example.org>\r\n")).await;
    assert_eq!(both.len(), 1);
    for from in [
        "From: anna@other.org\r\n",
        "From: anna@sub.example.org\r\n",
        "From: anna@example.net\r\n",
        "From: anna@example.org\r\nFrom: anna@example.org\r\n",
        "From: anna@example.org, otto@other.org\r\n",
        "From: anna\r\n",
        "From:\r\n",
        "Sender: anna@example.org\r\n",
        "",
    ] {
        assert!(world.sign(&message(from)).await.is_empty(), "{from}");
    }
    let own = message("From: anna@example.org\r\n");
    assert!(world.sign_as(SourceKind::Forward, &own).await.is_empty());
    assert_eq!(world.sign_as(SourceKind::Report, &own).await.len(), 1);
}

/// The examples of RFC 6376 §3.4.5, and what §3.4.4 says about lines that are empty after white space is removed.
#[test]
fn dk2_header_and_body_are_relaxed() {
    let mut fields = Vec::new();
    canonical::field("A", b" X", &mut fields);
    fields.extend(b"\r\n");
    canonical::field("B", b" Y\t\r\n\tZ  ", &mut fields);
    assert_eq!(fields, b"a:X\r\nb:Y Z");
    for (body, canonical_body) in [
        (" C \r\nD \t E\r\n\r\n\r\n", " C\r\nD E\r\n"),
        ("", ""),
        ("\r\n", ""),
        (" \r\n\t\r\n", ""),
        ("a\r\n \r\n", "a\r\n"),
        ("a\r\n \r\n\r\nb\r\n\t \r\n", "a\r\n\r\n\r\nb\r\n"),
        ("a", "a\r\n"),
        ("a  \tb", "a b\r\n"),
        ("\t a\r\n", " a\r\n"),
        ("a\nb\rc\r\n", "a\nb\rc\r\n"),
    ] {
        let expected = digest(&SHA256, canonical_body.as_bytes());
        assert_eq!(canonical::body_hash(body.as_bytes()).as_ref(), expected.as_ref(), "{body:?}");
    }
    let (line, many) = ("x".repeat(20_000), "y  y\r\n".repeat(10_000));
    let expected = format!("{line} {line}\r\n{}", "y y\r\n".repeat(10_000));
    let hash = canonical::body_hash(format!("{line} \t{line} \r\n{many}\r\n").as_bytes());
    assert_eq!(hash.as_ref(), digest(&SHA256, expected.as_bytes()).as_ref());
}

#[tokio::test]
async fn dk3_from_is_oversigned_and_what_readers_see_is_signed_without_a_length() {
    let text = message("From: anna@example.org\r\n");
    let names = signed_names(&Header::parse(text.as_bytes()));
    assert_eq!(names, ["From", "From", "To", "Subject", "Date", "Message-ID"]);
    let twice = "To: a@b\r\nFrom: anna@example.org\r\nto: c@d\r\nList-Id: <x>\r\nReturn-Path: <x>\r\n\r\n";
    assert_eq!(signed_names(&Header::parse(twice.as_bytes())), ["From", "From", "To", "To", "List-Id"]);
    let world = world().await;
    let key = world.create(Algorithm::Ed25519, "one").await;
    world.activate("one").await;
    let signed = world.sign(&text).await.remove(0);
    assert_eq!((tag(&signed, "t"), tag(&signed, "l")), (NOW.to_string(), String::new()));
    assert_eq!((tag(&signed, "v"), tag(&signed, "c")), ("1".to_owned(), "relaxed/relaxed".to_owned()));
    let public = decode(&key.public_key);
    verify(&signed, &text, &public, &ED25519).unwrap();
    for changed in [
        text.replace("two", "three"),
        format!("From: eve@example.net\r\n{text}"),
        text.replace("Date:", "From: eve@example.net\r\nDate:"),
        text.replace("Hello", "Bye"),
        format!("{text}More.\r\n"),
    ] {
        assert!(verify(&signed, &changed, &public, &ED25519).is_err(), "{changed}");
    }
    // What servers on the way do to white space and trace fields changes nothing.
    let relayed = format!("Received: from b by c\r\n{}", text.replace("  two\r\n words ", " two words"));
    verify(&signed, &relayed, &public, &ED25519).unwrap();
}

#[tokio::test]
async fn dk4_both_algorithms_sign_when_both_keys_are_active() {
    let world = world().await;
    let operation = Operation::Create { domain: domain(), algorithms: Vec::new(), selector: None };
    let created = world.operate(operation).await.unwrap();
    let selectors: Vec<&str> = created.iter().map(|key| key.selector.as_str()).collect();
    assert_eq!(selectors, ["20261118r", "20261118e"]);
    assert_eq!(created[0].record_name(), "20261118r._domainkey.example.org");
    assert!(created[0].record_text().starts_with("v=DKIM1; k=rsa; p=MII"));
    assert_eq!(created[1].record_text(), format!("v=DKIM1; k=ed25519; p={}", created[1].public_key));
    let text = message("From: anna@example.org\r\n");
    assert!(world.sign(&text).await.is_empty());
    for selector in &selectors {
        world.activate(selector).await;
    }
    let signed = world.sign(&text).await;
    let algorithms: Vec<String> = signed.iter().map(|value| tag(value, "a")).collect();
    assert_eq!(algorithms, ["rsa-sha256", "ed25519-sha256"]);
    let rsa = &RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY;
    verify(&signed[0], &text, &decode(&created[0].public_key), rsa).unwrap();
    verify(&signed[1], &text, &decode(&created[1].public_key), &ED25519).unwrap();
    assert_eq!(decode(&created[1].public_key).len(), 32);
}

#[tokio::test]
async fn dk5_keys_rotate_from_waiting_to_active_to_retired_and_are_removed_then() {
    let world = world().await;
    let text = message("From: anna@example.org\r\n");
    let selectors = |signed: Vec<String>| signed.iter().map(|value| tag(value, "s")).collect::<Vec<_>>();
    let states = |keys: &[KeyInfo]| keys.iter().map(|key| key.state).collect::<Vec<_>>();
    world.create(Algorithm::Ed25519, "one").await;
    world.activate("one").await;
    assert_eq!(selectors(world.sign(&text).await), ["one"]);
    assert_eq!(world.create(Algorithm::Ed25519, "two").await.state, KeyState::Waiting);
    assert_eq!(selectors(world.sign(&text).await), ["one"]);
    // A second server on the same records has signed before, and notices.
    let other = DomainSigner::new(world.keys.clone());
    let other = World { signer: other, ..world };
    assert_eq!(selectors(other.sign(&text).await), ["one"]);
    assert_eq!(other.signer.remembered(), 1);
    other.clock.set(Timestamp((NOW + 60) * 1_000_000_000));
    let keys = other.activate("two").await;
    assert_eq!(states(&keys), [KeyState::Retired, KeyState::Active]);
    assert_eq!((keys[0].created, keys[0].changed), (NOW, NOW + 60));
    assert_eq!(selectors(other.sign(&text).await), ["two"]);
    let named = |selector: &str| selector.to_owned();
    let removed = Operation::Remove { domain: domain(), selector: named("two") };
    assert_eq!(other.operate(removed).await.unwrap_err().kind(), ErrorKind::Conflict);
    let removed = Operation::Remove { domain: domain(), selector: named("one") };
    assert_eq!(states(&other.operate(removed).await.unwrap()), [KeyState::Active]);
    let retired = Operation::Retire { domain: domain(), selector: named("two") };
    assert_eq!(states(&other.operate(retired.clone()).await.unwrap()), [KeyState::Retired]);
    assert_eq!(states(&other.operate(retired).await.unwrap()), [KeyState::Retired]);
    assert!(other.sign(&text).await.is_empty());
    let unknown = Operation::Activate { domain: domain(), selector: named("three") };
    assert_eq!(other.operate(unknown).await.unwrap_err().kind(), ErrorKind::NotFound);
}

fn outgoing(fields: &str) -> Outgoing {
    Outgoing {
        bytes: Bytes::from(message(fields)),
        sender: String::new(),
        envelope_id: None,
        returned: None,
        transmission: Default::default(),
        source: SourceKind::Smtp,
        account: None,
        record: RecordId(0),
        key: [0; 32],
    }
}

#[tokio::test]
async fn what_is_no_key_is_refused_and_private_keys_are_sealed() {
    let world = world().await;
    for (wrong, algorithms, selector) in [
        ("nowhere.org", vec![Algorithm::Rsa], "one"),
        ("example.org", vec![Algorithm::Rsa], "One"),
        ("example.org", vec![Algorithm::Rsa], "a..b"),
        ("example.org", vec![Algorithm::Rsa], "-a"),
        ("example.org", vec![Algorithm::Rsa], &"a".repeat(64)),
        ("example.org", vec![], "one"),
    ] {
        let (domain, selector) = (wrong.parse().unwrap(), Some(selector.to_owned()));
        assert!(world.operate(Operation::Create { domain, algorithms, selector }).await.is_err());
    }
    for number in 0..KEYS_PER_DOMAIN_MAX {
        world.create(Algorithm::Ed25519, &format!("k{number}")).await;
    }
    let operation = |selector: &str| {
        let (algorithms, selector) = (vec![Algorithm::Ed25519], Some(selector.to_owned()));
        Operation::Create { domain: domain(), algorithms, selector }
    };
    assert_eq!(world.operate(operation("more")).await.unwrap_err().kind(), ErrorKind::Full);
    world.operate(Operation::Remove { domain: domain(), selector: "k0".to_owned() }).await.unwrap();
    assert_eq!(world.operate(operation("k1")).await.unwrap_err().kind(), ErrorKind::Conflict);
    let list = world.operate(Operation::List { domain: domain() }).await.unwrap();
    assert_eq!(list.len(), KEYS_PER_DOMAIN_MAX - 1);
    // Another key file opens nothing.
    let folder = tempfile::tempdir().unwrap();
    let key_file = folder.path().join("other.key");
    std::fs::write(&key_file, "0".repeat(64)).unwrap();
    world.activate("k1").await;
    let (clock, records) = (world.clock.clone(), world.opened.records.clone());
    let metrics = DirectoryMetrics::default();
    let (directory, _) =
        Directory::open(&world.opened, DirectoryConfig::default(), clock.clone(), metrics).await.unwrap();
    let signer = DomainSigner::new(DkimKeys::new(records, clock, directory, key_file));
    let other = World { signer, ..world };
    let outgoing = outgoing("From: anna@example.org\r\n");
    assert_eq!(other.signer.sign(&outgoing).await.unwrap_err().kind(), ErrorKind::Invalid);
}

/// A new file was made in its place, and the right one was not noticed until a restart.
#[tokio::test]
async fn a_missing_key_file_is_named_and_used_again_when_it_is_back() {
    let world = world().await;
    let path = world.folder.path().join("secrets.key");
    world.create(Algorithm::Ed25519, "one").await;
    world.activate("one").await;
    let right = std::fs::read(&path).unwrap();
    let create = || {
        let (algorithms, selector) = (vec![Algorithm::Ed25519], None);
        Operation::Create { domain: "other.org".parse().unwrap(), algorithms, selector }
    };
    let outgoing = outgoing("From: anna@example.org\r\n");
    for wrong in [None, Some("0".repeat(64))] {
        match &wrong {
            None => std::fs::remove_file(&path).unwrap(),
            Some(key) => std::fs::write(&path, key).unwrap(),
        }
        let said = if wrong.is_none() { "secrets.key is missing" } else { "sealed with another key" };
        let error = world.signer.sign(&outgoing).await.unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
        assert_eq!(path.exists(), wrong.is_some());
        let refused = world.operate(create()).await.unwrap_err();
        assert!(refused.to_string().contains("remove them if the file is lost"), "{refused}");
        assert_eq!(path.exists(), wrong.is_some());
    }
    std::fs::write(&path, right).unwrap();
    assert!(!world.signer.sign(&outgoing).await.unwrap().is_empty());
    world.operate(create()).await.unwrap();
}

#[test]
fn dk6_the_vectors_of_rfc_8463_verify_and_ed25519_signs_them_the_same() {
    let header = Header::parse(SIGNED.as_bytes());
    let values: Vec<String> =
        header.all("DKIM-Signature").map(|field| String::from_utf8(field.value.to_vec()).unwrap()).collect();
    let secret = Ed25519KeyPair::from_seed_unchecked(&decode(ED25519_SECRET)).unwrap();
    verify(&values[0], SIGNED, secret.public_key().as_ref(), &ED25519).unwrap();
    let rsa = &RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY;
    verify(&values[1], SIGNED, &decode(RSA_PUBLIC), rsa).unwrap();
    let names = tag(&values[0], "h");
    let names: Vec<&str> = names.split(':').map(str::trim).collect();
    let data = signed_data(&header, &names, "DKIM-Signature", &unsigned(&values[0]));
    assert_eq!(Pair::Ed25519(secret).sign(&data).unwrap(), decode(&tag(&values[0], "b")));
}

#[test]
fn keys_are_read_as_they_were_written() {
    for algorithm in [Algorithm::Rsa, Algorithm::Ed25519] {
        let pair = Pair::generate(algorithm).unwrap();
        let again = Pair::read(algorithm, &pair.private().unwrap()).unwrap();
        assert_eq!(again.public().unwrap(), pair.public().unwrap());
        assert_eq!(again.sign(b"x").unwrap(), pair.sign(b"x").unwrap());
        assert!(Pair::read(algorithm, b"x").is_err());
    }
}
