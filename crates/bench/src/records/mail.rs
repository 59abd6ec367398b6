//! Records like those of a mail server: the properties that find an email, and the data that a list of emails shows.
//!
//! The sizes are those of the measurements that the layout was chosen with: a blob of 32 bytes, one or two addresses in each
//! field, a subject of 25 to 75 bytes, a preview of 120 to 255, message ids and references; 602 bytes on average. Every record
//! is generated from its number alone. The words are few, so that it compresses about as well as in those measurements.

use bytes::Bytes;
use restante_core::BlobId;
use restante_records::{
    AccountId, Body, Change, Index, IndexSchema, Kind, KindSchema, Properties, Property, Schema, Value,
};

use crate::random::Random;

pub(super) const EMAIL: Kind = Kind(1);
pub(super) const MAILBOX: Property = Property(1);
const RECEIVED: Property = Property(2);
const THREAD: Property = Property(3);
const MESSAGE: Property = Property(4);
const KEYWORDS: Property = Property(5);
pub(super) const BY_MAILBOX: Index = Index(1);
const BY_THREAD: Index = Index(2);
const BY_MESSAGE: Index = Index(3);

/// The mailbox of new mail.
pub(super) const INBOX: u64 = 1;
/// Other mailboxes.
const MAILBOXES: u64 = 11;

/// The share of mails, in percent, that reply to another one.
const REPLIES: u64 = 30;
/// They reply to one of the previous mails, at most this far back.
const RECENT: u64 = 500;
/// The most references of a mail within its thread, and to other threads.
const REFERENCES_MAX: usize = 4;
const ELSEWHERE_MAX: u64 = 2;
/// Seconds: the time of the first mail, the interval between mails, and the longest delay of one.
const FIRST: u64 = 1_600_000_000;
const INTERVAL: u64 = 30;
const JITTER: u64 = 600;
/// The number of correspondents.
const PEOPLE: u64 = 20_000;
/// Combinations of the flags seen, answered, flagged, draft, forwarded.
const FLAGS: u64 = 1 << 5;

/// The schema: one kind, three indexes.
pub(super) fn schema() -> anyhow::Result<Schema> {
    let email = KindSchema::new(EMAIL, "email")
        .property(MAILBOX, "mailbox")
        .property(RECEIVED, "received")
        .property(THREAD, "thread")
        .property(MESSAGE, "message_id")
        .property(KEYWORDS, "keywords")
        .index(IndexSchema::ordered(BY_MAILBOX, "mailbox", &[MAILBOX, RECEIVED]))
        .index(IndexSchema::ordered(BY_THREAD, "thread", &[THREAD]))
        .index(IndexSchema::scattered(BY_MESSAGE, "message_id", &[MESSAGE]));
    Ok(Schema::new(vec![email])?)
}

/// The bytes of a record that count as payload: its body and the blobs that it names.
pub(super) fn payload_bytes(body: &Body) -> u64 {
    (body.bytes.len() + body.blobs.len() * size_of::<BlobId>()) as u64
}

/// A record as one byte string: the blobs that it names, and its body.
pub(super) fn in_one_piece(change: &Change) -> Vec<u8> {
    let Change::Create { body, .. } = change else { return Vec::new() };
    let mut record = Vec::with_capacity(payload_bytes(body) as usize);
    for blob in &body.blobs {
        record.extend_from_slice(&blob.0);
    }
    record.extend_from_slice(&body.bytes);
    record
}

/// The mails of one account.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mails {
    pub(super) seed: u64,
    pub(super) account: AccountId,
    /// One of this many mails is in [`INBOX`].
    pub(super) inbox_every: u64,
}

/// The purpose of a random number, so that one can be drawn without the others.
#[derive(Clone, Copy)]
enum Purpose {
    Reply,
    Properties,
    Message,
    Body,
    Subject,
}

impl Mails {
    /// The creation of the n-th mail, counted from 0, and its payload.
    pub(super) fn create(&self, n: u64) -> (Change, u64) {
        let body = self.body(n);
        let payload = payload_bytes(&body);
        (Change::Create { kind: EMAIL, body, properties: self.properties(n) }, payload)
    }

    /// The properties of the n-th mail, unread.
    pub(super) fn properties(&self, n: u64) -> Properties {
        let mut random = self.random(n, Purpose::Properties);
        let is_in_inbox = n.is_multiple_of(self.inbox_every.max(1));
        let mailbox = if is_in_inbox { INBOX } else { INBOX + 1 + random.below(MAILBOXES) };
        Properties::default()
            .with(MAILBOX, mailbox)
            .with(RECEIVED, received(n, &mut random))
            .with(THREAD, self.root(n) + 1)
            .with(MESSAGE, self.random(n, Purpose::Message).bits())
            .with(KEYWORDS, 0)
    }

    /// The same with other flags.
    pub(super) fn flagged(&self, n: u64, random: &mut Random) -> Properties {
        let mut properties = self.properties(n);
        properties.remove(KEYWORDS, &Value::Number(0));
        properties.with(KEYWORDS, 1 + random.below(FLAGS - 1))
    }

