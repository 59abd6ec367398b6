//! Answers that nobody reads.

use axum::http::StatusCode;
use restante_net::SharedMemory;

use super::*;

const STORE: &str = "/store/v3/messages?includeData=true&pageSize=10";

/// A door over ten messages of 140 KiB, with memory for two pages of them and a part of a third.
async fn crowded_door(config: RestConfig) -> (Door, Arc<MemoryBudget>) {
    let opened = memory().await;
    let messages = (0..10).map(|number| archived(number, vec![b'x'; 140 << 10]));
    opened.archive.append(messages.collect()).await.unwrap();
    let memory = Arc::new(MemoryBudget::new(5 << 10));
    (door_over(opened.archive.clone(), opened, config).with_memory(&memory), memory)
}

async fn ask(door: &Door) -> Response {
    let request = Request::builder().uri(STORE).body(Body::empty()).unwrap();
    door.router.clone().oneshot(request).await.unwrap()
}

/// Answers stayed in memory until they were read, without a limit.
#[tokio::test(start_paused = true)]
async fn unread_answers_leave_memory_for_so_many_others() {
    let (door, memory) = crowded_door(RestConfig::default()).await;
    let (first, second) = (ask(&door).await, ask(&door).await);
    assert_eq!((first.status(), second.status()), (StatusCode::OK, StatusCode::OK));
    let text = "too many answers wait to be read: try again later";
    assert_eq!(door.get(STORE).await.refusal(), (503, text));
    assert_eq!(door.get("/relay/v1/messages/x").await.refusal(), (503, text), "they share the memory");
    let sent = first.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(door.get(STORE).await.status, 503, "its bytes are still on their way");
    let part = sent.slice(..1);
    drop(sent);
    assert_eq!(door.get(STORE).await.status, 503, "a part of them is");
    drop(part);
    assert_eq!(payloads(&door.get(STORE).await.json()).len(), 10);
    drop(second);
    assert!(memory.acquire(5 << 20, Instant::now()).await.is_ok(), "all was given back");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_memory_is_answered_when_some_is_free() {
    let (door, memory) = crowded_door(RestConfig::default()).await;
    let unread = [ask(&door).await, ask(&door).await];
    assert!(!memory.has_waiters());
    let waiting = async { door.get(STORE).await.status };
    let reading = async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(memory.has_waiters(), "somebody waits");
        drop(unread);
    };
    assert_eq!(tokio::join!(waiting, reading).0, 200);
    assert!(!memory.has_waiters());
}

/// Fetched messages are removed from the cache, so memory must be reserved before they are taken.
#[tokio::test(start_paused = true)]
async fn messages_are_not_lost_for_want_of_memory() {
    let (door, memory) = crowded_door(RestConfig::default()).await;
    door.post("/relay/v1/subscriptions", serde_json::json!([PUBSUB])).await;
    door.publish("kept", 0).await;
    let all = memory.acquire(5 << 20, Instant::now()).await.unwrap();
    assert_eq!(door.get(PUBLISH).await.status, 503);
    drop(all);
    assert_eq!(fetched(&door.get(PUBLISH).await), ["kept"]);
}

/// Pages of sessions were built first, and memory was reserved only afterwards.
#[tokio::test(start_paused = true)]
async fn a_page_of_sessions_is_made_when_there_is_memory_for_it() {
    let config = RestConfig { admin: true, request_timeout_ms: nonzero!(1_000), ..RestConfig::default() };
    let memory = Arc::new(MemoryBudget::new(1 << 10));
    let door = door_with(config).await.with_memory(&memory);
    let pages = ["/admin/v1/sessions", "/admin/v1/sessions?user=nobody"];
    let unread = memory.acquire(1, Instant::now()).await.unwrap();
    for page in pages {
        assert_eq!(door.get(page).await.refusal().0, 503, "{page} needs all the memory");
    }
    drop(unread);
    for page in pages {
        assert_eq!(door.get(page).await.status, 200, "{page}");
    }
    assert!(memory.acquire(1 << 20, Instant::now()).await.is_ok(), "all was given back");
}
