use std::{
    fmt,
    future::poll_fn,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
};

use crate::{Error, UnsyncedBlob};

/// A function that runs when a gate opens or fails.
type Hook = Box<dyn FnOnce(bool) + Send>;

/// Something that others wait for, such as bytes that are being made durable: it opens once, or fails for good. Clones share it.
///
/// A hook runs on the thread that opens the gate, so that further work can start without a thread switch.
#[derive(Clone)]
pub struct Gate(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    unsynced: Option<UnsyncedBlob>,
}

/// Opens a [`Gate`]. If it is dropped before, the gate fails with `Unavailable`.
#[derive(Debug)]
pub struct GateKeeper(Gate);

enum State {
    Pending { hooks: Vec<Hook>, wakers: Vec<Waker> },
    Open,
    Failed(Error),
}

impl Gate {
    /// A gate that is neither open nor failed, and the keeper that opens it.
    pub fn new() -> (GateKeeper, Self) {
        Self::made(None)
    }

    /// The same for a blob that is not durable when the gate opens: a caller that waits for it makes the blob durable together
    /// with its own write.
    pub fn of_unsynced(blob: UnsyncedBlob) -> (GateKeeper, Self) {
        Self::made(Some(blob))
    }

    fn made(unsynced: Option<UnsyncedBlob>) -> (GateKeeper, Self) {
        let state = Mutex::new(State::Pending { hooks: Vec::new(), wakers: Vec::new() });
        let gate = Self(Arc::new(Inner { state, unsynced }));
        (GateKeeper(gate.clone()), gate)
    }

    /// The blob of [`Gate::of_unsynced`].
    pub fn unsynced(&self) -> Option<&UnsyncedBlob> {
        self.0.unsynced.as_ref()
    }

    /// Why the gate has failed; `None` when it has not.
    pub fn failure(&self) -> Option<Error> {
        match &*self.state() {
            State::Failed(error) => Some(error.duplicate()),
            State::Pending { .. } | State::Open => None,
        }
    }

    /// Waits until the gate is open.
    ///
    /// # Errors
    /// Why it has failed.
    pub async fn opened(&self) -> Result<(), Error> {
        let poll = |context: &mut std::task::Context<'_>| match &mut *self.state() {
            State::Open => Poll::Ready(Ok(())),
            State::Failed(error) => Poll::Ready(Err(error.duplicate())),
            State::Pending { wakers, .. } => {
                if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                    wakers.push(context.waker().clone());
                }
                Poll::Pending
            }
        };
        poll_fn(poll).await
    }

    /// Runs `hook` with whether the gate is open: on the thread that opens it or lets it fail, which must not be blocked, or at
    /// once on this thread if the gate is already open or failed.
    pub fn on_end(&self, hook: impl FnOnce(bool) + Send + 'static) {
        let is_open = match &mut *self.state() {
            State::Pending { hooks, .. } => return hooks.push(Box::new(hook)),
            State::Open => true,
            State::Failed(_) => false,
        };
        hook(is_open);
    }

    fn end(&self, ended: State) {
        let is_open = matches!(ended, State::Open);
        let before = mem::replace(&mut *self.state(), ended);
        let State::Pending { hooks, wakers } = before else { return };
        hooks.into_iter().for_each(|hook| hook(is_open));
        wakers.into_iter().for_each(Waker::wake);
    }

    /// No panic can leave the state half-changed: each change is one assignment.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match *self.state() {
            State::Pending { .. } => "Gate(pending)",
            State::Open => "Gate(open)",
            State::Failed(_) => "Gate(failed)",
        })
    }
}

impl GateKeeper {
    /// Opens the gate, and runs its hooks.
    pub fn open(self) {
        self.0.end(State::Open);
    }

    /// Lets the gate fail for this reason, and runs its hooks.
    pub fn fail(self, error: Error) {
        self.0.end(State::Failed(error));
    }
}

impl Drop for GateKeeper {
    fn drop(&mut self) {
        let is_pending = matches!(*self.0.state(), State::Pending { .. });
        if is_pending {
            self.0.end(State::Failed(Error::unavailable("what had to be done before was given up")));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::atomic::{AtomicUsize, Ordering},
        task::{Context, Wake},
    };

    use super::*;
    use crate::ErrorKind;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The values passed to a hook.
    fn hooked(gate: &Gate) -> Arc<Mutex<Vec<bool>>> {
        let results = Arc::new(Mutex::new(Vec::new()));
        let by_hook = results.clone();
        gate.on_end(move |is_open| by_hook.lock().unwrap().push(is_open));
        results
    }

    #[test]
    fn hooks_run_once_when_a_gate_opens_or_fails_and_at_once_when_it_has() {
        for is_open in [true, false] {
            let (keeper, gate) = Gate::new();
            let before = hooked(&gate);
            assert!(before.lock().unwrap().is_empty() && gate.failure().is_none());
            match is_open {
                true => keeper.open(),
                false => drop(keeper),
            }
            assert_eq!(gate.failure().is_some(), !is_open);
            assert_eq!(
                (&*before.lock().unwrap(), &*hooked(&gate).lock().unwrap()),
                (&vec![is_open], &vec![is_open])
            );
        }
    }

    #[test]
    fn who_waits_is_woken_once_however_often_it_looks() {
        let (keeper, gate) = Gate::new();
        let wakes = Arc::new(Wakes::default());
        let waker = wakes.clone().into();
        let mut context = Context::from_waker(&waker);
        let mut opened = pin!(gate.opened());
        for _ in 0..3 {
            assert!(opened.as_mut().poll(&mut context).is_pending());
        }
        keeper.open();
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        assert!(matches!(opened.as_mut().poll(&mut context), Poll::Ready(Ok(()))));
    }

    #[test]
    fn a_gate_says_why_it_has_failed() {
        let (keeper, gate) = Gate::new();
        keeper.fail(Error::full("no space"));
        assert_eq!(gate.failure().map(|error| error.kind()), Some(ErrorKind::Full));
        let (keeper, gate) = Gate::new();
        drop(keeper);
        assert_eq!(gate.failure().map(|error| error.kind()), Some(ErrorKind::Unavailable));
    }
}
