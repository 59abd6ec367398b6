//! The round of `jmap-client` against the server at the URL of the first argument, as the user of the second; the password is in
//! the environment variable `PASSWORD`.

use std::{pin::pin, time::Duration};

use futures_util::{Stream, StreamExt};
use jmap_client::{
    DataType, PushObject,
    client::Client,
    client_ws::WebSocketMessage,
    core::query::{Comparator, Filter},
    email::{self, Property},
    event_source::PushNotification,
    mailbox::{self, Role},
};

type Error = Box<dyn std::error::Error>;

const PATIENCE: Duration = Duration::from_secs(60);
const MESSAGE: &str = "From: Bert <bert@example.net>\r\nTo: anna@example.org\r\nSubject: By jmap-client\r\n\
                       Message-ID: <by.jmap.client@example.net>\r\n\r\nThe lazy dog reads its mail.\r\n";
const NOTHING: Option<Vec<Property>> = None;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let [_, url, user] = &std::env::args().collect::<Vec<_>>()[..] else {
        return Err("usage: interop-jmap-client URL USER".into());
    };
    let password = std::env::var("PASSWORD")?;
    let connect = |password: &str| {
        // The server's certificate is one that openssl has just made.
        let builder = Client::new().accept_invalid_certs(true).follow_redirects(["localhost", "127.0.0.1"]);
        builder.credentials((user.as_str(), password)).timeout(PATIENCE)
    };
    assert!(connect("wrong").connect(url).await.is_err(), "a wrong password");
    let client = connect(&password).connect(url).await?;
    assert_eq!(client.session().username(), user);

    let inbox = with_role(&client, Role::Inbox).await?;
    let folder = mailboxes(&client, &inbox).await?;
    let email = import_and_read(&client, &inbox).await?;
    search(&client, &email).await?;
    change(&client, &email, &inbox, &folder).await?;
    event_source(&client, &email).await?;
    web_socket(&client, &email, &folder).await?;

    client.email_destroy(&email).await?;
    assert!(client.email_get(&email, NOTHING).await?.is_none());
    client.mailbox_destroy(&folder, true).await?;
    println!("passed");
    Ok(())
}

async fn with_role(client: &Client, role: Role) -> Result<String, Error> {
    let filter = mailbox::query::Filter::role(role);
    let mut found = client.mailbox_query(Some(filter), None::<Vec<_>>).await?.take_ids();
    assert_eq!(found.len(), 1);
    Ok(found.remove(0))
}

/// Makes a mailbox, renames and moves it.
async fn mailboxes(client: &Client, inbox: &str) -> Result<String, Error> {
    let folder = client.mailbox_create("Rust", None::<String>, Role::None).await?.take_id();
    client.mailbox_rename(&folder, "Crates").await?;
    client.mailbox_move(&folder, Some(inbox)).await?;
    client.mailbox_subscribe(&folder, true).await?;
    let read = client.mailbox_get(&folder, None::<Vec<_>>).await?.ok_or("no mailbox")?;
    assert_eq!((read.name(), read.parent_id()), (Some("Crates"), Some(inbox)));
    assert_eq!((read.total_emails(), read.unread_emails(), read.role()), (0, 0, Role::None));
    Ok(folder)
}

/// Uploads a message, imports it, and reads it whole and by its properties.
async fn import_and_read(client: &Client, inbox: &str) -> Result<String, Error> {
    let imported =
        client.email_import(MESSAGE.into(), [inbox], Some(["$draft"]), Some(1_600_000_000)).await?;
    let id = imported.id().ok_or("no id")?.to_owned();
    let properties = [
        Property::Subject,
        Property::Preview,
        Property::Keywords,
        Property::BlobId,
        Property::ThreadId,
        Property::From,
    ];
    let email = client.email_get(&id, Some(properties)).await?.ok_or("no email")?;
    assert_eq!(
        (email.subject(), email.preview()),
        (Some("By jmap-client"), Some("The lazy dog reads its mail."))
    );
    assert_eq!(email.keywords(), ["$draft"]);
    assert_eq!(email.from().ok_or("no sender")?[0].email(), "bert@example.net");
    let blob = client.download(email.blob_id().ok_or("no blob")?).await?;
    assert_eq!(String::from_utf8_lossy(&blob), MESSAGE);
    let thread = client.thread_get(email.thread_id().ok_or("no thread")?).await?.ok_or("no thread")?;
    assert_eq!(thread.email_ids(), [id.clone()]);
    let parsed = client
        .email_parse(email.blob_id().ok_or("no blob")?, Some([Property::Subject]), None::<Vec<_>>, Some(100))
        .await?;
    assert_eq!(parsed.subject(), Some("By jmap-client"));
    Ok(id)
}

