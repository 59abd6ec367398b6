//! Servers that delay, refuse, cut off, lie and talk without end, in each state.

use std::time::Duration;

use super::{fake::Action, *};

const ALL: &[&str] = &["PIPELINING", "8BITMIME", "SMTPUTF8", "SIZE 1000000", "DSN"];
const BOB: &str = "bob@example.net";
const EVE: &str = "eve@example.net";

/// With and without pipelining.
fn fakes() -> [Fake; 2] {
    [Fake::new(ALL), Fake::new(&["SIZE"])]
}

#[tokio::test(start_paused = true)]
async fn out14_a_message_is_sent_with_its_dots_and_goodbye() {
    for fake in fakes() {
        let mut connection = connected(&fake).await;
        let attempted = connection.send(&plain(), &recipients(&[BOB, EVE])).await;
        assert_eq!(codes(&attempted), [is(250, "2.0.0"), is(250, "2.0.0")]);
        assert_eq!(attempted[0].reply.from.as_deref(), Some(SERVER));
        assert!(connection.is_open());
        connection.close().await;
        assert_eq!(fake.messages(), ["Subject: hello\r\n\r\n.text\r\n"]);
        let words: Vec<String> = fake.commands().iter().map(|command| command[..4].to_owned()).collect();
        assert_eq!(words, ["EHLO", "MAIL", "RCPT", "RCPT", "DATA", "QUIT"]);
    }
}

