//! Decides about a message from the results of the checks and the settings.

use crate::{
    Action, Authentication, ChecksConfig, ClientFacts, Disposition, DmarcPolicy, FilterAction, FilterVerdict,
    Outcome, PolicyOverride, Refused, Reverse, Verdict, text::printable,
};

/// The most bytes of foreign text in a reply.
const TEXT_BYTES_MAX: usize = 200;
/// The most names of a filter's symbols in a reason.
const SYMBOLS_MAX: usize = 5;

/// The results for a message. `None` is not known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found<'f> {
    pub(crate) facts: &'f ClientFacts,
    pub(crate) has_good_hello: bool,
    pub(crate) authentication: Option<&'f Authentication>,
    /// The name of an attachment that is refused.
    pub(crate) attachment: Option<&'f str>,
    pub(crate) filter: Option<&'f FilterVerdict>,
}

/// What is done with a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) verdict: Verdict,
    /// The check that decided; none for a message that is accepted.
    pub(crate) check: Option<&'static str>,
    /// Why the policy of the domain was not followed, if it was not.
    pub(crate) overridden: Option<PolicyOverride>,
}

/// Decides: of all requested actions, the strongest is taken.
pub(crate) fn decide(config: &ChecksConfig, found: Found<'_>) -> Decision {
    let (dmarc, overridden) = of_dmarc(config, found.authentication);
    let asked = [
        of_from(found.authentication),
        dmarc,
        of_attachment(config, found.attachment),
        found.filter.and_then(of_filter),
    ];
    let asked = asked.into_iter().flatten().chain(of_client(config, found));
    // Of equally strong ones, the first.
    let strongest = asked.fold(None, |strongest: Option<(&'static str, Verdict)>, next| match strongest {
        Some(known) if strength(&known.1) >= strength(&next.1) => Some(known),
        _ => Some(next),
    });
    match strongest {
        Some((check, verdict)) => Decision { verdict, check: Some(check), overridden },
        None => Decision { verdict: Verdict::Accept, check: None, overridden },
    }
}

/// How a message was treated, for the reports to its domain.
pub(crate) fn disposition(verdict: &Verdict) -> Disposition {
    match verdict {
        Verdict::Accept => Disposition::None,
        Verdict::Junk(_) | Verdict::Quarantine(_) => Disposition::Quarantine,
        Verdict::Refuse(_) => Disposition::Reject,
    }
}

fn strength(verdict: &Verdict) -> u8 {
    match verdict {
        Verdict::Accept => 0,
        Verdict::Junk(_) => 1,
        Verdict::Quarantine(_) => 2,
        Verdict::Refuse(refused) if refused.code < 500 => 3,
        Verdict::Refuse(_) => 4,
    }
}

