//! Several threads that start at the same moment.

use std::{
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use anyhow::anyhow;

/// Runs a job on `threads` threads at once: returns the time from the first start to the last end, and the results.
pub(crate) fn together<T: Send>(
    threads: usize,
    job: impl Fn() -> anyhow::Result<T> + Sync,
) -> anyhow::Result<(Duration, Vec<T>)> {
    if threads <= 1 {
        let begun = Instant::now();
        let result = job()?;
        return Ok((begun.elapsed(), vec![result]));
    }
    let barrier = Barrier::new(threads);
    let timed = || {
        barrier.wait();
        let begun = Instant::now();
        let result = job();
        (begun, Instant::now(), result)
    };
    let done: Vec<_> = thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(timed)).collect();
        running.into_iter().map(thread::ScopedJoinHandle::join).collect()
    });
    let mut results = Vec::with_capacity(threads);
    let mut first: Option<Instant> = None;
    let mut last: Option<Instant> = None;
    for outcome in done {
        let (begun, ended, result) = outcome.map_err(|_| anyhow!("a measuring thread panicked"))?;
        first = Some(first.map_or(begun, |first| first.min(begun)));
        last = last.max(Some(ended));
        results.push(result?);
    }
    let total = first.zip(last).map_or(Duration::ZERO, |(first, last)| last.duration_since(first));
    Ok((total, results))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn every_thread_runs_the_job() {
        for threads in [1, 3] {
            let runs = AtomicUsize::new(0);
            let (total, results) = together(threads, || Ok(runs.fetch_add(1, Ordering::SeqCst))).unwrap();
            assert_eq!((runs.into_inner(), results.len()), (threads, threads));
            assert!(total < Duration::from_secs(60));
        }
    }

    #[test]
    fn an_error_is_handed_on() {
        assert!(together(2, || Err::<(), _>(anyhow!("no"))).is_err());
    }
}
