//! The settings of sessions: the location of the table, and the limits for connected users.

use std::{num::NonZero, path::PathBuf};

use restante_sessions::{EngineUrl, RedisConfig, hub::HubConfig};
use serde::{Deserialize, Serialize};

use super::words;

/// A node renews its lease three times within its duration, and each renewal may take as long as a request.
const HEARTBEATS_PER_LEASE: u64 = 3;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sessions {
    #[serde(with = "words::text")]
    pub(crate) url: EngineUrl,
    pub(crate) per_user_max: NonZero<usize>,
    /// Empty for the machine's host name.
    pub(crate) node_name: String,
    pub(crate) redis: SessionsRedis,
    pub(crate) hub: HubConfig,
}

/// The settings of Redis.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SessionsRedis {
    /// Empty for none.
    pub(crate) password_file: PathBuf,
    #[serde(flatten)]
    pub(crate) engine: RedisConfig,
}

impl Sessions {
    /// The first pair of settings that contradict each other: the key to report, and what is wrong.
    pub(super) fn contradiction(&self) -> Option<(&'static str, String)> {
        let RedisConfig { prefix, certificate_file, certificate_key_file, lease_ms, timeout_ms, .. } =
            &self.redis.engine;
        if let Some(fault) = RedisConfig::prefix_error(prefix) {
            return Some(("sessions.redis.prefix", fault));
        }
        let heartbeats_ms = timeout_ms.get().saturating_mul(HEARTBEATS_PER_LEASE);
        if lease_ms.get() < heartbeats_ms {
            let what = format!(
                "a lease is renewed {HEARTBEATS_PER_LEASE} times in its length, each within sessions.redis.timeout_ms: \
                 set at least {heartbeats_ms}"
            );
            return Some(("sessions.redis.lease_ms", what));
        }
        if certificate_file.as_os_str().is_empty() != certificate_key_file.as_os_str().is_empty() {
            let what = "a certificate needs its key: set sessions.redis.certificate_file and certificate_key_file, or neither";
            return Some(("sessions.redis.certificate_file", what.to_owned()));
        }
        None
    }

    /// The settings of the table, except what only a starting server can determine: the password in its file, and the name of the machine.
    pub(crate) fn config(&self) -> restante_sessions::Config {
        restante_sessions::Config {
            sessions_per_user_max: self.per_user_max,
            node_name: self.node_name.clone(),
            redis: self.redis.engine.clone(),
            ..restante_sessions::Config::new(self.url.clone())
        }
    }
}

impl Default for Sessions {
    fn default() -> Self {
        let config = restante_sessions::Config::new(EngineUrl::Memory);
        Self {
            url: config.url,
            per_user_max: config.sessions_per_user_max,
            node_name: config.node_name,
            redis: SessionsRedis::default(),
            hub: HubConfig::default(),
        }
    }
}
