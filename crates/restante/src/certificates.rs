//! The certificates of the server's listeners, which are read again while it runs.

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

/// The certificates that the settings name.
#[derive(Clone)]
pub(crate) struct ServerCertificates {
    /// Those of listeners that speak TLS; `None` when no listener does.
    pub(crate) listeners: Option<Arc<Certificates>>,
    /// That of the node's secure WebSockets.
    pub(crate) websocket: Option<Arc<Certificates>>,
}

impl ServerCertificates {
    /// Reads the files.
    ///
    /// # Errors
    /// Names the setting whose file can't be used.
    pub(crate) fn load(effective: &Effective, metrics: &NetMetrics) -> Result<Self, UsageError> {
        let config = &effective.config;
        let load = |key: &str, files: &[CertificateFiles]| {
            Certificates::load(files, metrics)
                .map_err(|error| UsageError(format!("{}: {key}: {error}", effective.origin(key))))
        };
        let has_tls = [Listener::Rest, Listener::Operate, Listener::Public]
            .iter()
            .any(|listener| config.has_tls(*listener));
        let listeners = has_tls.then(|| load("tls.certificate_files", &config.tls.files())).transpose()?;
        let node = &config.waku.node;
        let websocket = node.certificate().filter(|_| node.enabled);
        let websocket = websocket.map(|files| load("waku.node.certificate_file", &[files])).transpose()?;
        Ok(Self { listeners, websocket })
    }

    /// Reads files again that have changed, and all of them on SIGHUP. Does not return.
    pub(crate) async fn keep_current(self, mut hangup: Signal) {
        let all: Arc<[Arc<Certificates>]> = self.listeners.into_iter().chain(self.websocket).collect();
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
            let _ = tokio::task::spawn_blocking(reload).await; // fails when the runtime ends
        }
    }
}
