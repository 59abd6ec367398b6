use restante_waku_wire::rpc::store::KeyValue;

use super::*;

fn response() -> StoreQueryResponse {
    let message = KeyValue { message_hash: Some(vec![7; 32].into()), ..KeyValue::default() };
    StoreQueryResponse {
        request_id: "r".into(),
        status_code: Some(200),
        status_desc: Some("OK".into()),
        messages: vec![message],
        pagination_cursor: Some(vec![7; 32].into()),
    }
}

fn read(response: &StoreQueryResponse) -> Result<StoreQueryResponse, String> {
    let answer = response.encode_to_vec().into();
    read_answer(answer, "r", 2).map_err(|error| error.to_string())
}

#[test]
fn a_valid_answer_is_accepted() {
    assert_eq!(read(&response()), Ok(response()));
    for id in ["", "N/A"] {
        let unread = StoreQueryResponse { request_id: id.into(), ..response() };
        assert_eq!(read(&unread), Ok(unread.clone()), "{id}");
    }
    let bare =
        StoreQueryResponse { status_desc: None, pagination_cursor: None, messages: Vec::new(), ..response() };
    assert_eq!(read(&bare), Ok(bare.clone()));
}

/// Pages of servers that write an empty cursor at the end were refused.
#[test]
fn an_empty_cursor_is_none() {
    let empty = StoreQueryResponse { pagination_cursor: Some(Bytes::new()), ..response() };
    assert_eq!(read(&empty), Ok(StoreQueryResponse { pagination_cursor: None, ..response() }));
}

#[test]
fn invalid_answers_are_refused() {
    let short = KeyValue { message_hash: Some(vec![7; 31].into()), ..KeyValue::default() };
    let cases = [
        ("another request", StoreQueryResponse { request_id: "s".into(), ..response() }),
        ("without a status", StoreQueryResponse { status_code: None, ..response() }),
        ("without a hash", StoreQueryResponse { messages: vec![KeyValue::default()], ..response() }),
        ("without a hash", StoreQueryResponse { messages: vec![short], ..response() }),
        ("a cursor", StoreQueryResponse { pagination_cursor: Some("x".into()), ..response() }),
        ("more messages", StoreQueryResponse { messages: vec![KeyValue::default(); 3], ..response() }),
    ];
    for (part, response) in cases {
        let error = read(&response).unwrap_err();
        assert!(error.contains(part), "{error} should say {part}");
    }
    for garbage in [&b"\xff"[..], b"\xa2\x01\x05a", b"\x0a\x01\xff", b"\xa0\x01\x01"] {
        assert!(read_answer(Bytes::from_static(garbage), "r", 2).is_err(), "{garbage:?}");
    }
}

#[test]
fn the_text_of_a_refusal_is_cut() {
    let refusal =
        StoreQueryResponse { status_code: Some(300), status_desc: Some("x\n".repeat(10_000)), ..response() };
    let error = read(&refusal).unwrap_err();
    assert!(error.starts_with(r#"the peer answered with status 300: "x\nx\n"#), "{error}");
    assert!(error.len() < 500, "{error}");
}

#[test]
fn the_size_of_an_answer_follows_the_request() {
    let asked =
        |limit| rows_max(&StoreQueryRequest { pagination_limit: limit, ..StoreQueryRequest::default() });
    assert_eq!([None, Some(0), Some(7), Some(1_000)].map(asked), [100, 100, 7, 100]);
}
