//! What only the `redis` engine promises: what holds while Redis is away, what lies there, and how Redis is asked.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

#[path = "redis/away.rs"]
mod away;
#[path = "common/mod.rs"]
mod common;
#[path = "redis/gate.rs"]
mod gate;
#[path = "redis/kept.rs"]
mod kept;
#[path = "redis/raw.rs"]
mod raw;
#[path = "redis/tls.rs"]
mod tls;

use std::{future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;
use common::engines::{Engine, Place, run, trial};
use libtest_mimic::Arguments;
use parking_lot::RwLock;
use prometheus_client::{encoding::text::encode, registry::Registry};
use restante_core::{MessageHash, Timestamp};
use restante_sessions::{Config, EngineUrl, SessionMetrics, hub::Event};

use gate::Gate;
use raw::Raw;

pub(crate) type Subject = Arc<Place>;

type Run = fn(Subject) -> Pin<Box<dyn Future<Output = ()>>>;

macro_rules! tests {
    ($($room:ident::$name:ident),* $(,)?) => {
        fn tests() -> Vec<(&'static str, Run)> {
            vec![$((stringify!($name), |subject| Box::pin($room::$name(subject)))),*]
        }
    };
}

tests![
    away::a_table_opens_though_redis_is_away,
    away::local_sessions_go_on_while_redis_is_away,
    away::what_others_ended_meanwhile_stays_ended,
    away::requests_to_a_redis_that_hangs_are_given_up,
    away::thousands_of_sessions_are_written_down_again,
    away::all_goes_on_with_this_node_when_redis_goes_away,
    away::what_redis_has_forgotten_is_written_down_again,
    away::a_change_of_a_forgotten_session_writes_it_down,
    away::scripts_that_redis_has_forgotten_are_loaded_again,
    away::events_are_dropped_and_counted_while_redis_is_away,
    away::a_url_that_can_not_be_used_is_refused,
    tls::nodes_share_a_table_by_tls,
    tls::a_server_with_the_wrong_certificate_is_refused,
    tls::a_certificate_of_another_authority_is_refused,
    away::a_lease_that_is_lost_while_sessions_are_written_down_is_noticed,
    away::what_a_node_without_a_lease_has_opened_is_swept,
    away::what_others_took_of_a_node_without_a_lease_stays_ended,
    away::users_on_a_page_that_can_not_be_read_are_given_all_the_same,
    away::a_table_that_is_closed_while_redis_is_away_says_why,
    away::a_redis_without_room_renews_leases_and_removes_what_has_ended,
    kept::a_session_takes_at_most_520_bytes_of_redis,
    kept::each_request_is_one_message_there_and_back,
    kept::nothing_stays_of_sessions_that_have_ended,
    kept::a_table_that_is_dropped_ends_with_all_it_has_under_way,
    kept::an_open_that_nobody_waits_for_leaves_nothing,
    kept::what_an_open_has_ended_that_nobody_waits_for_is_removed,
    kept::a_long_mail_is_read_to_its_end,
    kept::what_nobody_waits_for_is_done_all_the_same,
    kept::an_open_that_was_overtaken_does_not_come_back,
    kept::a_change_that_was_overtaken_does_not_undo_the_later,
    kept::what_others_have_ended_is_not_written_down_again,
    kept::what_others_have_put_there_is_no_session,
    kept::what_others_say_on_the_channels_is_no_event,
    kept::tables_in_other_databases_hear_nothing,
    kept::events_that_are_too_long_are_dropped_and_counted,
    kept::a_number_is_not_shared_with_another_process,
];

/// Tests that change the server for everybody, so that no other may run meanwhile.
const ALONE: [&str; 1] = ["a_redis_without_room_renews_leases_and_removes_what_has_ended"];

fn main() {
    let server = Arc::new(RwLock::new(()));
    let trials = tests().into_iter().map(|(name, test)| {
        let server = server.clone();
        trial(Engine::Redis, name, move || {
            if ALONE.contains(&name) {
                let _alone = server.write();
                run(Engine::Redis, test);
            } else {
                let _with_others = server.read();
                run(Engine::Redis, test);
            }
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}

/// The URL of Redis itself.
pub(crate) fn gated_url() -> String {
    std::env::var("RESTANTE_REDIS_URL").unwrap()
}

/// How a node is opened whose way to Redis leads through a gate.
pub(crate) fn gated(place: &Place, gate: &Gate) -> Config {
    Config { url: EngineUrl::Redis(gate.url.clone()), ..place.config() }
}

/// Redis, where the table of this test lies.
pub(crate) fn raw(place: &Place) -> Raw {
    Raw::new(&gated_url(), &place.config().redis.prefix)
}

/// What a metric shows.
pub(crate) fn metric(metrics: &SessionMetrics, name: &str) -> f64 {
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("there is no {name} in\n{text}")).parse().unwrap()
}

/// Something that has arrived.
pub(crate) fn event(topic: &str, body: &[u8]) -> Event {
    let hash = MessageHash([3; 32]);
    Event::new("channel".into(), topic.into(), hash, Timestamp(5), Bytes::copy_from_slice(body))
}
