//! Submissions: who wins between canceling and sending, and what stays to be queued.

use super::*;
use crate::queue::{NewRecipient, Notify, Transmission};

fn new_submission(send_at: i64, is_pending: bool) -> NewSubmission {
    let address = |email: &str| EnvelopeAddress { email: email.to_owned(), parameters: None };
    let recipient = |address: &str| NewRecipient {
        address: address.to_owned(),
        notify: Notify::default(),
        original: None,
    };
    NewSubmission {
        if_in_state: None,
        email: RecordId(7),
        thread: RecordId(8),
        identity: RecordId(9),
        send_at,
        is_pending,
        mail_from: address("anna@example.org"),
        rcpt_to: vec![address("bob@Example.net"), address("carol@example.net")],
        message: OutboxMessage {
            blob: BlobId([7; 32]),
            size: 7,
            sender: "anna@example.org".to_owned(),
            envelope_id: None,
            returned: None,
            transmission: Transmission::default(),
            recipients: vec![recipient("bob@example.net"), recipient("carol@example.net")],
        },
    }
}

impl Server {
    async fn submit(&self, delay: i64) -> RecordId {
        let new = new_submission(START + delay, delay > 0);
        self.mail.create_submission(ACCOUNT, new).await.unwrap().0
    }

    async fn submission(&self, id: RecordId) -> Option<Submission> {
        self.mail.submissions(ACCOUNT, &[id]).await.unwrap().remove(0)
    }

    async fn outbox(&self) -> Vec<RecordId> {
        let entries = self.mail.outbox(ACCOUNT, 100).await.unwrap();
        entries.into_iter().map(|entry| entry.message.source.record).collect()
    }
}

#[tokio::test]
async fn su4_of_canceling_and_sending_one_wins_also_on_two_servers() {
    let server = Server::new().await;
    let other = server.second().await;
    let mut sent = 0;
    for _ in 0..20 {
        let id = server.submit(60).await;
        let (released, canceled) = tokio::join!(
            server.mail.release_submission(ACCOUNT, id),
            other.cancel_submission(ACCOUNT, id, None)
        );
        let is_released = released.unwrap();
        match canceled {
            Ok(_) => assert!(!is_released),
            Err(MailError::CannotUnsend) => assert!(is_released),
            Err(error) => panic!("{error}"),
        }
        let expected = if is_released { UndoStatus::Final } else { UndoStatus::Canceled };
        assert_eq!(server.submission(id).await.unwrap().head.undo, expected);
        sent += usize::from(is_released);
        assert_eq!(server.outbox().await.len(), sent, "what was canceled is not queued");
    }
}

#[tokio::test]
async fn su4_a_canceled_submission_stays_unsent_when_it_is_destroyed() {
    let server = Server::new().await;
    let (canceled, sent, gone) = (server.submit(60).await, server.submit(60).await, server.submit(0).await);
    server.mail.cancel_submission(ACCOUNT, canceled, None).await.unwrap();
    for id in [canceled, sent, gone] {
        server.mail.destroy_submission(ACCOUNT, id, None).await.unwrap();
        assert!(matches!(server.mail.destroy_submission(ACCOUNT, id, None).await, Err(MailError::NotFound)));
    }
    assert!(!server.mail.release_submission(ACCOUNT, canceled).await.unwrap());
    assert!(server.mail.release_submission(ACCOUNT, sent).await.unwrap(), "destroying stops nothing");
    assert!(server.mail.release_submission(ACCOUNT, gone).await.unwrap());
    assert_eq!(server.outbox().await, [gone, sent]);
    // It is forgotten when the queue has asked long ago.
    server.pass(60 + 31 * 24 * 3_600);
    let other = server.submit(0).await;
    let new = new_submission(START + 40 * 24 * 3_600, true);
    let (late, _) = server.mail.create_submission(ACCOUNT, new).await.unwrap();
    server.mail.cancel_submission(ACCOUNT, late, None).await.unwrap();
    server.mail.destroy_submission(ACCOUNT, late, None).await.unwrap();
    assert!(!server.mail.release_submission(ACCOUNT, late).await.unwrap());
    let query = restante_records::Query::new(outbox::KIND, outbox::BY_STATE).equals(outbox::CANCELED);
    let noted = server.opened.records.query(ACCOUNT, &query).await.unwrap();
    assert_eq!(noted.ids.len(), 1);
    assert!(server.submission(other).await.is_some());
}

