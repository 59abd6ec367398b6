//! The kinds of mail: those of JMAP (RFC 8621), with what IMAP needs in addition.
//!
//! The numbers of kinds, properties and indexes are stored on disk: a number is never changed and never reused. A kind, a property
//! or an index may be added; a new index is built when the records are opened. Kinds from 64 on belong to others.
//! `docs/formats/records.md` lists all of them, and a test compares that page with this module.
//!
//! Data that no index needs as a key and that seldom changes belongs in the body. Each index costs every delivery, so rare filters
//! (size, subject) read the records of a page, or use the search index.

use restante_records::{Kind, KindSchema};

pub mod dkim;

/// The first kind that does not belong to mail.
pub const KINDS_END: Kind = Kind(64);

/// Kinds that later versions will have. Their numbers must not be used for anything else.
pub const RESERVED: [(Kind, &str); 1] = [(Kind(12), "sieve")];

/// The kinds of mail. A store is opened with them and the kinds of others in one schema.
pub fn kinds() -> Vec<KindSchema> {
    vec![
        mailbox::schema(),
        email::schema(),
        thread::schema(),
        identity::schema(),
        account::schema(),
        keyword::schema(),
        push::schema(),
        upload::schema(),
        vault::schema(),
        submission::schema(),
        outbox::schema(),
        vacation::schema(),
        answered::schema(),
        queued::schema(),
        outgoing::schema(),
        sent::schema(),
        dkim::schema(),
        dmarc_seen::schema(),
        quarantined::schema(),
        learned::schema(),
    ]
}

pub mod answered;
pub mod dmarc_seen;
pub mod learned;
pub mod outbox;
pub mod quarantined;
pub mod sent;
pub mod submission;
pub mod vacation;

/// A mailbox, RFC 8621 §2. An account has few of them, and a client asks for all.
pub mod mailbox {
    use restante_records::{Index, IndexSchema, Kind, KindSchema, Property};

    /// The number of the kind. An id stays below 2^31, so that it fits into a place, see [`super::email::PLACE`].
    pub const KIND: Kind = Kind(1);

    /// The id of its parent, 0 at the top, so that [`BY_PARENT`] has all mailboxes.
    pub const PARENT: Property = Property(1);
    /// As much of the beginning of the name as fits into a property; the whole name is in the body.
    pub const NAME: Property = Property(2);
    /// The role, lowercase; none for most mailboxes.
    pub const ROLE: Property = Property(3);
    /// The emails in it.
    pub const TOTAL: Property = Property(4);
    /// Its unread emails, as RFC 8621 §2 counts them.
    pub const UNREAD: Property = Property(5);
    /// The threads that have an email in it.
    pub const THREADS: Property = Property(6);
    /// Those of them that are unread, as RFC 8621 §2 counts them.
    pub const UNREAD_THREADS: Property = Property(7);
    /// The bytes of the emails in it.
    pub const BYTES: Property = Property(8);
    /// The UID that the next place in it gets (RFC 9051 §2.3.1.1). It only increases, even across a restore.
    pub const UID_NEXT: Property = Property(9);
    /// UIDVALIDITY: given when the mailbox is created, and never changed.
    pub const UID_VALIDITY: Property = Property(10);
    /// The revision that last changed an email in it: HIGHESTMODSEQ (RFC 7162).
    pub const MODSEQ: Property = Property(11);
    /// The revision that last removed an email from it. A client that has seen it need not ask for removed emails.
    pub const EXPUNGED: Property = Property(12);
    /// The revision that last changed anything except its counts and IMAP's numbers: a change of counts alone is reported as RFC
    /// 8621 §2.2 says.
    pub const SHAPE: Property = Property(13);

    /// All mailboxes of an account; also shows whether two siblings would have the same name.
    pub const BY_PARENT: Index = Index(1);
    /// Delivery finds the inbox by it. No two mailboxes of an account have the same role.
    pub const BY_ROLE: Index = Index(2);

    pub(super) fn schema() -> KindSchema {
        KindSchema::new(KIND, "mailbox")
            .property(PARENT, "parent")
            .property(NAME, "name")
            .property(ROLE, "role")
            .property(TOTAL, "total")
            .property(UNREAD, "unread")
            .property(THREADS, "threads")
            .property(UNREAD_THREADS, "unread_threads")
            .property(BYTES, "bytes")
            .counter(UID_NEXT, "uid_next")
            .property(UID_VALIDITY, "uid_validity")
            .property(MODSEQ, "modseq")
            .property(EXPUNGED, "expunged")
            .property(SHAPE, "shape")
            .index(IndexSchema::ordered(BY_PARENT, "parent", &[PARENT, NAME]))
            .index(IndexSchema::ordered(BY_ROLE, "role", &[ROLE]))
    }
}

