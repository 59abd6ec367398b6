//! Tests with a name server on loopback that is slow, absent or lies.

use std::{net::SocketAddr, time::Duration};

use futures_util::future::pending;
use hickory_server::{
    Server,
    net::runtime::Time,
    proto::{
        op::{Metadata, ResponseCode},
        rr::{
            Name, RData, Record, RecordType,
            rdata::{A, AAAA, CNAME, MX, PTR, SOA, SRV, TXT},
        },
    },
    server::{Request, RequestHandler, ResponseHandler, ResponseInfo},
    zone_handler::MessageResponseBuilder,
};
use tokio::net::{TcpListener, UdpSocket};

use super::*;

/// Answers depending on the name of the query.
struct Zone;

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

fn soa(zone: &str) -> Record {
    let soa = SOA::new(name("ns.example."), name("admin.example."), 1, 60, 60, 60, 60);
    Record::from_rdata(name(zone), 60, RData::SOA(soa))
}

/// The response code, the answers, and the SOA of a negative answer.
fn answer(asked: &Name, record_type: RecordType) -> (ResponseCode, Vec<Record>, Vec<Record>) {
    let records = |data: Vec<RData>| {
        let record = |data| Record::from_rdata(asked.clone(), 60, data);
        (ResponseCode::NoError, data.into_iter().map(record).collect(), Vec::new())
    };
    let nothing = |code, zone: Option<&str>| (code, Vec::new(), zone.map(soa).into_iter().collect());
    match (asked.to_ascii().to_ascii_lowercase().as_str(), record_type) {
        ("mail.example.", RecordType::MX) => records(vec![
            RData::MX(MX::new(20, name("B.mail.example."))),
            RData::MX(MX::new(10, name("a.mail.example."))),
        ]),
        ("null.example.", RecordType::MX) => records(vec![RData::MX(MX::new(0, Name::root()))]),
        ("a.mail.example.", RecordType::A) => records(vec![RData::A(A::new(192, 0, 2, 1))]),
        ("a.mail.example.", RecordType::AAAA) => {
            records(vec![RData::AAAA(AAAA::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))])
        }
        ("v4.example.", RecordType::A) => records(vec![RData::A(A::new(192, 0, 2, 4))]),
        ("v4.example.", RecordType::AAAA) => nothing(ResponseCode::ServFail, None),
        ("txt.example.", RecordType::TXT) => {
            records(vec![RData::TXT(TXT::new(vec!["v=STSv1; ".into(), "id=1".into()]))])
        }
        ("_jmap._tcp.example.", RecordType::SRV) => {
            records(vec![RData::SRV(SRV::new(1, 2, 443, name("JMAP.example.")))])
        }
        ("1.2.0.192.in-addr.arpa.", RecordType::PTR) => {
            records(vec![RData::PTR(PTR(name("A.mail.example."))), RData::PTR(PTR(name("other.example.")))])
        }
        ("1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa.", RecordType::PTR) => {
            records(vec![RData::PTR(PTR(name("a.mail.example.")))])
        }
        ("2.2.0.192.in-addr.arpa.", _) => nothing(ResponseCode::NXDomain, Some("2.0.192.in-addr.arpa.")),
        ("3.2.0.192.in-addr.arpa.", _) => nothing(ResponseCode::ServFail, None),
        ("alias.example.", RecordType::MX) => records(vec![RData::CNAME(CNAME(name("nowhere.other.")))]),
        ("nowhere.other.", _) => nothing(ResponseCode::NXDomain, Some("other.")),
        ("empty.example.", _) => nothing(ResponseCode::NoError, Some("example.")),
        ("lame.example.", _) => nothing(ResponseCode::NoError, None),
        ("lying.example.", _) => nothing(ResponseCode::NXDomain, None),
        ("foreign.example.", _) => nothing(ResponseCode::NXDomain, Some("other.")),
        ("failing.example.", _) => nothing(ResponseCode::ServFail, None),
        ("refused.example.", _) => nothing(ResponseCode::Refused, None),
        _ => nothing(ResponseCode::NXDomain, Some("example.")),
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
        if asked.to_ascii() == "slow.example." {
            pending::<()>().await;
        }
        let (code, answers, authority) = answer(&asked, info.query.query_type());
        let mut metadata = Metadata::response_from_request(info.metadata);
        metadata.response_code = code;
        metadata.recursion_available = true;
        let response = MessageResponseBuilder::from_message_request(request).build(
            metadata,
            &answers,
            &authority,
            [],
            [],
        );
        responses.send_response(response).await.unwrap()
    }
}

