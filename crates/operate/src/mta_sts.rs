//! The policy that makes other servers use TLS for mail to domains of this one (RFC 8461).

use std::num::NonZero;

use restante_core::nonzero;
use serde::{Deserialize, Serialize};

/// The longest time for which a policy may be remembered (RFC 8461 §3.2).
const AGE_SECONDS_MAX: u64 = 31_557_600;
/// The most servers of a policy.
const SERVERS_MAX: usize = 20;

/// What other servers do if their connection is not secured as the policy requires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MtaStsMode {
    /// No policy is served.
    #[default]
    Off,
    /// A policy that was served before is withdrawn.
    None,
    /// They send the mail, and a report.
    Testing,
    /// They don't send the mail.
    Enforce,
}

/// The settings of the policy, which is the same for all domains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MtaStsConfig {
    /// Whether it is served, and what it requires.
    pub mode: MtaStsMode,
    /// The names of the servers that receive mail, as in their certificates; `*.` at the beginning matches one label. Empty is this server.
    pub mx: Vec<String>,
    /// For how long other servers cache it.
    pub max_age_seconds: NonZero<u64>,
}

impl Default for MtaStsConfig {
    fn default() -> Self {
        Self { mode: MtaStsMode::Off, mx: Vec::new(), max_age_seconds: nonzero!(604_800) }
    }
}

impl MtaStsConfig {
    /// A setting that has a wrong value, and how to fix it.
    pub fn problem(&self) -> Option<(&'static str, String)> {
        if self.max_age_seconds.get() > AGE_SECONDS_MAX {
            return Some(("max_age_seconds", format!("use at most {AGE_SECONDS_MAX}, a year")));
        }
        let is_name = |name: &String| {
            let name = name.strip_prefix("*.").unwrap_or(name);
            let is_inner = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'.';
            !name.is_empty() && name.len() <= 253 && name.bytes().all(is_inner)
        };
        if self.mx.len() > SERVERS_MAX || !self.mx.iter().all(is_name) {
            return Some((
                "mx",
                format!("use up to {SERVERS_MAX} names like mail.example.org or *.example.org"),
            ));
        }
        None
    }

    /// The text of the policy (RFC 8461 §3.2), for a server with this name. `None` if none is served.
    pub fn policy(&self, host: &str) -> Option<String> {
        let mode = match self.mode {
            MtaStsMode::Off => return None,
            MtaStsMode::None => "none",
            MtaStsMode::Testing => "testing",
            MtaStsMode::Enforce => "enforce",
        };
        let mut text = format!("version: STSv1\r\nmode: {mode}\r\n");
        if self.mx.is_empty() {
            text.push_str(&format!("mx: {host}\r\n"));
        }
        for name in &self.mx {
            text.push_str(&format!("mx: {name}\r\n"));
        }
        text.push_str(&format!("max_age: {}\r\n", self.max_age_seconds));
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_names_this_server_unless_others_are_set() {
        let mut config = MtaStsConfig::default();
        assert_eq!((config.policy("mail.example.org"), config.problem()), (None, None));
        config.mode = MtaStsMode::Testing;
        let policy = "version: STSv1\r\nmode: testing\r\nmx: mail.example.org\r\nmax_age: 604800\r\n";
        assert_eq!(config.policy("mail.example.org").unwrap(), policy);
        config.mode = MtaStsMode::Enforce;
        config.mx = vec!["mx1.example.net".to_owned(), "*.example.com".to_owned()];
        let policy = "version: STSv1\r\nmode: enforce\r\nmx: mx1.example.net\r\nmx: *.example.com\r\nmax_age: 604800\r\n";
        assert_eq!((config.policy("mail.example.org").unwrap(), config.problem()), (policy.to_owned(), None));
        for wrong in ["", "*.", "a b", "a\r\nmode: none", "mx.*.org"] {
            config.mx = vec![wrong.to_owned()];
            assert_eq!(config.problem().unwrap().0, "mx", "{wrong}");
        }
        config = MtaStsConfig { max_age_seconds: nonzero!(31_557_601), ..MtaStsConfig::default() };
        assert_eq!(config.problem().unwrap().0, "max_age_seconds");
    }
}
