//! Properties that hold for any bytes, for fuzz targets and tests with random input.

use std::{future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use restante_core::{ManualClock, Timestamp};
use restante_net::dns::{Answer, FixedResolver};

use crate::{Authenticator, ClientFacts, Envelope, Outcome, Peer, claims_to_be_ours, results_field};

/// Authenticates bytes as a message whose domains publish the same bytes as records: nothing panics, nothing passes that nobody
/// has signed, and the results field is a single field.
pub fn authentication(bytes: &[u8]) {
    const LONG: usize = 32 << 10; // longer messages are computed on other threads
    let bytes = bytes.get(..LONG).unwrap_or(bytes);
    let text: String = String::from_utf8_lossy(bytes).into_owned();
    let said = text.lines().map(str::to_owned).chain([text.clone()]).take(8).collect();
    let resolver = FixedResolver::new();
    for name in ["example.com", "_dmarc.example.com", "s._domainkey.example.com", "mail.example.net"] {
        resolver.set_txt(name, Answer::Found(Vec::clone(&said)));
    }
    let clock = Arc::new(ManualClock::new(Timestamp(0)));
    let authenticator = Authenticator::new(Arc::new(resolver), clock, Duration::from_secs(20));
    let address = std::net::Ipv4Addr::LOCALHOST.into();
    let hello = text.lines().next().unwrap_or_default();
    let peer = Peer { address, hello: hello.to_owned(), is_tls: false };
    let raw = Bytes::copy_from_slice(bytes);
    let hostname = "mail.example.org";
    for sender in ["", "a@example.com", hello] {
        let found = now(authenticator.authenticate(&peer, sender, &raw));
        assert!(found.dkim.iter().all(|signature| signature.outcome != Outcome::Pass));
        assert_ne!(found.arc, Outcome::Pass);
        let facts = ClientFacts::UNKNOWN;
        let envelope = Envelope { peer: &peer, facts: &facts, id: "1", sender, recipients: &[], received: 0 };
        let field = results_field(hostname, envelope, &found);
        let lines: Vec<&str> = field.split("\r\n").collect();
        let is_folded = lines.iter().skip(1).all(|line| line.is_empty() || line.starts_with('\t'));
        let has_other_breaks = lines.iter().any(|line| line.contains(['\r', '\n']));
        assert!(is_folded && !has_other_breaks && field.ends_with("\r\n"), "{field:?}");
        let value = field.strip_prefix("Authentication-Results:").unwrap_or_default();
        assert!(claims_to_be_ours(hostname, value.as_bytes()), "{field:?}");
    }
    claims_to_be_ours(hostname, bytes);
}

/// The result of a future that waits for nothing but timers.
fn now<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime without I/O can be built");
    runtime.block_on(future)
}