async fn serve() -> (SocketAddr, Server<Zone>) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    let mut server = Server::new(Zone);
    server.register_socket(socket);
    if let Ok(listener) = TcpListener::bind(address).await {
        server.register_listener(listener, Duration::from_secs(5), 4_096);
    }
    (address, server)
}

fn resolver(server: SocketAddr, timeout_ms: u64) -> SystemResolver {
    let config = ResolverConfig {
        servers: vec![server],
        timeout: Duration::from_millis(timeout_ms),
        ..ResolverConfig::default()
    };
    SystemResolver::new(&config).unwrap()
}

#[tokio::test]
async fn records_are_found() {
    let (address, _server) = serve().await;
    let resolver = resolver(address, 5_000);
    let mut mx = resolver.mx("mail.example").await.records();
    mx.sort();
    let record = |preference, host: &str| MxRecord { preference, host: host.into() };
    assert_eq!(mx, [record(10, "a.mail.example"), record(20, "b.mail.example")]);
    assert_eq!(resolver.mx("null.example.").await, Answer::Found(vec![record(0, "")]));
    let mut addresses = resolver.addresses("a.mail.example").await.records();
    addresses.sort();
    assert_eq!(addresses, ["192.0.2.1".parse::<IpAddr>().unwrap(), "2001:db8::1".parse().unwrap()]);
    let v4 = vec!["192.0.2.4".parse().unwrap()];
    assert_eq!(resolver.addresses("v4.example").await, Answer::Found(v4), "one of both is enough");
    assert_eq!(resolver.txt("txt.example").await, Answer::Found(vec!["v=STSv1; id=1".into()]));
    let srv = SrvRecord { priority: 1, weight: 2, port: 443, target: "jmap.example".into() };
    assert_eq!(resolver.srv("_jmap._tcp.example").await, Answer::Found(vec![srv]));
}

#[tokio::test]
async fn out9_what_is_not_there_is_certain_only_from_a_server_that_has_the_zone() {
    let (address, _server) = serve().await;
    let resolver = resolver(address, 5_000);
    assert_eq!(resolver.mx("missing.example").await, Answer::NoSuchName);
    assert_eq!(resolver.addresses("missing.example").await, Answer::NoSuchName);
    assert_eq!(resolver.mx("empty.example").await, Answer::NoRecords);
    assert_eq!(resolver.addresses("empty.example").await, Answer::NoRecords);
    assert_eq!(resolver.mx("alias.example").await, Answer::NoSuchName, "what it is an alias of is not there");
    let long = format!("{}.example", "a".repeat(64));
    assert_eq!(resolver.mx(&long).await, Answer::NoSuchName, "a label has 63 octets at most");
    for lie in ["lame", "lying", "foreign", "failing", "refused"] {
        let name = format!("{lie}.example");
        assert!(matches!(resolver.mx(&name).await, Answer::Temporary(_)), "{lie}");
        assert!(matches!(resolver.addresses(&name).await, Answer::Temporary(_)), "{lie}");
    }
}

