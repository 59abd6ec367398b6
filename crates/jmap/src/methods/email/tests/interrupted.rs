//! Emails that come and go while a result is made.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use restante_mail::email;
use restante_records::{
    AccountId, Change, Changes, ChangesSince, Commit, Committed, Count, Error, Get, Page, Query, Record,
    RecordId, Records, States, Watch,
};
use serde_json::{Value, json};

use super::Fixture;
use crate::{JmapConfig, testing::TestServer};

/// What a copy of an email does while a result is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Copy {
    #[default]
    None,
    /// It comes with the next query.
    OfEmail(RecordId),
    /// It is there, and goes before the next look at the states.
    Is(RecordId),
}

/// Records in which a copy of an email comes and goes.
struct Interrupting {
    inner: Arc<dyn Records>,
    copy: Mutex<Copy>,
}

impl Interrupting {
    fn take(&self) -> Copy {
        std::mem::take(&mut self.copy.lock().unwrap())
    }

    fn put(&self, copy: Copy) {
        *self.copy.lock().unwrap() = copy;
    }
}

#[async_trait]
impl Records for Interrupting {
    async fn commit(&self, account: AccountId, commit: Commit) -> Result<Committed, Error> {
        self.inner.commit(account, commit).await
    }

    async fn get(&self, account: AccountId, get: &Get) -> Result<Vec<Option<Record>>, Error> {
        self.inner.get(account, get).await
    }

    async fn query(&self, account: AccountId, query: &Query) -> Result<Page, Error> {
        match self.take() {
            Copy::OfEmail(id) if query.kind == email::KIND => {
                let found = self.inner.get(account, &Get::whole(email::KIND, vec![id])).await?;
                let Record { body, properties, .. } = found.into_iter().flatten().next().unwrap();
                let create = Change::Create { kind: email::KIND, body, properties };
                let created = self.inner.commit(account, Commit::of([create])).await?.created;
                self.put(Copy::Is(created[0]));
            }
            other => self.put(other),
        }
        self.inner.query(account, query).await
    }

    async fn count(&self, account: AccountId, query: &Query) -> Result<Count, Error> {
        self.inner.count(account, query).await
    }

    async fn changes(&self, account: AccountId, since: &ChangesSince) -> Result<Changes, Error> {
        self.inner.changes(account, since).await
    }

    async fn states(&self, account: AccountId) -> Result<States, Error> {
        match self.take() {
            Copy::Is(id) => {
                let destroy = Change::Destroy { kind: email::KIND, id };
                self.inner.commit(account, Commit::of([destroy])).await?;
            }
            other => self.put(other),
        }
        self.inner.states(account).await
    }

    fn watch(&self) -> Watch {
        self.inner.watch()
    }
}

/// The filters of results: an index says all of the first; emails are read for the others.
fn filters(inbox: &str) -> [Value; 3] {
    [json!({ "inMailbox": inbox }), json!({"notKeyword": "$flagged"}), Value::Null]
}

#[tokio::test]
async fn x1_an_email_that_came_and_went_while_a_result_was_made_is_not_in_it() {
    for number in 0..filters("").len() {
        let mut interrupting = None;
        let wrap = |inner: Arc<dyn Records>| {
            let records = Arc::new(Interrupting { inner, copy: Mutex::default() });
            interrupting = Some(records.clone());
            records as Arc<dyn Records>
        };
        let fixture = Fixture::of(TestServer::with_records(JmapConfig::default(), wrap).await).await;
        let (interrupting, filter) = (interrupting.unwrap(), &filters(&fixture.inbox_id())[number]);
        let email = fixture.add_plain("one", 1).await;
        // The state of a result is that of emails; no result was made before.
        let state = fixture.call("Email/get", json!({"ids": []})).await["state"].clone();
        interrupting.put(Copy::OfEmail(email));
        let since = json!({"filter": filter, "sinceQueryState": state, "calculateTotal": true});
        let changes = fixture.call("Email/queryChanges", since).await;
        assert_eq!(interrupting.take(), Copy::None, "{filter}: it came and went: {changes}");
        assert_eq!((&changes["total"], &changes["added"]), (&json!(1), &json!([])), "{filter}: {changes}");
    }
}
