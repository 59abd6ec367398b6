//! Thread methods (RFC 8621 §3).

use std::ops::Bound;

use restante_core::ErrorKind;
use restante_directory::Access;
use restante_mail::{EmailState, email, thread};
use restante_records::{AccountId, Error, Get, QUERIES_MAX, Query, RecordId, Records, Value};

use super::{changes, get};
use crate::core::{Args, Capability, Context, Exchange, IdType, Members, Method, MethodError};

pub(crate) const METHODS: &[Method] = &[
    Method {
        name: "Thread/get",
        capability: Capability::Mail,
        run: |context, exchange, args| Box::pin(get(context, exchange, args)),
    },
    Method {
        name: "Thread/changes",
        capability: Capability::Mail,
        run: |context, exchange, args| Box::pin(changes(context, exchange, args)),
    },
];

/// A property of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThreadProperty {
    Id,
    EmailIds,
}

impl ThreadProperty {
    const ALL: [Self; 2] = [Self::Id, Self::EmailIds];

    fn name(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::EmailIds => "emailIds",
        }
    }
}

/// The most emails of a thread that are read at once; the mail model does not let threads become that long.
const EMAILS_MAX: usize = 4_096;

/// Thread/get: one read of an index for all threads.
async fn get(context: &Context, exchange: &mut Exchange, args: Args) -> Result<(), MethodError> {
    let args =
        get::GetArgs::take(args, context, exchange, &ThreadProperty::ALL, ThreadProperty::name).await?;
    // The state is read first: changes made meanwhile are then also reported by /changes.
    let state = context.records().states(args.account).await?.of(thread::KIND);
    let ids = match args.ids {
        Some(ids) => ids,
        None => all(context, args.account).await?,
    };
    let mut found = Vec::with_capacity(ids.len());
    let mut not_found = Vec::new();
    let threads: Vec<Option<RecordId>> = ids.iter().map(|id| IdType::Thread.record(id)).collect();
    let known = threads.iter().flatten().copied();
    let mut emails = emails_of_each(context.records(), args.account, known).await?.into_iter();
    for (id, thread) in ids.into_iter().zip(threads) {
        let emails = thread.and_then(|_| emails.next()).unwrap_or_default();
        match emails.is_empty() {
            true => not_found.push(id),
            false => found.push((id, emails)),
        }
    }
    let has_emails = args.properties.contains(&ThreadProperty::EmailIds);
    let mut answer = get::begin(exchange, args.account, &state.0.to_string());
    let mut list = answer.list("list");
    for (id, emails) in found {
        let mut object = list.object();
        object.field("id", &id);
        if has_emails {
            let mut email_ids = object.list("emailIds");
            for email in emails {
                IdType::Email.write(email, email_ids.item());
            }
        }
    }
    drop(list);
    answer.field("notFound", &not_found);
    Ok(())
}

/// Thread/changes.
async fn changes(context: &Context, exchange: &mut Exchange, mut args: Args) -> Result<(), MethodError> {
    let account = args.account(context, Access::Read).await?;
    let page = changes::page(context, account, thread::KIND, &mut args).await?;
    args.done()?;
    page.write(account, IdType::Thread, &mut exchange.answers.begin());
    Ok(())
}

/// The emails of each thread, by the time when they were received, then by id; empty for a thread that does not exist.
pub(super) async fn emails_of_each(
    records: &dyn Records,
    account: AccountId,
    threads: impl IntoIterator<Item = RecordId>,
) -> Result<Vec<Vec<RecordId>>, Error> {
    let of_thread =
        |thread: RecordId| Query::new(email::KIND, email::BY_THREAD).equals(thread.0).limit(EMAILS_MAX);
    let queries: Vec<Query> = threads.into_iter().map(of_thread).collect();
    let mut emails = Vec::with_capacity(queries.len());
    for queries in queries.chunks(QUERIES_MAX) {
        let pages = records.query_each(account, queries).await?;
        emails.extend(pages.into_iter().map(|page| page.ids));
    }
    Ok(emails)
}

