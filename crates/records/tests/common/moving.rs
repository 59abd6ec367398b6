//! Moves stores, and interrupts the moves.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use restante_core::ErrorKind;
use restante_records::{
    AccountHead, AccountId, Config, Copied, EngineUrl, Error, Moving, Row, RowKey, Transfer, TransferState,
    compare, copy, open, open_moving,
};

/// A store that fails after a number of writes of a copy.
struct Interrupted {
    inner: Arc<dyn Transfer>,
    left: AtomicUsize,
}

impl Interrupted {
    fn step(&self) -> Result<(), Error> {
        let left = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        left.map(|_| ()).map_err(|_| Error::unavailable("interrupted"))
    }
}

#[async_trait]
impl Transfer for Interrupted {
    async fn state(&self) -> Result<TransferState, Error> {
        self.inner.state().await
    }

    async fn heads(&self, after: Option<AccountId>, limit: usize) -> Result<Vec<AccountHead>, Error> {
        self.inner.heads(after, limit).await
    }

    async fn rows(&self, account: AccountId, after: Option<RowKey>, limit: usize) -> Result<Vec<Row>, Error> {
        self.inner.rows(account, after, limit).await
    }

    async fn begin(&self, restores: u64) -> Result<(), Error> {
        self.step()?;
        self.inner.begin(restores).await
    }

    async fn clear(&self, account: AccountId) -> Result<(), Error> {
        self.step()?;
        self.inner.clear(account).await
    }

    async fn put(&self, account: AccountId, rows: Vec<Row>, head: Option<AccountHead>) -> Result<(), Error> {
        self.step()?;
        self.inner.put(account, rows, head).await
    }

    async fn finish(&self) -> Result<(), Error> {
        self.step()?;
        self.inner.finish().await
    }
}

/// The store to copy, and the one to copy it into, which is created if it does not exist.
pub async fn open_both(from: &Config, to: &Config) -> (Moving, Moving) {
    let source = open_alone(Config { must_exist: true, ..from.clone() }).await;
    let identity = source.opened.upkeep.identity();
    let target = open_alone(Config { identity, ..to.clone() }).await;
    (source, target)
}

/// An interrupted copy may hold a folder for a moment.
async fn open_alone(config: Config) -> Moving {
    for _ in 0..1_000 {
        match open_moving(config.clone()).await {
            Err(error) if error.kind() == ErrorKind::Conflict => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            opened => return opened.unwrap(),
        }
    }
    panic!("{} is never free", config.url);
}

pub async fn close(stores: [Moving; 2]) {
    for store in stores {
        store.opened.upkeep.close().await.unwrap();
    }
}

pub async fn differences(a: &Moving, b: &Moving) -> Vec<String> {
    let report = compare(a, b, &|_, _| ()).await.unwrap();
    assert_eq!(report.findings.len() as u64, report.wrong);
    report.findings.into_iter().map(|finding| format!("{}: {}", finding.place, finding.what)).collect()
}

/// Copies one store into another; the copy is interrupted after `writes` writes and continued, and must end
/// with both the same.
pub async fn copy_interrupted(from: &Moving, to: &Moving, writes: usize) -> Option<Copied> {
    let inner = to.transfer.clone();
    let transfer = Arc::new(Interrupted { inner, left: AtomicUsize::new(writes) });
    let failing = Moving { opened: to.opened.clone(), transfer };
    match copy(from, &failing, &|_, _| ()).await {
        Ok(copied) => Some(copied),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            None
        }
    }
}

/// The error that keeps a server from opening an incomplete copy. The interrupted copy may hold the store for a moment.
async fn refused(to: &Config) -> Error {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let error = open(to.clone()).await.err().expect("no server opens an incomplete copy");
        if error.kind() != ErrorKind::Conflict || Instant::now() > until {
            return error;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Moves a store to another place, interrupted after each of these numbers of writes; both are closed before and after.
pub async fn move_store(from: &Config, to: &Config, interruptions: &[usize]) -> Copied {
    for writes in interruptions {
        let (source, target) = open_both(from, to).await;
        let copied = copy_interrupted(&source, &target, *writes).await;
        close([source, target]).await;
        if let Some(copied) = copied {
            return copied;
        }
        // Also when nothing was written: the target was created to be copied into.
        if to.url != EngineUrl::Memory {
            let error = refused(to).await;
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        }
    }
    let (source, target) = open_both(from, to).await;
    let copied = copy(&source, &target, &|_, _| ()).await.unwrap();
    assert_eq!(differences(&source, &target).await, Vec::<String>::new());
    close([source, target]).await;
    copied
}
