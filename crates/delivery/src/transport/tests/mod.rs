//! Tests against a server that does what a test specifies, over streams in memory and in paused time.

mod fake;
mod negotiation;
mod servers;
mod states;
pub(super) mod tls;

use std::sync::Arc;

use bytes::Bytes;
use restante_core::Error;
use restante_mail::queue::{Notify, SourceKind, Transmission};
use restante_net::dns::FixedResolver;
use restante_records::RecordId;

use super::*;
use crate::{Attempted, Outgoing, Recipient, prepare::sniff};
use fake::{Fake, FakeNetwork};

/// A domain with one server.
const DOMAIN: &str = "example.net";
const SERVER: &str = "mx.example.net";
const ADDRESS: &str = "192.0.2.1:25";

/// Signs with a fixed field.
struct FixedSigner(&'static str);

#[async_trait]
impl Signer for FixedSigner {
    async fn sign(&self, _message: &Outgoing) -> Result<Vec<u8>, Error> {
        match self.0 {
            "fail" => Err(Error::unavailable("no keys")),
            field => Ok(field.as_bytes().to_vec()),
        }
    }
}

fn message(text: &str) -> Outgoing {
    let bytes = Bytes::copy_from_slice(text.as_bytes());
    Outgoing {
        transmission: sniff(&bytes),
        bytes,
        sender: "anna@example.org".into(),
        envelope_id: None,
        returned: None,
        source: SourceKind::Smtp,
        account: None,
        record: RecordId(0),
        key: [1; 32],
    }
}

fn plain() -> Outgoing {
    message("Subject: hello\r\n\r\n.text\r\n")
}

fn recipient(address: &str) -> Recipient {
    Recipient { address: address.into(), notify: Notify::default(), original: None }
}

fn recipients(addresses: &[&str]) -> Vec<Recipient> {
    addresses.iter().map(|address| recipient(address)).collect()
}

/// The parts with one server for the domain.
fn parts(fake: &Fake) -> RemoteParts {
    let resolver = FixedResolver::new();
    resolver.add_mx(DOMAIN, &[(10, SERVER)]);
    resolver.set_addresses(SERVER, Answer::Found(vec!["192.0.2.1".parse().unwrap()]));
    RemoteParts {
        resolver: Arc::new(resolver),
        network: Arc::new(FakeNetwork::of(&[(ADDRESS, fake)])),
        policies: Arc::new(NoPolicies),
        signer: Arc::new(FixedSigner("")),
        own: OwnHost { names: vec!["mail.example.org".into()], listeners: Vec::new() },
        seed: 1,
        metrics: RemoteMetrics::default(),
    }
}

fn remote(fake: &Fake) -> SmtpRemote {
    SmtpRemote::new(&RemoteConfig::default(), parts(fake)).unwrap()
}

async fn connected(fake: &Fake) -> Box<dyn Connection> {
    remote(fake).connect(DOMAIN).await.map_err(|reply| format!("{reply:?}")).unwrap()
}

/// The reply for each recipient of one message.
async fn send(fake: &Fake, message: &Outgoing, addresses: &[&str]) -> Vec<(u16, String)> {
    let attempted = connected(fake).await.send(message, &recipients(addresses)).await;
    codes(&attempted)
}

fn codes(attempted: &[Attempted]) -> Vec<(u16, String)> {
    attempted.iter().map(|attempted| code(&attempted.reply)).collect()
}

fn code(reply: &Reply) -> (u16, String) {
    (reply.code, reply.enhanced.clone())
}

fn is(code: u16, enhanced: &str) -> (u16, String) {
    (code, enhanced.to_owned())
}

fn utf8() -> Transmission {
    Transmission { is_8bit: true, is_utf8: true }
}
