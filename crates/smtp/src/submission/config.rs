use std::{net::SocketAddr, num::NonZero};

use restante_core::nonzero;
use restante_mail::sending::SendingRates;
use restante_net::Limits;
use serde::{Deserialize, Serialize};

use crate::{SmtpConfig, config::one_or_many};

/// The settings of submission: users send mail. Those of SMTP about messages, times and memory apply, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SubmissionConfig {
    /// Where users submit mail, with STARTTLS: one address or a list, as `0.0.0.0:587`; empty to disable it.
    #[serde(deserialize_with = "one_or_many")]
    pub listen: Vec<SocketAddr>,
    /// Where users submit mail with TLS from the first byte: one address or a list, as `0.0.0.0:465`; empty to disable it.
    #[serde(deserialize_with = "one_or_many")]
    pub listen_tls: Vec<SocketAddr>,
    /// Whether users on loopback may log in without TLS, for testing.
    pub allow_plaintext_loopback: bool,
    /// The most connections of one listener at a time.
    pub connections_max: NonZero<usize>,
    /// The most messages that one account sends in any 60 minutes, by SMTP and JMAP together; 0 for no limit.
    pub messages_per_hour_max: u32,
    /// The most recipients of all messages that one account sends in any 24 hours; 0 for no limit.
    pub recipients_per_day_max: u32,
    /// How long a message can be held before it is sent (RFC 4865), in seconds; 0 to disable this.
    pub hold_seconds_max: u64,
}

impl Default for SubmissionConfig {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            listen_tls: Vec::new(),
            allow_plaintext_loopback: false,
            connections_max: nonzero!(1_024),
            messages_per_hour_max: 100,
            recipients_per_day_max: 1_000,
            hold_seconds_max: 30 * 24 * 3_600,
        }
    }
}

impl SubmissionConfig {
    /// The maximum of `hold_seconds_max`: clients send it with at most 9 digits (RFC 4865 §4).
    const HOLD_SECONDS_MAX: u64 = 999_999_999;

    /// What is wrong with these settings, if anything: the setting, and how to fix it.
    pub fn problem(&self) -> Option<(&'static str, String)> {
        if self.hold_seconds_max > Self::HOLD_SECONDS_MAX {
            return Some(("hold_seconds_max", format!("use at most {}", Self::HOLD_SECONDS_MAX)));
        }
        None
    }

    /// The setting that requires a certificate, and what to do, if one does and there is no certificate.
    pub fn missing_certificate(&self, has_certificate: bool) -> Option<(&'static str, &'static str)> {
        if has_certificate {
            return None;
        }
        if !self.listen_tls.is_empty() {
            return Some(("listen_tls", "name a certificate in the settings of TLS"));
        }
        // Nobody could log in.
        let advice = "name a certificate in the settings of TLS, or set allow_plaintext_loopback for trials";
        (!self.listen.is_empty() && !self.allow_plaintext_loopback).then_some(("listen", advice))
    }

    /// How much an account may send.
    pub fn rates(&self) -> SendingRates {
        SendingRates {
            messages_per_hour_max: self.messages_per_hour_max,
            recipients_per_day_max: self.recipients_per_day_max,
        }
    }

    pub(crate) fn limits(&self, smtp: &SmtpConfig) -> Limits {
        Limits { connections_max: self.connections_max.get(), ..smtp.limits() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_can_not_work_are_named() {
        let default = SubmissionConfig::default();
        assert_eq!(default.problem(), None);
        let long = SubmissionConfig { hold_seconds_max: 1_000_000_000, ..default };
        assert_eq!(long.problem().map(|(setting, _)| setting), Some("hold_seconds_max"));
    }

    #[test]
    fn settings_are_read_as_they_are_written() {
        let listen = vec!["[::]:587".parse().unwrap()];
        let config =
            SubmissionConfig { listen, allow_plaintext_loopback: true, ..SubmissionConfig::default() };
        let written = serde_json::to_value(&config).unwrap();
        assert_eq!(serde_json::from_value::<SubmissionConfig>(written).unwrap(), config);
        assert!(serde_json::from_str::<SubmissionConfig>(r#"{"listem": ""}"#).is_err());
    }
}