/// An email, RFC 8621 §4. Only its mailboxes and its keywords change.
pub mod email {
    use restante_records::{Index, IndexSchema, Kind, KindSchema, Property};

    /// The number of the kind.
    pub const KIND: Kind = Kind(2);

    /// Each mailbox in which it has a place that is not deleted.
    pub const MAILBOX: Property = Property(1);
    /// When it was received, in seconds since 1970.
    pub const RECEIVED: Property = Property(2);
    /// The id of its thread.
    pub const THREAD: Property = Property(3);
    /// A hash of (message id, base subject) for its own id, and for the first and the last 15 ids of In-Reply-To and of References: an email
    /// that shares one belongs to the same thread.
    pub const THREAD_KEY: Property = Property(4);
    /// Each keyword except $seen, as a number, see [`super::keyword`].
    pub const KEYWORD: Property = Property(5);
    /// 1 while it does not have $seen, so that [`BY_UNSEEN`] has only unread mail.
    pub const UNSEEN: Property = Property(6);
    /// Each place of IMAP: the id of a mailbox times 2^32, plus the UID there. Two places in one mailbox are possible.
    pub const PLACE: Property = Property(7);
    /// The places that have \Deleted (RFC 9051 §2.3.2): they are in `place`, too.
    pub const DELETED: Property = Property(8);
    /// A hash of the bytes as they were received and of the recipient: a repeated delivery finds the email by it.
    pub const DELIVERY: Property = Property(9);
    /// The bytes of its message, for counters and quotas: they are computed without bodies.
    pub const SIZE: Property = Property(10);
    /// Of an imported email: a number for each folder of the source that it was found in. Its `delivery` is the key of the import.
    pub const ORIGIN: Property = Property(13);

    /// A mailbox by receivedAt, the one order that every server must support (RFC 8621 §4.4.2).
    pub const BY_MAILBOX: Index = Index(1);
    /// The same over all mailboxes, for a query without inMailbox.
    pub const BY_RECEIVED: Index = Index(2);
    /// The emails of a thread by receivedAt (RFC 8621 §3).
    pub const BY_THREAD: Index = Index(3);
    /// Finds the emails whose thread a new email joins. Hashes are random, so the index is scattered.
    pub const BY_THREAD_KEY: Index = Index(4);
    /// The unread emails of a mailbox.
    pub const BY_UNSEEN: Index = Index(5);
    /// The emails with a keyword.
    pub const BY_KEYWORD: Index = Index(6);
    /// A mailbox in the order of UIDs is one range.
    pub const BY_PLACE: Index = Index(7);
    /// Shows whether a message was delivered already.
    pub const BY_DELIVERY: Index = Index(8);

    pub(super) fn schema() -> KindSchema {
        KindSchema::new(KIND, "email")
            .property(MAILBOX, "mailbox")
            .property(RECEIVED, "received")
            .property(THREAD, "thread")
            .property(THREAD_KEY, "thread_key")
            .property(KEYWORD, "keyword")
            .property(UNSEEN, "unseen")
            .property(PLACE, "place")
            .property(DELETED, "deleted")
            .property(DELIVERY, "delivery")
            .property(SIZE, "size")
            .property(ORIGIN, "origin")
            .index(IndexSchema::ordered(BY_MAILBOX, "mailbox", &[MAILBOX, RECEIVED]))
            .index(IndexSchema::ordered(BY_RECEIVED, "received", &[RECEIVED]))
            .index(IndexSchema::ordered(BY_THREAD, "thread", &[THREAD, RECEIVED]))
            .index(IndexSchema::scattered(BY_THREAD_KEY, "thread_key", &[THREAD_KEY]))
            .index(IndexSchema::ordered(BY_UNSEEN, "unseen", &[MAILBOX, UNSEEN, RECEIVED]))
            .index(IndexSchema::ordered(BY_KEYWORD, "keyword", &[KEYWORD, RECEIVED]))
            .index(IndexSchema::ordered(BY_PLACE, "place", &[PLACE]))
            .index(IndexSchema::scattered(BY_DELIVERY, "delivery", &[DELIVERY]))
    }
}

