//! Writers that record what was acknowledged, and the comparison with what servers return at the end.

use std::collections::BTreeMap;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use crate::client::{Client, Failure};

/// The most emails of one writer: it destroys one before it creates another.
const EMAILS_MAX: usize = 30;
/// Ids of one Email/get.
const PAGE: usize = 50;

/// What a writer knows of one of its emails.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Email {
    mailbox: String,
    is_seen: bool,
}

/// A change whose answer was lost.
#[derive(Clone, Debug)]
enum Doubt {
    /// An email with this subject may have been created.
    Created(String),
    /// The email of this id may be as in the second, or destroyed if that is `None`.
    Changed(String, Option<Email>),
}

/// A client that creates, changes and destroys emails and mailboxes of its own in an account that it shares.
pub(crate) struct Writer {
    client: Client,
    number: usize,
    random: ChaCha8Rng,
    emails: BTreeMap<String, Email>,
    /// Mailboxes of its own.
    mailboxes: Vec<String>,
    doubt: Option<Doubt>,
    calls: usize,
    mismatches: usize,
}

impl Writer {
    pub(crate) fn new(client: Client, number: usize) -> Self {
        let random = ChaCha8Rng::seed_from_u64(number as u64);
        Self {
            client,
            number,
            random,
            emails: BTreeMap::new(),
            mailboxes: Vec::new(),
            doubt: None,
            calls: 0,
            mismatches: 0,
        }
    }

    /// How many changes were acknowledged or refused.
    pub(crate) fn calls(&self) -> usize {
        self.calls
    }

    /// How many of them were refused because of the state that they expected.
    pub(crate) fn mismatches(&self) -> usize {
        self.mismatches
    }

    /// Writes until it is time, or until the server is gone if `may_end`.
    pub(crate) fn write_until(&mut self, is_time: impl Fn() -> bool, may_end: bool) {
        while !is_time() {
            match self.write() {
                Ok(()) => {}
                Err(Failure::Lost(_)) if may_end => return,
                Err(Failure::Lost(why)) => panic!("writer {}: {why}", self.number),
                Err(Failure::Refused(kind)) => panic!("writer {} was refused: {kind}", self.number),
            }
            self.calls += 1;
        }
    }

    fn write(&mut self) -> Result<(), Failure> {
        if self.mailboxes.len() < 2 {
            return self.create_mailbox();
        }
        let known: Vec<String> = self.emails.keys().cloned().collect();
        if known.is_empty() || (known.len() < EMAILS_MAX && self.random.random_bool(0.3)) {
            return self.create();
        }
        let id = known[self.random.random_range(0..known.len())].clone();
        if known.len() >= EMAILS_MAX || self.random.random_bool(0.1) {
            return self.destroy(&id);
        }
        self.update(&id)
    }

    fn create_mailbox(&mut self) -> Result<(), Failure> {
        let name = format!("of {} {}", self.number, self.calls);
        let answer = self.client.call("Mailbox/set", json!({"create": {"m": {"name": name}}}))?;
        let id = answer["created"]["m"]["id"].as_str().unwrap_or_else(|| panic!("{answer}"));
        self.mailboxes.push(id.to_owned());
        Ok(())
    }

    /// The state of emails to expect, in some of the calls.
    fn expected(&mut self) -> Result<Option<Value>, Failure> {
        if self.random.random_bool(0.7) {
            return Ok(None);
        }
        Ok(Some(self.client.call("Email/get", json!({"ids": []}))?["state"].clone()))
    }

    /// Makes a call of Email/set; `None` if it was refused because of the state.
    fn set(&mut self, mut arguments: Value, doubt: Doubt) -> Result<Option<Value>, Failure> {
        let expected = self.expected()?;
        if let Some(state) = &expected {
            arguments["ifInState"] = state.clone();
        }
        self.doubt = Some(doubt);
        let answer = match self.client.call("Email/set", arguments) {
            Ok(answer) => Some(answer),
            // RFC 8620 §5.3: no other call may be refused like this.
            Err(Failure::Refused(kind)) if kind == "stateMismatch" && expected.is_some() => {
                self.mismatches += 1;
                None
            }
            Err(failure) => return Err(failure),
        };
        self.doubt = None;
        if let (Some(state), Some(answer)) = (&expected, &answer) {
            // `null` if the commit was shared with the change of another writer (RFC 8620 §5.3 allows it).
            let old = &answer["oldState"];
            assert!(old == state || old.is_null(), "it was made in the state {old} instead of {state}");
        }
        Ok(answer)
    }

