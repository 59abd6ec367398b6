use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::{super::tests::error_of, *};

fn args(cassandra: &str) -> EnginesArgs {
    let own = CassandraArgs { cassandra: Some(cassandra.to_owned()), ..CassandraArgs::default() };
    EnginesArgs { cassandra: own, ..super::super::tests::args() }
}

#[tokio::test]
async fn a_wrong_address_is_an_error_that_says_what_to_look_at() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let error = error_of(connect(&args(&address))).await;
    assert!(error.contains("--cassandra") && error.to_lowercase().contains("refused"), "{error}");
}

#[tokio::test]
async fn wrong_credentials_are_an_error_that_says_what_to_look_at() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            tokio::spawn(refuse_password(connection));
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("credentials");
    std::fs::write(&file, "restante:wrong\n").unwrap();
    let mut args = args(&address);
    args.cassandra.cassandra_credentials = Some(file);
    let error = error_of(connect(&args)).await;
    server.abort();
    assert!(error.contains("--cassandra-credentials") && error.contains("are incorrect"), "{error}");
    assert!(!error.contains("wrong"), "{error}");
}

/// A node that asks for a password and refuses each, in version 4 of the native protocol.
async fn refuse_password(mut connection: TcpStream) -> std::io::Result<()> {
    const OPTIONS: u8 = 5;
    const STARTUP: u8 = 1;
    loop {
        let mut header = [0; 9];
        connection.read_exact(&mut header).await?;
        let [_, _, stream_high, stream_low, opcode, length @ ..] = header;
        let mut body = vec![0; u32::from_be_bytes(length) as usize];
        connection.read_exact(&mut body).await?;
        let (answer, body) = match opcode {
            OPTIONS => (6, vec![0, 0]),
            STARTUP => (3, text("org.apache.cassandra.auth.PasswordAuthenticator")),
            _ => (0, [&[0, 0, 1, 0], &*text("Provided username and/or password are incorrect")].concat()),
        };
        let mut frame = vec![0x84, 0, stream_high, stream_low, answer];
        frame.extend((body.len() as u32).to_be_bytes());
        frame.extend(body);
        connection.write_all(&frame).await?;
    }
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_be_bytes(), text.as_bytes()].concat()
}

#[test]
fn a_data_center_is_chosen_by_name_or_because_there_is_no_other() {
    let nodes =
        |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), *name != "down")).collect::<Vec<_>>();
    let one = Datacenter::choose(&nodes(&["a", "a", "a", "a"]), None).unwrap();
    assert_eq!(one, Datacenter { name: "a".into(), nodes: 4, reachable: 4 });
    assert_eq!(one.replicas(), 3);
    let two = nodes(&["a", "b", "b", "down"]);
    assert_eq!(Datacenter::choose(&two, Some("b")).unwrap().nodes, 2);
    assert_eq!(Datacenter::choose(&two, Some("down")).unwrap().reachable, 0);
    for named in [None, Some("c")] {
        let error = Datacenter::choose(&two, named).unwrap_err().to_string();
        assert!(error.contains("a, b, down"), "{error}");
    }
}

#[test]
fn the_host_is_without_its_port() {
    for (node, expected) in [
        ("db1.example.org", "db1.example.org"),
        ("127.0.0.1:9042", "127.0.0.1"),
        ("::1", "::1"),
        ("[::1]:9042", "::1"),
    ] {
        assert_eq!(host(node), expected);
    }
}