async fn search(client: &Client, email: &str) -> Result<(), Error> {
    let filter = || {
        let conditions = [
            email::query::Filter::text("\"lazy dog\""),
            email::query::Filter::has_keyword("$draft"),
            email::query::Filter::before(1_600_000_001),
        ];
        Filter::and(conditions)
    };
    let by_date: Comparator<email::query::Comparator> = email::query::Comparator::received_at().descending();
    let found = client.email_query(Some(filter()), Some([by_date])).await?;
    assert_eq!(found.ids(), [email]);
    let snippets = client.search_snippet_get(Some(email::query::Filter::text("lazy")), [email]).await?;
    let snippet = snippets.snippet(email).and_then(|snippet| snippet.preview()).ok_or("no snippet")?;
    assert!(snippet.contains("<mark>lazy</mark>"), "{snippet}");

    // The same by a back reference, in one request.
    let mut request = client.build();
    let result = request.query_email().filter(filter()).result_reference();
    request.get_email().ids_ref(result).properties([Property::Id, Property::Subject]);
    let mut responses = request.send().await?.unwrap_method_responses();
    let list = responses.pop().ok_or("no response")?.unwrap_get_email()?.take_list();
    assert_eq!(list.iter().filter_map(|email| email.subject()).collect::<Vec<_>>(), ["By jmap-client"]);
    Ok(())
}

/// Flags and moves the email, and requests the changes.
async fn change(client: &Client, email: &str, inbox: &str, folder: &str) -> Result<(), Error> {
    let mut request = client.build();
    request.get_email().ids([email]).properties([Property::Id]);
    let state = request.send_get_email().await?.take_state();
    client.email_set_keyword(email, "work", true).await?;
    client.email_set_keywords(email, ["$seen", "$flagged"]).await?;
    client.email_set_mailboxes(email, [folder]).await?;
    let changes = client.email_changes(&state, None).await?;
    assert_eq!(
        (changes.updated(), changes.created().len(), changes.has_more_changes()),
        (&[email.to_owned()][..], 0, false)
    );
    let of_inbox = client.email_query(Some(email::query::Filter::in_mailbox(inbox)), None::<Vec<_>>).await?;
    assert!(!of_inbox.ids().contains(&email.to_owned()));
    let read = client.mailbox_get(folder, None::<Vec<_>>).await?.ok_or("no mailbox")?;
    assert_eq!((read.total_emails(), read.unread_emails()), (1, 0));
    Ok(())
}

/// The next item of the stream that the function accepts. Meanwhile the keywords of the email change, so that
/// there are changes after the server has started to send.
async fn next_of<S: Stream, T>(
    client: &Client,
    email: &str,
    stream: S,
    take: impl Fn(S::Item) -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    let mut stream = pin!(stream);
    let changes = async {
        for round in 0.. {
            client.email_set_keywords(email, [format!("round{round}")]).await?;
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        Err::<T, Error>("changes ended".into())
    };
    let wanted = async {
        while let Some(item) = stream.next().await {
            if let Some(taken) = take(item)? {
                return Ok(taken);
            }
        }
        Err("the stream ended".into())
    };
    tokio::time::timeout(PATIENCE, async {
        tokio::select! { taken = wanted => taken, failed = changes => failed }
    })
    .await?
}

async fn event_source(client: &Client, email: &str) -> Result<(), Error> {
    let stream =
        client.event_source(Some([DataType::Email, DataType::Mailbox]), false, Some(30), None).await?;
    next_of(client, email, stream, |event| {
        let PushNotification::StateChange(change) = event? else { return Ok(None) };
        let mut types = change.changes(client.default_account_id()).ok_or("another account")?;
        Ok(types.any(|(data_type, state)| *data_type == DataType::Email && !state.is_empty()).then_some(()))
    })
    .await
}

async fn web_socket(client: &Client, email: &str, folder: &str) -> Result<(), Error> {
    let mut stream = client.connect_ws().await?;
    let mut request = client.build();
    request.set_mailbox().update(folder).sort_order(7);
    let request_id = request.send_ws().await?;
    let answer = tokio::time::timeout(PATIENCE, stream.next()).await?.ok_or("the socket closed")??;
    let WebSocketMessage::Response(mut response) = answer else { return Err("no response".into()) };
    assert_eq!(response.request_id(), Some(request_id.as_str()));
    response.pop_method_response().ok_or("no response")?.unwrap_set_mailbox()?.updated(folder)?;

    client.enable_push_ws(None::<Vec<_>>, None::<&str>).await?;
    next_of(client, email, stream, |message| match message? {
        WebSocketMessage::PushNotification(PushObject::StateChange { changed }) => {
            Ok(changed.contains_key(client.default_account_id()).then_some(()))
        }
        other => Err(format!("unexpected: {other:?}").into()),
    })
    .await
}
