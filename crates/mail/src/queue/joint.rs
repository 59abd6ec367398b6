//! Combines requests of one kind that wait for the same account of the queue into one commit. A sender that serves many domains at
//! once has such requests when their recipients are those of one message, which are in the same account.

use std::collections::{BTreeSet, VecDeque};

use async_trait::async_trait;
use parking_lot::Mutex;
use restante_core::Error;
use restante_records::{AccountId, RecordId};
use tokio::sync::oneshot;

use super::edit::Editor;

/// The most records of several requests in one commit. A single request may have more.
const RECORDS_MAX: usize = 256;

/// A request that can be combined with others of its kind.
#[async_trait]
pub(super) trait Request: Clone + Send + Sync + Sized {
    type Answer: Send;

    /// The records that it changes.
    fn records(&self) -> Vec<RecordId>;

    /// Executes several requests, which change different records, in one commit; returns an answer for each, in their order.
    ///
    /// # Errors
    /// As [`Editor::edit`]; then none of them is known to have been executed.
    async fn commit(
        editor: &Editor,
        account: AccountId,
        requests: &[Self],
    ) -> Result<Vec<Self::Answer>, Error>;
}

/// Requests of an account that wait for their turn.
pub(super) struct Pending<R: Request>(Mutex<VecDeque<Waiting<R>>>);

struct Waiting<R: Request> {
    request: R,
    answer: oneshot::Sender<Result<R::Answer, Error>>,
}

impl<R: Request> Default for Pending<R> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<R: Request> Pending<R> {
    fn add(&self, request: R) -> oneshot::Receiver<Result<R::Answer, Error>> {
        let (answer, answered) = oneshot::channel();
        self.0.lock().push_back(Waiting { request, answer });
        answered
    }

    /// The first requests, as far as they change different records and fit into a commit.
    fn take(&self) -> Vec<Waiting<R>> {
        let mut waiting = self.0.lock();
        let (mut taken, mut records) = (Vec::new(), BTreeSet::new());
        while let Some(next) = waiting.pop_front() {
            if next.answer.is_closed() {
                continue; // its caller has stopped waiting
            }
            let own = next.request.records();
            let fits = records.len() + own.len() <= RECORDS_MAX && !own.iter().any(|id| records.contains(id));
            if !taken.is_empty() && !fits {
                waiting.push_front(next);
                break;
            }
            records.extend(own);
            taken.push(next);
        }
        taken
    }
}

impl Editor {
    /// Executes a request, together with those that wait for the same account.
    ///
    /// # Errors
    /// As [`Editor::edit`].
    pub(super) async fn join<R: Request>(
        &self,
        account: AccountId,
        pending: &Pending<R>,
        request: R,
    ) -> Result<R::Answer, Error> {
        let mut answered = pending.add(request.clone());
        loop {
            let turn = tokio::select! {
                biased;
                answer = &mut answered => match answer {
                    Ok(answer) => return answer,
                    Err(_) => {
                        // The task that executed it was aborted, and it is not known how far it got: repeating is safe.
                        answered = pending.add(request.clone());
                        continue;
                    }
                },
                turn = self.turn(account) => turn?,
            };
            self.do_first(account, pending).await;
            drop(turn);
        }
    }

    async fn do_first<R: Request>(&self, account: AccountId, pending: &Pending<R>) {
        let waiting = pending.take();
        let requests: Vec<R> = waiting.iter().map(|waiting| waiting.request.clone()).collect();
        let mut waiting = waiting.into_iter();
        match R::commit(self, account, &requests).await {
            Ok(answers) => {
                for (waiting, answer) in waiting.zip(answers) {
                    let _ = waiting.answer.send(Ok(answer)); // its caller may have stopped waiting
                }
            }
            Err(error) if waiting.len() == 1 => {
                if let Some(waiting) = waiting.next() {
                    let _ = waiting.answer.send(Err(error));
                }
            }
            // One of them may be the cause, and must not hold up the others.
            Err(_) => {
                for Waiting { request, answer } in waiting {
                    let alone = R::commit(self, account, &[request]).await;
                    let alone = alone.and_then(|answers| {
                        answers
                            .into_iter()
                            .next()
                            .ok_or_else(|| Error::internal("a request without an answer"))
                    });
                    let _ = answer.send(alone);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