#[tokio::test]
async fn out9_a_server_that_is_slow_or_absent_is_no_answer() {
    let (address, _server) = serve().await;
    let slow = resolver(address, 50).mx("slow.example").await;
    assert!(matches!(slow, Answer::Temporary(_)), "{slow:?}");
    let absent = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let absent = resolver(absent, 50).mx("mail.example").await;
    assert!(matches!(absent, Answer::Temporary(_)), "{absent:?}");
}

#[tokio::test]
async fn a_fixed_resolver_answers_what_was_set() {
    let resolver = FixedResolver::new();
    resolver.add_mx("Example.org", &[(10, "Mail.example.org.")]);
    let record = MxRecord { preference: 10, host: "mail.example.org".into() };
    assert_eq!(resolver.mx("example.org.").await, Answer::Found(vec![record]));
    assert_eq!(resolver.addresses("example.org").await, Answer::NoRecords);
    assert_eq!(resolver.addresses("mail.example.org").await, Answer::NoSuchName);
    resolver.set_addresses("mail.example.org", Answer::Temporary("later".into()));
    assert_eq!(resolver.addresses("mail.example.org").await, Answer::Temporary("later".into()));
}

#[tokio::test]
async fn chk9_names_of_addresses_are_found() {
    let (address, _server) = serve().await;
    let resolver = resolver(address, 5_000);
    let ptr = async |address: &str| resolver.ptr(address.parse().unwrap()).await;
    let mut names = ptr("192.0.2.1").await.records();
    names.sort();
    assert_eq!(names, ["a.mail.example", "other.example"]);
    assert_eq!(ptr("2001:db8::1").await, Answer::Found(vec!["a.mail.example".into()]));
    assert_eq!(ptr("192.0.2.2").await, Answer::NoSuchName);
    assert!(matches!(ptr("192.0.2.3").await, Answer::Temporary(_)));
    assert!(matches!(ptr("192.0.2.4").await, Answer::Temporary(_)), "the server does not have that zone");
}

#[tokio::test]
async fn addresses_of_one_family_are_looked_up_alone() {
    let (address, _server) = serve().await;
    let resolver = resolver(address, 5_000);
    let only = |text: &str| Answer::Found(vec![text.parse::<IpAddr>().unwrap()]);
    assert_eq!(resolver.ipv4_addresses("a.mail.example").await, only("192.0.2.1"));
    assert_eq!(resolver.ipv6_addresses("a.mail.example").await, only("2001:db8::1"));
    assert!(matches!(resolver.ipv6_addresses("v4.example").await, Answer::Temporary(_)));
    assert_eq!(resolver.ipv4_addresses("missing.example").await, Answer::NoSuchName);
    let fixed = FixedResolver::new();
    let both = vec!["2001:db8::1".parse().unwrap(), "192.0.2.1".parse().unwrap()];
    fixed.set_addresses("both.example", Answer::Found(both));
    fixed.set_addresses("v6.example", Answer::Found(vec!["2001:db8::1".parse().unwrap()]));
    assert_eq!(fixed.ipv4_addresses("both.example").await, only("192.0.2.1"));
    assert_eq!(fixed.ipv4_addresses("v6.example").await, Answer::NoRecords);
    let address = "192.0.2.1".parse().unwrap();
    assert_eq!(fixed.ptr(address).await, Answer::NoSuchName);
    fixed.set_ptr(address, Answer::Found(vec!["a.example".into()]));
    assert_eq!(fixed.ptr(address).await, Answer::Found(vec!["a.example".into()]));
}

#[test]
fn the_dns_names_addresses_from_their_ends() {
    let of = |address: &str| reversed(address.parse().unwrap());
    assert_eq!(of("192.0.2.99"), "99.2.0.192");
    // The example of RFC 5782 §2.4.
    assert_eq!(
        of("2001:db8:1:2:3:4:567:89ab"),
        "b.a.9.8.7.6.5.0.4.0.0.0.3.0.0.0.2.0.0.0.1.0.0.0.8.b.d.0.1.0.0.2"
    );
}
