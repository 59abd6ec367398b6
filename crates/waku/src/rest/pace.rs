//! How fast clients must read what they have asked for.

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

use super::connections::ConnectionMark;

/// What a client must take of an answer within a request's time. One that takes a byte now and then would otherwise hold an
/// answer, or an export's turn, for as long as it likes.
const STEP_BYTES: usize = 64 << 10;
/// How long it may take for that when others wait for the room that its answer holds.
const PATIENCE: Duration = Duration::from_secs(5);

/// A stream whose writes fail when the other side takes too little for too long.
pub(super) struct Paced<S> {
    stream: S,
    timeout: Duration,
    mark: Arc<ConnectionMark>,
    /// Runs from the first write that has to wait.
    step: Option<Step>,
}

struct Step {
    begun: Instant,
    taken: usize,
    look: Pin<Box<Sleep>>,
}

impl<S> Paced<S> {
    pub(super) fn new(stream: S, timeout: Duration, mark: Arc<ConnectionMark>) -> Self {
        Self { stream, timeout, mark, step: None }
    }

    pub(super) fn into_inner(self) -> S {
        self.stream
    }

    /// Passes a finished write on, and lets a waiting one fail in time.
    fn watch(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) => self.note_taken(bytes),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => {
                ready!(self.poll_too_slow(context));
                let slow = io::Error::new(io::ErrorKind::TimedOut, "the client reads too slowly");
                return Poll::Ready(Err(slow));
            }
        }
        written
    }

    fn note_taken(&mut self, bytes: usize) {
        let Some(step) = &mut self.step else { return };
        step.taken = step.taken.saturating_add(bytes);
        if step.taken >= STEP_BYTES {
            self.step = None;
        }
    }

    /// Ready when the present step has taken too long.
    fn poll_too_slow(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let now = Instant::now();
        let patience = PATIENCE.min(self.timeout);
        let begin = || Step { begun: now, taken: 0, look: Box::pin(sleep_until(now + patience)) };
        let step = self.step.get_or_insert_with(begin);
        let end = step.begun + self.timeout;
        loop {
            ready!(step.look.as_mut().poll(context));
            let now = Instant::now();
            if now >= end || self.mark.is_room_wanted() {
                return Poll::Ready(());
            }
            step.look.as_mut().reset(end.min(now + patience));
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

    /// All that was there to be written has been taken: what comes next has its own time.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.step = None;
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_ready() {
            self.mark.note_written();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
        time::{sleep, timeout},
    };

    use super::*;
    use crate::rest::room::Room;

    const TIMEOUT: Duration = Duration::from_secs(30);
    const LONG: Duration = Duration::from_secs(3_600);

    fn pair(mark: &Arc<ConnectionMark>) -> (Paced<DuplexStream>, DuplexStream) {
        let (here, there) = duplex(1_024);
        (Paced::new(here, TIMEOUT, mark.clone()), there)
    }

    /// Reads so much again and again, with pauses between.
    async fn read_slowly(mut stream: DuplexStream, bytes: usize, pause: Duration) {
        let mut buffer = vec![0; bytes];
        while stream.read_exact(&mut buffer).await.is_ok() {
            sleep(pause).await;
        }
    }

    /// Such a reader held an answer, or one of the few exports, for as long as it liked.
    #[tokio::test(start_paused = true)]
    async fn who_takes_a_byte_now_and_then_is_cut_off() {
        let (mut here, there) = pair(&Arc::default());
        let reader = tokio::spawn(read_slowly(there, 1, Duration::from_secs(29)));
        let written = timeout(LONG, here.write_all(&[0; 1 << 20])).await.unwrap();
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
        reader.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_its_steps_in_time_is_served() {
        let (mut here, there) = pair(&Arc::default());
        let reader = tokio::spawn(read_slowly(there, STEP_BYTES, Duration::from_secs(29)));
        timeout(LONG, here.write_all(&[0; 1 << 20])).await.unwrap().unwrap();
        drop(here);
        reader.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_slow_goes_sooner_when_others_wait_for_its_room() {
        let (mark, room) = (Arc::new(ConnectionMark::default()), Arc::new(Room::new(1)));
        mark.meet(&room);
        let (mut here, _there) = pair(&mark);
        let alone = timeout(TIMEOUT / 2, here.write_all(&[0; 2_048])).await;
        assert!(alone.is_err(), "nobody waits: it has its time");
        let _all = room.take(1_024, Instant::now()).await.unwrap();
        let crowded = timeout(PATIENCE + Duration::from_secs(1), here.write_all(&[0; 2_048])).await;
        assert!(crowded.unwrap().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn each_answer_has_its_own_time() {
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
