//! Slow uploads, on a clock that jumps when all tasks wait.

use std::{collections::VecDeque, future::pending, path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use restante_core::ErrorKind;
use tokio::{sync::Notify, task::JoinSet, time::sleep};

use super::{blob, open_with, put, read_all};
use crate::{
    Error, Opened, Source,
    files::{schema::INCOMING, uploads::FILES_RECEIVED_MAX},
    hash::id_of,
};

/// Gives these chunks, then hangs.
struct Stalls(VecDeque<Bytes>);

#[async_trait]
impl Source for Stalls {
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        match self.0.pop_front() {
            Some(chunk) => Ok(Some(chunk)),
            None => pending().await,
        }
    }
}

/// Gives a chunk every twenty seconds, until it is signalled to end.
struct Steady {
    chunk: Bytes,
    end: Arc<Notify>,
}

#[async_trait]
impl Source for Steady {
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        tokio::select! {
            () = self.end.notified() => Ok(None),
            () = sleep(Duration::from_secs(20)) => Ok(Some(self.chunk.clone())),
        }
    }
}

fn receiving(dir: &Path) -> usize {
    std::fs::read_dir(dir.join(INCOMING)).unwrap().count()
}

async fn until_receiving(dir: &Path, count: usize) {
    while receiving(dir) != count {
        sleep(Duration::from_millis(1)).await;
    }
}

fn open(dir: &Path) -> Opened {
    open_with(super::folder(dir), super::config()).unwrap()
}

fn put_slowly(opened: &Opened, puts: &mut JoinSet<Result<(), Error>>, mut source: impl Source + 'static) {
    let blobs = opened.blobs.clone();
    puts.spawn(async move { blobs.put(&mut source).await.map(drop) });
}

#[tokio::test(start_paused = true)]
async fn uploads_without_progress_lose_their_slots_to_waiters() {
    let dir = tempfile::tempdir().unwrap();
    let opened = open(dir.path());
    let (mut slow, mut steady, end) = (JoinSet::new(), JoinSet::new(), Arc::new(Notify::new()));
    put_slowly(&opened, &mut steady, Steady { chunk: blob(1, 256 << 10), end: end.clone() });
    until_receiving(dir.path(), 1).await;
    for n in 1..FILES_RECEIVED_MAX as u32 {
        put_slowly(&opened, &mut slow, Stalls([blob(n, 700), blob(n, 700)].into()));
    }
    until_receiving(dir.path(), FILES_RECEIVED_MAX).await;

    sleep(Duration::from_secs(3_600)).await;
    assert_eq!(receiving(dir.path()), FILES_RECEIVED_MAX, "no upload waits for a slot");
    for n in 0..20 {
        let bytes = blob(1_000 + n, 5_000);
        put(&opened, &bytes).await;
        assert_eq!(read_all(&*opened.blobs, id_of(&bytes)).await.unwrap(), bytes);
    }
    // One was ended for the first waiter; the others took its slot one after another.
    let error = slow.join_next().await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("too slow"), "{error}");
    assert!(slow.try_join_next().is_none(), "no more uploads are ended than needed");

    let mut waiting = JoinSet::new();
    for n in 0..FILES_RECEIVED_MAX as u32 - 1 {
        put_slowly(&opened, &mut waiting, Stalls([blob(n, 701), blob(n, 701)].into()));
    }
    // After all of them got a slot, only the steady one of the old uploads is left.
    while slow.join_next().await.is_some() {}
    until_receiving(dir.path(), FILES_RECEIVED_MAX).await;
    end.notify_one();
    steady.join_next().await.unwrap().unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_waiter_takes_no_slot() {
    let dir = tempfile::tempdir().unwrap();
    let opened = open(dir.path());
    let (mut slow, mut waiting) = (JoinSet::new(), JoinSet::new());
    for n in 0..FILES_RECEIVED_MAX as u32 {
        put_slowly(&opened, &mut slow, Stalls([blob(n, 700), blob(n, 700)].into()));
    }
    until_receiving(dir.path(), FILES_RECEIVED_MAX).await;
    for n in 0..10 {
        put_slowly(&opened, &mut waiting, Stalls([blob(n, 701), blob(n, 701)].into()));
    }
    waiting.shutdown().await;
    sleep(Duration::from_secs(3_600)).await;
    assert!(slow.try_join_next().is_none());
}
