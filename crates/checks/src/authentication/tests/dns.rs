//! Tests with a name server on loopback that is slow, absent or lying.

use std::net::SocketAddr;

use async_trait::async_trait;
use hickory_server::{
    Server,
    net::runtime::Time,
    proto::{
        op::{Metadata, ResponseCode},
        rr::{
            Name, RData, Record, RecordType,
            rdata::{A, SOA, TXT},
        },
    },
    server::{Request, RequestHandler, ResponseHandler, ResponseInfo},
    zone_handler::MessageResponseBuilder,
};
use restante_net::dns::{ResolverConfig, SystemResolver};
use tokio::net::UdpSocket;

use super::*;

/// How a name server answers queries about `bank.example`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// It answers: SPF, a key, and a policy of rejection.
    Honest,
    /// It never answers.
    Silent,
    /// It knows nothing.
    Failing,
    Refusing,
    /// It says that nothing exists, without the zone's SOA.
    NothingExists,
    /// It has no records of any name, without the zone's SOA.
    NothingThere,
    /// It says that nothing exists, with the SOA of another zone.
    ForeignZone,
    /// It answers with records that were not asked for.
    OtherRecords,
}

/// Which of the queries are answered in that manner; the others honestly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    All,
    Keys,
    Policies,
    Senders,
}

struct Zone {
    manner: Manner,
    about: About,
    key: String,
}

impl Zone {
    fn answer(&self, asked: &Name) -> (ResponseCode, Vec<Record>, Vec<Record>) {
        let name = asked.to_ascii().to_ascii_lowercase();
        let about = match &name {
            name if name.contains("_domainkey") => About::Keys,
            name if name.starts_with("_dmarc") => About::Policies,
            _ => About::Senders,
        };
        let manner =
            if self.about == About::All || self.about == about { self.manner } else { Manner::Honest };
        let text = |text: &str| {
            let parts = text.as_bytes().chunks(200).map(|part| String::from_utf8_lossy(part).into_owned());
            vec![Record::from_rdata(asked.clone(), 60, RData::TXT(TXT::new(parts.collect())))]
        };
        let soa = |zone: &str| {
            let name = |text| Name::from_ascii(text).unwrap();
            let soa = SOA::new(name("ns.example."), name("admin.example."), 1, 60, 60, 60, 60);
            vec![Record::from_rdata(name(zone), 60, RData::SOA(soa))]
        };
        match manner {
            Manner::Honest => match name.as_str() {
                "bank.example." => (ResponseCode::NoError, text("v=spf1 ip4:192.0.2.1 -all"), Vec::new()),
                "_dmarc.bank.example." => (ResponseCode::NoError, text("v=DMARC1; p=reject"), Vec::new()),
                "s._domainkey.bank.example." => (ResponseCode::NoError, text(&self.key), Vec::new()),
                _ => (ResponseCode::NXDomain, Vec::new(), soa("example.")),
            },
            Manner::Failing | Manner::Silent => (ResponseCode::ServFail, Vec::new(), Vec::new()),
            Manner::Refusing => (ResponseCode::Refused, Vec::new(), Vec::new()),
            Manner::NothingExists => (ResponseCode::NXDomain, Vec::new(), Vec::new()),
            Manner::NothingThere => (ResponseCode::NoError, Vec::new(), Vec::new()),
            Manner::ForeignZone => (ResponseCode::NXDomain, Vec::new(), soa("other.")),
            Manner::OtherRecords => {
                let record = Record::from_rdata(asked.clone(), 60, RData::A(A::new(192, 0, 2, 1)));
                (ResponseCode::NoError, vec![record], Vec::new())
            }
        }
    }
}

#[async_trait]
impl RequestHandler for Zone {
    async fn handle_request<R: ResponseHandler, T: Time>(
        &self,
        request: &Request,
        mut responses: R,
    ) -> ResponseInfo {
        let info = request.request_info().unwrap();
        let asked: Name = info.query.name().into();
        assert_eq!(info.query.query_type(), RecordType::TXT);
        if self.manner == Manner::Silent {
            std::future::pending::<()>().await;
        }
        let (code, answers, authority) = self.answer(&asked);
        let mut metadata = Metadata::response_from_request(info.metadata);
        metadata.response_code = code;
        metadata.recursion_available = true;
        let builder = MessageResponseBuilder::from_message_request(request);
        let response = builder.build(metadata, &answers, &authority, [], []);
        responses.send_response(response).await.unwrap()
    }
}

async fn serve(manner: Manner, about: About, signer: &Signer) -> (SocketAddr, Server<Zone>) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    let mut server = Server::new(Zone { manner, about, key: signer.record("") });
    server.register_socket(socket);
    (address, server)
}

fn ask(server: SocketAddr, timeout: Duration) -> Authenticator {
    let config = ResolverConfig {
        servers: vec![server],
        timeout: Duration::from_millis(100),
        ..ResolverConfig::default()
    };
    authenticator(Arc::new(SystemResolver::new(&config).unwrap()), timeout)
}

