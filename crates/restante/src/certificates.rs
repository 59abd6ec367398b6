//! The certificates of the server's listeners, which are reloaded while it runs.

use std::{future::pending, sync::Arc};

use restante_net::{
    NetMetrics,
    tls::{CertificateFiles, Certificates, POLL_INTERVAL},
};
use restante_operate::Listener;
use tokio::{
    signal::unix::Signal,
    time::{MissedTickBehavior, interval},
};
use tracing::info;

use crate::{config::Effective, exit::UsageError};

/// The certificates of listeners that speak TLS; `None` when no listener does.
///
/// # Errors
/// Names the setting whose file can't be used.
pub(crate) fn of_listeners(
    effective: &Effective,
    metrics: &NetMetrics,
) -> Result<Option<Arc<Certificates>>, UsageError> {
    let config = &effective.config;
    let listeners = [Listener::Rest, Listener::Operate, Listener::Public];
    let has_tls = listeners.iter().any(|listener| config.has_tls(*listener));
    has_tls.then(|| load(effective, "tls.certificate_files", &config.tls.files(), metrics)).transpose()
}

/// Reads the files that a setting names.
///
/// # Errors
/// Names the setting when a file can't be used.
pub(crate) fn load(
    effective: &Effective,
    key: &str,
    files: &[CertificateFiles],
    metrics: &NetMetrics,
) -> Result<Arc<Certificates>, UsageError> {
    Certificates::load(files, metrics)
        .map_err(|error| UsageError(format!("{}: {key}: {error}", effective.origin(key))))
}

/// Reloads files that have changed, and all of them on SIGHUP. Does not return.
pub(crate) async fn keep_current(all: Arc<[Arc<Certificates>]>, mut hangup: Signal) {
    let mut poll = interval(POLL_INTERVAL);
    poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let is_asked = tokio::select! {
            heard = hangup.recv() => match heard {
                Some(()) => true,
                None => pending().await,
            },
            _ = poll.tick() => false,
        };
        if is_asked {
            info!(certificates = all.len(), signal = "SIGHUP", "reading certificates again");
        }
        let all = all.clone();
        let reload = move || {
            for certificates in &*all {
                if is_asked { certificates.reload() } else { certificates.reload_changed() }
            }
        };
        let _ = tokio::task::spawn_blocking(reload).await; // fails when the runtime shuts down
    }
}
