use std::collections::BTreeSet;

use restante_records::{
    AccountId, Body, Change, Commit, Config, EngineUrl, Get, IndexOrder, Opened, Properties, Property, Query,
    RecordId, Schema, Value, open,
};

use super::*;

const ACCOUNT: AccountId = AccountId(1);

async fn store() -> Opened {
    let schema = Schema::new(kinds()).unwrap();
    open(Config::new(EngineUrl::Memory, schema)).await.unwrap()
}

async fn create(store: &Opened, changes: Vec<(Kind, Properties)>) -> Vec<RecordId> {
    let changes = changes.into_iter().map(|(kind, properties)| Change::Create {
        kind,
        body: Body::default(),
        properties,
    });
    store.records.commit(ACCOUNT, Commit::of(changes)).await.unwrap().created
}

async fn found(store: &Opened, query: Query) -> Vec<RecordId> {
    store.records.query(ACCOUNT, &query).await.unwrap().ids
}

#[test]
fn no_number_is_given_twice_and_none_belongs_to_others() {
    let own = kinds().into_iter().map(|kind| kind.kind);
    let numbers: Vec<Kind> = own.chain(RESERVED.iter().map(|(kind, _)| *kind)).collect();
    let distinct: BTreeSet<Kind> = numbers.iter().copied().collect();
    assert_eq!(distinct.len(), numbers.len());
    assert!(distinct.iter().all(|kind| *kind < KINDS_END));
    Schema::new(kinds()).unwrap();
}

/// The page documents what is stored on disk, so this test keeps the numbers from being changed.
#[test]
fn the_page_of_the_format_lists_every_number() {
    let page = include_str!("../../../../docs/formats/records.md");
    let (_, mail) = page.split_once("\n## Kinds of mail\n").unwrap();
    let said: Vec<&str> = mail.lines().take_while(|line| !line.starts_with("## ")).collect();
    let mut expected = Vec::new();
    for kind in kinds() {
        let properties = kind.properties.iter().map(|(property, name)| format!("{} {name}", property.0));
        let name_of = |part: &Property| kind.properties.iter().find(|(known, _)| known == part).unwrap().1;
        let indexes = kind.indexes.iter().map(|index| {
            let parts: Vec<&str> = index.parts.iter().map(name_of).collect();
            let order = if index.order == IndexOrder::Scattered { " scattered" } else { "" };
            format!("{} [{}]{order}", index.index.0, parts.join(", "))
        });
        let (properties, indexes): (Vec<String>, Vec<String>) = (properties.collect(), indexes.collect());
        let cells = [kind.kind.0.to_string(), kind.name.into(), properties.join(", "), indexes.join(", ")];
        expected.push(format!("| {} |", cells.join(" | ")).replace("|  |", "| |").replace("|  |", "| |"));
    }
    for (kind, name) in RESERVED {
        expected.push(format!("| {} | {name} | reserved | |", kind.0));
    }
    let rows: Vec<&str> = said.into_iter().filter(|line| line.starts_with("| ")).skip(2).collect();
    assert_eq!(rows, expected);
}

#[tokio::test]
async fn mail_is_delivered_and_found() {
    let store = store().await;
    let inbox = Properties::default()
        .with(mailbox::PARENT, 0)
        .with(mailbox::NAME, "Inbox")
        .with(mailbox::ROLE, "inbox")
        .with(mailbox::UID_NEXT, 1);
    let inbox = create(&store, vec![(mailbox::KIND, inbox)]).await[0];
    let by_role = Query::new(mailbox::KIND, mailbox::BY_ROLE).equals("inbox");
    assert_eq!(found(&store, by_role).await, [inbox]);

    let (thread_key, delivery) = (u64::MAX / 3, u64::MAX / 5);
    let place = inbox.0 << 32 | 1;
    let mail = Properties::default()
        .with(email::MAILBOX, inbox)
        .with(email::RECEIVED, 1_700_000_000)
        .with(email::THREAD, Value::Created(0))
        .with(email::THREAD_KEY, thread_key)
        .with(email::UNSEEN, 1)
        .with(email::PLACE, place)
        .with(email::DELIVERY, delivery)
        .with(email::KEYWORD, keyword::FIRST_OTHER + 7);
    let created = create(&store, vec![(thread::KIND, Properties::default()), (email::KIND, mail)]).await;
    let of = |index| Query::new(email::KIND, index);
    for query in [
        of(email::BY_MAILBOX).equals(inbox).descending().limit(20),
        of(email::BY_RECEIVED).descending(),
        of(email::BY_THREAD).equals(created[0]),
        of(email::BY_THREAD_KEY).equals(thread_key),
        of(email::BY_UNSEEN).equals(inbox).equals(1),
        of(email::BY_KEYWORD).equals(keyword::FIRST_OTHER + 7),
        of(email::BY_PLACE).equals(place),
        of(email::BY_DELIVERY).equals(delivery),
    ] {
        assert_eq!(found(&store, query.clone()).await, [created[1]], "{query:?}");
    }
    let read = store.records.get(ACCOUNT, &Get::small(email::KIND, vec![created[1]])).await.unwrap();
    let threads: Vec<Value> = read[0].as_ref().unwrap().properties.values(email::THREAD).cloned().collect();
    assert_eq!(threads, [Value::from(created[0])]);
}

/// The number of entries of an email in an index is bounded, which bounds its mailboxes and keywords: no index has an entry for
/// each pair of the two.
#[test]
fn no_index_multiplies_mailboxes_with_keywords_or_places() {
    let many = [email::MAILBOX, email::KEYWORD, email::PLACE, email::DELETED, email::THREAD_KEY];
    for index in email::schema().indexes {
        let of_many = index.parts.iter().filter(|part| many.contains(part)).count();
        assert!(of_many <= 1, "{}", index.name);
    }
}