    fn body(&self, n: u64) -> Body {
        let mut random = self.random(n, Purpose::Body);
        let mut blob = [0; size_of::<BlobId>()];
        random.fill(&mut blob);
        let mut body = Encoder(Vec::with_capacity(700));
        body.number(1_000 + random.below(60_000)); // the size of the message
        body.number(FIRST + n * INTERVAL); // when it was sent
        body.number(random.below(2)); // whether it has an attachment
        for _ in ["from", "to", "cc"] {
            body.addresses(&mut random);
        }
        body.text(&self.subject(n));
        let preview = 120 + random.below(136) as usize;
        body.text(&words(preview, &mut random));
        body.text(&self.message_id(n));
        let references = self.references(n, &mut random);
        body.number(references.len() as u64);
        for reference in references {
            body.text(&reference);
        }
        Body { bytes: Bytes::from(body.0), blobs: vec![BlobId(blob)] }
    }

    fn random(&self, n: u64, purpose: Purpose) -> Random {
        let stream = (u64::from(self.account.0) << 43) ^ (n << 3) ^ purpose as u64;
        Random::new(self.seed, stream)
    }

    /// The mail that this one replies to.
    fn parent(&self, n: u64) -> Option<u64> {
        let mut random = self.random(n, Purpose::Reply);
        let is_reply = n > 0 && random.below(100) < REPLIES;
        is_reply.then(|| n - 1 - random.below(n.min(RECENT)))
    }

    /// The first mail of the thread.
    fn root(&self, n: u64) -> u64 {
        let mut root = n;
        while let Some(parent) = self.parent(root) {
            root = parent;
        }
        root
    }

    /// The references of a mail: the nearest ones of its thread, and some of other threads.
    fn references(&self, n: u64, random: &mut Random) -> Vec<String> {
        let mut references = Vec::new();
        let mut last = n;
        while references.len() < REFERENCES_MAX {
            let Some(parent) = self.parent(last) else { break };
            references.push(self.message_id(parent));
            last = parent;
        }
        for _ in 0..random.below(ELSEWHERE_MAX + 1) {
            references.push(message_id(random));
        }
        references
    }

    fn subject(&self, n: u64) -> String {
        let root = self.root(n);
        let mut random = self.random(root, Purpose::Subject);
        let length = 25 + random.below(51) as usize;
        let prefix = if root == n { "" } else { "Re: " };
        let mut subject = prefix.to_owned() + &words(length - prefix.len(), &mut random);
        subject.truncate(length);
        subject
    }

    fn message_id(&self, n: u64) -> String {
        message_id(&mut self.random(n, Purpose::Message))
    }
}

/// Random letters and a domain.
fn message_id(random: &mut Random) -> String {
    const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    const LENGTH: usize = 38;
    let mut id = String::with_capacity(64);
    for _ in 0..LENGTH {
        let letter = LETTERS.get(random.below(LETTERS.len() as u64) as usize);
        id.push(char::from(letter.copied().unwrap_or_default()));
    }
    id + "@" + pick(&DOMAINS, random)
}

/// The time of arrival: ascending, except for delayed mails.
fn received(n: u64, random: &mut Random) -> u64 {
    FIRST + n * INTERVAL + random.below(JITTER)
}

/// A random item of a list that is not empty.
fn pick<'a>(items: &[&'a str], random: &mut Random) -> &'a str {
    let place = random.below(items.len() as u64) as usize;
    items.get(place).copied().unwrap_or_default()
}

/// Words of `bytes` bytes in all, the last one cut.
fn words(bytes: usize, random: &mut Random) -> String {
    let mut text = String::with_capacity(bytes + 16);
    while text.len() < bytes {
        text.push_str(pick(&WORDS, random));
        text.push_str(pick(&SEPARATORS, random));
    }
    text.truncate(bytes);
    text
}

/// An encoder of numbers and texts, as in compact codecs.
struct Encoder(Vec<u8>);

impl Encoder {
    /// Seven bits a byte, the low ones first.
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }

    /// One or two of the people.
    fn addresses(&mut self, random: &mut Random) {
        let count = 1 + random.below(2);
        self.number(count);
        for _ in 0..count {
            let mut person = Random::new(random.below(PEOPLE), 0);
            let (first, last) = (pick(&FIRST_NAMES, &mut person), pick(&LAST_NAMES, &mut person));
            let domain = pick(&DOMAINS, &mut person);
            self.text(&format!("{first} {last}"));
            self.text(&format!("{first}.{last}@{domain}").to_lowercase());
        }
    }
}

const DOMAINS: [&str; 8] = [
    "mail.example.org",
    "example.com",
    "lists.example.net",
    "post.example",
    "office.example.com",
    "home.example.net",
    "example.org",
    "letters.example",
];

const FIRST_NAMES: [&str; 24] = [
    "Anna", "Boris", "Clara", "David", "Elena", "Felix", "Greta", "Henry", "Irene", "Jakob", "Katja", "Leon",
    "Maria", "Nils", "Olga", "Paul", "Rosa", "Simon", "Tessa", "Ulrich", "Vera", "Walter", "Xenia",
    "Yannick",
];

