//! Random mail: a query equals a naive filter over all emails, and changes applied to an old result give the new one.

use std::cmp::Reverse;

use proptest::prelude::*;
use restante_records::RecordId;
use serde_json::{Value, json};

use super::{Fixture, email_id, mailbox_id, message, query_changes::Client, reply_to};

#[derive(Clone, Debug)]
struct Email {
    id: RecordId,
    thread: usize,
    received: i64,
    mailboxes: [bool; 2],
    is_seen: bool,
    is_flagged: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Add { thread: usize, received: i64, mailboxes: [bool; 2], is_seen: bool, is_flagged: bool },
    Flag { email: usize, is_seen: bool, is_flagged: bool },
    Move { email: usize, mailboxes: [bool; 2] },
    Destroy { email: usize },
    Check,
}

fn mailboxes() -> impl Strategy<Value = [bool; 2]> {
    prop_oneof![Just([true, false]), Just([false, true]), Just([true, true])]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..4_usize, 0..12_i64, mailboxes(), any::<bool>(), any::<bool>()).prop_map(
            |(thread, received, mailboxes, is_seen, is_flagged)| Step::Add { thread, received, mailboxes, is_seen, is_flagged }
        ),
        3 => (any::<usize>(), any::<bool>(), any::<bool>())
            .prop_map(|(email, is_seen, is_flagged)| Step::Flag { email, is_seen, is_flagged }),
        2 => (any::<usize>(), mailboxes()).prop_map(|(email, mailboxes)| Step::Move { email, mailboxes }),
        1 => any::<usize>().prop_map(|email| Step::Destroy { email }),
        2 => Just(Step::Check),
    ]
}

/// The queries, each with the naive answer.
struct Model<'f> {
    fixture: &'f Fixture,
    emails: Vec<Email>,
}

type Passes = fn(&Email, &[Email]) -> bool;

const FILTERS: [Passes; 8] = [
    |_, _| true,
    |email, _| email.mailboxes[0],
    |email, _| email.mailboxes[0] && !email.is_seen,
    |email, _| email.is_flagged,
    |email, _| email.mailboxes[0] && email.received >= 3 && email.received < 9,
    |email, _| !(email.mailboxes[0] || email.is_flagged),
    |email, all| email.mailboxes[0] && of_thread(email, all).all(|other| other.is_flagged),
    |email, all| !of_thread(email, all).any(|other| other.is_seen),
];

fn of_thread<'e>(email: &'e Email, all: &'e [Email]) -> impl Iterator<Item = &'e Email> {
    all.iter().filter(|other| other.thread == email.thread)
}