/// The ids of all threads. Each is found by seeking past the one before it, so long threads take no longer than short ones. A thread whose
/// first email is damaged is found by its next one. A thread that has only damaged emails is left out, as Email/get leaves them out; the
/// records log them.
async fn all(context: &Context, account: AccountId) -> Result<Vec<String>, MethodError> {
    let past = |thread: Bound<Value>| {
        Query::new(email::KIND, email::BY_THREAD).between(thread, Bound::Unbounded).limit(1)
    };
    let (mut ids, mut damaged) = (Vec::new(), 0);
    let mut query = past(Bound::Unbounded);
    loop {
        let page = context.records().query(account, &query).await?;
        let Some(first) = page.ids.first() else { break };
        match thread_of(context, account, *first).await {
            Ok(Some(thread)) => {
                ids.push(IdType::Thread.id(thread));
                query = past(Bound::Excluded(thread.into()));
            }
            // It was destroyed after the index was read; it is no longer in the index.
            Ok(None) => {}
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                damaged += 1;
                let Some(next) = page.next else { break };
                query = query.after(next);
            }
            Err(error) => return Err(error.into()),
        }
        context.check_objects_in_get(ids.len() + damaged)?;
    }
    // As Email/get: it fails when it finds nothing but damage.
    if ids.is_empty() && damaged > 0 {
        return Err(MethodError::ServerFail);
    }
    Ok(ids)
}

