//! Tests with a resolver of fixed answers, and with a name server on loopback.

mod arc;
mod dkim;
mod dmarc;
mod dns;
mod random;
mod results;
mod spf;

use std::{net::IpAddr, sync::Arc, time::Duration};

use aws_lc_rs::{
    digest::{SHA256, digest},
    encoding::{AsDer, PublicKeyX509Der},
    rand::SystemRandom,
    rsa::KeySize,
    signature::{Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair},
};
use bytes::Bytes;
use restante_core::{ManualClock, Timestamp};
use restante_mail_wire::canonical::Canonical;
use restante_net::dns::{Answer, FixedResolver, Resolver};

use super::{message::Message, *};
use crate::Peer;

/// The current time of the tests, in seconds since 1970.
const NOW: i64 = 1_700_000_000;

/// A resolver, and the authenticator that uses it.
struct World {
    resolver: Arc<FixedResolver>,
    authenticator: Authenticator,
}

fn authenticator(resolver: Arc<dyn Resolver>, timeout: Duration) -> Authenticator {
    let clock = ManualClock::new(Timestamp(NOW * 1_000_000_000));
    Authenticator::new(resolver, Arc::new(clock), timeout)
}

fn peer(address: &str, hello: &str) -> Peer {
    Peer { address: address.parse().unwrap(), hello: hello.to_owned(), is_tls: false }
}

impl World {
    fn new() -> Self {
        let resolver = Arc::new(FixedResolver::new());
        let authenticator = authenticator(resolver.clone(), Duration::from_secs(20));
        Self { resolver, authenticator }
    }

    fn txt(&self, name: &str, texts: &[&str]) {
        self.resolver.set_txt(name, Answer::Found(texts.iter().map(|text| (*text).to_owned()).collect()));
    }

    fn addresses(&self, name: &str, addresses: &[&str]) {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        self.resolver.set_addresses(name, Answer::Found(addresses));
    }

    fn names(&self, address: &str, names: &[&str]) {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        self.resolver.set_ptr(address.parse::<IpAddr>().unwrap(), Answer::Found(names));
    }

    async fn authenticate(&self, address: &str, hello: &str, sender: &str, raw: &str) -> Authentication {
        let raw = Bytes::copy_from_slice(raw.as_bytes());
        self.authenticator.authenticate(&peer(address, hello), sender, &raw).await
    }

    /// Authenticates a message for which the envelope does not matter.
    async fn of(&self, raw: &str) -> Authentication {
        self.authenticate("192.0.2.1", "mail.example.net", "", raw).await
    }
}

/// A private key that signs for a domain.
enum Pair {
    Rsa(RsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

struct Signer {
    pair: Pair,
    domain: String,
    selector: String,
}

impl Signer {
    fn ed25519(domain: &str, selector: &str) -> Self {
        let pair = Pair::Ed25519(Ed25519KeyPair::generate().unwrap());
        Self { pair, domain: domain.to_owned(), selector: selector.to_owned() }
    }

    fn rsa(domain: &str, selector: &str) -> Self {
        let pair = Pair::Rsa(RsaKeyPair::generate(KeySize::Rsa2048).unwrap());
        Self { pair, domain: domain.to_owned(), selector: selector.to_owned() }
    }

    fn publish(&self, world: &World, flags: &str) {
        let name = format!("{}._domainkey.{}", self.selector, self.domain);
        world.txt(&name, &[&self.record(flags)]);
    }

    fn record(&self, flags: &str) -> String {
        let (kind, public) = match &self.pair {
            Pair::Rsa(pair) => {
                let der: PublicKeyX509Der<'_> = pair.public_key().as_der().unwrap();
                ("rsa", der.as_ref().to_vec())
            }
            Pair::Ed25519(pair) => ("ed25519", pair.public_key().as_ref().to_vec()),
        };
        format!("v=DKIM1; k={kind}; {flags}p={}", base64_simd::STANDARD.encode_to_string(public))
    }

    fn algorithm(&self) -> &'static str {
        match self.pair {
            Pair::Rsa(_) => "rsa-sha256",
            Pair::Ed25519(_) => "ed25519-sha256",
        }
    }

    fn signature(&self, data: &[u8]) -> String {
        let signature = match &self.pair {
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), data, &mut signature).unwrap();
                signature
            }
            Pair::Ed25519(pair) => pair.sign(digest(&SHA256, data).as_ref()).as_ref().to_vec(),
        };
        base64_simd::STANDARD.encode_to_string(signature)
    }

    /// The message with a field before it that signs `From`, `Subject` and its body. `tags` are added.
    fn sign_as(&self, field: &str, tags: &str, raw: &str) -> String {
        let has = |tag: &str| tags.split(';').any(|given| given.trim().starts_with(tag));
        let form = if has("c=simple") { Canonical::Simple } else { Canonical::Relaxed };
        let message = Message::parse(Bytes::copy_from_slice(raw.as_bytes())).unwrap();
        let hash = base64_simd::STANDARD.encode_to_string(message.body_hash(form).digest.as_ref());
        let (algorithm, domain, selector) = (self.algorithm(), &self.domain, &self.selector);
        let form_tag = if has("c=") { "" } else { "c=relaxed/relaxed; " };
        let names_tag = if has("h=") { "" } else { "h=from:subject:from; " };
        let hash_tag = if has("bh=") { String::new() } else { format!("bh={hash}; ") };
        let unsigned = format!(
            "{field}: {tags}a={algorithm}; {form_tag}d={domain}; s={selector};\r\n\t{names_tag}{hash_tag}b="
        );
        let with_field = format!("{unsigned}\r\n{raw}");
        let message = Message::parse(Bytes::from(with_field)).unwrap();
        let own = message.all(&field.to_ascii_lowercase()).next().unwrap();
        let names: Vec<String> = ["from", "subject", "from"].map(str::to_owned).to_vec();
        let signature = self.signature(&message.signed_data(&names, own, form));
        format!("{unsigned}{signature}\r\n{raw}")
    }

    fn sign(&self, tags: &str, raw: &str) -> String {
        self.sign_as("DKIM-Signature", &format!("v=1; {tags}"), raw)
    }
}

fn mail(from: &str) -> String {
    format!(
        "From: Anna <{from}>\r\nTo: bert@example.org\r\nSubject: Hello\r\n\r\nHi Bert!\r\n\r\n \r\nAnna\r\n"
    )
}

fn outcomes(found: &Authentication) -> Vec<Outcome> {
    found.dkim.iter().map(|signature| signature.outcome).collect()
}
