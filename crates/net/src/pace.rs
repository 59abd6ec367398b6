//! How fast clients must read what is sent to them.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

use crate::Activity;

/// The bytes that a client must read within [`crate::Limits::stall_timeout`]. A client that reads a byte now and then could
/// otherwise hold an answer's memory indefinitely.
const STEP_BYTES: usize = 64 << 10;
/// The timeout when requests wait for memory that the client's answer holds.
const SHORT_TIMEOUT: Duration = Duration::from_secs(5);

/// A stream whose writes fail when the client reads too slowly. Reads are not limited.
#[derive(Debug)]
pub(crate) struct Paced<S> {
    stream: S,
    timeout: Duration,
    activity: Arc<Activity>,
    /// Begins with the first write that has to wait.
    step: Option<Step>,
}

#[derive(Debug)]
struct Step {
    begun: Instant,
    written: usize,
    check: Pin<Box<Sleep>>,
}

impl<S> Paced<S> {
    pub(crate) fn new(stream: S, timeout: Duration, activity: Arc<Activity>) -> Self {
        Self { stream, timeout, activity, step: None }
    }

    /// Returns a finished write as it is, and makes a waiting one fail in time.
    fn watch(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) => self.note_progress(bytes),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => {
                ready!(self.poll_too_slow(context));
                let slow = io::Error::new(io::ErrorKind::TimedOut, "the client reads too slowly");
                return Poll::Ready(Err(slow));
            }
        }
        written
    }

    fn note_progress(&mut self, bytes: usize) {
        let Some(step) = &mut self.step else { return };
        step.written = step.written.saturating_add(bytes);
        if step.written >= STEP_BYTES {
            self.step = None;
        }
    }

    /// Ready when the current step has taken too long.
    fn poll_too_slow(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let now = Instant::now();
        let short_timeout = SHORT_TIMEOUT.min(self.timeout);
        let begin = || Step { begun: now, written: 0, check: Box::pin(sleep_until(now + short_timeout)) };
        let step = self.step.get_or_insert_with(begin);
        let end = step.begun + self.timeout;
        loop {
            ready!(step.check.as_mut().poll(context));
            let now = Instant::now();
            if now >= end || self.activity.is_memory_short() {
                return Poll::Ready(());
            }
            step.check.as_mut().reset(end.min(now + short_timeout));
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.watch(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Bytes that are written after a flush get a new time limit.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.step = None;
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_ready() {
            self.activity.note_flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
        time::{sleep, timeout},
    };

    use super::*;
    use crate::SharedMemory;

    const TIMEOUT: Duration = Duration::from_secs(30);
    const LONG: Duration = Duration::from_secs(3_600);

    fn pair(activity: &Arc<Activity>) -> (Paced<DuplexStream>, DuplexStream) {
        let (here, there) = duplex(1_024);
        (Paced::new(here, TIMEOUT, activity.clone()), there)
    }

    /// Reads `bytes` again and again, with pauses between.
    async fn read_slowly(mut stream: DuplexStream, bytes: usize, pause: Duration) {
        let mut buffer = vec![0; bytes];
        while stream.read_exact(&mut buffer).await.is_ok() {
            sleep(pause).await;
        }
    }

    /// Such a reader held an answer, or one of the few exports, indefinitely.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_a_byte_now_and_then_is_cut_off() {
        let (mut here, there) = pair(&Arc::default());
        let reader = tokio::spawn(read_slowly(there, 1, Duration::from_secs(29)));
        let written = timeout(LONG, here.write_all(&[0; 1 << 20])).await.unwrap();
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
        reader.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_its_steps_in_time_is_served() {
        let (mut here, there) = pair(&Arc::default());
        let reader = tokio::spawn(read_slowly(there, STEP_BYTES, Duration::from_secs(29)));
        timeout(LONG, here.write_all(&[0; 1 << 20])).await.unwrap().unwrap();
        drop(here);
        reader.await.unwrap();
    }

    #[derive(Debug, Default)]
    struct Memory(AtomicBool);

    impl SharedMemory for Memory {
        fn has_waiters(&self) -> bool {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_client_is_cut_off_sooner_when_requests_wait_for_its_memory() {
        let (activity, memory) = (Arc::new(Activity::default()), Arc::new(Memory::default()));
        let shared: Arc<dyn SharedMemory> = memory.clone();
        activity.share_memory(&shared);
        let (mut here, _there) = pair(&activity);
        let alone = timeout(TIMEOUT / 2, here.write_all(&[0; 2_048])).await;
        assert!(alone.is_err(), "nothing waits: it has its time");
        memory.0.store(true, Ordering::Relaxed);
        let short = timeout(SHORT_TIMEOUT + Duration::from_secs(1), here.write_all(&[0; 2_048])).await;
        assert!(short.unwrap().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn each_answer_has_a_time_of_its_own() {
        let (mut here, there) = pair(&Arc::default());
        let reader = tokio::spawn(read_slowly(there, 1_024, Duration::from_secs(5)));
        for _ in 0..3 {
            here.write_all(&[0; 2_048]).await.unwrap(); // waits for the reader, and ends within a step
            here.flush().await.unwrap();
            sleep(2 * TIMEOUT).await;
        }
        drop(here);
        reader.await.unwrap();
    }
}
