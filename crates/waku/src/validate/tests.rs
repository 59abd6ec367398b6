use restante_waku_wire::WakuMessage;

use super::*;

const NOW: Timestamp = Timestamp::from_seconds(1_700_000_000);
const TOPIC: &str = "/waku/2/rs/16/32";

fn message() -> WakuMessage {
    WakuMessage {
        payload: "hello".into(),
        content_topic: "/toychat/2/huilong/proto".into(),
        timestamp: Some(NOW.nanos()),
        ..WakuMessage::default()
    }
}

fn problem_of(message: &WakuMessage, rules: &Rules) -> String {
    validate(TOPIC, message.to_wire(), NOW, rules).unwrap_err().to_string()
}

#[test]
fn a_valid_message_keeps_its_wire_bytes() {
    let wire = WakuMessage { meta: Some("m".into()), ..message() }.to_wire();
    let archived = validate(TOPIC, wire.clone(), NOW, &Rules::default()).unwrap();
    assert_eq!(archived.body, wire);
    assert_eq!(
        (&*archived.channel, &*archived.topic, archived.timestamp),
        (TOPIC, "/toychat/2/huilong/proto", NOW)
    );
    let expected = message_hash(TOPIC, b"hello", "/toychat/2/huilong/proto", b"m", NOW.nanos());
    assert_eq!(archived.message_hash, expected);
}

#[test]
fn ephemeral_messages_are_valid() {
    let ephemeral = WakuMessage { ephemeral: Some(true), ..message() };
    assert!(validate(TOPIC, ephemeral.to_wire(), NOW, &Rules::default()).is_ok());
}

#[test]
fn the_time_window_includes_its_ends() {
    let at = |nanos: i64| {
        let message = WakuMessage { timestamp: Some(NOW.nanos() + nanos), ..message() };
        validate(TOPIC, message.to_wire(), NOW, &Rules::default())
            .map(|_| ())
            .map_err(|invalid| invalid.problem)
    };
    let window = 20 * NANOS_PER_SECOND;
    assert_eq!(at(window), Ok(()));
    assert_eq!(at(-window), Ok(()));
    assert_eq!(at(window + 1), Err(Problem::InFuture { seconds: 21, window: 20 }));
    assert_eq!(at(-window - 1), Err(Problem::TooOld { seconds: 21, window: 20 }));
    assert_eq!(
        problem_of(&WakuMessage { timestamp: Some(i64::MIN), ..message() }, &Rules::default()),
        "timestamp: is 10923372037 s in the past: at most 20 s are taken"
    );
}

#[test]
fn without_a_window_any_time_is_accepted() {
    let rules = Rules { timestamp_window_seconds: 0, ..Rules::default() };
    for timestamp in [i64::MIN, -1, 0, i64::MAX] {
        let message = WakuMessage { timestamp: Some(timestamp), ..message() };
        assert!(validate(TOPIC, message.to_wire(), NOW, &rules).is_ok(), "{timestamp}");
    }
}

#[test]
fn the_wrong_field_is_named() {
    let rules = Rules::default();
    let cases = [
        (WakuMessage { timestamp: None, ..message() }, "timestamp: is missing"),
        (WakuMessage { content_topic: String::new(), ..message() }, "contentTopic: is missing"),
        (
            WakuMessage { content_topic: "x".repeat(4097), ..message() },
            "contentTopic: 4097 bytes are too many: the limit is 4096 bytes",
        ),
        (
            WakuMessage { meta: Some(vec![0; 65].into()), ..message() },
            "meta: 65 bytes are too many: the limit is 64 bytes",
        ),
    ];
    for (message, problem) in cases {
        assert_eq!(problem_of(&message, &rules), problem);
    }
}

#[test]
fn bytes_that_are_not_a_message_are_refused() {
    for (wire, problem) in [
        (&b""[..], "payload: is missing"),
        (b"\x0a\x01x", "contentTopic: is missing"),
        (b"\x0a\x05x", "message: message ends inside a field"),
    ] {
        let invalid = validate(TOPIC, Bytes::from_static(wire), NOW, &Rules::default()).unwrap_err();
        assert_eq!(invalid.to_string(), problem);
    }
}

#[test]
fn the_size_on_the_wire_counts() {
    let wire = message().to_wire();
    let rules = |bytes: usize| Rules { max_message_bytes: bytes.try_into().unwrap(), ..Rules::default() };
    assert!(validate(TOPIC, wire.clone(), NOW, &rules(wire.len())).is_ok());
    let invalid = validate(TOPIC, wire.clone(), NOW, &rules(wire.len() - 1)).unwrap_err();
    assert_eq!(invalid.problem, Problem::TooLarge { len: wire.len(), max: wire.len() - 1 });
}

#[test]
fn without_cluster_and_shards_any_well_formed_pubsub_topic_is_accepted() {
    let rules = Rules::default();
    for topic in ["/waku/2/rs/0/0", "/waku/2/rs/65535/1023", "/waku/2/default-waku/proto"] {
        assert_eq!(check_pubsub_topic(topic, &rules), Ok(()), "{topic}");
    }
    for topic in ["", "x", "/waku/2/", "/waku/2/rs/1", "/waku/2/rs/1/1024"] {
        let problem = check_pubsub_topic(topic, &rules).unwrap_err().problem;
        assert!(matches!(problem, Problem::Malformed(_)), "{topic}: {problem}");
    }
}

#[test]
fn with_cluster_or_shards_only_theirs_are_accepted() {
    let checked = |cluster_id, shards: &[u16], topic| {
        let rules = Rules { cluster_id, shards: shards.to_vec(), ..Rules::default() };
        check_pubsub_topic(topic, &rules).map_err(|invalid| invalid.to_string())
    };
    assert_eq!(checked(Some(16), &[], "/waku/2/rs/16/1000"), Ok(()));
    assert_eq!(checked(Some(16), &[32, 64], "/waku/2/rs/16/64"), Ok(()));
    assert_eq!(checked(None, &[32], "/waku/2/rs/7/32"), Ok(()));
    let not = |shards: &str| Err(format!("pubsubTopic: this server takes only /waku/2/rs/{shards}"));
    assert_eq!(checked(Some(16), &[], "/waku/2/rs/1/0"), not("16/<any shard>"));
    assert_eq!(checked(Some(16), &[], "/waku/2/default-waku/proto"), not("16/<any shard>"));
    assert_eq!(checked(Some(16), &[32, 64], "/waku/2/rs/16/1"), not("16/<shard> of the shards 32, 64"));
    assert_eq!(checked(None, &[32], "/waku/2/rs/7/33"), not("<any cluster>/<shard> of the shards 32"));
}
