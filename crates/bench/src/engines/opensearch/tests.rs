use super::{
    super::tests::{error_of, server_that_answers},
    *,
};

fn args_for(url: String, credentials: Option<PathBuf>) -> EnginesArgs {
    EnginesArgs { opensearch: OpensearchArgs { url: Some(url), credentials }, ..super::super::tests::args() }
}

#[tokio::test]
async fn errors_of_the_connection_say_what_to_do() {
    for (status, body, advice) in [
        ("401 Unauthorized", "Unauthorized", "--opensearch-credentials"),
        ("200 OK", "<html>", "it is no OpenSearch"),
        ("503 Service Unavailable", r#"{"error":"not yet"}"#, "503 not yet"),
    ] {
        let error = error_of(connect(&args_for(server_that_answers(status, body).await, None))).await;
        assert!(error.contains(advice), "{status} {body}: {error}");
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let error = error_of(connect(&args_for(closed.clone(), None))).await;
    assert!(error.contains("look at --opensearch"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("credentials");
    std::fs::write(&file, "only-a-password\n").unwrap();
    let error = error_of(connect(&args_for(closed, Some(file)))).await;
    assert!(error.contains("<user>:<password>"), "{error}");
}

#[tokio::test]
async fn an_engine_that_dies_in_the_middle_names_its_index() {
    let url = server_that_answers("200 OK", r#"{"version":{"number":"2.19.6"}}"#).await;
    let engine =
        connect(&args_for(url.replace("http://", "http://user:secret@"), None)).await.unwrap().unwrap();
    assert!(engine.created().contains("curl -X DELETE http://127.0.0.1"), "{}", engine.created());
    assert!(!engine.created().contains("secret"));
    // Its answers are nonsense: the result is an error, not an endless wait.
    let results = Mutex::new(Results::default());
    let error = engine.measure(&args_for(url, None), &results).await.unwrap_err();
    assert!(format!("{error:#}").contains("look at its log"), "{error:#}");
    engine.clean_up().await.unwrap();
}

#[test]
fn throughput_is_that_since_the_start_after_a_quarter_of_the_work() {
    let progress = Progress::default();
    for (seconds, done) in [(4, 100), (1, 10), (2, 90), (10, 200)] {
        progress.add(Duration::from_secs(seconds), done);
    }
    // After 1 s 10, which is less than a quarter; then 100 in 2 s, 200 in 4 s, 400 in 10 s.
    assert_eq!(progress.per_second(), [40.0, (50.0 + 50.0 + 40.0) / 3.0, 50.0, 50.0]);
}
