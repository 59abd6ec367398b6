//! What a domain demands of the connections to its servers.

use async_trait::async_trait;

/// What a domain demands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsPolicy {
    /// Nothing: TLS where the server has it, with any certificate (RFC 7435).
    Opportunistic,
    /// TLS with a certificate for the name of the server, which must be one of these: names, or `*.` and a parent (RFC 8461 §4.1).
    Verified {
        /// Names in lower case.
        hosts: Vec<String>,
    },
}

impl TlsPolicy {
    /// Whether mail may go to a server.
    pub fn allows(&self, host: &str) -> bool {
        match self {
            Self::Opportunistic => true,
            Self::Verified { hosts } => hosts.iter().any(|pattern| match pattern.strip_prefix("*.") {
                Some(parent) => {
                    host.split_once('.').is_some_and(|(label, rest)| !label.is_empty() && rest == parent)
                }
                None => pattern == host,
            }),
        }
    }
}

/// Knows what domains demand.
#[async_trait]
pub trait TlsPolicies: Send + Sync + 'static {
    /// What a domain demands; nothing, when that can't be determined.
    async fn policy_of(&self, domain: &str) -> TlsPolicy;
}

/// No domain demands anything.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPolicies;

#[async_trait]
impl TlsPolicies for NoPolicies {
    async fn policy_of(&self, _domain: &str) -> TlsPolicy {
        TlsPolicy::Opportunistic
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out10_a_policy_names_servers() {
        let policy = TlsPolicy::Verified { hosts: vec!["mx.example.net".into(), "*.example.com".into()] };
        for (host, is_allowed) in [
            ("mx.example.net", true),
            ("a.mx.example.net", false),
            ("a.example.com", true),
            ("example.com", false),
            ("a.b.example.com", false),
            (".example.com", false),
        ] {
            assert_eq!(policy.allows(host), is_allowed, "{host}");
        }
        assert!(TlsPolicy::Opportunistic.allows("mx.example.org"));
    }
}