const LAST_NAMES: [&str; 24] = [
    "Albers", "Brandt", "Conrad", "Dietrich", "Engel", "Fischer", "Gruber", "Hansen", "Iversen", "Jensen",
    "Keller", "Lindner", "Meyer", "Novak", "Olsen", "Petrov", "Reuter", "Sommer", "Thomsen", "Urban",
    "Vogel", "Weber", "Young", "Zimmer",
];

const SEPARATORS: [&str; 10] = [" ", " ", " ", " ", " ", " ", " ", " ", ", ", ". "];

const WORDS: [&str; 168] = [
    "the",
    "to",
    "and",
    "of",
    "a",
    "in",
    "for",
    "is",
    "you",
    "that",
    "on",
    "we",
    "with",
    "it",
    "be",
    "this",
    "have",
    "are",
    "as",
    "will",
    "at",
    "from",
    "your",
    "or",
    "not",
    "can",
    "by",
    "please",
    "if",
    "our",
    "has",
    "all",
    "new",
    "was",
    "but",
    "any",
    "which",
    "meeting",
    "would",
    "time",
    "me",
    "they",
    "there",
    "do",
    "about",
    "one",
    "more",
    "been",
    "my",
    "their",
    "what",
    "report",
    "so",
    "know",
    "up",
    "when",
    "should",
    "other",
    "week",
    "out",
    "need",
    "only",
    "may",
    "these",
    "who",
    "also",
    "send",
    "no",
    "some",
    "us",
    "like",
    "today",
    "next",
    "them",
    "could",
    "work",
    "message",
    "now",
    "get",
    "than",
    "its",
    "how",
    "were",
    "monday",
    "project",
    "see",
    "thanks",
    "into",
    "just",
    "here",
    "make",
    "then",
    "list",
    "over",
    "attached",
    "invoice",
    "first",
    "order",
    "back",
    "call",
    "let",
    "change",
    "made",
    "date",
    "before",
    "copy",
    "after",
    "because",
    "team",
    "number",
    "office",
    "question",
    "plan",
    "last",
    "group",
    "two",
    "very",
    "point",
    "file",
    "during",
    "letter",
    "answer",
    "system",
    "friday",
    "version",
    "contract",
    "delivery",
    "address",
    "people",
    "still",
    "morning",
    "server",
    "review",
    "travel",
    "budget",
    "without",
    "account",
    "customer",
    "schedule",
    "problem",
    "payment",
    "release",
    "document",
    "between",
    "summary",
    "agreement",
    "reminder",
    "conference",
    "proposal",
    "available",
    "department",
    "information",
    "discussion",
    "tomorrow",
    "important",
    "afternoon",
    "confirmed",
    "following",
    "regarding",
    "registration",
    "invitation",
    "newsletter",
    "subscription",
    "maintenance",
    "presentation",
    "yesterday",
    "november",
    "attachment",
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn mails() -> Mails {
        Mails { seed: 0, account: AccountId(1), inbox_every: 2 }
    }

    #[test]
    fn a_mail_depends_on_its_number_alone() {
        let (one, same) = (mails().create(77), mails().create(77));
        assert_eq!(one, same);
        assert_ne!(one, mails().create(78));
        assert_ne!(one, Mails { account: AccountId(2), ..mails() }.create(77));
        assert_ne!(one, Mails { seed: 1, ..mails() }.create(77));
        let (change, payload) = one;
        assert_eq!(in_one_piece(&change).len() as u64, payload);
    }

    #[test]
    fn every_index_finds_every_mail() {
        let schema = schema().unwrap();
        let email = schema.kind(EMAIL).unwrap();
        for n in 0..1_000 {
            let properties = mails().properties(n);
            for index in &email.indexes {
                assert!(
                    index.parts.iter().all(|part| properties.values(*part).count() == 1),
                    "{}",
                    index.name
                );
            }
        }
    }

    #[test]
    fn half_the_mails_are_in_the_inbox_and_seven_of_ten_begin_a_thread() {
        let in_inbox = |n: &u64| mails().properties(*n).values(MAILBOX).any(|value| *value == INBOX.into());
        assert_eq!((0..1_000).filter(in_inbox).count(), 500);
        let threads: BTreeSet<u64> = (0..10_000).map(|n| mails().root(n)).collect();
        assert!((6_800..7_200).contains(&threads.len()), "{}", threads.len());
        let hashes: BTreeSet<u64> = (0..10_000).map(|n| mails().random(n, Purpose::Message).bits()).collect();
        assert_eq!(hashes.len(), 10_000);
    }

    #[test]
    fn another_flag_changes_nothing_else() {
        let (before, after) = (mails().properties(5), mails().flagged(5, &mut Random::new(0, 0)));
        let differ: Vec<_> = before.iter().zip(after.iter()).filter(|(one, other)| one != other).collect();
        assert_eq!((differ.len(), before.iter().len(), after.iter().len()), (1, 5, 5));
    }
}