/// The thread of an email; `None` when there is no such email.
async fn thread_of(context: &Context, account: AccountId, id: RecordId) -> Result<Option<RecordId>, Error> {
    let found = context.records().get(account, &Get::small(email::KIND, vec![id])).await?;
    let Some(record) = found.into_iter().flatten().next() else { return Ok(None) };
    Ok(Some(EmailState::of(&record)?.thread))
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        sync::{Arc, Mutex},
    };

    use async_trait::async_trait;
    use restante_mail::email;
    use restante_records::{
        Error, Get, RecordId, Records,
        testing::{Hook, Hooked},
    };
    use serde_json::{Value, json};

    use crate::{JmapConfig, core::IdType, testing::TestServer};

    /// The emails that are damaged.
    #[derive(Default)]
    struct Damaged(Mutex<BTreeSet<RecordId>>);

    #[async_trait]
    impl Hook for Damaged {
        fn before_get(&self, get: &Get) -> Result<(), Error> {
            let damaged = self.0.lock().unwrap();
            match get.kind == email::KIND && get.ids.iter().any(|id| damaged.contains(id)) {
                true => Err(Error::corrupt("a row is damaged")),
                false => Ok(()),
            }
        }
    }

    async fn call(server: &TestServer, name: &str, arguments: Value) -> Value {
        let mut arguments = arguments;
        arguments["accountId"] = json!(server.alice.id);
        server.call(name, arguments).await
    }

    /// Imports a message that was received at a time; returns what the server says of it.
    async fn import(server: &TestServer, fields: &str, received_at: &str) -> Value {
        let inbox =
            call(server, "Mailbox/query", json!({"filter": {"role": "inbox"}})).await["ids"][0].clone();
        let blob = server.upload(format!("Subject: Re: a\r\n{fields}\r\nbody\r\n")).await;
        let email =
            json!({"blobId": blob, "mailboxIds": {inbox.as_str().unwrap(): true}, "receivedAt": received_at});
        let answer = call(server, "Email/import", json!({"emails": {"k": email}})).await;
        assert_eq!(answer["notCreated"], Value::Null, "{answer}");
        answer["created"]["k"].clone()
    }

    #[tokio::test]
    async fn thread_emails_stand_by_received_at_then_id() {
        let server = TestServer::new().await;
        let late = import(&server, "Message-ID: <1@x>\r\n", "2026-01-03T00:00:00Z").await;
        let early =
            import(&server, "Message-ID: <2@x>\r\nReferences: <1@x>\r\n", "2026-01-01T00:00:00Z").await;
        let same =
            import(&server, "Message-ID: <3@x>\r\nIn-Reply-To: <1@x>\r\n", "2026-01-01T00:00:00Z").await;
        let other = import(&server, "Message-ID: <9@x>\r\n", "2026-01-02T00:00:00Z").await;
        assert_eq!((&late["threadId"], &early["threadId"]), (&early["threadId"], &same["threadId"]));
        let ids = json!([late["threadId"], "t99999", other["threadId"], "m1"]);
        let answer = call(&server, "Thread/get", json!({ "ids": ids })).await;
        let expected = json!([
            {"id": late["threadId"], "emailIds": [early["id"], same["id"], late["id"]]},
            {"id": other["threadId"], "emailIds": [other["id"]]},
        ]);
        assert_eq!((&answer["list"], &answer["notFound"]), (&expected, &json!(["t99999", "m1"])));
        let all = call(&server, "Thread/get", json!({"properties": ["id"]})).await;
        let expected = json!([{"id": late["threadId"]}, {"id": other["threadId"]}]);
        assert_eq!((&all["list"], &all["state"]), (&expected, &answer["state"]));
    }

    /// Regression test: the call failed as a whole.
    #[tokio::test]
    async fn threads_of_damaged_emails_are_found_by_others_or_left_out_of_all() {
        let mut hooked = None;
        let wrap = |inner: Arc<dyn Records>| {
            let records = Arc::new(Hooked { inner, hook: Damaged::default() });
            hooked = Some(records.clone());
            records as Arc<dyn Records>
        };
        let server = TestServer::with_records(JmapConfig::default(), wrap).await;
        let first = import(&server, "Message-ID: <1@x>\r\n", "2026-01-01T00:00:00Z").await;
        let joined =
            import(&server, "Message-ID: <2@x>\r\nReferences: <1@x>\r\n", "2026-01-03T00:00:00Z").await;
        let alone = import(&server, "Message-ID: <8@x>\r\n", "2026-01-02T00:00:00Z").await;
        let last = import(&server, "Message-ID: <9@x>\r\n", "2026-01-02T00:00:00Z").await;
        let damage = |emails: &[&Value]| {
            let records =
                emails.iter().map(|email| IdType::Email.record(email["id"].as_str().unwrap()).unwrap());
            *hooked.as_ref().unwrap().hook.0.lock().unwrap() = records.collect();
        };
        let thread = |email: &Value| json!({"id": email["threadId"]});
        let all = json!({"properties": ["id"]});
        for (damaged, expected) in [
            (vec![&first], json!([thread(&first), thread(&alone), thread(&last)])),
            (vec![&first, &joined], json!([thread(&alone), thread(&last)])),
            (vec![&alone, &last], json!([thread(&first)])),
        ] {
            damage(&damaged);
            assert_eq!(call(&server, "Thread/get", all.clone()).await["list"], expected, "{damaged:?}");
        }
        let ids = json!({"ids": [alone["threadId"]]});
        let named = json!([{"id": alone["threadId"], "emailIds": [alone["id"]]}]);
        assert_eq!(call(&server, "Thread/get", ids).await["list"], named, "it does exist");
        damage(&[&first, &joined, &alone, &last]);
        let arguments = json!({"accountId": server.alice.id});
        assert_eq!(server.call("Thread/get", arguments).await["type"], "serverFail");
    }

    #[tokio::test]
    async fn s4_a_thread_changes_when_an_email_joins_or_leaves_and_not_when_it_is_read() {
        let server = TestServer::new().await;
        let first = import(&server, "Message-ID: <1@x>\r\n", "2026-01-03T00:00:00Z").await;
        let state = call(&server, "Thread/get", json!({"ids": []})).await["state"].clone();
        let id = first["id"].as_str().unwrap();
        call(&server, "Email/set", json!({"update": {id: {"keywords/$seen": true}}})).await;
        let changes = call(&server, "Thread/changes", json!({ "sinceState": state })).await;
        assert_eq!((&changes["newState"], &changes["updated"]), (&state, &json!([])));
        let second =
            import(&server, "Message-ID: <2@x>\r\nReferences: <1@x>\r\n", "2026-01-01T00:00:00Z").await;
        let joined = call(&server, "Thread/changes", json!({ "sinceState": state })).await;
        assert_eq!((&joined["updated"], &joined["created"]), (&json!([first["threadId"]]), &json!([])));
        call(&server, "Email/set", json!({"destroy": [id]})).await;
        let left = call(&server, "Thread/changes", json!({"sinceState": joined["newState"]})).await;
        assert_eq!(left["updated"], json!([first["threadId"]]));
        call(&server, "Email/set", json!({"destroy": [second["id"]]})).await;
        let gone = call(&server, "Thread/changes", json!({"sinceState": left["newState"]})).await;
        assert_eq!((&gone["destroyed"], &gone["updated"]), (&json!([first["threadId"]]), &json!([])));
        assert!(gone.get("updatedProperties").is_none());
    }
}
