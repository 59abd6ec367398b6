//! Capabilities: which URIs a request may name, and which methods they switch on.

/// A capability that this server implements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Capability {
    Core,
    Mail,
    Blob,
    Quota,
    WebSocket,
    Submission,
    VacationResponse,
    /// RFC 9749: push services can verify that a push comes from this server.
    WebPushVapid,
}

impl Capability {
    /// Its URI.
    pub(crate) const fn uri(self) -> &'static str {
        match self {
            Self::Core => "urn:ietf:params:jmap:core",
            Self::Mail => "urn:ietf:params:jmap:mail",
            Self::Blob => "urn:ietf:params:jmap:blob",
            Self::Quota => "urn:ietf:params:jmap:quota",
            Self::WebSocket => "urn:ietf:params:jmap:websocket",
            Self::Submission => "urn:ietf:params:jmap:submission",
            Self::VacationResponse => "urn:ietf:params:jmap:vacationresponse",
            Self::WebPushVapid => "urn:ietf:params:jmap:webpush-vapid",
        }
    }

    /// Whether an account has this capability for a user: the user's own account has all, other accounts can't send.
    pub(crate) fn is_of(self, is_personal: bool) -> bool {
        is_personal || self != Self::Submission
    }
}

const SERVED: [Capability; 8] = [
    Capability::Core,
    Capability::Mail,
    Capability::Blob,
    Capability::Quota,
    Capability::WebSocket,
    Capability::Submission,
    Capability::VacationResponse,
    Capability::WebPushVapid,
];

/// Registered URIs without methods here. They are accepted because some clients list all capabilities that they know.
const REGISTERED: [&str; 7] = [
    "urn:ietf:params:jmap:mdn",
    "urn:ietf:params:jmap:smimeverify",
    "urn:ietf:params:jmap:sieve",
    "urn:ietf:params:jmap:principals",
    "urn:ietf:params:jmap:principals:owner",
    "urn:ietf:params:jmap:contacts",
    "urn:ietf:params:jmap:calendars",
];

/// The capabilities that a request uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Using(u8);

impl Using {
    /// Adds the capability of a URI; false for a URI that is not registered.
    pub(crate) fn add(&mut self, uri: &str) -> bool {
        for capability in SERVED {
            if capability.uri() == uri {
                self.0 |= 1 << capability as u8;
                return true;
            }
        }
        REGISTERED.contains(&uri)
    }

    /// Whether the request uses a capability.
    pub(crate) fn has(self, capability: Capability) -> bool {
        self.0 & 1 << capability as u8 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q3_every_registered_uri_is_accepted_and_no_other() {
        let mut using = Using::default();
        for uri in REGISTERED {
            assert!(using.add(uri), "{uri}");
        }
        assert_eq!(using, Using::default());
        for capability in SERVED {
            assert!(!using.has(capability));
            assert!(using.add(capability.uri()) && using.has(capability));
        }
        for other in ["", "urn:ietf:params:jmap:Core", "https://example.org/vendor", "urn:ietf:params:jmap:"]
        {
            assert!(!using.add(other), "{other}");
        }
    }
}
