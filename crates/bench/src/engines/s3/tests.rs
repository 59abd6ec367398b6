use super::{
    super::{
        setting::Judgement,
        tests::{error_of, server_that_answers},
    },
    requests::Checksums,
    *,
};

#[test]
fn what_loses_objects_is_unsafe_and_what_costs_is_costly() {
    let unsafe_ones =
        [judge_if_absent(IfAbsent::Ignored), judge_payload_hash(false), judge_connection(false, false)];
    for setting in unsafe_ones {
        assert!(matches!(setting.judgement, Judgement::Unsafe { .. }), "{setting:?}");
    }
    let costly = [
        judge_if_absent(IfAbsent::Unsupported),
        judge_checksums(Checksums::Ignored),
        judge_checksums(Checksums::Refused),
        judge_ranges(false),
        judge_versioning(Some(true)),
    ];
    for setting in costly {
        assert!(matches!(setting.judgement, Judgement::Costly { .. }), "{setting:?}");
    }
    let safe = [
        judge_if_absent(IfAbsent::Honoured),
        judge_payload_hash(true),
        judge_connection(false, true),
        judge_connection(true, false),
        judge_checksums(Checksums::Checked),
        judge_ranges(true),
        judge_versioning(Some(false)),
        judge_versioning(None),
    ];
    for setting in safe {
        assert_eq!(setting.judgement, Judgement::Safe, "{setting:?}");
    }
}

#[test]
fn floors_are_those_of_round_trips_and_of_the_network() {
    let far = Floors { connect_ms: 20.0, loopback_mb_per_second: None };
    // 8 clients get 4 KB each in 20 ms.
    assert!((far.mb_per_second(8, 4_096) - 1.6384).abs() < 1e-9);
    assert!((far.last_byte_ms(4_096) - 20.0).abs() < 1e-9);
    let near = Floors { connect_ms: 0.1, loopback_mb_per_second: Some(1_000.0) };
    assert!((near.mb_per_second(8, 1_000_000) - 1_000.0).abs() < 1e-9);
    assert!((near.last_byte_ms(1_000_000) - 1.1).abs() < 1e-9);
}

/// The arguments for a storage with these keys.
fn args_for(url: String, folder: &std::path::Path, keys: &str) -> EnginesArgs {
    let file = folder.join("keys");
    std::fs::write(&file, keys).unwrap();
    EnginesArgs {
        s3: S3Args { url: Some(url), credentials: Some(file), ..S3Args::default() },
        ..super::super::tests::args()
    }
}

#[tokio::test]
async fn errors_of_the_connection_say_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    for (status, body, advice) in [
        ("403 Forbidden", "<Error><Code>InvalidAccessKeyId</Code></Error>", "--s3-credentials"),
        ("403 Forbidden", "<Error><Code>SignatureDoesNotMatch</Code></Error>", "--s3-credentials"),
        ("403 Forbidden", "<Error><Code>AccessDenied</Code></Error>", "the right to"),
        ("400 Bad Request", "<Error><Code>AuthorizationHeaderMalformed</Code></Error>", "--s3-region"),
        ("503 Slow Down", "<Error><Code>SlowDown</Code></Error>", "log of the storage"),
        ("400 Bad Request", "who are you?", "interface of S3"),
    ] {
        let url = server_that_answers(status, body).await;
        let error = error_of(connect(&args_for(url, folder.path(), "access:secret"))).await;
        assert!(error.contains(advice), "{status} {body}: {error}");
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let error = error_of(connect(&args_for(closed.clone(), folder.path(), "access:secret"))).await;
    assert!(error.contains("look at --s3"), "{error}");
    let error = error_of(connect(&args_for(closed, folder.path(), "only-one"))).await;
    assert!(error.contains("<access key>:<secret key>"), "{error}");
}

#[tokio::test]
async fn a_bucket_that_is_named_must_exist() {
    let folder = tempfile::tempdir().unwrap();
    let url = server_that_answers("404 Not Found", "<Error><Code>NoSuchBucket</Code></Error>").await;
    let mut args = args_for(url, folder.path(), "access:secret");
    let engine = connect(&args).await.unwrap().unwrap();
    assert!(engine.created().contains("s3 rb --force s3://restante-bench-"), "{}", engine.created());
    // Nothing exists, so there is nothing to remove.
    engine.clean_up().await.unwrap();
    args.s3.bucket = Some("mail".to_owned());
    assert!(error_of(connect(&args)).await.contains("there is no bucket mail"));
}
