//! The kinds of records that this server keeps: those of mail over JMAP (RFC 8621), with what they are found by.
//!
//! Numbers stand in files: they are never changed and never given anew. A kind, a property or an index may be added; an index
//! that is new is made when the records are opened.
//!
//! What is neither searched by nor changed often stands in the body. What a filter asks rarely (size, subject, keywords other
//! than by mailbox) is read from the records of a page, or found by search, and has no index: each index costs every delivery.

use restante_records::{Index, IndexSchema, Kind, KindSchema, Property};

/// The kinds of mail, to be opened together with those of others.
pub fn kinds() -> Vec<KindSchema> {
    vec![mailbox(), email(), thread(), identity()]
}

/// RFC 8621 §2: a folder. An account has few of them, and a client asks for all.
fn mailbox() -> KindSchema {
    let (parent, name, role) = (Property(1), Property(2), Property(3));
    KindSchema::new(Kind(1), "mailbox")
        // The id of the mailbox above it, 0 at the top, so that the index below has all of them.
        .property(parent, "parent")
        // The beginning of the name, as much as a property takes; the whole stands in the body.
        .property(name, "name")
        .property(role, "role")
        // All mailboxes of an account. No two siblings may have the same name, which is looked up here.
        .index(IndexSchema::ordered(Index(1), "parent", &[parent, name]))
        // Delivery looks for the inbox. No two mailboxes of an account may have the same role.
        .index(IndexSchema::ordered(Index(2), "role", &[role]))
}

/// RFC 8621 §4: all of it is immutable but the mailboxes it is in and its keywords.
fn email() -> KindSchema {
    let (mailbox, received, thread) = (Property(1), Property(2), Property(3));
    let (message_id, keyword) = (Property(4), Property(5));
    KindSchema::new(Kind(2), "email")
        // One value for each mailbox that it is in.
        .property(mailbox, "mailbox")
        // Seconds since 1970.
        .property(received, "received")
        .property(thread, "thread")
        // A hash of each id in Message-ID, In-Reply-To and References, since these may be of any length.
        .property(message_id, "message_id")
        // $seen, $flagged and the like, one value for each.
        .property(keyword, "keyword")
        // RFC 8621 §4.4.2: to be sorted by receivedAt is the one order that every server must support.
        .index(IndexSchema::ordered(Index(1), "mailbox", &[mailbox, received]))
        // The same over all mailboxes, as a query without inMailbox asks.
        .index(IndexSchema::ordered(Index(2), "received", &[received]))
        // RFC 8621 §3: the emails of a thread, sorted by receivedAt.
        .index(IndexSchema::ordered(Index(3), "thread", &[thread, received]))
        // RFC 8621 §3: emails that share an id belong to one thread. Hashes are random, so that this one is scattered.
        .index(IndexSchema::scattered(Index(4), "message_id", &[message_id]))
}

/// RFC 8621 §3: it is there for its state. Its emails are found by theirs.
fn thread() -> KindSchema {
    KindSchema::new(Kind(3), "thread")
}

/// RFC 8621 §6: under which address an account sends.
fn identity() -> KindSchema {
    let email = Property(1);
    KindSchema::new(Kind(4), "identity")
        .property(email, "email")
        // All identities of an account, and the one of a sender.
        .index(IndexSchema::ordered(Index(1), "email", &[email]))
}

#[cfg(test)]
mod tests {
    use restante_records::{
        AccountId, Body, Change, Commit, Config, EngineUrl, Get, Properties, Query, Schema, Value, open,
    };

    use super::*;

    #[test]
    fn kinds_keep_their_numbers() {
        let numbers: Vec<(u8, &str)> = kinds().iter().map(|kind| (kind.kind.0, kind.name)).collect();
        assert_eq!(numbers, [(1, "mailbox"), (2, "email"), (3, "thread"), (4, "identity")]);
    }

    /// The way of a delivery, and of a client that opens its inbox.
    #[tokio::test]
    async fn mail_is_delivered_and_found() {
        let schema = Schema::new(kinds()).unwrap();
        let records = open(Config::new(EngineUrl::Memory, schema)).await.unwrap().records;
        let account = AccountId(1);
        let (mailbox, email, thread) = (Kind(1), Kind(2), Kind(3));
        let create = |kind, properties| Change::Create { kind, body: Body::default(), properties };
        let inbox =
            Properties::default().with(Property(1), 0).with(Property(2), "Inbox").with(Property(3), "inbox");
        let inbox = records.commit(account, Commit::of([create(mailbox, inbox)])).await.unwrap().created[0];
        let found = records.query(account, &Query::new(mailbox, Index(2)).equals("inbox")).await.unwrap();
        assert_eq!(found.ids, [inbox]);

        let hash = u64::MAX / 3;
        let mail = Properties::default()
            .with(Property(1), inbox)
            .with(Property(2), 1_700_000_000)
            .with(Property(3), Value::Created(0))
            .with(Property(4), hash);
        let changes = [create(thread, Properties::default()), create(email, mail)];
        let created = records.commit(account, Commit::of(changes)).await.unwrap().created;
        let by_reference = Query::new(email, Index(4)).equals(hash);
        assert_eq!(records.query(account, &by_reference).await.unwrap().ids, [created[1]]);
        let newest = Query::new(email, Index(1)).equals(inbox).descending().limit(20);
        assert_eq!(records.query(account, &newest).await.unwrap().ids, [created[1]]);
        let read = records.get(account, &Get::small(email, vec![created[1]])).await.unwrap();
        let threads: Vec<Value> = read[0].as_ref().unwrap().properties.values(Property(3)).cloned().collect();
        assert_eq!(threads, [Value::from(created[0])]);
        let together = Query::new(email, Index(3)).equals(created[0]);
        assert_eq!(records.query(account, &together).await.unwrap().ids, [created[1]]);
    }
}