    fn create(&mut self) -> Result<(), Failure> {
        let mailbox = self.mailboxes[self.random.random_range(0..self.mailboxes.len())].clone();
        let subject = format!("{} {}", self.number, self.calls);
        let email = json!({
            "mailboxIds": {&mailbox: true}, "subject": subject, "from": [{"email": crate::USER}],
            "bodyValues": {"t": {"value": "text"}}, "textBody": [{"partId": "t", "type": "text/plain"}],
        });
        let Some(answer) = self.set(json!({"create": {"e": email}}), Doubt::Created(subject))? else {
            return Ok(());
        };
        let id = answer["created"]["e"]["id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
        self.emails.insert(id, Email { mailbox, is_seen: false });
        Ok(())
    }

    fn destroy(&mut self, id: &str) -> Result<(), Failure> {
        let doubt = Doubt::Changed(id.to_owned(), None);
        let Some(answer) = self.set(json!({"destroy": [id]}), doubt)? else { return Ok(()) };
        assert_eq!(answer["destroyed"], json!([id]), "{answer}");
        self.emails.remove(id);
        Ok(())
    }

    fn update(&mut self, id: &str) -> Result<(), Failure> {
        let mut email = self.emails[id].clone();
        let patch = if self.random.random_bool(0.5) {
            email.is_seen = !email.is_seen;
            json!({"keywords/$seen": email.is_seen.then_some(true)})
        } else {
            email.mailbox = self.mailboxes[self.random.random_range(0..self.mailboxes.len())].clone();
            json!({"mailboxIds": {&email.mailbox: true}})
        };
        let doubt = Doubt::Changed(id.to_owned(), Some(email.clone()));
        let Some(answer) = self.set(json!({"update": {id: patch}}), doubt)? else { return Ok(()) };
        assert!(answer["updated"].get(id).is_some(), "{answer}");
        self.emails.insert(id.to_owned(), email);
        Ok(())
    }
}

/// An email as the server lists it.
fn email_of(listed: &Value) -> Email {
    let mailboxes: Vec<&String> = listed["mailboxIds"].as_object().unwrap().keys().collect();
    assert_eq!(mailboxes.len(), 1, "{listed}");
    Email { mailbox: mailboxes[0].clone(), is_seen: listed["keywords"]["$seen"] == true }
}

/// Emails by id: their subjects and properties.
type Emails = BTreeMap<String, (String, Email)>;

/// All emails of the account.
pub(crate) fn all(client: &Client) -> Emails {
    let mut found = BTreeMap::new();
    loop {
        let page = client.call("Email/query", json!({"position": found.len(), "limit": PAGE})).unwrap();
        let properties = ["id", "subject", "mailboxIds", "keywords"];
        let listed = client.call("Email/get", json!({"ids": page["ids"], "properties": properties})).unwrap();
        assert_eq!(listed["notFound"], json!([]));
        let list = listed["list"].as_array().unwrap();
        for email in list {
            let (id, subject) = (email["id"].as_str().unwrap(), email["subject"].as_str().unwrap());
            found.insert(id.to_owned(), (subject.to_owned(), email_of(email)));
        }
        if list.len() < PAGE {
            return found;
        }
    }
}

/// What was acknowledged is there, and nothing else but changes without an answer; the counts of mailboxes are right.
pub(crate) fn check_account(client: &Client, writers: &[Writer]) {
    let mut left = all(client);
    let there = left.clone();
    for writer in writers {
        for (id, email) in &writer.emails {
            let found = left.remove(id).map(|(_, email)| email);
            let may_be = match &writer.doubt {
                Some(Doubt::Changed(doubtful, changed)) if doubtful == id => found == *changed,
                _ => false,
            };
            assert!(found.as_ref() == Some(email) || may_be, "{id}: {found:?} instead of {email:?}");
        }
    }
    for (id, (subject, _)) in left {
        let is_doubtful = writers
            .iter()
            .any(|writer| matches!(&writer.doubt, Some(Doubt::Created(doubtful)) if *doubtful == subject));
        assert!(is_doubtful, "{id} '{subject}' was destroyed, or never created");
    }
    let mailboxes = client.call("Mailbox/get", json!({"ids": null})).unwrap();
    for mailbox in mailboxes["list"].as_array().unwrap() {
        let id = mailbox["id"].as_str().unwrap();
        let inside: Vec<&Email> =
            there.values().map(|(_, email)| email).filter(|email| email.mailbox == id).collect();
        let unseen = inside.iter().filter(|email| !email.is_seen).count();
        assert_eq!(
            (&mailbox["totalEmails"], &mailbox["unreadEmails"]),
            (&json!(inside.len()), &json!(unseen))
        );
    }
    let known: Vec<&Value> =
        mailboxes["list"].as_array().unwrap().iter().map(|mailbox| &mailbox["id"]).collect();
    for id in writers.iter().flat_map(|writer| &writer.mailboxes) {
        assert!(known.contains(&&json!(id)), "the mailbox {id} is lost");
    }
}
