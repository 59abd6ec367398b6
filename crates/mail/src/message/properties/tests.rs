use super::super::{Shorthand, read};

fn json(header: &str, shorthand: Shorthand) -> String {
    String::from_utf8(read(format!("{header}\r\n\r\n").as_bytes()).json(shorthand).to_vec()).unwrap()
}

#[test]
fn e5_header_properties_are_ready_json() {
    use Shorthand::*;
    let header = "Message-ID: <a@b>\r\nIn-Reply-To: <c@d>\r\nReferences: <e@f>\r\n <c@d>\r\nFrom: \"A \\\"B\\\"\" <a@b>\r\n\
        Sender: s@t\r\nTo: c@d, Group: e@f;\r\nCc: g@h\r\nBcc: i@j\r\nReply-To: k@l\r\nSubject: =?utf-8?q?caf=C3=A9?= \"x\"\r\n\
        Date: Thu, 30 Oct 2014 14:12:00 +0800";
    let address = |email: &str| format!("{{\"name\":null,\"email\":\"{email}\"}}");
    assert_eq!(json(header, MessageId), "[\"a@b\"]");
    assert_eq!(json(header, InReplyTo), "[\"c@d\"]");
    assert_eq!(json(header, References), "[\"e@f\",\"c@d\"]");
    assert_eq!(json(header, From), "[{\"name\":\"A \\\"B\\\"\",\"email\":\"a@b\"}]");
    assert_eq!(json(header, Sender), format!("[{}]", address("s@t")));
    assert_eq!(json(header, To), format!("[{},{}]", address("c@d"), address("e@f")));
    assert_eq!(json(header, Cc), format!("[{}]", address("g@h")));
    assert_eq!(json(header, Bcc), format!("[{}]", address("i@j")));
    assert_eq!(json(header, ReplyTo), format!("[{}]", address("k@l")));
    assert_eq!(json(header, Subject), "\"café \\\"x\\\"\"");
    assert_eq!(json(header, SentAt), "\"2014-10-30T14:12:00+08:00\"");
    assert_eq!(json(header, Preview), "\"\"");
    assert_eq!(json(header, HasAttachment), "false");
}

#[test]
fn e5_properties_without_a_field_are_null() {
    use Shorthand::*;
    for shorthand in [MessageId, InReplyTo, References, Sender, From, To, Cc, Bcc, ReplyTo, Subject, SentAt] {
        assert_eq!(json("X-A: b", shorthand), "null", "{shorthand:?}");
    }
    assert_eq!(json("Date: never", SentAt), "null");
    assert_eq!(json("Subject: ", Subject), "\"\"");
    assert_eq!(json("Subject: a\r\nsubject: b", Subject), "\"b\"", "the last instance");
}

#[test]
fn e5_message_id_and_times_are_read() {
    let message = read(
        b"Received: from x by y; nonsense\r\nReceived: from a (b; c) by d;\r\n Thu, 1 Jan 1970 00:01:00 +0000\r\n\
          Received: by e; Thu, 1 Jan 1970 00:00:30 +0000\r\nMessage-ID: <a@b> <c@d>\r\nDate: 1 Jan 1970 00:00:01 -0000\r\n\r\n",
    );
    assert_eq!(message.newest_received, Some(60));
    assert_eq!(message.sent_at, Some(1));
    assert_eq!(message.message_id.as_deref(), Some("a@b"));
    let message = read(b"A: b\r\n\r\n");
    assert_eq!((message.newest_received, message.sent_at, message.message_id), (None, None, None));
}

fn keys(header: &str) -> Vec<[u8; 16]> {
    read(format!("{header}\r\n\r\n").as_bytes()).thread_keys
}

#[test]
fn thread_keys_are_shared_by_answers_with_the_same_base_subject() {
    let first = keys("Message-ID: <a@b>\r\nSubject: Hello");
    assert_eq!(first.len(), 1);
    let answer = keys("Message-ID: <c@d>\r\nIn-Reply-To: <a@b>\r\nSubject: Re: HELLO");
    assert_eq!(answer.len(), 2);
    assert!(answer.contains(&first[0]));
    assert!(keys("References: <x@y> <a@b>\r\nSubject: [list] Fwd: Hello (fwd)").contains(&first[0]));
    assert!(!keys("References: <a@b>\r\nSubject: Something else").contains(&first[0]));
    assert_eq!(keys("Subject: Hello"), Vec::<[u8; 16]>::new(), "nothing is shared by a subject alone");
    assert_eq!(keys("Message-ID: <a@b>\r\nReferences: <a@b> <a@b>\r\nSubject: Hello"), first, "each once");
}

#[test]
fn thread_keys_are_of_the_first_and_the_last_15_references() {
    let references: Vec<_> = (0..100).map(|n| format!("<{n}@x>")).collect();
    let many = keys(&format!("Message-ID: <a@b>\r\nReferences: {}", references.join("\r\n ")));
    assert_eq!(many.len(), 17);
    let has = |n: usize| many.contains(&keys(&format!("Message-ID: <{n}@x>"))[0]);
    assert!(has(0) && has(85) && has(99));
    assert!(!has(1) && !has(84));
    let all = format!("Message-ID: <a@b>\r\nIn-Reply-To: {0}\r\nReferences: {0}1@x>", references.join(" "));
    assert!(keys(&all).len() <= super::super::THREAD_KEYS_MAX);
    assert_eq!(keys("References: <a@b> <c@d>").len(), 2);
    assert_eq!(keys("References: <a@b>").len(), 1);
}

#[test]
fn a_thread_key_is_what_the_format_says() {
    // SHA-256 of 00 00 00 03 "a@b" "hello": stored on disk, so it must not change.
    let key = keys("Message-ID: <a@b>\r\nSubject: Re: Hello")[0];
    let expected: [u8; 32] = sha2::Digest::finalize(sha2::Digest::chain_update(
        <sha2::Sha256 as sha2::Digest>::new(),
        b"\0\0\0\x03a@bhello",
    ))
    .into();
    assert_eq!(key, expected[..16]);
}