impl Model<'_> {
    fn filter(&self, number: usize) -> Value {
        let inbox = self.fixture.inbox_id();
        match number {
            0 => json!(null),
            1 => json!({ "inMailbox": inbox }),
            2 => json!({"inMailbox": inbox, "notKeyword": "$seen"}),
            3 => json!({"hasKeyword": "$flagged"}),
            4 => {
                json!({"inMailbox": inbox, "after": "1970-01-01T00:00:03Z", "before": "1970-01-01T00:00:09Z"})
            }
            5 => json!({"operator": "NOT", "conditions": [{"inMailbox": inbox}, {"hasKeyword": "$flagged"}]}),
            6 => json!({"inMailbox": inbox, "allInThreadHaveKeyword": "$flagged"}),
            _ => json!({"noneInThreadHaveKeyword": "$seen"}),
        }
    }

    fn sort(number: usize) -> Value {
        match number {
            0 => json!(null),
            1 => json!([{"property": "receivedAt"}]),
            _ => {
                json!([{"property": "hasKeyword", "keyword": "$flagged", "isAscending": false}, {"property": "receivedAt"}])
            }
        }
    }

    fn expected(&self, filter: usize, sort: usize, collapse: bool) -> Vec<String> {
        let mut found: Vec<&Email> =
            self.emails.iter().filter(|email| FILTERS[filter](email, &self.emails)).collect();
        match sort {
            0 => found.sort_by_key(|email| Reverse((email.received, email.id))),
            1 => found.sort_by_key(|email| (email.received, email.id)),
            _ => found.sort_by_key(|email| (!email.is_flagged, email.received, email.id)),
        }
        let mut threads = Vec::new();
        found.retain(|email| {
            let is_new = !threads.contains(&email.thread);
            threads.push(email.thread);
            !collapse || is_new
        });
        found.iter().map(|email| email_id(email.id)).collect()
    }

    /// Each query with the client that follows it.
    async fn clients(&self) -> Vec<(usize, usize, bool, Client)> {
        let mut clients = Vec::new();
        for filter in 0..FILTERS.len() {
            for sort in 0..3 {
                for collapse in [false, true] {
                    let arguments = json!({"filter": self.filter(filter), "sort": Self::sort(sort), "collapseThreads": collapse});
                    clients.push((filter, sort, collapse, Client::new(self.fixture, arguments).await));
                }
            }
        }
        clients
    }

    async fn check(&self, clients: &mut [(usize, usize, bool, Client)]) {
        for (filter, sort, collapse, client) in clients {
            let expected = self.expected(*filter, *sort, *collapse);
            assert_eq!(self.fixture.ids(client.arguments.clone()).await, expected, "{}", client.arguments);
            client.check(self.fixture, "random").await;
        }
    }

    async fn take(&mut self, step: &Step) {
        let fixture = self.fixture;
        let mailboxes_of = |mailboxes: &[bool; 2]| {
            let both = [fixture.inbox, fixture.archive];
            both.into_iter().zip(mailboxes).filter(|(_, is_in)| **is_in).map(|(id, _)| id).collect::<Vec<_>>()
        };
        let keywords_of = |is_seen: bool, is_flagged: bool| {
            let all = [("$seen", is_seen), ("$flagged", is_flagged)];
            all.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect::<Vec<_>>()
        };
        match step {
            Step::Add { thread, received, mailboxes, is_seen, is_flagged } => {
                let raw = message(&format!("Subject {thread}"), &reply_to(&format!("root-{thread}")), "text");
                let keywords = keywords_of(*is_seen, *is_flagged);
                let id = fixture.add(&raw, &mailboxes_of(mailboxes), &keywords, *received).await;
                let (thread, received, mailboxes) = (*thread, *received, *mailboxes);
                self.emails.push(Email {
                    id,
                    thread,
                    received,
                    mailboxes,
                    is_seen: *is_seen,
                    is_flagged: *is_flagged,
                });
            }
            Step::Flag { email, is_seen, is_flagged } if !self.emails.is_empty() => {
                let at = email % self.emails.len();
                fixture.set_keywords(self.emails[at].id, &keywords_of(*is_seen, *is_flagged)).await;
                (self.emails[at].is_seen, self.emails[at].is_flagged) = (*is_seen, *is_flagged);
            }
            Step::Move { email, mailboxes } if !self.emails.is_empty() => {
                let at = email % self.emails.len();
                fixture.set_mailboxes(self.emails[at].id, &mailboxes_of(mailboxes)).await;
                self.emails[at].mailboxes = *mailboxes;
            }
            Step::Destroy { email } if !self.emails.is_empty() => {
                let email = self.emails.remove(email % self.emails.len());
                fixture.destroy(email.id).await;
            }
            _ => {}
        }
    }
}

fn cases() -> u32 {
    std::env::var("RESTANTE_TEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 60, ..ProptestConfig::default() })]

    #[test]
    fn x1_random_mail_is_queried_as_a_naive_filter_does_and_changes_lead_to_it(
        first in proptest::collection::vec(step(), 0..8),
        steps in proptest::collection::vec(step(), 1..25),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let fixture = Fixture::new().await;
            assert_ne!(mailbox_id(fixture.inbox), mailbox_id(fixture.archive));
            let mut model = Model { fixture: &fixture, emails: Vec::new() };
            for step in &first {
                model.take(step).await;
            }
            let mut clients = model.clients().await;
            for step in steps.iter().chain([&Step::Check]) {
                match step {
                    Step::Check => model.check(&mut clients).await,
                    step => model.take(step).await,
                }
            }
        });
    }
}