#[tokio::test(start_paused = true)]
async fn out14_a_connection_takes_several_messages() {
    for fake in fakes() {
        let fake = fake.says("RCPT eve@example.net", "550 5.1.1 no such user");
        let mut connection = connected(&fake).await;
        for _ in 0..3 {
            let attempted = connection.send(&plain(), &recipients(&[EVE])).await;
            assert_eq!(codes(&attempted), [is(550, "5.1.1")]);
            let attempted = connection.send(&plain(), &recipients(&[BOB])).await;
            assert_eq!(codes(&attempted), [is(250, "2.0.0")]);
        }
        assert!(connection.is_open());
        assert_eq!(fake.messages().iter().filter(|message| !message.is_empty()).count(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn out14_recipients_are_accepted_and_refused_one_by_one() {
    for fake in fakes() {
        let fake = fake
            .says("RCPT no@example.net", "550 5.1.1 no such user")
            .says("RCPT full@example.net", "452 4.2.2 mailbox full")
            .says("RCPT many@example.net", "552 too many recipients");
        let found =
            send(&fake, &plain(), &["no@example.net", BOB, "full@example.net", "many@example.net"]).await;
        assert_eq!(found, [is(550, "5.1.1"), is(250, "2.0.0"), is(452, "4.2.2"), is(452, "4.5.3")]);
        assert_eq!(fake.messages().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn out14_refusals_hold_for_all_that_are_left() {
    for (moment, reply, expected) in [
        ("mail", "550 5.7.1 not you", is(550, "5.7.1")),
        ("mail", "451 4.7.1 greylisted", is(451, "4.7.1")),
        ("mail", "550", is(550, "5.0.0")),
        ("rcpt", "550 5.1.1 no", is(550, "5.1.1")),
        ("rcpt", "450 4.2.1 later", is(450, "4.2.1")),
        ("data", "554 5.7.1 no", is(554, "5.7.1")),
        ("data", "451 4.3.0 later", is(451, "4.3.0")),
        ("end", "554 5.6.0 spam", is(554, "5.6.0")),
        ("end", "452 4.3.1 disk full", is(452, "4.3.1")),
    ] {
        for fake in fakes() {
            let fake = fake.says(moment, reply);
            let mut connection = connected(&fake).await;
            let attempted = connection.send(&plain(), &recipients(&[BOB, EVE])).await;
            assert_eq!(codes(&attempted), [expected.clone(), expected.clone()], "{moment}");
            assert!(connection.is_open(), "{moment}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn out14_421_is_for_now_wherever_it_comes() {
    for moment in ["mail", "rcpt", "data", "end"] {
        for fake in fakes() {
            let fake = fake.at(moment, Action::SayAndClose("421 4.3.2 closing\r\n".into()));
            let mut connection = connected(&fake).await;
            let attempted = connection.send(&plain(), &recipients(&[BOB, EVE])).await;
            assert_eq!(codes(&attempted), [is(421, "4.3.2"), is(421, "4.3.2")], "{moment}");
            assert!(!connection.is_open(), "{moment}");
        }
    }
    for moment in ["connect", "ehlo"] {
        let fake = Fake::new(ALL).says(moment, "421 4.3.2 too many");
        let reply = remote(&fake).connect(DOMAIN).await.err().unwrap();
        assert_eq!(code(&reply), is(421, "4.3.2"), "{moment}");
    }
}

#[tokio::test(start_paused = true)]
async fn out14_a_server_that_breaks_off_hangs_or_babbles_is_tried_again() {
    let actions = [
        (Action::Close, is(451, "4.4.2")),
        (Action::Hang, is(451, "4.4.2")),
        (Action::Drip, is(451, "4.4.2")),
        (Action::Endless, is(451, "4.5.0")),
        (Action::Say("hello\r\n".into()), is(451, "4.5.0")),
        (Action::Say("250-a\r\n550 b\r\n".into()), is(451, "4.5.0")),
        (Action::Say("\0\0\0\0\r\n".into()), is(451, "4.5.0")),
        (Action::SayAndClose("25".into()), is(451, "4.4.2")),
    ];
    for (action, expected) in actions {
        for moment in ["mail", "rcpt", "data", "end"] {
            for fake in fakes() {
                let fake = fake.at(moment, action.clone());
                let mut connection = connected(&fake).await;
                let attempted = connection.send(&plain(), &recipients(&[BOB])).await;
                assert_eq!(codes(&attempted), std::slice::from_ref(&expected), "{action:?} at {moment}");
                assert!(!connection.is_open(), "{action:?} at {moment}");
                let again = connection.send(&plain(), &recipients(&[BOB])).await;
                assert_eq!(codes(&again), [is(451, "4.4.2")], "nothing is sent on it any more");
            }
        }
        for moment in ["connect", "ehlo"] {
            let fake = Fake::new(ALL).at(moment, action.clone());
            let reply = remote(&fake).connect(DOMAIN).await.err().unwrap();
            assert_eq!(code(&reply), expected, "{action:?} at {moment}");
        }
    }
}

/// A server that was slow had its message, and its answer was lost: the message is sent again.
#[tokio::test(start_paused = true)]
async fn out14_a_cut_behind_the_last_dot_is_for_now() {
    let fake = Fake::new(ALL).at("end", Action::Close);
    let attempted = connected(&fake).await.send(&plain(), &recipients(&[BOB])).await;
    assert_eq!(codes(&attempted), [is(451, "4.4.2")]);
    assert!(attempted[0].reply.text.contains("may arrive twice"), "{:?}", attempted[0]);
    assert_eq!(fake.messages().len(), 1, "it has the message");
}

#[tokio::test(start_paused = true)]
async fn out14_slow_servers_have_the_times_of_the_standard() {
    let late = |seconds, reply: &str| Action::Late(Duration::from_secs(seconds), format!("{reply}\r\n"));
    for fake in fakes() {
        let fake = fake
            .at("connect", late(299, "220 hello"))
            .at("mail", late(299, "250 ok"))
            .at("rcpt", late(299, "250 ok"))
            .at("data", late(119, "354 go"))
            .at("end", late(599, "250 2.0.0 ok"));
        assert_eq!(send(&fake, &plain(), &[BOB]).await, [is(250, "2.0.0")]);
    }
}

#[tokio::test(start_paused = true)]
async fn out14_replies_out_of_order_are_no_success() {
    for (moment, reply) in [
        ("mail", "354 go on\r\n"),
        ("rcpt", "354 go on\r\n"),
        ("data", "250 2.0.0 taken already\r\n"),
        ("data", "354 go on\r\n250 2.0.0 taken already\r\n"),
        ("end", "354 more\r\n"),
    ] {
        for fake in fakes() {
            let fake = fake.at(moment, Action::Say(reply.into()));
            assert_eq!(send(&fake, &plain(), &[BOB]).await, [is(451, "4.5.0")], "{reply:?} at {moment}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn out14_a_reply_too_many_is_not_taken_for_the_next_one() {
    let fake = Fake::new(ALL).at("end", Action::Say("250 2.0.0 a\r\n250 2.0.0 b\r\n".into()));
    let mut connection = connected(&fake).await;
    assert_eq!(codes(&connection.send(&plain(), &recipients(&[BOB])).await), [is(250, "2.0.0")]);
    assert_eq!(codes(&connection.send(&plain(), &recipients(&[BOB])).await), [is(250, "2.0.0")]);
    assert_eq!(fake.log.lock().connections, 2, "over another connection");
}

#[tokio::test(start_paused = true)]
async fn out14_a_server_that_refuses_in_the_middle_of_a_message_is_heard() {
    let large = message(&format!("Subject: x\r\n\r\n{}", "text\r\n".repeat(100_000)));
    for (action, expected) in [
        (Action::SayAndClose("552 5.3.4 too large\r\n".into()), is(552, "5.3.4")),
        (Action::SayAndClose("451 4.3.0 later\r\n".into()), is(451, "4.3.0")),
        (Action::SayAndClose("250 2.0.0 enough\r\n".into()), is(451, "4.5.0")),
        (Action::Hang, is(451, "4.4.2")),
        (Action::Close, is(451, "4.4.2")),
    ] {
        let fake = Fake::new(&["PIPELINING"]).reads(1_000).at("MIDDLE", action.clone());
        assert_eq!(send(&fake, &large, &[BOB]).await, [expected], "{action:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn out14_a_server_that_wants_a_message_for_nobody_gets_an_empty_one() {
    let fake = Fake::new(&["PIPELINING"]).says("RCPT eve@example.net", "550 5.1.1 no");
    let mut connection = connected(&fake).await;
    assert_eq!(codes(&connection.send(&plain(), &recipients(&[EVE])).await), [is(550, "5.1.1")]);
    assert_eq!(fake.messages(), [""]);
    assert_eq!(codes(&connection.send(&plain(), &recipients(&[BOB])).await), [is(250, "2.0.0")]);
}

#[tokio::test(start_paused = true)]
async fn out13_addresses_that_can_not_be_written_fail_alone() {
    let fake = Fake::new(ALL);
    let found = send(&fake, &plain(), &["a@b>\r\nRCPT TO:<c@d", BOB, "no address"]).await;
    assert_eq!(found, [is(553, "5.1.3"), is(250, "2.0.0"), is(553, "5.1.3")]);
    assert_eq!(fake.count("RCPT"), 1);
    let odd = Outgoing { sender: "a b".into(), ..plain() };
    assert_eq!(send(&fake, &odd, &[BOB]).await, [is(553, "5.1.7")]);
    let notice = Outgoing { sender: String::new(), ..plain() };
    assert_eq!(send(&fake, &notice, &[BOB]).await, [is(250, "2.0.0")]);
    assert_eq!(fake.count("MAIL FROM:<> "), 1);
}

/// Servers take some messages on a connection and close it. The next message waited five minutes for its second attempt.
#[tokio::test(start_paused = true)]
async fn out14_a_server_that_closes_between_messages_gets_the_next_one_over_another_connection() {
    for then in [None, Some("421 4.3.2 enough")] {
        for fake in fakes() {
            let fake = fake.takes(2, then);
            let mut connection = connected(&fake).await;
            for _ in 0..6 {
                let attempted = connection.send(&plain(), &recipients(&[BOB])).await;
                assert_eq!(codes(&attempted), [is(250, "2.0.0")], "{then:?}");
                tokio::task::yield_now().await;
            }
            let log = fake.log.lock();
            assert_eq!((log.connections, log.messages.len()), (3, 6), "{then:?}");
        }
    }
}
