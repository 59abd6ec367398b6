//! Messages that are imported from elsewhere.

use super::*;

fn imported(number: u64, places: &[(RecordId, u64)], keywords: &[&str]) -> ImportedMessage {
    ImportedMessage {
        message: message(number, &[number]),
        key: [number as u8; 32],
        places: places.to_vec(),
        keywords: keywords.iter().map(|keyword| (*keyword).to_owned()).collect(),
        received: START - 1_000_000_000,
        quota: None,
    }
}

impl Server {
    async fn import(&self, message: ImportedMessage) -> Imported {
        self.mail.import(ACCOUNT, message).await.unwrap()
    }

    async fn import_new(&self, message: ImportedMessage) -> RecordId {
        match self.import(message).await {
            Imported::New(id) => id,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_message_is_imported_once_for_each_folder_however_often_it_is_repeated() {
    let server = Server::new().await;
    let (inbox, work) = (server.mailbox(Role::Inbox).await.id, server.make("Work", Parent::Top).await);
    let archive = server.mailbox(Role::Archive).await.id;
    assert!(!server.mail.is_imported(ACCOUNT, &[1; 32], &[10]).await.unwrap());
    let email = server.import_new(imported(1, &[(inbox, 10)], &["$flagged", "later"])).await;
    assert_eq!(server.import(imported(1, &[(inbox, 10)], &["$seen"])).await, Imported::Repeated);
    assert_eq!(server.keywords(email).await, ["$flagged", "later"]);
    // The user moves it; its source is imported again.
    server.update(email, move_to(&[archive])).await;
    assert_eq!(server.import(imported(1, &[(inbox, 10)], &[])).await, Imported::Repeated);
    assert_eq!(server.state(email).await.mailboxes, [archive]);
    // A second folder has it, too.
    assert_eq!(server.import(imported(1, &[(work, 11)], &["$seen"])).await, Imported::Placed(email));
    let state = server.state(email).await;
    assert_eq!(state.mailboxes, [archive, work]);
    assert_eq!(state.received, (START - 1_000_000_000) as u64);
    assert_eq!(server.keywords(email).await, ["$seen", "$flagged", "later"]);
    assert!(server.mail.is_imported(ACCOUNT, &[1; 32], &[10, 11]).await.unwrap());
    assert!(!server.mail.is_imported(ACCOUNT, &[1; 32], &[10, 12]).await.unwrap());
    // Destroyed, it stays so.
    server.mail.destroy_email(ACCOUNT, email, None).await.unwrap();
    assert_eq!(server.import(imported(1, &[(inbox, 10), (work, 11)], &[])).await, Imported::Repeated);
    assert!(server.mail.is_imported(ACCOUNT, &[1; 32], &[10, 11]).await.unwrap());
    // Restored, it is known, too.
    let entry = server.mail.vault(ACCOUNT, None, 1).await.unwrap().entries[0].id;
    let restored = server.mail.restore(ACCOUNT, entry, None).await.unwrap().id;
    assert_eq!(server.import(imported(1, &[(inbox, 10)], &[])).await, Imported::Repeated);
    assert_eq!(server.import(imported(1, &[(inbox, 12)], &[])).await, Imported::Placed(restored));
    server.assert_sound().await;
}

#[tokio::test]
async fn folders_that_share_a_message_in_one_commit_make_one_email() {
    let server = Server::new().await;
    let (inbox, work) = (server.mailbox(Role::Inbox).await.id, server.make("Work", Parent::Top).await);
    let edits = [
        imported(1, &[(inbox, 10)], &[]),
        imported(2, &[(inbox, 10)], &[]),
        imported(1, &[(work, 11)], &["$seen"]),
        imported(1, &[(work, 11)], &[]),
        imported(3, &[(inbox, 10), (work, 11)], &["$draft"]),
    ];
    let mail = &server.mail;
    let done = futures(edits.map(|edit| mail.import(ACCOUNT, edit))).await;
    let [
        Imported::New(first),
        Imported::New(_),
        Imported::Placed(placed),
        Imported::Repeated,
        Imported::New(third),
    ] = done[..]
    else {
        panic!("{done:?}")
    };
    assert_eq!(placed, first);
    assert_eq!(server.state(first).await.mailboxes, [inbox, work]);
    assert_eq!(server.keywords(first).await, ["$seen"]);
    assert_eq!(server.state(third).await.mailboxes, [inbox, work]);
    let inbox = server.mailbox(Role::Inbox).await;
    assert_eq!((inbox.total, inbox.unread), (3, 1));
    server.assert_sound().await;
}

/// The outcomes of edits that wait at once, in their order.
async fn futures<const N: usize>(
    edits: [impl Future<Output = Result<Imported, MailError>>; N],
) -> Vec<Imported> {
    let mut edits: Vec<_> = edits.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<Imported>> = vec![None; N];
    std::future::poll_fn(|context| {
        for (edit, done) in edits.iter_mut().zip(&mut done) {
            if done.is_none()
                && let std::task::Poll::Ready(imported) = edit.as_mut().poll(context)
            {
                *done = Some(imported.unwrap());
            }
        }
        if done.iter().all(Option::is_some) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}

/// An export says which email a message was: that one is not doubled when the export is imported into its own account.
#[tokio::test]
async fn an_email_is_known_by_its_id_and_its_message_while_it_is_in_a_mailbox() {
    let server = Server::new().await;
    let (inbox, archive) = (server.mailbox(Role::Inbox).await.id, server.mailbox(Role::Archive).await.id);
    let first = imported(1, &[(inbox, 10)], &[]);
    let blob = first.message.blob;
    let email = server.import_new(first).await;
    let other = server.import_new(imported(2, &[(inbox, 10)], &[])).await;
    let has = async |id| server.mail.has_email(ACCOUNT, id, blob).await.unwrap();
    assert!(has(email).await);
    assert!(!has(other).await, "another message");
    assert!(!has(inbox).await && !has(RecordId(999)).await, "no email");
    server.update(email, move_to(&[archive])).await;
    assert!(has(email).await, "wherever the user has moved it");
    server.mail.destroy_email(ACCOUNT, email, None).await.unwrap();
    assert!(!has(email).await);
}

#[tokio::test]
async fn an_import_obeys_the_limits_of_the_account() {
    let server = Server::new().await;
    let inbox = server.mailbox(Role::Inbox).await.id;
    let import = |message| server.mail.import(ACCOUNT, message);
    let full = ImportedMessage { quota: Some(100), ..imported(1, &[(inbox, 10)], &[]) };
    assert!(matches!(import(full).await, Err(MailError::OverQuota)));
    assert!(matches!(import(imported(1, &[], &[])).await, Err(MailError::NoMailbox)));
    let unknown = imported(1, &[(RecordId(999), 10)], &[]);
    assert!(matches!(import(unknown).await, Err(MailError::UnknownMailbox(_))));
    let bad = imported(1, &[(inbox, 10)], &["a b"]);
    assert!(matches!(import(bad).await, Err(MailError::BadKeyword(_))));
    let many: Vec<String> = (0..101).map(|number| format!("k{number}")).collect();
    let many = ImportedMessage { keywords: many, ..imported(1, &[(inbox, 10)], &[]) };
    assert!(matches!(import(many).await, Err(MailError::TooManyKeywords)));
    assert_eq!(server.mailbox(Role::Inbox).await.total, 0);
}
