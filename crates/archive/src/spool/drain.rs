//! The task that stores the messages of a spool, oldest first, once the engine accepts them.

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use restante_core::ErrorKind;
use tokio::task::JoinHandle;
use tracing::{error, info};

use super::{
    circuit::Circuit,
    reader::Reader,
    store::{Oldest, Store},
};
use crate::{Archive, Error, Message, Query};

/// The most messages that are stored at once. The first batch after a failure is a single message, so that checking whether the
/// engine is back costs little, and each batch that was stored lets the next be four times as large.
const BATCH_MESSAGES_MAX: usize = 1_000;
/// Pauses between attempts: the first one, and the maximum, to which they double. Short ones suffice for a database that was only
/// restarted; the maximum bounds how late its return is noticed.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The running task. It ends when this is dropped.
pub(crate) struct Draining(JoinHandle<()>);

impl Draining {
    /// Starts to move the messages in `store` to `target`.
    pub(crate) fn start(
        store: Arc<Store>,
        target: Arc<dyn Archive>,
        circuit: Arc<Circuit>,
        timeout: Duration,
    ) -> Self {
        let pauses = Pauses { next: PAUSE_MIN };
        let drain = Drain {
            store,
            target,
            circuit,
            timeout,
            batch_messages: 1,
            reader: None,
            pauses,
            is_catching_up: false,
        };
        Self(tokio::spawn(drain.run()))
    }

    /// Ends the task at any point; the next one repeats what was not finished.
    pub(crate) fn stop(&self) {
        self.0.abort();
    }
}

impl Drop for Draining {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Drain {
    store: Arc<Store>,
    target: Arc<dyn Archive>,
    circuit: Arc<Circuit>,
    timeout: Duration,
    /// The size of the next batch.
    batch_messages: usize,
    reader: Option<Reader>,
    pauses: Pauses,
    /// Whether the engine is back after an outage, and the waiting messages are not all stored yet.
    is_catching_up: bool,
}

/// The outcome of a step.
enum Step {
    /// Something was done; there may be more.
    Done,
    /// Nothing waits.
    Nothing,
    /// There is nothing to do for this long.
    Wait(Duration),
}

impl Drain {
    async fn run(mut self) {
        loop {
            match self.step().await {
                Ok(Step::Done) => {}
                Ok(Step::Nothing) => self.wait_for_work().await,
                Ok(Step::Wait(pause)) => tokio::time::sleep(pause).await,
                Err(error) => {
                    self.circuit.stick(&error.to_string());
                    self.pause().await;
                }
            }
        }
    }

    /// Stores one batch, or removes a generation that is drained.
    async fn step(&mut self) -> Result<Step, Error> {
        let Some(reader) = &self.reader else { return self.next_generation().await };
        let batch = match reader.batch(self.batch_messages).await {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                error!(%error, "a part of the spool can't be read to its end");
                self.store.set_aside(reader.number).await;
                self.reader = None;
                return Ok(Step::Done);
            }
            batch => batch?,
        };
        match batch {
            Some(batch) => {
                let is_stored = self.store(&batch.messages).await?;
                if is_stored && let Some(reader) = &mut self.reader {
                    self.store.drained(reader.number, batch.messages.len() as u64);
                    reader.advance(&batch);
                }
            }
            None => {
                if let Some(reader) = self.reader.take() {
                    self.store.finish(reader).await?;
                }
            }
        }
        Ok(Step::Done)
    }

    async fn next_generation(&mut self) -> Result<Step, Error> {
        match self.store.oldest().await? {
            Oldest::Nothing => Ok(Step::Nothing),
            Oldest::In(pause) => Ok(Step::Wait(pause)),
            Oldest::Generation(number) => {
                self.reader = self.store.read(number).await?;
                Ok(Step::Done)
            }
        }
    }

    /// Has the engine store a batch; returns whether the batch is done. When the engine is unavailable this returns after a
    /// pause.
    async fn store(&mut self, messages: &[Message]) -> Result<bool, Error> {
        let answer = within(self.timeout, self.target.append(messages.to_vec())).await;
        match answer {
            Ok(_) => {
                self.went_well();
                self.batch_messages = (self.batch_messages * 4).min(BATCH_MESSAGES_MAX);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                self.circuit.open(&error.to_string());
                self.pause().await;
                Ok(false)
            }
            Err(error) if error.kind() == ErrorKind::Invalid => self.refused(messages, &error).await,
            Err(error) => {
                self.batch_messages = 1;
                Err(error)
            }
        }
    }

    /// The engine will never accept this batch: storing one message after the other shows which of them it refuses.
    async fn refused(&mut self, messages: &[Message], why: &Error) -> Result<bool, Error> {
        match messages {
            [message] => {
                self.went_well();
                self.store.refuse(message.clone(), why).await?;
                Ok(true)
            }
            _ => {
                self.batch_messages = 1;
                Ok(false)
            }
        }
    }

    fn went_well(&mut self) {
        self.is_catching_up |= self.circuit.outage().is_some();
        self.circuit.close();
        self.pauses.begin_anew();
    }

    /// Waits until something was put. Without a message to try with, an engine that is unavailable is sent a query.
    async fn wait_for_work(&mut self) {
        if self.circuit.is_away() {
            let question = Query { limit: 1, bodies: false, ..Query::default() };
            match within(self.timeout, self.target.query(&question)).await {
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    self.circuit.open(&error.to_string());
                    self.pause().await;
                }
                _ => self.went_well(),
            }
            return;
        }
        if self.circuit.outage().is_some() {
            self.went_well(); // what was stuck is gone
        }
        if std::mem::take(&mut self.is_catching_up) {
            info!(engine = self.circuit.engine(), "everything that waited in the spool is stored");
        }
        tokio::select! {
            () = self.store.changed.notified() => {}
            () = self.circuit.opened() => {}
        }
    }

    async fn pause(&mut self) {
        self.batch_messages = 1;
        tokio::time::sleep(self.pauses.take()).await;
    }
}

/// The answer of an engine, which counts as unavailable when it takes too long.
pub(super) async fn within<T>(
    timeout: Duration,
    answer: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let late = || Error::unavailable(format!("no answer within {} ms", timeout.as_millis()));
    tokio::time::timeout(timeout, answer).await.unwrap_or_else(|_| Err(late()))
}

/// Exponential back-off with jitter.
struct Pauses {
    next: Duration,
}

impl Pauses {
    fn begin_anew(&mut self) {
        self.next = PAUSE_MIN;
    }

    /// From half of the pause to all of it, so that servers that share a database don't retry in step.
    fn take(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(PAUSE_MAX);
        let chance = RandomState::new().hash_one(pause) as u32;
        pause.mul_f64(0.5 + f64::from(chance) / f64::from(u32::MAX) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew() {
        let mut pauses = Pauses { next: PAUSE_MIN };
        for step in 0..20 {
            let whole = PAUSE_MAX.min(PAUSE_MIN * 2_u32.pow(step.min(10)));
            let pause = pauses.take();
            assert!(whole / 2 <= pause && pause <= whole, "{pause:?} of {whole:?}");
        }
        pauses.begin_anew();
        assert!(pauses.take() <= PAUSE_MIN);
    }
}
