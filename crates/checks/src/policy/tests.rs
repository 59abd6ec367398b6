use proptest::prelude::*;

use super::*;
use crate::{BlockList, Listing};

fn found() -> Authentication {
    Authentication { from_fields: 1, from: Some("example.org".to_owned()), ..Authentication::UNKNOWN }
}

static FACTS: ClientFacts = ClientFacts::UNKNOWN;

fn failing(policy: DmarcPolicy) -> Authentication {
    Authentication { dmarc: Outcome::Fail, policy, ..found() }
}

fn nothing() -> Found<'static> {
    Found { facts: &FACTS, has_good_hello: true, authentication: None, attachment: None, filter: None }
}

fn with(authentication: &Authentication) -> Found<'_> {
    Found { authentication: Some(authentication), ..nothing() }
}

fn code(decision: &Decision) -> u16 {
    match &decision.verdict {
        Verdict::Refuse(refused) => refused.code,
        _ => 0,
    }
}

fn said(action: FilterAction) -> FilterVerdict {
    FilterVerdict { action, score: 12.34, required: Some(6.0), symbols: vec!["BAD".to_owned()], text: None }
}

#[test]
fn chk14_a_failure_of_dmarc_is_treated_as_its_domain_asks() {
    let config = ChecksConfig::default();
    let refused = decide(&config, with(&failing(DmarcPolicy::Reject)));
    assert_eq!((code(&refused), refused.check, refused.overridden), (550, Some("dmarc"), None));
    let Verdict::Refuse(refused) = refused.verdict else { panic!() };
    assert_eq!(refused.enhanced, "5.7.1");
    assert!(refused.text.contains("example.org") && refused.text.contains("reject"), "{}", refused.text);
    assert!(matches!(decide(&config, with(&failing(DmarcPolicy::Quarantine))).verdict, Verdict::Junk(_)));
    assert_eq!(decide(&config, with(&failing(DmarcPolicy::None))).verdict, Verdict::Accept);
    for outcome in [Outcome::None, Outcome::Pass, Outcome::TempError, Outcome::PermError] {
        let with_outcome = Authentication { dmarc: outcome, ..failing(DmarcPolicy::Reject) };
        assert_eq!(decide(&config, with(&with_outcome)).verdict, Verdict::Accept, "{outcome:?}");
    }
}

#[test]
fn chk14_settings_may_be_milder_and_reports_say_so() {
    let config = ChecksConfig {
        dmarc_reject: Action::Junk,
        dmarc_quarantine: Action::None,
        ..ChecksConfig::default()
    };
    let milder = decide(&config, with(&failing(DmarcPolicy::Reject)));
    assert!(matches!(milder.verdict, Verdict::Junk(_)));
    assert_eq!(milder.overridden, Some(PolicyOverride::LocalPolicy));
    let accepted = decide(&config, with(&failing(DmarcPolicy::Quarantine)));
    assert_eq!((accepted.verdict, accepted.overridden), (Verdict::Accept, Some(PolicyOverride::LocalPolicy)));
}

#[test]
fn chk14_a_chain_of_arc_counts_when_its_last_sealer_is_believed() {
    let config =
        ChecksConfig { arc_trusted: vec!["Lists.example.net".to_owned()], ..ChecksConfig::default() };
    let sealed = |sealer: &str, arc| Authentication {
        arc,
        arc_domain: Some(sealer.to_owned()),
        ..failing(DmarcPolicy::Reject)
    };
    for sealer in ["lists.example.net", "LISTS.example.NET", "a.lists.example.net"] {
        let decision = decide(&config, with(&sealed(sealer, Outcome::Pass)));
        assert_eq!(
            (decision.verdict, decision.overridden),
            (Verdict::Accept, Some(PolicyOverride::TrustedForwarder))
        );
    }
    for sealer in ["example.net", "evil-lists.example.net", "lists.example.net.evil.example"] {
        assert_eq!(code(&decide(&config, with(&sealed(sealer, Outcome::Pass)))), 550, "{sealer}");
    }
    assert_eq!(code(&decide(&config, with(&sealed("lists.example.net", Outcome::Fail)))), 550);
}

#[test]
fn chk6_a_message_with_several_from_fields_is_refused() {
    let several = Authentication { from_fields: 2, ..found() };
    let decision = decide(&ChecksConfig::default(), with(&several));
    assert_eq!((code(&decision), decision.check), (550, Some("from")));
    let no_domain = Authentication { from: None, ..found() };
    let decision = decide(&ChecksConfig::default(), with(&no_domain));
    assert!(matches!(decision.verdict, Verdict::Junk(_)), "{decision:?}");
    let none = Authentication { from_fields: 0, from: None, ..found() };
    // It went to the inbox.
    let decision = decide(&ChecksConfig::default(), with(&none));
    assert!(matches!(decision.verdict, Verdict::Junk(_)), "{decision:?}");
}