/// A thread, RFC 8621 §3. It exists only to have a state; its emails are found by [`email::BY_THREAD`].
pub mod thread {
    use restante_records::{Kind, KindSchema};

    /// The number of the kind.
    pub const KIND: Kind = Kind(3);

    pub(super) fn schema() -> KindSchema {
        KindSchema::new(KIND, "thread")
    }
}

/// An identity, RFC 8621 §6: an address that an account sends with.
pub mod identity {
    use restante_records::{Index, IndexSchema, Kind, KindSchema, Property};

    /// The number of the kind.
    pub const KIND: Kind = Kind(4);

    /// The address.
    pub const EMAIL: Property = Property(1);

    /// All identities of an account, and the one of a sender.
    pub const BY_EMAIL: Index = Index(1);

    pub(super) fn schema() -> KindSchema {
        KindSchema::new(KIND, "identity").property(EMAIL, "email").index(IndexSchema::ordered(
            BY_EMAIL,
            "email",
            &[EMAIL],
        ))
    }
}

/// Properties of the mail of an account as a whole: one record.
pub mod account {
    use restante_records::{Index, IndexSchema, Kind, KindSchema, Property};

    /// The number of the kind.
    pub const KIND: Kind = Kind(5);

    /// The bytes of all emails; each is counted once, even if it is in several mailboxes.
    pub const BYTES: Property = Property(1);
    /// The emails.
    pub const COUNT: Property = Property(2);
    /// The revision that last added an email: the state of EmailDelivery (RFC 8621 §1.5).
    pub const DELIVERED: Property = Property(3);
    /// The last [`super::mailbox::UID_VALIDITY`] that was used: the next one is higher.
    pub const UID_VALIDITY: Property = Property(4);

    /// The bytes of the emails in the vault. Versions up to 0.1 did not count them: then the property is missing until the vault changes.
    pub const VAULT_BYTES: Property = Property(5);

    /// Finds the record: its only entry.
    pub const ALL: Index = Index(1);

    pub(super) fn schema() -> KindSchema {
        KindSchema::new(KIND, "account")
            .property(BYTES, "bytes")
            .property(COUNT, "count")
            .property(DELIVERED, "delivered")
            .property(UID_VALIDITY, "uid_validity")
            .property(VAULT_BYTES, "vault_bytes")
            .index(IndexSchema::ordered(ALL, "all", &[UID_VALIDITY]))
    }
}

/// A keyword (RFC 8621 §4.1.1) that is not in [`keyword::KNOWN`]. Emails refer to keywords by numbers, since a keyword may have 255
/// bytes: those of [`keyword::KNOWN`] have fixed numbers; the number of any other is the id of its record plus
/// [`keyword::FIRST_OTHER`].
pub mod keyword {
    use restante_records::{Index, IndexSchema, Kind, KindSchema, Property};

    /// The number of the kind.
    pub const KIND: Kind = Kind(6);

    /// Added to the id of a keyword's record: smaller numbers belong to [`KNOWN`].
    pub const FIRST_OTHER: u64 = 256;

    /// The keywords that have fixed numbers, lowercase. $seen is not one of them: see [`super::email::UNSEEN`].
    pub const KNOWN: [(u64, &str); 9] = [
        (1, "$flagged"),
        (2, "$draft"),
        (3, "$answered"),
        (4, "$forwarded"),
        (5, "$junk"),
        (6, "$notjunk"),
        (7, "$phishing"),
        (8, "$mdnsent"),
        (9, "$important"),
    ];

    /// A hash of the keyword in lowercase; the keyword itself is in the body, as it was first stored.
    pub const HASH: Property = Property(1);

    /// The record of a keyword. Keywords of one hash differ in their bodies.
    pub const BY_HASH: Index = Index(1);

    pub(super) fn schema() -> KindSchema {
        KindSchema::new(KIND, "keyword").property(HASH, "hash").index(IndexSchema::ordered(
            BY_HASH,
            "hash",
            &[HASH],
        ))
    }
}

/// A push subscription, RFC 8620 §7.2, in the account of the user that created it.
pub mod push {
    use restante_records::{Index, IndexSchema, Kind, KindSchema, Property};

    /// The number of the kind.
    pub const KIND: Kind = Kind(9);

