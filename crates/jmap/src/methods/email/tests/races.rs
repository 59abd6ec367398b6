//! Clients that read while others write.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use serde_json::json;
use tokio::sync::watch;

use super::{Fixture, message, query_changes::Client, reply_to, strings};

/// Adds, flags, moves and destroys emails of a few threads.
async fn write(fixture: Arc<Fixture>, done: watch::Sender<bool>) {
    let mut ids = Vec::new();
    for n in 0..240_usize {
        match n % 6 {
            0..3 => {
                let raw = message(&format!("S{}", n % 5), &reply_to(&format!("root-{}", n % 5)), "text");
                ids.push(fixture.add(&raw, &[fixture.inbox], &[], (n * 7 % 40) as i64).await);
            }
            3 => {
                let keywords: &[&str] = if n % 4 == 1 { &["$seen", "$flagged"] } else { &["$seen"] };
                fixture.set_keywords(ids[n * 31 % ids.len()], keywords).await;
            }
            4 => {
                let mailbox = if n % 4 == 2 { fixture.archive } else { fixture.inbox };
                fixture.set_mailboxes(ids[n * 17 % ids.len()], &[mailbox]).await;
            }
            _ => {
                let id = ids.remove(n * 13 % ids.len());
                fixture.destroy(id).await;
            }
        }
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
    done.send_replace(true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x1_changes_lead_to_the_result_while_others_write() {
    let fixture = Arc::new(Fixture::new().await);
    let inbox = json!({"inMailbox": fixture.inbox_id()});
    fixture.add_plain("first", 1).await;
    let queries = [
        json!({ "filter": inbox }),
        json!({"filter": inbox, "collapseThreads": true}),
        json!({"filter": {"operator": "NOT", "conditions": [{"hasKeyword": "$flagged"}]}}),
        json!({"filter": {"someInThreadHaveKeyword": "$flagged"}, "collapseThreads": true}),
        json!({"sort": [{"property": "hasKeyword", "keyword": "$seen"}, {"property": "subject"}]}),
    ];
    let (done, is_done) = watch::channel(false);
    let writer = tokio::spawn(write(fixture.clone(), done));
    let mut clients = Vec::new();
    for query in queries {
        clients.push(Client::new(&fixture, query).await);
    }
    let (mut updates, started) = (0, clients.len());
    while !*is_done.borrow() {
        for client in &mut clients {
            // This also checks that the client has as many emails as the result.
            updates += u32::from(client.try_update(&fixture).await);
        }
        if clients.len() < started + 20 {
            let arguments = clients[clients.len() % started].arguments.clone();
            clients.push(Client::new(&fixture, arguments).await);
        }
    }
    assert!(updates > 0, "changes can be calculated while others write");
    writer.await.unwrap();
    for client in &mut clients {
        client.check(&fixture, "at the end").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s5_pages_of_changes_lead_to_all_emails_while_others_write() {
    let fixture = Arc::new(Fixture::new().await);
    let mut state = fixture.call("Email/get", json!({"ids": []})).await["state"].clone();
    let (done, is_done) = watch::channel(false);
    let writer = tokio::spawn(write(fixture.clone(), done));
    let mut known = BTreeSet::new();
    loop {
        let is_last = *is_done.borrow();
        let page = fixture.call("Email/changes", json!({"sinceState": state, "maxChanges": 3})).await;
        for id in strings(&page["created"]) {
            assert!(known.insert(id), "created once: {page}");
        }
        for id in strings(&page["destroyed"]) {
            known.remove(&id);
        }
        state = page["newState"].clone();
        if is_last && page["hasMoreChanges"] == false {
            break;
        }
    }
    writer.await.unwrap();
    let all: BTreeSet<String> = fixture.ids(json!({})).await.into_iter().collect();
    assert_eq!(known, all);
}
