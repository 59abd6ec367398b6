//! nwaku's flags that this server does not have: what to use instead.
//!
//! This server replaces nwaku, so it is started with nwaku's command lines. Flags with a meaning here have nwaku's names; the others
//! are errors that say what to do. docs/operators.md has the same in a table.

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

const NO_DISCOVERY: &str =
    "this node does not search for peers: name some with --staticnode; others connect to this node";
const NO_RLN: &str = "RLN is not supported: leave it out, and see \"Public networks\" in docs/operators.md";
const NOT_NEEDED: &str = "not needed: leave it out";
const SERVICE_NODE: &str = "this node answers such requests itself: leave it out";
const METRICS: &str = "metrics are at /metrics of REST, see --rest-address and --rest-port: leave it out";
const RESUME: &str = "missed messages are fetched from the nodes in --storenode: leave it out";
const TOPICS: &str = "use --cluster-id and --shard";

/// The flags without their dashes, each also standing for those that begin with it and a dash, and the advice.
const ADVICE: &[(&str, &str)] = &[
    ("agent-string", NOT_NEEDED),
    ("content-topic", TOPICS),
    ("discv5", NO_DISCOVERY),
    ("dns-addrs", NOT_NEEDED),
    ("dns-discovery", NO_DISCOVERY),
    ("dns4-domain-name", "announce the name with --ext-multiaddr=/dns4/<name>/tcp/<port>, or .../wss"),
    ("ext-multiaddr-only", NOT_NEEDED),
    ("filter-timeout", "use --filter-subscription-timeout"),
    ("filternode", SERVICE_NODE),
    ("ip-colocation-limit", "use --max-connections"),
    ("keep-alive", NOT_NEEDED),
    ("legacy-store", "the legacy store protocol is not served: leave it out; its clients need another node"),
    ("lightpushnode", SERVICE_NODE),
    ("max-relay-peers", "use --max-connections"),
    ("metrics", METRICS),
    ("nat", "announce the public address with --ext-multiaddr=/ip4/<address>/tcp/<port>"),
    ("peer-exchange-node", NO_DISCOVERY),
    ("peer-persistence", NO_DISCOVERY),
    ("peer-store-capacity", NO_DISCOVERY),
    ("ports-shift", "set each port: --tcp-port, --websocket-port, --rest-port"),
    ("preset", "use --cluster-id and --num-shards-in-network; RLN proofs are not checked"),
    ("protected-shard", "messages are not checked for a publisher's signature: leave it out"),
    ("protected-topic", "messages are not checked for a publisher's signature: leave it out"),
    ("pubsub-topic", TOPICS),
    ("quic-support", "QUIC is not supported: peers connect by TCP and WebSockets"),
    ("relay-client", "circuit relay is not supported: peers must be able to reach this node"),
    ("relay-peer-exchange", NOT_NEEDED),
    ("relay-service-ratio", "use --max-connections"),
    ("relay-shard-manager", NOT_NEEDED),
    ("reliability", NOT_NEEDED),
    ("rendezvous", NO_DISCOVERY),
    ("rest-allow-origin", "set rest.origins in restante.toml, as [\"https://chat.example\"]"),
    ("rest-private", NOT_NEEDED),
    ("rln-relay", NO_RLN),
    ("rpc", "use REST"),
    (
        "store-max-num-db-connections",
        "set archive.postgres.read_connections and write_connections in restante.toml",
    ),
    ("store-message-db-migration", NOT_NEEDED),
    ("store-message-db-vacuum", "disk space is freed without it: leave it out"),
    ("store-resume", RESUME),
    ("store-sync", RESUME),
    ("topic", TOPICS),
];

/// What to use instead of a flag of nwaku, written with its dashes.
fn advice(flag: &str) -> Option<&'static str> {
    let name = flag.trim_start_matches('-');
    let is_it =
        |known: &str| name.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
    if let Some((_, advice)) = ADVICE.iter().find(|(known, _)| is_it(known)) {
        return Some(advice);
    }
    // nwaku accepts --relay:true as well.
    name.contains(':').then_some("write = between a flag and its value")
}

/// Adds the advice to an error about an unknown flag.
pub(super) fn advise(mut error: Error) -> Error {
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return error };
    if let Some(advice) = advice(flag) {
        // A flag of ours with a similar name is not what the user meant.
        error.remove(ContextKind::SuggestedArg);
        error.remove(ContextKind::Usage); // it would name a flag that happens to be similar
        let tip = format!("nwaku's flag: {advice}");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::cli::Cli;

    fn error(flag: &str) -> String {
        let parsed = Cli::try_parse_from(["restante", "serve", flag]);
        advise(parsed.expect_err("the flag is not ours")).to_string()
    }

    #[test]
    fn a_flag_that_only_nwaku_has_is_answered_with_what_to_do() {
        for (flag, expected) in [
            ("--nat=none", "--ext-multiaddr"),
            ("--discv5-udp-port=9000", "--staticnode"),
            ("--metrics-server", "/metrics"),
            ("--rln-relay-cred-path=x", "RLN"),
            ("--relay:true", "write = between"),
        ] {
            let error = error(flag);
            assert!(error.contains("unexpected argument") && error.contains(expected), "{flag}: {error}");
        }
        assert!(error("--rest-prt=1").contains("'--rest-port'"), "a slip is answered with the nearest flag");
    }

    #[test]
    fn no_advice_stands_in_the_way_of_a_flag_of_ours() {
        let command = Cli::command();
        let serve = command.find_subcommand("serve").unwrap();
        for argument in serve.get_arguments() {
            let names = argument.get_long_and_visible_aliases().unwrap_or_default();
            for name in names.into_iter().chain(argument.get_all_aliases().unwrap_or_default()) {
                assert!(ADVICE.iter().all(|(known, _)| *known != name), "--{name} is ours");
            }
        }
    }

    /// The flags that an advice names exist.
    #[test]
    fn advice_names_flags_that_are_there() {
        let command = Cli::command();
        let serve = command.find_subcommand("serve").unwrap();
        let known: BTreeSet<&str> =
            serve.get_arguments().filter_map(|argument| argument.get_long()).collect();
        for (flag, advice) in ADVICE {
            for word in advice.split([' ', ',', ':', ';', '=']).filter_map(|word| word.strip_prefix("--")) {
                assert!(known.contains(word), "--{flag}: there is no --{word}");
            }
        }
    }

    /// The table for users of nwaku has every flag that is mentioned here.
    #[test]
    fn the_operators_page_has_every_flag() {
        let page = include_str!("../../../../../docs/operators.md");
        let command = Cli::command();
        let serve = command.find_subcommand("serve").unwrap();
        let ours =
            serve.get_arguments().filter_map(|argument| argument.get_long()).filter(|name| *name != "help");
        for name in ADVICE.iter().map(|(name, _)| *name).chain(ours) {
            let is_requested =
                ["`", "-...", "...", "="].iter().any(|end| page.contains(&format!("`--{name}{end}")));
            assert!(is_requested, "docs/operators.md does not speak of --{name}");
        }
    }
}
