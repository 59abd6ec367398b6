//! A mail of a bank, signed by two keys, and the name server that knows them.

use aws_lc_rs::{
    digest::{SHA256, digest},
    encoding::{AsDer, PublicKeyX509Der},
    rand::SystemRandom,
    rsa::KeySize,
    signature::{Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair},
};
use base64_simd::STANDARD;
use bytes::Bytes;
use restante_net::dns::{Answer, FixedResolver};

pub(super) const DOMAIN: &str = "bank.example";
const FROM: &str = "Bank <news@bank.example>";

/// Keys that sign.
pub(super) struct Keys {
    rsa: RsaKeyPair,
    ed25519: Ed25519KeyPair,
}

impl Keys {
    pub(super) fn generate() -> anyhow::Result<Self> {
        Ok(Self { rsa: RsaKeyPair::generate(KeySize::Rsa2048)?, ed25519: Ed25519KeyPair::generate()? })
    }

    /// DNS records of the bank: its keys, its servers, its policy.
    pub(super) fn names(&self) -> anyhow::Result<FixedResolver> {
        let names = FixedResolver::new();
        let publish = |name: &str, text: String| names.set_txt(name, Answer::Found(vec![text]));
        let rsa: PublicKeyX509Der<'_> = self.rsa.public_key().as_der()?;
        let rsa = STANDARD.encode_to_string(rsa.as_ref());
        let ed25519 = STANDARD.encode_to_string(self.ed25519.public_key().as_ref());
        publish("rsa._domainkey.bank.example", format!("v=DKIM1; k=rsa; p={rsa}"));
        publish("ed._domainkey.bank.example", format!("v=DKIM1; k=ed25519; p={ed25519}"));
        publish(DOMAIN, "v=spf1 mx include:servers.bank.example -all".to_owned());
        publish("servers.bank.example", "v=spf1 ip4:192.0.2.0/24 ip6:2001:db8::/32 -all".to_owned());
        publish("_dmarc.bank.example", "v=DMARC1; p=reject; rua=mailto:reports@bank.example".to_owned());
        names.add_mx(DOMAIN, &[(10, "mx.bank.example")]);
        names.set_addresses("mx.bank.example", Answer::Found(vec!["198.51.100.1".parse()?]));
        Ok(names)
    }

    /// A mail with about `body_bytes` bytes of body and `signatures` signatures, two at most. Its fields and lines are in
    /// canonical form already.
    pub(super) fn mail(&self, body_bytes: usize, signatures: usize) -> anyhow::Result<Bytes> {
        let line = "Dear customer, this is what your account did in the last month, and a line.\r\n";
        let body = line.repeat(body_bytes.div_ceil(line.len()));
        let hash = STANDARD.encode_to_string(digest(&SHA256, body.as_bytes()));
        let fields = [("from", FROM), ("to", "Anna <anna@example.org>"), ("subject", "News of your account")];
        let mut mail = String::new();
        for (name, value) in fields {
            mail.push_str(&format!("{name}:{value}\r\n"));
        }
        let header = mail.clone();
        for (selector, algorithm) in
            [("rsa", "rsa-sha256"), ("ed", "ed25519-sha256")].into_iter().take(signatures)
        {
            let own = format!(
                "dkim-signature:v=1; a={algorithm}; c=relaxed/relaxed; d={DOMAIN}; s={selector}; h=from:to:subject; bh={hash}; b="
            );
            let signed = format!("{header}{own}");
            let signature = if selector == "rsa" {
                let mut signature = vec![0; self.rsa.public_modulus_len()];
                self.rsa.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signed.as_bytes(), &mut signature)?;
                signature
            } else {
                self.ed25519.sign(digest(&SHA256, signed.as_bytes()).as_ref()).as_ref().to_vec()
            };
            mail.insert_str(0, &format!("{own}{}\r\n", STANDARD.encode_to_string(signature)));
        }
        Ok(Bytes::from(format!("{mail}\r\n{body}")))
    }
}
