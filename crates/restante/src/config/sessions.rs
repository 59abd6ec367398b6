//! The settings of sessions: where the table is, and what those who are connected may take.

use std::{num::NonZero, path::PathBuf};

use restante_sessions::{EngineUrl, RedisConfig, hub::HubConfig};
use serde::{Deserialize, Serialize};

use super::{schema::nonzero, words};

/// A node renews its lease three times in its length, and each time may take as long as a request.
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
    pub(crate) hub: SessionsHub,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SessionsRedis {
    pub(crate) prefix: String,
    /// Empty for none.
    pub(crate) password_file: PathBuf,
    /// Empty for the authorities of the operating system.
    pub(crate) ca_file: PathBuf,
    /// Empty for none, as the next.
    pub(crate) certificate_file: PathBuf,
    pub(crate) certificate_key_file: PathBuf,
    pub(crate) lease_ms: NonZero<u64>,
    pub(crate) timeout_ms: NonZero<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SessionsHub {
    pub(crate) subscriptions_max: NonZero<usize>,
    pub(crate) queued_bytes_max: NonZero<usize>,
    pub(crate) interest_bytes_max: NonZero<usize>,
}

impl Sessions {
    /// The first pair of settings that contradict each other: the key to blame and what is wrong.
    pub(super) fn contradiction(&self) -> Option<(&'static str, String)> {
        if let Some(fault) = RedisConfig::prefix_error(&self.redis.prefix) {
            return Some(("sessions.redis.prefix", fault));
        }
        let SessionsRedis { lease_ms, timeout_ms, .. } = self.redis;
        let heartbeats_ms = timeout_ms.get().saturating_mul(HEARTBEATS_PER_LEASE);
        if lease_ms.get() < heartbeats_ms {
            let what = format!(
                "a lease is renewed {HEARTBEATS_PER_LEASE} times in its length, each within sessions.redis.timeout_ms: \
                 set at least {heartbeats_ms}"
            );
            return Some(("sessions.redis.lease_ms", what));
        }
        let SessionsRedis { certificate_file, certificate_key_file, .. } = &self.redis;
        if certificate_file.as_os_str().is_empty() != certificate_key_file.as_os_str().is_empty() {
            let what = "a certificate needs its key: set sessions.redis.certificate_file and certificate_key_file, or neither";
            return Some(("sessions.redis.certificate_file", what.to_owned()));
        }
        None
    }

    /// The settings of the table, but for what only a server that starts can tell: the password in its file, and the name of
    /// the machine.
    pub(crate) fn config(&self) -> restante_sessions::Config {
        restante_sessions::Config {
            sessions_per_user_max: self.per_user_max.get(),
            node_name: self.node_name.clone(),
            redis: (&self.redis).into(),
            ..restante_sessions::Config::new(self.url.clone())
        }
    }
}

impl Default for Sessions {
    fn default() -> Self {
        let config = restante_sessions::Config::new(EngineUrl::Memory);
        Self {
            url: config.url,
            per_user_max: nonzero(config.sessions_per_user_max),
            node_name: config.node_name,
            redis: SessionsRedis::default(),
            hub: SessionsHub::default(),
        }
    }
}

impl Default for SessionsRedis {
    fn default() -> Self {
        let redis = RedisConfig::default();
        Self {
            prefix: redis.prefix,
            password_file: PathBuf::new(),
            ca_file: PathBuf::new(),
            certificate_file: PathBuf::new(),
            certificate_key_file: PathBuf::new(),
            lease_ms: nonzero(redis.lease_ms),
            timeout_ms: nonzero(redis.timeout_ms),
        }
    }
}

impl From<&SessionsRedis> for RedisConfig {
    fn from(redis: &SessionsRedis) -> Self {
        let named = |file: &PathBuf| (!file.as_os_str().is_empty()).then(|| file.clone());
        Self {
            prefix: redis.prefix.clone(),
            password: None,
            ca_file: named(&redis.ca_file),
            identity: named(&redis.certificate_file).zip(named(&redis.certificate_key_file)),
            lease_ms: redis.lease_ms.get(),
            timeout_ms: redis.timeout_ms.get(),
        }
    }
}

impl Default for SessionsHub {
    fn default() -> Self {
        let hub = HubConfig::default();
        Self {
            subscriptions_max: nonzero(hub.subscriptions_max),
            queued_bytes_max: nonzero(hub.queued_bytes_max),
            interest_bytes_max: nonzero(hub.interest_bytes_max),
        }
    }
}

impl From<&SessionsHub> for HubConfig {
    fn from(hub: &SessionsHub) -> Self {
        Self {
            subscriptions_max: hub.subscriptions_max.get(),
            queued_bytes_max: hub.queued_bytes_max.get(),
            interest_bytes_max: hub.interest_bytes_max.get(),
        }
    }
}