type Asked = (&'static str, Verdict);

/// The action that a setting requests.
fn by_action(action: Action, check: &'static str, why: String) -> Option<Asked> {
    let verdict = match action {
        Action::None => return None,
        Action::Junk => Verdict::Junk(why),
        Action::Quarantine => Verdict::Quarantine(why),
        Action::Refuse => refuse(550, check, why),
    };
    Some((check, verdict))
}

fn refuse(code: u16, check: &'static str, text: String) -> Verdict {
    let enhanced = if code < 500 { "4.7.1" } else { "5.7.1" };
    Verdict::Refuse(Refused { code, enhanced, text, check })
}

/// A message with several `From` fields may show one author and be judged by another (RFC 7489 §6.6.1). One field with several
/// domains or none, or no field at all, is as hard to judge, but old programs send such messages: they go to Junk.
fn of_from(authentication: Option<&Authentication>) -> Option<Asked> {
    let found = authentication?;
    let verdict = match (found.from_fields, &found.from) {
        (2.., _) => refuse(550, "from", "the message has several From fields".to_owned()),
        (1, None) => Verdict::Junk("the From field does not name one domain".to_owned()),
        (0, None) => Verdict::Junk("the message has no From field".to_owned()),
        _ => return None,
    };
    Some(("from", verdict))
}

fn of_dmarc(
    config: &ChecksConfig,
    authentication: Option<&Authentication>,
) -> (Option<Asked>, Option<PolicyOverride>) {
    let Some(found) = authentication.filter(|found| found.dmarc == Outcome::Fail) else {
        return (None, None);
    };
    let (action, asked) = match found.policy {
        DmarcPolicy::None => return (None, None),
        DmarcPolicy::Quarantine => (config.dmarc_quarantine, Action::Junk),
        DmarcPolicy::Reject => (config.dmarc_reject, Action::Refuse),
    };
    if is_vouched_for(config, found) {
        return (None, Some(PolicyOverride::TrustedForwarder));
    }
    let domain = printable(found.from.as_deref().unwrap_or_default(), TEXT_BYTES_MAX);
    let why = format!("DMARC fails for {domain}, whose policy is {}", found.policy.as_str());
    let is_less = match asked {
        Action::Refuse => action != Action::Refuse,
        _ => action == Action::None,
    };
    (by_action(action, "dmarc", why), is_less.then_some(PolicyOverride::LocalPolicy))
}

/// Whether an ARC chain is valid whose last seal is by a domain that the operator trusts, or by a subdomain.
fn is_vouched_for(config: &ChecksConfig, found: &Authentication) -> bool {
    let Some(sealer) = found.arc_domain.as_deref().filter(|_| found.arc == Outcome::Pass) else {
        return false;
    };
    let sealer = sealer.to_ascii_lowercase();
    config.arc_trusted.iter().any(|trusted| {
        let trusted = trusted.to_ascii_lowercase();
        let above = sealer.strip_suffix(&trusted);
        above.is_some_and(|above| above.is_empty() || above.ends_with('.'))
    })
}

fn of_attachment(config: &ChecksConfig, name: Option<&str>) -> Option<Asked> {
    let name = printable(name?, TEXT_BYTES_MAX);
    by_action(
        config.attachments_action,
        "attachment",
        format!("attachments named like '{name}' are not accepted"),
    )
}

/// Checks of the client. Those that refuse have already refused its recipients: what still arrives is for the postmaster, and goes to Junk.
fn of_client<'f>(config: &'f ChecksConfig, found: Found<'f>) -> impl Iterator<Item = Asked> + 'f {
    let milder = |action: Action| if action == Action::Refuse { Action::Junk } else { action };
    let listings = found.facts.listings.iter().filter_map(move |listing| {
        let why = format!("the address of the client is on the block list {}", listing.zone);
        by_action(milder(listing.action), "block_list", why)
    });
    let reverse = match &found.facts.reverse {
        Reverse::Confirmed(_) | Reverse::Unknown => None,
        Reverse::Unconfirmed(_) => Some("the name of the client's address does not lead back to it"),
        Reverse::None => Some("the client's address has no name in the DNS"),
    };
    let reverse = reverse.and_then(|why| by_action(milder(config.reverse), "reverse", why.to_owned()));
    let hello = (!found.has_good_hello).then_some("the name in the client's EHLO is no name in the DNS");
    let hello = hello.and_then(|why| by_action(milder(config.hello), "hello", why.to_owned()));
    listings.chain(reverse).chain(hello)
}

fn of_filter(said: &FilterVerdict) -> Option<Asked> {
    let why = said.text.clone().unwrap_or_else(|| "the message is taken for junk".to_owned());
    let verdict = match said.action {
        FilterAction::None => return None,
        FilterAction::Junk => Verdict::Junk(summary(said)),
        FilterAction::Quarantine => Verdict::Quarantine(summary(said)),
        FilterAction::TryLater => {
            let why = said
                .text
                .clone()
                .unwrap_or_else(|| "the message can't be judged now: try again later".to_owned());
            refuse(451, "filter", printable(&why, TEXT_BYTES_MAX))
        }
        FilterAction::Refuse => refuse(550, "filter", printable(&why, TEXT_BYTES_MAX)),
    };
    Some(("filter", verdict))
}

/// A filter's verdict, in one line.
pub(crate) fn summary(said: &FilterVerdict) -> String {
    let symbols: Vec<&str> = said.symbols.iter().take(SYMBOLS_MAX).map(String::as_str).collect();
    let found = if symbols.is_empty() { String::new() } else { format!(": {}", symbols.join(", ")) };
    format!("the filter's score is {:.1}{found}", said.score)
}

#[cfg(test)]
mod tests;
