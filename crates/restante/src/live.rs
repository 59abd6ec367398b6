//! Opens the table of sessions that the settings name, and closes it in order.

use std::time::Duration;

use anyhow::Context;
use restante_sessions::{Live, SessionMetrics};
use rustix::system::uname;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::{clock, config::Config, secrets};

/// Opens the table of the settings. Unreachable other servers are no error: the table begins with this server only, which is logged.
pub(crate) async fn open(config: &Config, metrics: SessionMetrics) -> anyhow::Result<Live> {
    let url = &config.sessions.url;
    let live = Live::open(table(config, metrics)?, config.sessions.hub).await;
    let live = live.with_context(|| format!("can't open the table of sessions {url}"))?;
    match live.nodes.health() {
        Ok(()) => info!(table = %url, node = %live.nodes.here(), "sessions"),
        Err(error) => {
            warn!(table = %url, %error, "other servers are out of reach: sessions of this one go on meanwhile");
        }
    }
    Ok(live)
}

/// Removes this server from the table. Unreachable other servers see its lease expire, so nothing is lost.
pub(crate) async fn close(live: &Live, limit: Duration) {
    match timeout(limit, live.nodes.close()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => warn!(%error, "other servers see this one's sessions until its lease has run out"),
        Err(_) => warn!("the table of sessions was not left in time: others see its lease run out"),
    }
}

fn table(config: &Config, metrics: SessionMetrics) -> anyhow::Result<restante_sessions::Config> {
    let mut table = config.sessions.config();
    let password_file = &config.sessions.redis.password_file;
    if !password_file.as_os_str().is_empty() {
        table.redis.password = Some(secrets::read("password", password_file)?);
    }
    if table.node_name.is_empty() {
        table.node_name = uname().nodename().to_string_lossy().into_owned();
    }
    (table.clock, table.metrics) = (clock::system(), metrics);
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_the_machines_name_unless_it_has_one_of_its_own() {
        let mut config = Config::default();
        let machine = table(&config, SessionMetrics::default()).unwrap().node_name;
        assert!(!machine.is_empty());
        config.sessions.node_name = "paris".into();
        assert_eq!(table(&config, SessionMetrics::default()).unwrap().node_name, "paris");
    }

    #[test]
    fn the_password_comes_from_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        assert_eq!(table(&config, SessionMetrics::default()).unwrap().redis.password, None);
        let file = folder.path().join("password");
        std::fs::write(&file, "sesame\n").unwrap();
        config.sessions.redis.password_file = file;
        let password = table(&config, SessionMetrics::default()).unwrap().redis.password;
        assert_eq!(password.as_deref(), Some("sesame"));
        config.sessions.redis.password_file = folder.path().join("missing");
        let error = table(&config, SessionMetrics::default()).err().unwrap().to_string();
        assert!(error.starts_with("can't read the password in"), "{error}");
    }

    #[tokio::test]
    async fn a_table_in_memory_is_opened_and_left() {
        let live = open(&Config::default(), SessionMetrics::default()).await.unwrap();
        close(&live, Duration::from_secs(10)).await;
    }
}