async fn judge(authenticator: &Authenticator, address: &str, signer: &Signer) -> Authentication {
    let raw = Bytes::from(signer.sign("", &mail("a@bank.example")));
    authenticator.authenticate(&peer(address, "mail.example.net"), "a@bank.example", &raw).await
}

#[tokio::test]
async fn chk7_an_honest_server_is_believed() {
    let signer = Signer::rsa("bank.example", "s");
    let (address, _server) = serve(Manner::Honest, About::All, &signer).await;
    let authenticator = ask(address, Duration::from_secs(60));
    let found = judge(&authenticator, "192.0.2.1", &signer).await;
    assert_eq!(
        (found.spf, outcomes(&found), found.dmarc),
        (Outcome::Pass, vec![Outcome::Pass], Outcome::Pass)
    );
    let stranger = Signer::ed25519("bank.example", "other");
    let found = judge(&authenticator, "192.0.2.2", &stranger).await;
    assert_eq!((found.spf, outcomes(&found)), (Outcome::Fail, vec![Outcome::PermError]));
    assert_eq!((found.dmarc, found.policy), (Outcome::Fail, DmarcPolicy::Reject));
}

#[tokio::test]
async fn chk7_a_server_that_lies_or_fails_gives_temperror() {
    let signer = Signer::ed25519("bank.example", "s");
    for manner in [
        Manner::Failing,
        Manner::Refusing,
        Manner::NothingExists,
        Manner::NothingThere,
        Manner::ForeignZone,
        Manner::OtherRecords,
    ] {
        for about in [About::All, About::Keys, About::Policies, About::Senders] {
            let (address, _server) = serve(manner, about, &signer).await;
            // From another address, so that SPF would not pass.
            let found = judge(&ask(address, Duration::from_secs(60)), "192.0.2.2", &signer).await;
            let what = format!("{manner:?} about {about:?}: {found:?}");
            let (spf, dkim) = (found.spf, found.dkim[0].outcome);
            match about {
                About::All => assert_eq!(
                    (spf, dkim, found.dmarc),
                    (Outcome::TempError, Outcome::TempError, Outcome::TempError),
                    "{what}"
                ),
                About::Keys => assert_eq!(
                    (spf, dkim, found.dmarc),
                    (Outcome::Fail, Outcome::TempError, Outcome::TempError),
                    "{what}"
                ),
                About::Policies => assert_eq!(
                    (spf, dkim, found.dmarc),
                    (Outcome::Fail, Outcome::Pass, Outcome::TempError),
                    "{what}"
                ),
                About::Senders => assert_eq!(
                    (spf, dkim, found.dmarc),
                    (Outcome::TempError, Outcome::Pass, Outcome::Pass),
                    "{what}"
                ),
            }
        }
    }
}

#[tokio::test]
async fn chk7_a_server_that_is_slow_or_absent_gives_temperror_in_bounded_time() {
    let signer = Signer::ed25519("bank.example", "s");
    let (silent, _server) = serve(Manner::Silent, About::All, &signer).await;
    let absent = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for address in [silent, absent] {
        let found = judge(&ask(address, Duration::from_millis(400)), "192.0.2.1", &signer).await;
        assert_eq!((found.spf, found.dmarc), (Outcome::TempError, Outcome::TempError), "{found:?}");
        assert_eq!(outcomes(&found), [Outcome::TempError]);
    }
}

/// A resolver that never answers.
struct Never;

#[async_trait]
impl Resolver for Never {
    async fn mx(&self, _: &str) -> Answer<restante_net::dns::MxRecord> {
        std::future::pending().await
    }
    async fn addresses(&self, _: &str) -> Answer<IpAddr> {
        std::future::pending().await
    }
    async fn ipv4_addresses(&self, _: &str) -> Answer<IpAddr> {
        std::future::pending().await
    }
    async fn ipv6_addresses(&self, _: &str) -> Answer<IpAddr> {
        std::future::pending().await
    }
    async fn ptr(&self, _: IpAddr) -> Answer<String> {
        std::future::pending().await
    }
    async fn txt(&self, _: &str) -> Answer<String> {
        std::future::pending().await
    }
    async fn srv(&self, _: &str) -> Answer<restante_net::dns::SrvRecord> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn chk7_all_is_known_within_the_time_that_is_set() {
    let signer = Signer::ed25519("bank.example", "s");
    let authenticator = authenticator(Arc::new(Never), Duration::from_secs(20));
    let start = tokio::time::Instant::now();
    let found = judge(&authenticator, "192.0.2.1", &signer).await;
    assert_eq!(
        (found.spf, found.dmarc, outcomes(&found)),
        (Outcome::TempError, Outcome::TempError, vec![Outcome::TempError])
    );
    assert!(start.elapsed() <= Duration::from_secs(20));
}
