//! Sending over TCP on loopback, with servers that a fake name server names.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    net::{Ipv4Addr, SocketAddr},
    num::NonZero,
    sync::Arc,
};

use async_trait::async_trait;
use bytes::Bytes;
use hickory_server::{
    Server,
    net::runtime::Time,
    proto::{
        op::{Metadata, ResponseCode},
        rr::{
            Name, RData, Record, RecordType,
            rdata::{A, MX, SOA},
        },
    },
    server::{Request, RequestHandler, ResponseHandler, ResponseInfo},
    zone_handler::MessageResponseBuilder,
};
use restante_core::Error;
use restante_delivery::{
    Outgoing, Recipient, Remote, Signer,
    route::OwnHost,
    transport::{NoPolicies, RemoteConfig, RemoteMetrics, RemoteParts, SmtpRemote, TcpNetwork},
};
use restante_mail::queue::{Notify, Reply, SourceKind, Transmission};
use restante_net::dns::SystemResolver;
use restante_records::RecordId;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, UdpSocket},
    sync::mpsc,
};

struct NoSignatures;

#[async_trait]
impl Signer for NoSignatures {
    async fn sign(&self, _message: &Outgoing) -> Result<Vec<u8>, Error> {
        Ok(Vec::new())
    }
}

/// `one.test` has two servers, and nobody listens at the first one; `null.test` takes no mail; `failing.test` has no answer.
struct Zone;

#[async_trait]
impl RequestHandler for Zone {
    async fn handle_request<R: ResponseHandler, T: Time>(
        &self,
        request: &Request,
        mut responses: R,
    ) -> ResponseInfo {
        let info = request.request_info().unwrap();
        let asked: Name = info.query.name().into();
        let name = |text: &str| Name::from_ascii(text).unwrap();
        let (code, data) = match (asked.to_ascii().as_str(), info.query.query_type()) {
            ("one.test.", RecordType::MX) => {
                let (dead, alive) = (MX::new(10, name("dead.test.")), MX::new(20, name("mx.test.")));
                (ResponseCode::NoError, vec![RData::MX(dead), RData::MX(alive)])
            }
            ("null.test.", RecordType::MX) => {
                (ResponseCode::NoError, vec![RData::MX(MX::new(0, Name::root()))])
            }
            ("failing.test.", _) => (ResponseCode::ServFail, Vec::new()),
            ("dead.test.", RecordType::A) => (ResponseCode::NoError, vec![RData::A(A::new(127, 0, 0, 2))]),
            ("mx.test.", RecordType::A) => (ResponseCode::NoError, vec![RData::A(A::new(127, 0, 0, 1))]),
            ("dead.test." | "mx.test.", _) => (ResponseCode::NoError, Vec::new()),
            _ => (ResponseCode::NXDomain, Vec::new()),
        };
        let answers: Vec<Record> =
            data.into_iter().map(|data| Record::from_rdata(asked.clone(), 60, data)).collect();
        let soa = RData::SOA(SOA::new(name("ns.test."), name("admin.test."), 1, 60, 60, 60, 60));
        let authority = Record::from_rdata(name("test."), 60, soa);
        let authority = (code != ResponseCode::ServFail && answers.is_empty()).then_some(&authority);
        let mut metadata = Metadata::response_from_request(info.metadata);
        metadata.response_code = code;
        let builder = MessageResponseBuilder::from_message_request(request);
        let response = builder.build(metadata, &answers, authority, [], []);
        responses.send_response(response).await.unwrap()
    }
}

async fn name_server() -> (SocketAddr, Server<Zone>) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    let mut server = Server::new(Zone);
    server.register_socket(socket);
    (address, server)
}

/// Takes mail on loopback, and passes on the lines that it receives.
async fn sink(lines: mpsc::Sender<String>) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        let (reader, mut writer) = socket.into_split();
        let mut reader = BufReader::new(reader).lines();
        writer.write_all(b"220 mx.test\r\n").await.unwrap();
        let mut is_data = false;
        while let Ok(Some(line)) = reader.next_line().await {
            let reply: &[u8] = match line.as_str() {
                "." => b"250 2.0.0 taken\r\n",
                _ if is_data => b"",
                "DATA" => b"354 go on\r\n",
                "QUIT" => b"221 bye\r\n",
                _ if line.starts_with("EHLO") => b"250-mx.test\r\n250 PIPELINING\r\n",
                _ => b"250 ok\r\n",
            };
            is_data = (is_data || line == "DATA") && line != ".";
            writer.write_all(reply).await.unwrap();
            lines.send(line).await.unwrap();
        }
    });
    port
}

fn remote(resolver: SocketAddr, port: u16) -> SmtpRemote {
    let config = RemoteConfig {
        resolver: vec![resolver],
        port: NonZero::new(port).unwrap(),
        ..RemoteConfig::default()
    };
    let parts = RemoteParts {
        resolver: Arc::new(SystemResolver::new(&config.resolver()).unwrap()),
        network: Arc::new(TcpNetwork),
        policies: Arc::new(NoPolicies),
        signer: Arc::new(NoSignatures),
        own: OwnHost { names: vec!["mail.example.org".into()], listeners: Vec::new() },
        seed: 1,
        metrics: RemoteMetrics::default(),
    };
    SmtpRemote::new(&config, parts).unwrap()
}

#[tokio::test]
async fn out6_mail_goes_to_the_servers_that_the_dns_names() {
    let (dns, _server) = name_server().await;
    let (sender, mut lines) = mpsc::channel(100);
    let remote = remote(dns, sink(sender).await);
    let mut connection = remote.connect("one.test").await.map_err(|reply: Reply| reply.text).unwrap();
    let message = Outgoing {
        bytes: Bytes::from_static(b"Subject: hello\r\n\r\n.text\r\n"),
        sender: "anna@example.org".into(),
        envelope_id: None,
        returned: None,
        transmission: Transmission::default(),
        source: SourceKind::Smtp,
        account: None,
        record: RecordId(0),
        key: [1; 32],
    };
    let bob = Recipient { address: "bob@one.test".into(), notify: Notify::default(), original: None };
    let attempted = connection.send(&message, &[bob]).await;
    assert_eq!((attempted[0].reply.code, attempted[0].reply.from.as_deref()), (250, Some("mx.test")));
    connection.close().await;
    let mut received = Vec::new();
    while let Some(line) = lines.recv().await {
        received.push(line);
    }
    let expected = [
        "EHLO mail.example.org",
        "MAIL FROM:<anna@example.org>",
        "RCPT TO:<bob@one.test>",
        "DATA",
        "Subject: hello",
        "",
        "..text",
        ".",
        "QUIT",
    ];
    assert_eq!(received, expected);
}

#[tokio::test]
async fn out9_a_fake_name_server_decides_what_ends_and_what_waits() {
    let (dns, _server) = name_server().await;
    let remote = remote(dns, 25_252);
    for (domain, code, enhanced) in
        [("null.test", 556, "5.1.10"), ("missing.test", 550, "5.1.2"), ("failing.test", 450, "4.4.3")]
    {
        let reply = remote.connect(domain).await.err().unwrap();
        assert_eq!((reply.code, reply.enhanced.as_str()), (code, enhanced), "{domain}");
    }
}
