use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::{super::tests::error_of, *};

fn args(url: &str) -> EnginesArgs {
    let own = RabbitmqArgs { rabbitmq: Some(url.to_owned()), ..RabbitmqArgs::default() };
    EnginesArgs { rabbitmq: own, ..super::super::tests::args() }
}

#[tokio::test]
async fn a_wrong_address_is_an_error_that_says_what_to_look_at() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let error = error_of(connect(&args(&format!("amqp://me:secret@127.0.0.1:{port}/%2f")))).await;
    assert!(error.contains("--rabbitmq") && error.to_lowercase().contains("refused"), "{error}");
    for url in ["http://me:secret@host", "amqp://me:secret@[::1]:5672", "me:secret"] {
        let error = error_of(connect(&args(url))).await;
        assert!(error.contains("--rabbitmq takes") && !error.contains("secret"), "{error}");
    }
}

#[tokio::test]
async fn wrong_credentials_are_an_error_that_says_what_to_look_at() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            tokio::spawn(refuse_password(connection));
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("credentials");
    std::fs::write(&file, "restante:wrong\n").unwrap();
    let mut args = args(&format!("amqp://127.0.0.1:{port}/%2f"));
    args.rabbitmq.rabbitmq_credentials = Some(file);
    let error = error_of(connect(&args)).await;
    server.abort();
    assert!(error.contains("--rabbitmq-credentials") && error.contains("ACCESS_REFUSED"), "{error}");
    assert!(!error.contains("wrong"), "{error}");
}

/// A broker that refuses each password, in the frames of AMQP 0-9-1.
async fn refuse_password(mut connection: TcpStream) -> std::io::Result<()> {
    connection.read_exact(&mut [0; 8]).await?; // "AMQP" and a version
    let mut start = vec![0, 10, 0, 10, 0, 9, 0, 0, 0, 0]; // connection.start, version 0-9, no properties
    for text in ["PLAIN", "en_US"] {
        start.extend((text.len() as u32).to_be_bytes());
        start.extend(text.as_bytes());
    }
    connection.write_all(&frame(&start)).await?;
    let mut header = [0; 7];
    connection.read_exact(&mut header).await?;
    let [_, _, _, length @ ..] = header;
    connection.read_exact(&mut vec![0; u32::from_be_bytes(length) as usize + 1]).await?;
    let why = b"ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN";
    let mut close = vec![0, 10, 0, 50, 1, 147, why.len() as u8]; // connection.close with code 403
    close.extend(why);
    close.extend([0, 10, 0, 11]); // because of connection.start-ok
    connection.write_all(&frame(&close)).await?;
    connection.read_to_end(&mut Vec::new()).await.map(drop)
}

fn frame(method: &[u8]) -> Vec<u8> {
    let mut frame = vec![1, 0, 0];
    frame.extend((method.len() as u32).to_be_bytes());
    frame.extend(method);
    frame.push(0xce);
    frame
}

#[tokio::test]
async fn what_is_left_is_named_with_the_commands_that_remove_it() {
    let access = Access::new("amqp://me:secret@broker.example.org/mail", &args("")).unwrap();
    let rabbitmq = Rabbitmq { access: Arc::new(access), management: None, prefix: "restante_bench_1".into() };
    let created = rabbitmq.created();
    assert!(created.contains("rabbitmqctl delete_queue -p 'mail' restante_bench_1_quorum"), "{created}");
    assert!(!created.contains("secret"), "{created}");
}
