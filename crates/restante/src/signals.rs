//! SIGTERM and SIGINT: the first one stops the server, the second one ends the process. SIGHUP: certificates are reloaded.

use std::process;

use anyhow::Context;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
};
use tracing::{info, warn};

/// Whether the server was asked to stop. Clones share the state.
#[derive(Clone, Debug)]
pub(crate) struct Stop(watch::Receiver<bool>);

impl Stop {
    /// Installs the handlers of SIGTERM and SIGINT.
    pub(crate) fn on_signals() -> anyhow::Result<Self> {
        let terminate = signal(SignalKind::terminate()).context("can't listen for SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("can't listen for SIGINT")?;
        let (tell, stop) = watch::channel(false);
        tokio::spawn(listen(terminate, interrupt, tell));
        Ok(Self(stop))
    }

    /// A [`Stop`] that a channel sets instead of a signal.
    #[cfg(test)]
    pub(crate) fn of(requested: watch::Receiver<bool>) -> Self {
        Self(requested)
    }

    /// Becomes true when the process is asked to stop.
    pub(crate) fn signal(&self) -> watch::Receiver<bool> {
        self.0.clone()
    }

    /// Whether the process was asked to stop.
    pub(crate) fn is_requested(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns when the server was asked to stop.
    pub(crate) async fn requested(mut self) {
        let is_listener_gone = self.0.wait_for(|is_requested| *is_requested).await.is_err();
        if is_listener_gone {
            // The listener is gone, so no signal can arrive any more: wait forever instead of stopping without a signal.
            std::future::pending::<()>().await;
        }
    }
}

/// Each SIGHUP from now on. Without this handler the signal would end the process.
pub(crate) fn hangup() -> anyhow::Result<Signal> {
    signal(SignalKind::hangup()).context("can't listen for SIGHUP")
}

async fn listen(mut terminate: Signal, mut interrupt: Signal, tell: watch::Sender<bool>) {
    let name = next(&mut terminate, &mut interrupt).await.1;
    info!(signal = name, "stopping: finishing what was accepted");
    let _ = tell.send(true); // fails when the server is ending anyway
    let (number, name) = next(&mut terminate, &mut interrupt).await;
    warn!(signal = name, "ending at once");
    process::exit(128 + number); // what a shell reports for a process that was killed by this signal
}

async fn next(terminate: &mut Signal, interrupt: &mut Signal) -> (i32, &'static str) {
    tokio::select! {
        _ = terminate.recv() => (SignalKind::terminate().as_raw_value(), "SIGTERM"),
        _ = interrupt.recv() => (SignalKind::interrupt().as_raw_value(), "SIGINT"),
    }
}
