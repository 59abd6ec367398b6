//! A value that is computed at most once per interval, however many requests need it, and less often if computing it takes long.

use std::{sync::Arc, time::Duration};

use parking_lot::RwLock;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};

/// A value that is valid for a given time, or longer if it takes long to compute: at most a hundredth of the time is spent on
/// computing it, but it is computed again after a minute. It is computed in its own task, so that it is finished even if the
/// client has disconnected.
#[derive(Debug)]
pub struct Cached<T> {
    shared: Arc<Shared<T>>,
}

/// A value is valid for this many times as long as it took to compute.
const COST_PARTS: u32 = 100;
/// The longest time for which a value is valid.
const KEPT_FOR_MAX: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Shared<T> {
    kept_for: Duration,
    /// How long a request waits for a value. After that it gets the previous one.
    patience: Duration,
    entry: RwLock<Option<Entry<T>>>,
    /// Held while the value is computed.
    making: Arc<Semaphore>,
}

#[derive(Debug)]
struct Entry<T> {
    until: Instant,
    value: T,
}

impl<T: Clone + Send + Sync + 'static> Cached<T> {
    /// A value that is valid for `kept_for`; a request that finds none waits up to `patience` for it.
    pub fn new(kept_for: Duration, patience: Duration) -> Self {
        let making = Arc::new(Semaphore::new(1));
        Self { shared: Arc::new(Shared { kept_for, patience, entry: RwLock::new(None), making }) }
    }

    /// The value, computed if necessary; the previous one if a new one takes long, and `None` if there is none.
    pub async fn get<F: Future<Output = T> + Send + 'static>(&self, make: impl FnOnce() -> F) -> Option<T> {
        let shared = &self.shared;
        if let Some(fresh) = shared.fresh() {
            return Some(fresh);
        }
        let is_first = shared.entry.read().is_none();
        let patience = if is_first { shared.patience } else { Duration::ZERO }; // another request is already computing it
        let Ok(Ok(permit)) = timeout(patience, shared.making.clone().acquire_owned()).await else {
            return shared.any();
        };
        if let Some(fresh) = shared.fresh() {
            return Some(fresh);
        }
        let (keeper, making) = (shared.clone(), make());
        let task = tokio::spawn(async move {
            let begun = Instant::now();
            let value = making.await;
            let made = Instant::now();
            let by_cost = (made - begun).saturating_mul(COST_PARTS).min(KEPT_FOR_MAX);
            let until = made + keeper.kept_for.max(by_cost);
            *keeper.entry.write() = Some(Entry { until, value });
            drop(permit);
        });
        let _ = timeout(shared.patience, task).await;
        shared.any()
    }
}

impl<T: Clone> Shared<T> {
    fn fresh(&self) -> Option<T> {
        let entry = self.entry.read();
        entry.as_ref().filter(|entry| Instant::now() < entry.until).map(|entry| entry.value.clone())
    }

    fn any(&self) -> Option<T> {
        self.entry.read().as_ref().map(|entry| entry.value.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::{advance, sleep};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns 1, then 2, and so on, each after some time.
    fn counter(takes: Duration) -> impl Fn() -> std::pin::Pin<Box<dyn Future<Output = u32> + Send>> {
        let made = Arc::new(AtomicU32::new(0));
        move || {
            let made = made.clone();
            Box::pin(async move {
                sleep(takes).await;
                made.fetch_add(1, Ordering::SeqCst) + 1
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_value_is_made_once_for_all_who_ask() {
        let (cached, make) = (Cached::new(SECOND, SECOND), counter(SECOND / 1_000));
        let asked = tokio::join!(cached.get(&make), cached.get(&make), cached.get(&make));
        assert_eq!(asked, (Some(1), Some(1), Some(1)));
        assert_eq!(cached.get(&make).await, Some(1));
        advance(SECOND).await;
        assert_eq!(cached.get(&make).await, Some(2), "it is too old");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_longer_than_patience_allows() {
        let (cached, make) = (Cached::new(60 * SECOND, SECOND), counter(5 * SECOND));
        assert_eq!(cached.get(&make).await, None);
        sleep(5 * SECOND).await;
        assert_eq!(cached.get(&make).await, Some(1), "it was finished all the same");
        sleep(60 * SECOND).await;
        assert_eq!(cached.get(&make).await, Some(1), "the one of before, while the next is made");
        sleep(5 * SECOND).await;
        assert_eq!(cached.get(&make).await, Some(2));
    }

    #[tokio::test(start_paused = true)]
    async fn what_takes_long_to_make_is_made_less_often() {
        let (cached, make) = (Cached::new(SECOND, SECOND), counter(SECOND / 10));
        assert_eq!(cached.get(&make).await, Some(1));
        advance(9 * SECOND).await;
        assert_eq!(cached.get(&make).await, Some(1), "it took a tenth of a second");
        advance(SECOND).await;
        assert_eq!(cached.get(&make).await, Some(2));
    }

    #[tokio::test(start_paused = true)]
    async fn making_that_fails_is_tried_again() {
        let cached = Cached::<u32>::new(SECOND, SECOND);
        assert_eq!(cached.get(|| async { panic!("as the test wanted") }).await, None);
        assert_eq!(cached.get(|| async { 7 }).await, Some(7));
    }
}
