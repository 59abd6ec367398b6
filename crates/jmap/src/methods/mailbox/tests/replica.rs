//! Random changes: a client that fetches the properties named by the pages of changes ends up with the current mailboxes.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{call, get, put_email, set, state};
use crate::testing::TestServer;

/// Small, medium, and larger than most histories.
const PAGES: [usize; 3] = [1, 2, 7];

#[derive(Clone, Debug)]
enum Step {
    Create,
    Rename {
        mailbox: usize,
    },
    SetOrder {
        mailbox: usize,
        order: u32,
    },
    Move {
        mailbox: usize,
        parent: usize,
    },
    SetRole {
        mailbox: usize,
        has_role: bool,
    },
    Destroy {
        mailbox: usize,
    },
    PutEmail {
        mailbox: usize,
    },
    /// Both in one commit.
    RenameTwo {
        mailbox: usize,
    },
    /// Clients read one page.
    ReadPage,
    ReadAll,
}

fn step() -> impl Strategy<Value = Step> {
    let any = any::<usize>;
    prop_oneof![
        1 => Just(Step::Create),
        3 => any().prop_map(|mailbox| Step::Rename { mailbox }),
        2 => (any(), 0..9_u32).prop_map(|(mailbox, order)| Step::SetOrder { mailbox, order }),
        2 => (any(), any()).prop_map(|(mailbox, parent)| Step::Move { mailbox, parent }),
        1 => (any(), proptest::bool::ANY).prop_map(|(mailbox, has_role)| Step::SetRole { mailbox, has_role }),
        1 => any().prop_map(|mailbox| Step::Destroy { mailbox }),
        6 => any().prop_map(|mailbox| Step::PutEmail { mailbox }),
        1 => any().prop_map(|mailbox| Step::RenameTwo { mailbox }),
        3 => Just(Step::ReadPage),
        1 => Just(Step::ReadAll),
    ]
}

/// The mailboxes that a client has, by their ids.
struct Replica {
    changes_max: usize,
    state: String,
    mailboxes: BTreeMap<String, Value>,
}

impl Replica {
    async fn new(server: &TestServer, changes_max: usize) -> Self {
        let state = state(server).await;
        Self { changes_max, state, mailboxes: all(server).await }
    }

    /// Reads a page of changes, and fetches what it names; returns whether there are more.
    async fn read_page(&mut self, server: &TestServer) -> bool {
        let arguments = json!({"sinceState": self.state, "maxChanges": self.changes_max});
        let page = call(server, "Mailbox/changes", arguments).await;
        let (created, updated) = (get(server, json!({"ids": page["created"]})).await, &page["updated"]);
        let updated = json!({"ids": updated, "properties": page["updatedProperties"]});
        let updated = get(server, updated).await;
        for mailbox in [created, updated].iter().flat_map(|answer| answer["list"].as_array().unwrap()) {
            let known = self.mailboxes.entry(id_of(mailbox)).or_insert(json!({}));
            known.as_object_mut().unwrap().extend(mailbox.as_object().unwrap().clone());
        }
        for id in page["destroyed"].as_array().unwrap_or_else(|| panic!("{page}")) {
            self.mailboxes.remove(id.as_str().unwrap());
        }
        self.state = page["newState"].as_str().unwrap().to_owned();
        page["hasMoreChanges"] == true
    }

    /// Reads all remaining pages, and checks that the client has the current mailboxes.
    async fn check(&mut self, server: &TestServer) {
        while self.read_page(server).await {}
        assert_eq!(self.mailboxes, all(server).await, "by {}", self.changes_max);
        assert_eq!(self.state, state(server).await);
    }
}

fn id_of(mailbox: &Value) -> String {
    mailbox["id"].as_str().unwrap().to_owned()
}

async fn all(server: &TestServer) -> BTreeMap<String, Value> {
    let answer = get(server, json!({})).await;
    let list = answer["list"].as_array().unwrap();
    list.iter().map(|mailbox| (id_of(mailbox), mailbox.clone())).collect()
}

/// Changes the mailboxes. An impossible change, such as moving a mailbox below itself, changes nothing.
async fn take(server: &TestServer, step: &Step, number: usize) {
    let ids: Vec<String> = all(server).await.into_keys().collect();
    let id = |at: &usize| ids[at % ids.len()].clone();
    let update = async |id: String, patch: Value| set(server, json!({"update": {id: patch}})).await;
    match step {
        Step::Create => drop(set(server, json!({"create": {"k": {"name": format!("new {number}")}}})).await),
        Step::Rename { mailbox } => {
            update(id(mailbox), json!({"name": format!("name {number}")})).await;
        }
        Step::SetOrder { mailbox, order } => drop(update(id(mailbox), json!({"sortOrder": order})).await),
        Step::Move { mailbox, parent } => drop(update(id(mailbox), json!({"parentId": id(parent)})).await),
        Step::SetRole { mailbox, has_role } => {
            update(id(mailbox), json!({"role": has_role.then_some("important")})).await;
        }
        Step::Destroy { mailbox } => {
            set(server, json!({"destroy": [id(mailbox)], "onDestroyRemoveEmails": true})).await;
        }
        Step::PutEmail { mailbox } => drop(put_email(server, &json!(id(mailbox)), false).await),
        Step::RenameTwo { mailbox } => {
            let (one, other) = (id(mailbox), id(&mailbox.wrapping_add(1)));
            let (first, second) = (format!("first {number}"), format!("second {number}"));
            set(server, json!({"update": {one: {"name": first}, other: {"name": second}}})).await;
        }
        Step::ReadPage | Step::ReadAll => {}
    }
}

fn cases() -> u32 {
    std::env::var("RESTANTE_TEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(24)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 60, ..ProptestConfig::default() })]

    #[test]
    fn s7_random_changes_are_known_to_a_client_that_reads_only_the_properties_that_pages_name(
        steps in proptest::collection::vec(step(), 1..25),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = TestServer::new().await;
            let mut replicas = Vec::new();
            for changes_max in PAGES {
                replicas.push(Replica::new(&server, changes_max).await);
            }
            for (number, step) in steps.iter().chain([&Step::ReadAll]).enumerate() {
                take(&server, step, number).await;
                for replica in &mut replicas {
                    match step {
                        Step::ReadPage => drop(replica.read_page(&server).await),
                        Step::ReadAll => replica.check(&server).await,
                        _ => {}
                    }
                }
            }
        });
    }
}