    /// When it ends, in seconds since 1970.
    pub const EXPIRES: Property = Property(1);

    /// All subscriptions of an account, in the order in which they end.
    pub const BY_EXPIRES: Index = Index(1);

    pub(super) fn schema() -> KindSchema {
        KindSchema::new(KIND, "push").property(EXPIRES, "expires").index(IndexSchema::ordered(
            BY_EXPIRES,
            "expires",
            &[EXPIRES],
        ))
    }
}

/// A blob that a user uploaded (RFC 8620 §6.1). Its body refers to the blob.
pub mod upload {
    use restante_records::{Index, IndexSchema, Kind, KindSchema, Property};

    /// The number of the kind.
    pub const KIND: Kind = Kind(10);

    /// When it was last uploaded, in seconds since 1970.
    pub const UPLOADED: Property = Property(1);
    /// The account of the user that uploaded it. Only this user may use it (RFC 8620 §6.1).
    pub const OWNER: Property = Property(2);
    /// Its bytes.
    pub const SIZE: Property = Property(3);
    /// The hash of its bytes: uploading the same bytes again extends the time of the existing upload.
    pub const HASH: Property = Property(4);

    /// All uploads of an account, the oldest first.
    pub const BY_UPLOADED: Index = Index(1);
    /// The uploads of a user in the account, the oldest first.
    pub const BY_OWNER: Index = Index(2);
    /// The upload of some bytes.
    pub const BY_HASH: Index = Index(3);

    pub(super) fn schema() -> KindSchema {
        KindSchema::new(KIND, "upload")
            .property(UPLOADED, "uploaded")
            .property(OWNER, "owner")
            .property(SIZE, "size")
            .property(HASH, "hash")
            .index(IndexSchema::ordered(BY_UPLOADED, "uploaded", &[UPLOADED]))
            .index(IndexSchema::ordered(BY_OWNER, "owner", &[OWNER, UPLOADED]))
            .index(IndexSchema::scattered(BY_HASH, "hash", &[HASH]))
    }
}

/// An email that was destroyed and can still be restored. Its body is that of the email. Properties that emails have, too, have the
/// same numbers.
pub mod vault {
    use restante_records::{Index, IndexSchema, Kind, KindSchema, Property};

    use super::email;

    /// The number of the kind.
    pub const KIND: Kind = Kind(11);

    /// Each mailbox that it was in.
    pub const MAILBOX: Property = email::MAILBOX;
    /// When it was received, in seconds since 1970.
    pub const RECEIVED: Property = email::RECEIVED;
    /// The keys by which its thread is found again, see [`email::THREAD_KEY`].
    pub const THREAD_KEY: Property = email::THREAD_KEY;
    /// Each keyword except $seen, as a number.
    pub const KEYWORD: Property = email::KEYWORD;
    /// 1 when it did not have $seen.
    pub const UNSEEN: Property = email::UNSEEN;
    /// As [`email::DELIVERY`]: a repeated delivery is recognized even if the user has destroyed the email.
    pub const DELIVERY: Property = email::DELIVERY;
    /// The bytes of its message.
    pub const SIZE: Property = email::SIZE;
    /// When it was destroyed, in seconds since 1970.
    pub const DELETED_AT: Property = Property(11);
    /// The id that it had.
    pub const EMAIL: Property = Property(12);
    /// As [`email::ORIGIN`]: a message that the user has destroyed is not imported again.
    pub const ORIGIN: Property = email::ORIGIN;

    /// All entries of the vault, the first destroyed first.
    pub const BY_DELETED_AT: Index = Index(1);
    /// Shows whether a message was delivered already.
    pub const BY_DELIVERY: Index = Index(2);

    pub(super) fn schema() -> KindSchema {
        KindSchema::new(KIND, "vault")
            .property(MAILBOX, "mailbox")
            .property(RECEIVED, "received")
            .property(THREAD_KEY, "thread_key")
            .property(KEYWORD, "keyword")
            .property(UNSEEN, "unseen")
            .property(DELIVERY, "delivery")
            .property(SIZE, "size")
            .property(DELETED_AT, "deleted_at")
            .property(EMAIL, "email")
            .property(ORIGIN, "origin")
            .index(IndexSchema::ordered(BY_DELETED_AT, "deleted_at", &[DELETED_AT]))
            .index(IndexSchema::scattered(BY_DELIVERY, "delivery", &[DELIVERY]))
    }
}