#[tokio::test]
async fn su4_states_are_those_of_the_edit_and_an_expected_one_is_compared() {
    let server = Server::new().await;
    let (id, made) = server.mail.create_submission(ACCOUNT, new_submission(START + 60, true)).await.unwrap();
    assert!(made.old < made.new && !made.is_shared);
    let wrong = server.mail.cancel_submission(ACCOUNT, id, Some(made.old)).await;
    assert!(matches!(wrong, Err(MailError::StateMismatch)));
    let canceled = server.mail.cancel_submission(ACCOUNT, id, Some(made.new)).await.unwrap();
    assert_eq!(canceled.old, made.new);
    let again = server.mail.cancel_submission(ACCOUNT, id, None).await.unwrap();
    assert_eq!((again.old, again.new), (canceled.new, canceled.new), "nothing was changed");
    let (_, state) = server.mail.submission_heads(ACCOUNT).await.unwrap();
    assert_eq!(state, canceled.new);
}

#[tokio::test]
async fn su5_reports_at_once_are_all_kept() {
    let server = Server::new().await;
    let id = server.submit(0).await;
    let other = server.second().await;
    let report = |mail: &Mail, address: &'static str| {
        let mail = mail.clone();
        async move {
            let state = RecipientState::Unknown;
            mail.report_submission(ACCOUNT, id, address, "250 2.0.0 ok", state).await.unwrap();
        }
    };
    tokio::join!(report(&server.mail, "bob@example.net"), report(&other, "carol@example.net"));
    let submission = server.submission(id).await.unwrap();
    assert!(submission.rcpt_to.iter().all(|recipient| recipient.state == RecipientState::Unknown));
    // A long reply is cut, and a submission that is gone is no error.
    let long = "5".repeat(100_000);
    server.mail.report_submission(ACCOUNT, id, "bob@example.net", &long, RecipientState::No).await.unwrap();
    let submission = server.submission(id).await.unwrap();
    assert_eq!(submission.rcpt_to[0].smtp_reply.len(), 512);
    server.mail.destroy_submission(ACCOUNT, id, None).await.unwrap();
    server.mail.report_submission(ACCOUNT, id, "bob@example.net", "250", RecipientState::Yes).await.unwrap();
    server.mail.add_submission_report(ACCOUNT, id, RecordId(3)).await.unwrap();
}

#[tokio::test]
async fn su2_an_envelope_that_can_t_be_kept_is_refused() {
    let server = Server::new().await;
    let mut new = new_submission(START, false);
    for n in 0..4_000 {
        let email = format!("{n}{}@example.net", "x".repeat(60));
        new.rcpt_to.push(EnvelopeAddress { email: email.clone(), parameters: None });
        let recipient = NewRecipient { address: email, notify: Notify::default(), original: None };
        new.message.recipients.push(recipient);
    }
    let refused = server.mail.create_submission(ACCOUNT, new).await;
    assert!(matches!(refused, Err(MailError::Invalid { .. })));
    assert!(server.outbox().await.is_empty());
}

#[tokio::test]
async fn su3_beyond_the_most_of_an_account_those_leave_that_were_sent_first_and_are_done() {
    let server = Server::new().await;
    let first = server.submit(0).await;
    let get = Get::whole(submission::KIND, vec![first]);
    let waiting = server.opened.records.get(ACCOUNT, &get).await.unwrap().remove(0).unwrap();
    for address in ["bob@example.net", "carol@example.net"] {
        let reported = server.mail.report_submission(ACCOUNT, first, address, "250", RecipientState::Yes);
        reported.await.unwrap();
    }
    let done = server.opened.records.get(ACCOUNT, &get).await.unwrap().remove(0).unwrap();
    // The oldest still waits, the next ones are done.
    let copies = SUBMISSIONS_MAX as usize - 2;
    let mut records = vec![waiting];
    records.extend(std::iter::repeat_n(done, copies));
    let creates: Vec<restante_records::Change> = records
        .into_iter()
        .enumerate()
        .map(|(n, record)| {
            let mut properties = record.properties;
            let old = properties.values(submission::SEND_AT).next().unwrap().clone();
            properties.remove(submission::SEND_AT, &old);
            properties.add(submission::SEND_AT, (n as u64 + 1).into());
            restante_records::Change::Create { kind: submission::KIND, body: record.body, properties }
        })
        .collect();
    let mut copied = Vec::new();
    for some in creates.chunks(1_000) {
        let commit = restante_records::Commit::of(some.to_vec());
        copied.extend(server.opened.records.commit(ACCOUNT, commit).await.unwrap().created);
    }
    let count = async || server.mail.submission_heads(ACCOUNT).await.unwrap().0.len() as u64;
    server.submit(0).await;
    server.submit(0).await;
    assert_eq!(count().await, SUBMISSIONS_MAX + 1, "the oldest waits, and what was just done is not reached");
    server.submit(0).await;
    assert!(server.submission(copied[0]).await.is_some(), "it is to be sent");
    assert!(server.submission(copied[1]).await.is_none());
    assert!(server.submission(copied[3]).await.is_some());
    assert!(server.submission(first).await.is_some());
}