#[test]
fn chk17_the_advice_of_a_filter_is_followed() {
    let config = ChecksConfig::default();
    let by = |action| {
        let said = said(action);
        decide(&config, Found { filter: Some(&said), ..nothing() })
    };
    assert_eq!(by(FilterAction::None).verdict, Verdict::Accept);
    assert_eq!(by(FilterAction::Junk).verdict, Verdict::Junk("the filter's score is 12.3: BAD".to_owned()));
    assert!(matches!(by(FilterAction::Quarantine).verdict, Verdict::Quarantine(_)));
    assert_eq!((code(&by(FilterAction::TryLater)), code(&by(FilterAction::Refuse))), (451, 550));
}

#[test]
fn chk15_an_attachment_is_treated_as_the_setting_says() {
    for (action, is_refused) in [(Action::Refuse, true), (Action::Junk, false), (Action::Quarantine, false)] {
        let config = ChecksConfig { attachments_action: action, ..ChecksConfig::default() };
        let decision = decide(&config, Found { attachment: Some("a\r\n.exe"), ..nothing() });
        assert_eq!((decision.check, code(&decision) == 550), (Some("attachment"), is_refused));
        if let Verdict::Refuse(refused) = decision.verdict {
            assert!(!refused.text.contains(['\r', '\n']), "{}", refused.text);
        }
    }
}

#[test]
fn chk10_mail_of_listed_clients_goes_where_the_list_says() {
    for (action, expected) in
        [(Action::None, 0), (Action::Junk, 1), (Action::Quarantine, 2), (Action::Refuse, 1)]
    {
        let zone = BlockList { zone: "zen.example.org".to_owned(), action }.zone;
        let facts =
            ClientFacts { reverse: Reverse::Unknown, listings: vec![Listing { zone, action, text: None }] };
        let decision = decide(&ChecksConfig::default(), Found { facts: &facts, ..nothing() });
        assert_eq!(strength(&decision.verdict), expected, "{action:?}");
    }
}

#[test]
fn chk9_clients_without_a_name_are_treated_as_the_setting_says() {
    let config = ChecksConfig { reverse: Action::Junk, hello: Action::Quarantine, ..ChecksConfig::default() };
    for (reverse, has_good_hello, expected) in [
        (Reverse::Confirmed("a.example".to_owned()), true, 0),
        (Reverse::Unknown, true, 0),
        (Reverse::None, true, 1),
        (Reverse::Unconfirmed("a.example".to_owned()), true, 1),
        (Reverse::None, false, 2),
    ] {
        let facts = ClientFacts { reverse, listings: Vec::new() };
        let decision = decide(&config, Found { facts: &facts, has_good_hello, ..nothing() });
        assert_eq!(strength(&decision.verdict), expected);
    }
}

fn actions() -> impl Strategy<Value = Action> {
    prop::sample::select(vec![Action::None, Action::Junk, Action::Quarantine, Action::Refuse])
}

fn outcomes() -> impl Strategy<Value = Outcome> {
    use Outcome::{Fail, Neutral, None, Pass, PermError, SoftFail, TempError};
    prop::sample::select(vec![None, Pass, Fail, SoftFail, Neutral, TempError, PermError])
}

fn policies() -> impl Strategy<Value = DmarcPolicy> {
    prop::sample::select(vec![DmarcPolicy::None, DmarcPolicy::Quarantine, DmarcPolicy::Reject])
}

prop_compose! {
    fn configs()(
        (dmarc_reject, dmarc_quarantine, reverse, hello, attachments_action) in (actions(), actions(), actions(), actions(), actions()),
    ) -> ChecksConfig {
        ChecksConfig { dmarc_reject, dmarc_quarantine, reverse, hello, attachments_action, ..ChecksConfig::default() }
    }
}

proptest! {
    #[test]
    fn chk14_the_strongest_of_all_is_done(
        config in configs(),
        dmarc in outcomes(),
        policy in policies(),
        from_fields in 0..3_usize,
        advice in prop::option::of(prop::sample::select(vec![FilterAction::None, FilterAction::Junk, FilterAction::Refuse])),
        has_attachment: bool,
    ) {
        let authentication = Authentication { dmarc, policy, from_fields, ..found() };
        let said = advice.map(said);
        let attachment = has_attachment.then_some("a.exe");
        let found = Found { authentication: Some(&authentication), attachment, filter: said.as_ref(), ..nothing() };
        let decision = decide(&config, found);
        let alone = [
            Found { authentication: Some(&authentication), ..nothing() },
            Found { attachment, ..nothing() },
            Found { filter: said.as_ref(), ..nothing() },
        ];
        let strongest = alone.map(|found| strength(&decide(&config, found).verdict)).into_iter().max();
        prop_assert_eq!(Some(strength(&decision.verdict)), strongest);
        prop_assert_eq!(decision.check.is_none(), decision.verdict == Verdict::Accept);
    }

    #[test]
    fn chk16_what_is_not_known_is_not_held_against_a_message(config in configs()) {
        prop_assert_eq!(decide(&config, nothing()).verdict, Verdict::Accept);
        let unknown = Authentication { spf: Outcome::TempError, dmarc: Outcome::TempError, policy: DmarcPolicy::Reject, ..found() };
        prop_assert_eq!(decide(&config, with(&unknown)).verdict, Verdict::Accept);
    }
}