/// A recipient of outgoing mail, in one of the reserved accounts of the queue: see [`crate::queue`]. Its body refers to the message.
pub mod queued {
    use restante_records::{Index, IndexSchema, Kind, KindSchema, Property};

    /// The number of the kind.
    pub const KIND: Kind = Kind(13);

    /// 0 when it is tried once it is due, 1 when it is held. None when it has ended.
    pub const STATE: Property = Property(1);
    /// When it is tried next, in seconds since 1970; while it is being tried, the end of the lease.
    pub const DUE: Property = Property(2);
    /// The domain of its address. A domain that is too long for a property is `#` and its hash.
    pub const DOMAIN: Property = Property(3);
    /// A hash of the key that identifies the message: a message that is queued again finds its recipients by it.
    pub const KEY: Property = Property(4);
    /// The envelope sender in lowercase, shortened like the domain; empty for `<>`.
    pub const SENDER: Property = Property(5);
    /// The account that sends it.
    pub const ACCOUNT: Property = Property(6);
    /// The attempts that were begun.
    pub const ATTEMPTS: Property = Property(7);
    /// When it first became due: its expiry counts from here.
    pub const FIRST_DUE: Property = Property(8);
    /// While it is being tried: the revision of the commit that claimed it.
    pub const LEASE: Property = Property(9);
    /// 1 when the delay was reported.
    pub const DELAY_REPORTED: Property = Property(10);
    /// How often it could not be prepared.
    pub const FAULTS: Property = Property(11);
    /// Leases in a row that ended without an outcome.
    pub const LOST_LEASES: Property = Property(12);
    /// When it has ended: until when it is remembered, in seconds since 1970.
    pub const REMEMBERED: Property = Property(13);

    /// The recipients that are due, with their domains, so that no records need to be read.
    pub const BY_DUE: Index = Index(1);
    /// The recipients of a domain.
    pub const BY_DOMAIN: Index = Index(2);
    /// The recipients of a message. Hashes are random, so the index is scattered.
    pub const BY_KEY: Index = Index(3);
    /// The recipients of a sender.
    pub const BY_SENDER: Index = Index(4);
    /// The recipients of an account's messages.
    pub const BY_ACCOUNT: Index = Index(5);
    /// The recipients that have ended, in the order in which they are forgotten.
    pub const BY_REMEMBERED: Index = Index(6);

    pub(super) fn schema() -> KindSchema {
        KindSchema::new(KIND, "queued")
            .property(STATE, "state")
            .property(DUE, "due")
            .property(DOMAIN, "domain")
            .property(KEY, "key")
            .property(SENDER, "sender")
            .property(ACCOUNT, "account")
            .property(ATTEMPTS, "attempts")
            .property(FIRST_DUE, "first_due")
            .property(LEASE, "lease")
            .property(DELAY_REPORTED, "delay_reported")
            .property(FAULTS, "faults")
            .property(LOST_LEASES, "lost_leases")
            .property(REMEMBERED, "remembered")
            .index(IndexSchema::ordered(BY_DUE, "due", &[STATE, DUE, DOMAIN]))
            .index(IndexSchema::ordered(BY_DOMAIN, "domain", &[DOMAIN, STATE, DUE]))
            .index(IndexSchema::scattered(BY_KEY, "key", &[KEY]))
            .index(IndexSchema::ordered(BY_SENDER, "sender", &[SENDER, DUE]))
            .index(IndexSchema::ordered(BY_ACCOUNT, "account", &[ACCOUNT, DUE]))
            .index(IndexSchema::ordered(BY_REMEMBERED, "remembered", &[REMEMBERED]))
    }
}

/// Whether anything is sent: one record, in the reserved account 192.
pub mod outgoing {
    use restante_records::{Index, IndexSchema, Kind, KindSchema, Property};

    /// The number of the kind.
    pub const KIND: Kind = Kind(16);

    /// How often the store had been restored when sending was last allowed.
    pub const RELEASED: Property = Property(1);

    /// Finds the record: its only entry.
    pub const ALL: Index = Index(1);

    pub(super) fn schema() -> KindSchema {
        KindSchema::new(KIND, "outgoing").property(RELEASED, "released").index(IndexSchema::ordered(
            ALL,
            "all",
            &[RELEASED],
        ))
    }
}

#[cfg(test)]
mod tests;
