use std::num::NonZeroU64;

use restante_core::nonzero;
use serde::{Deserialize, Serialize};

use crate::{
    client::{BlockList, GreylistConfig},
    filter::FilterConfig,
    network::Network,
    reports::ReportsConfig,
};

/// The action for a message that fails a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Nothing except the message's `Authentication-Results`.
    None,
    /// It goes to Junk.
    Junk,
    /// It is held for the operator.
    Quarantine,
    /// It is refused.
    Refuse,
}

/// How mail from other servers is checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ChecksConfig {
    /// Whether mail received by SMTP is checked at all.
    pub enabled: bool,
    /// Networks whose mail is not checked, as `192.0.2.0/24`: your own servers, and relays in front of this server that have checked it.
    pub exempt: Vec<String>,
    /// How long all checks of a message may take; what is not known then is not held against it.
    pub timeout_ms: NonZeroU64,
    /// How long looking up a client may take: its name, and DNS lists. The reply to its first recipient waits for this.
    pub client_timeout_ms: NonZeroU64,
    /// The action if DMARC fails and the domain requests rejection (`p=reject`).
    pub dmarc_reject: Action,
    /// The action if DMARC fails and the domain requests quarantine (`p=quarantine`).
    pub dmarc_quarantine: Action,
    /// Domains whose ARC chains are trusted: mailing lists and forwarders that break signatures (RFC 8617).
    pub arc_trusted: Vec<String>,
    /// The action for mail from clients whose address has no name in the DNS that resolves back to it.
    pub reverse: Action,
    /// The action for mail from clients whose `EHLO` is neither a name in the DNS nor an address literal.
    pub hello: Action,
    /// Names of files that are refused as attachments, as `*.exe`.
    pub attachments: Vec<String>,
    /// The action for mail that has such an attachment.
    pub attachments_action: Action,
    /// DNS lists of addresses that send junk.
    pub block_lists: Vec<BlockList>,
    /// Greylisting.
    pub greylist: GreylistConfig,
    /// A content filter.
    pub filter: FilterConfig,
    /// DMARC aggregate reports.
    pub reports: ReportsConfig,
}

impl Default for ChecksConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            exempt: vec!["127.0.0.0/8".to_owned(), "::1/128".to_owned()],
            timeout_ms: nonzero!(20_000),
            client_timeout_ms: nonzero!(5_000),
            dmarc_reject: Action::Refuse,
            dmarc_quarantine: Action::Junk,
            arc_trusted: Vec::new(),
            reverse: Action::None,
            hello: Action::None,
            attachments: Vec::new(),
            attachments_action: Action::Refuse,
            block_lists: Vec::new(),
            greylist: GreylistConfig::default(),
            filter: FilterConfig::default(),
            reports: ReportsConfig::default(),
        }
    }
}

impl ChecksConfig {
    /// What is wrong with these settings, if anything: the setting, and how to fix it.
    pub fn problem(&self) -> Option<(&'static str, String)> {
        if let Some(wrong) = self.exempt.iter().find_map(|network| Network::parse(network).err()) {
            return Some(("exempt", wrong));
        }
        let is_zone = |zone: &str| {
            let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
            zone.contains('.') && zone.len() <= 200 && zone.bytes().all(is_known)
        };
        if let Some(list) = self.block_lists.iter().find(|list| !is_zone(&list.zone)) {
            let zone = list.zone.escape_debug();
            return Some(("block_lists", format!("'{zone}' is no zone: use one like zen.example.org")));
        }
        if self.attachments.iter().any(|pattern| pattern.trim().is_empty()) {
            return Some(("attachments", "a pattern is empty: use one like *.exe".to_owned()));
        }
        let from = self.reports.from.as_str();
        let is_address =
            from.rsplit_once('@').is_some_and(|(local, domain)| !local.is_empty() && !domain.is_empty());
        if !from.is_empty() && !is_address {
            return Some(("reports.from", "use an address like reports@example.org".to_owned()));
        }
        self.filter.problem()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_can_not_work_are_named() {
        let default = ChecksConfig::default();
        assert_eq!(default.problem(), None);
        let problem = |config: ChecksConfig| config.problem().map(|(setting, _)| setting);
        assert_eq!(problem(ChecksConfig { exempt: vec!["here".into()], ..default.clone() }), Some("exempt"));
        let block_lists = vec![BlockList { zone: "bad zone".into(), action: Action::Junk }];
        assert_eq!(problem(ChecksConfig { block_lists, ..default.clone() }), Some("block_lists"));
        assert_eq!(
            problem(ChecksConfig { attachments: vec![" ".into()], ..default.clone() }),
            Some("attachments")
        );
        let reports = ReportsConfig { from: "foo".into(), ..ReportsConfig::default() };
        assert_eq!(problem(ChecksConfig { reports, ..default.clone() }), Some("reports.from"));
        let filter = FilterConfig { url: "here".into(), ..FilterConfig::default() };
        assert_eq!(problem(ChecksConfig { filter, ..default }), Some("filter.url"));
    }
}