#[tokio::test]
async fn id3_what_two_servers_change_at_once_is_all_kept() {
    let server = Server::new().await;
    let other = server.second().await;
    let tasks = (0..64).map(|n| {
        let mail = if n % 2 == 0 { server.mail.clone() } else { other.clone() };
        tokio::spawn(async move {
            let update = IdentityUpdate { name: Some(format!("{n}")), ..IdentityUpdate::default() };
            let new = NewIdentity { email: "anna@example.org".to_owned(), update };
            mail.create_identity(ACCOUNT, &new, None).await.unwrap();
            let subject = |response: &mut VacationResponse| {
                response.subject = Some(format!("{n}"));
                Ok::<(), MailError>(())
            };
            mail.set_vacation(ACCOUNT, None, subject).await.unwrap();
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let (identities, _) = server.mail.identities(ACCOUNT, &[]).await.unwrap();
    assert_eq!(identities.len(), 64);
}

#[tokio::test]
async fn vac3_a_sender_is_remembered_for_as_long_as_the_caller_asks() {
    let server = Server::new().await;
    let answered =
        async |sender: &str, since: i64| server.mail.was_answered(ACCOUNT, sender, since).await.unwrap();
    assert!(!answered("bob@example.net", START).await);
    server.mail.note_answered(ACCOUNT, "Bob@example.net", START, START - 100).await.unwrap();
    assert!(answered("bob@example.net", START).await, "in any case");
    assert!(!answered("bob@example.net", START + 1).await);
    assert!(!answered("carol@example.net", START).await);
    let second = server.second().await;
    assert!(second.was_answered(ACCOUNT, "bob@example.net", START).await.unwrap(), "it is durable");
    server.mail.note_answered(ACCOUNT, "bob@example.net", START + 50, START).await.unwrap();
    server.mail.note_answered(ACCOUNT, "carol@example.net", START + 60, START + 55).await.unwrap();
    let query = restante_records::Query::new(answered::KIND, answered::BY_AT);
    let kept = server.opened.records.query(ACCOUNT, &query).await.unwrap();
    assert_eq!(kept.ids.len(), 1, "those that are no longer needed are forgotten");
}

#[tokio::test]
async fn vac2_a_response_is_in_force_between_its_dates_and_since_it_was_enabled() {
    let server = Server::new().await;
    let set = async |change: &dyn Fn(&mut VacationResponse)| {
        let changed = server.mail.set_vacation(ACCOUNT, None, |response| {
            change(response);
            Ok::<(), MailError>(())
        });
        changed.await.unwrap();
        server.mail.vacation(ACCOUNT).await.unwrap().0
    };
    let response = set(&|response| response.to_date = Some(START + 100)).await;
    assert!(!response.is_in_force(START), "it is not enabled");
    server.pass(10);
    let response = set(&|response| response.is_enabled = true).await;
    for (received, is_in_force) in [(9, false), (10, true), (99, true), (100, false)] {
        assert_eq!(response.is_in_force(START + received), is_in_force, "{received}");
    }
    server.pass(10);
    let response = set(&|response| response.from_date = Some(START + 50)).await;
    assert_eq!(response.enabled_since, Some(START + 10), "it was enabled all the time");
    assert!(!response.is_in_force(START + 49) && response.is_in_force(START + 50));
    let response = set(&|response| response.is_enabled = false).await;
    assert_eq!(response.enabled_since, None);
}
