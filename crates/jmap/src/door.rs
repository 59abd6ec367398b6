//! The door as seen by the server.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use prometheus_client::registry::Registry;
use restante_directory::{Actor, Answer, Directory, Operation, PAGE_MAX};
use restante_http::Route;
use restante_mail::Mail;
use restante_operate::{ComponentHealth, Door, Facts, Listener, Offer, RoleCheck};
use restante_records::AccountId;
use serde_json::json;
use tokio::{
    task::JoinHandle,
    time::{MissedTickBehavior, interval},
};
use tracing::{debug, warn};

use crate::{
    JmapConfig, JmapMetrics, JmapParts,
    core::uploads,
    http::{self, App},
};

/// How often uploads that have expired are removed.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(3_600);

/// JMAP for the users of mail.
pub struct JmapDoor {
    app: Arc<App>,
    metrics: JmapMetrics,
    stores: Vec<RoleCheck>,
    tasks: Vec<JoinHandle<()>>,
}

impl fmt::Debug for JmapDoor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JmapDoor").finish_non_exhaustive()
    }
}

impl JmapDoor {
    /// A door on these stores. Must be called in a tokio runtime: it starts the tasks that push changes and remove expired uploads,
    /// which [`Door::close`] stops.
    pub fn new(parts: JmapParts, config: JmapConfig) -> Self {
        let (mail, directory) = (parts.mail.clone(), parts.directory.clone());
        let (metrics, seconds) = (parts.metrics.clone(), config.upload_seconds.get());
        let (watch, changes) = (mail.records().watch(), directory.changes());
        let stores = parts.stores.clone();
        let app = Arc::new(App::new(parts, config));
        let tasks = vec![
            tokio::spawn(app.pusher.clone().run(watch, changes)),
            tokio::spawn(expire_uploads(mail, directory, seconds)),
            tokio::spawn(app.push.clone().run()),
        ];
        Self { app, metrics, stores, tasks }
    }

    /// The state that all routes share.
    #[cfg(test)]
    pub(crate) fn app(&self) -> &App {
        &self.app
    }

    /// The accounts whose changes are being listened to.
    #[cfg(test)]
    pub(crate) fn listened(&self) -> usize {
        self.app.pusher.listened()
    }
}

#[async_trait]
impl Door for JmapDoor {
    fn name(&self) -> &'static str {
        "JMAP"
    }

    async fn health(&self) -> Vec<ComponentHealth> {
        let ended = self.tasks.iter().any(JoinHandle::is_finished);
        let problem = ended.then(|| "a task of the door has ended: start the server again".to_owned());
        // The public sees whether the door or its stores fail; operators also see the stores' own lines.
        let stores = self.stores.iter().find_map(|check| (check.problem)());
        vec![ComponentHealth::new("JMAP", problem), ComponentHealth::new("Mail", stores)]
    }

    fn facts(&self, _metrics: &str) -> Facts {
        Facts { services: vec![json!({"name": "JMAP", "isOn": true})], ..Facts::default() }
    }

    fn register(&self, registry: &mut Registry) {
        self.metrics.register(registry);
    }

    fn routes(&self, listener: Listener, _offer: Offer) -> Vec<Route> {
        match listener {
            Listener::Public => http::routes(&self.app),
            Listener::Rest | Listener::Operate => Vec::new(),
        }
    }

    async fn close(&self) {
        self.app.close();
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Drop for JmapDoor {
    fn drop(&mut self) {
        self.app.push.close();
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Removes expired uploads of all accounts periodically.
async fn expire_uploads(mail: Mail, directory: Directory, upload_seconds: u64) {
    let mut ticks = interval(EXPIRY_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(error) = expire_all(&mail, &directory, upload_seconds).await {
            warn!(%error, "expired uploads were not removed, and are in an hour");
        }
    }
}

/// Removes the expired uploads of all accounts once. When this fails for an account, that is logged and the account is skipped.
///
/// # Errors
/// Transient ones of the records, which concern all accounts, and those of the directory.
pub(crate) async fn expire_all(
    mail: &Mail,
    directory: &Directory,
    upload_seconds: u64,
) -> Result<usize, restante_core::Error> {
    let (actor, mut after, mut removed) = (Actor("the JMAP door".to_owned()), None, 0);
    loop {
        let page = Operation::Accounts { domain: None, after, limit: PAGE_MAX };
        let Answer::Accounts(page) = directory.operate(&actor, page).await? else { return Ok(removed) };
        for account in page.items {
            let account = AccountId(account.account);
            match uploads::expire(mail, account, upload_seconds).await {
                Err(error) if !error.is_transient() => {
                    warn!(account = account.0, %error, "the expired uploads of an account can't be removed");
                }
                expired => removed += expired?,
            }
        }
        after = page.next;
        if after.is_none() {
            debug!(removed, "removed expired uploads");
            return Ok(removed);
        }
    }
}

#[cfg(test)]
mod tests {
    use restante_operate::Status;

    use super::*;
    use crate::testing::{TestServer, parts};

    /// Regression test: all mail was deferred because of a full disk, but health reported that mail works.
    #[tokio::test]
    async fn health_says_that_the_stores_do_not_work() {
        let server = TestServer::in_memory(JmapConfig::default()).await;
        let full = || Some("the disk is full".to_owned());
        for (problem, expected) in [(None, Status::Ready), (Some(full), Status::NotReady)] {
            let check =
                RoleCheck { name: "Records", problem: Arc::new(move || problem.and_then(|full| full())) };
            let parts = JmapParts { stores: vec![check], ..parts(&server.mail, &server.directory) };
            let health = JmapDoor::new(parts, JmapConfig::default()).health().await;
            let health: Vec<_> = health.iter().map(|part| (part.name, part.status)).collect();
            assert_eq!(health, [("JMAP", Status::Ready), ("Mail", expected)]);
        }
    }
}
