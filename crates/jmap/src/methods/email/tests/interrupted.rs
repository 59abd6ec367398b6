//! Emails that are created and destroyed while a result is built.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use restante_mail::email;
use restante_records::{
    AccountId, Change, Commit, Get, Query, Record, RecordId, Records,
    testing::{Hook, Hooked},
};
use serde_json::{Value, json};

use super::Fixture;
use crate::{JmapConfig, testing::TestServer};

/// The state of a copy of an email while a result is built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Copy {
    #[default]
    None,
    /// It is created by the next query.
    OfEmail(RecordId),
    /// It exists, and is destroyed before the states are read next.
    Is(RecordId),
}

/// A copy of an email that is created and destroyed.
#[derive(Default)]
struct Coming(Mutex<Copy>);

impl Coming {
    fn take(&self) -> Copy {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    fn put(&self, copy: Copy) {
        *self.0.lock().unwrap() = copy;
    }
}

#[async_trait]
impl Hook for Coming {
    async fn before_query(&self, records: &dyn Records, account: AccountId, query: &Query) {
        match self.take() {
            Copy::OfEmail(id) if query.kind == email::KIND => {
                let found = records.get(account, &Get::whole(email::KIND, vec![id])).await.unwrap();
                let Record { body, properties, .. } = found.into_iter().flatten().next().unwrap();
                let create = Change::Create { kind: email::KIND, body, properties };
                let created = records.commit(account, Commit::of([create])).await.unwrap().created;
                self.put(Copy::Is(created[0]));
            }
            other => self.put(other),
        }
    }

    async fn before_states(&self, records: &dyn Records, account: AccountId) {
        match self.take() {
            Copy::Is(id) => {
                let destroy = Change::Destroy { kind: email::KIND, id };
                records.commit(account, Commit::of([destroy])).await.unwrap();
            }
            other => self.put(other),
        }
    }
}

/// The filters of results: an index alone answers the first; emails are read for the others.
fn filters(inbox: &str) -> [Value; 3] {
    [json!({ "inMailbox": inbox }), json!({"notKeyword": "$flagged"}), Value::Null]
}

#[tokio::test]
async fn x1_an_email_that_came_and_went_while_a_result_was_made_is_not_in_it() {
    for number in 0..filters("").len() {
        let mut interrupting = None;
        let wrap = |inner: Arc<dyn Records>| {
            let records = Arc::new(Hooked { inner, hook: Coming::default() });
            interrupting = Some(records.clone());
            records as Arc<dyn Records>
        };
        let fixture = Fixture::of(TestServer::with_records(JmapConfig::default(), wrap).await).await;
        let (interrupting, filter) = (interrupting.unwrap(), &filters(&fixture.inbox_id())[number]);
        let email = fixture.add_plain("one", 1).await;
        // The state of a result is that of emails; no result was built before.
        let state = fixture.call("Email/get", json!({"ids": []})).await["state"].clone();
        interrupting.hook.put(Copy::OfEmail(email));
        let since = json!({"filter": filter, "sinceQueryState": state, "calculateTotal": true});
        let changes = fixture.call("Email/queryChanges", since).await;
        assert_eq!(interrupting.hook.take(), Copy::None, "{filter}: it came and went: {changes}");
        assert_eq!((&changes["total"], &changes["added"]), (&json!(1), &json!([])), "{filter}: {changes}");
    }
}
