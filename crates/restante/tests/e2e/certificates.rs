//! Certificates that are renewed while the server runs.

use std::{
    fs,
    io::{BufRead, BufReader, Lines, Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{ChildStdout, Stdio},
    sync::Arc,
};

use restante_net::tls::{ClientTls, Verify};
use rustix::process::{Pid, Signal, kill_process};
use rustls::{ClientConnection, StreamOwned};

use crate::support::{folder, restante, say, wait_until};

type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// Writes a new certificate and its key; returns the certificate's bytes.
pub(crate) fn renew(folder: &Path, name: &str) -> Vec<u8> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    fs::write(folder.join(format!("{name}.pem")), made.cert.pem()).unwrap();
    fs::write(folder.join(format!("{name}.key")), made.key_pair.serialize_pem()).unwrap();
    made.cert.der().to_vec()
}

fn connect(address: SocketAddr) -> TlsStream {
    let config = ClientTls { verify: Verify::Nothing, ..ClientTls::default() }.config().unwrap();
    let mut connection = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    let mut socket = TcpStream::connect(address).unwrap();
    connection.complete_io(&mut socket).unwrap();
    StreamOwned::new(connection, socket)
}

fn shown(stream: &TlsStream) -> Vec<u8> {
    stream.conn.peer_certificates().unwrap()[0].to_vec()
}

/// Requests the version by HTTP/1.1 on a connection that stays open.
fn ask(stream: &mut TlsStream) {
    stream.write_all(b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(env!("CARGO_PKG_VERSION").as_bytes()) {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        answer.extend(byte);
    }
    assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"), "{}", String::from_utf8_lossy(&answer));
}

/// The address in the next line of the server's output that contains `part`.
fn address(lines: &mut Lines<BufReader<ChildStdout>>, part: &str) -> SocketAddr {
    let line = lines.map(|line| line.unwrap()).find(|line| line.contains(part)).unwrap();
    match line.split_once("https://") {
        Some((_, address)) => address.parse().unwrap(),
        None => {
            let port = line.split("/tcp/").nth(1).and_then(|rest| rest.split('/').next()).unwrap();
            SocketAddr::from(([127, 0, 0, 1], port.parse().unwrap()))
        }
    }
}

const SETTINGS: &str = r#"
[tls]
certificate_files = ["rest.pem"]
certificate_key_files = ["rest.key"]

[rest]
port = 0
tls = true

[waku.node]
tcp_port = 0
websocket_secure = true
websocket_port = 0
certificate_file = "websocket.pem"
certificate_key_file = "websocket.key"
"#;

#[test]
fn certificates_are_read_again_on_sighup_and_no_connection_is_lost() {
    let (_guard, folder) = folder();
    let old = [renew(&folder, "rest"), renew(&folder, "websocket")];
    fs::write(folder.join("own.toml"), SETTINGS).unwrap();
    let mut server =
        restante(&folder).args(["serve", "--config", "own.toml"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let rest = address(&mut lines, "https://");
    let websocket = address(&mut lines, "/tls/ws");
    let mut open = connect(rest);
    ask(&mut open);
    assert_eq!([shown(&open), shown(&connect(websocket))], old);

    let new = [renew(&folder, "rest"), renew(&folder, "websocket")];
    kill_process(Pid::from_child(&server), Signal::HUP).unwrap();
    wait_until("new connections see the new certificates", || {
        [shown(&connect(rest)), shown(&connect(websocket))] == new
    });
    ask(&mut open);

    fs::write(folder.join("rest.pem"), "no certificate").unwrap();
    kill_process(Pid::from_child(&server), Signal::HUP).unwrap();
    let mut after = connect(rest);
    after.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut metrics = String::new();
    after.read_to_string(&mut metrics).unwrap();
    assert!(
        metrics.contains("restante_net_certificate_expiry_timestamp_seconds{file=\"rest.pem\"} "),
        "{metrics}"
    );
    assert_eq!(shown(&connect(rest)), new[0]);
    ask(&mut open);
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    assert_eq!(server.wait().unwrap().code(), Some(0));
}

#[test]
fn a_certificate_that_can_not_be_used_is_named() {
    let (_guard, folder) = folder();
    renew(&folder, "rest");
    renew(&folder, "websocket");
    renew(&folder, "other");
    fs::copy(folder.join("other.key"), folder.join("rest.key")).unwrap();
    fs::write(folder.join("own.toml"), SETTINGS).unwrap();
    for (command, code) in
        [(&["serve", "--config", "own.toml"][..], 2), (&["config", "check", "--config", "own.toml"], 1)]
    {
        let refused = say(&folder, command);
        assert_eq!(refused.code, code, "{}", refused.err);
        let said = refused.out + &refused.err;
        assert!(said.contains("tls.certificate_files") && said.contains("rest.key"), "{said}");
    }
}
