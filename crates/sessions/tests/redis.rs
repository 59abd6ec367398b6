//! Promises of the `redis` engine only: outages, the stored data, and the requests.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

#[path = "common/mod.rs"]
mod common;
#[path = "redis/contents.rs"]
mod contents;
#[path = "redis/outage.rs"]
mod outage;
#[path = "redis/own.rs"]
mod own;
#[path = "redis/proxy.rs"]
mod proxy;
#[path = "redis/raw.rs"]
mod raw;
#[path = "redis/tls.rs"]
mod tls;

use std::{future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;
use common::engines::{Engine, TestTable, run, trial_with};
use libtest_mimic::Arguments;
use prometheus_client::{encoding::text::encode, registry::Registry};
use restante_core::{MessageHash, Timestamp};
use restante_sessions::{Config, EngineUrl, SessionMetrics, hub::Event};

use proxy::Proxy;
use raw::Raw;

pub(crate) type Subject = Arc<TestTable>;

type Run = fn(Subject) -> Pin<Box<dyn Future<Output = ()>>>;

macro_rules! tests {
    ($($module:ident::$name:ident),* $(,)?) => {
        fn tests() -> Vec<(&'static str, Run)> {
            vec![$((stringify!($name), |subject| Box::pin($module::$name(subject)))),*]
        }
    };
}

tests![
    outage::a_table_opens_though_redis_is_unreachable,
    outage::local_sessions_work_while_redis_is_unreachable,
    outage::what_others_ended_meanwhile_stays_ended,
    outage::requests_to_a_hanging_redis_time_out,
    outage::thousands_of_sessions_are_registered_again,
    outage::all_continues_with_this_node_when_redis_becomes_unreachable,
    outage::what_redis_has_lost_is_registered_again,
    outage::a_change_of_a_lost_session_registers_it,
    outage::scripts_that_redis_has_dropped_are_loaded_again,
    outage::events_are_dropped_and_counted_while_redis_is_unreachable,
    outage::a_url_that_can_not_be_used_is_refused,
    tls::nodes_share_a_table_by_tls,
    tls::a_server_with_the_wrong_certificate_is_refused,
    tls::a_certificate_of_another_authority_is_refused,
    outage::a_lease_lost_while_registering_is_noticed,
    outage::requests_whose_answers_do_not_come_are_done_once,
    outage::connections_may_be_cut_at_any_byte,
    outage::what_a_node_without_a_lease_has_opened_is_swept,
    outage::what_others_took_of_a_node_without_a_lease_stays_ended,
    outage::users_on_an_unreadable_page_are_returned,
    outage::a_table_that_is_closed_while_redis_is_unreachable_says_why,
    outage::a_redis_without_memory_renews_leases_and_removes_what_has_ended,
    contents::a_session_takes_at_most_520_bytes_of_redis,
    contents::each_operation_is_one_request,
    contents::nothing_stays_of_sessions_that_have_ended,
    contents::a_dropped_table_ends_all_its_tasks,
    contents::a_cancelled_open_leaves_nothing,
    contents::what_a_cancelled_open_has_ended_is_removed,
    contents::a_long_mail_is_read_to_its_end,
    contents::cancelled_changes_are_completed,
    contents::an_open_that_was_overtaken_does_not_come_back,
    contents::a_change_that_was_overtaken_does_not_undo_the_later,
    contents::what_others_have_ended_is_not_registered_again,
    contents::foreign_values_are_ignored,
    contents::foreign_messages_on_the_channels_are_ignored,
    contents::tables_in_other_databases_receive_nothing,
    contents::events_that_are_too_long_are_dropped_and_counted,
    contents::more_events_than_the_queue_holds_are_sent_one_after_the_other,
    contents::a_node_id_is_not_shared_with_another_process,
];

fn main() {
    let trials = tests().into_iter().map(|(name, test)| {
        let needs_services = tls::TESTS.contains(&name) || own::TESTS.contains(&name);
        let variable = needs_services.then_some(tls::CERTIFICATES);
        trial_with(Engine::Redis, variable, name, move || run(Engine::Redis, test))
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}

/// The URL of Redis itself.
pub(crate) fn proxied_url() -> String {
    std::env::var("RESTANTE_REDIS_URL").unwrap()
}

/// The configuration of a node that connects through a proxy.
pub(crate) fn proxied(table: &TestTable, proxy: &Proxy) -> Config {
    Config { url: EngineUrl::Redis(proxy.url.clone()), ..table.config() }
}

/// Direct access to the keys of this test's table.
pub(crate) fn raw(table: &TestTable) -> Raw {
    Raw::new(&proxied_url(), &table.config().redis.prefix)
}

/// The value of a metric.
pub(crate) fn metric(metrics: &SessionMetrics, name: &str) -> f64 {
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("there is no {name} in\n{text}")).parse().unwrap()
}

/// An event.
pub(crate) fn event(topic: &str, body: &[u8]) -> Event {
    let hash = MessageHash([3; 32]);
    Event::new("channel".into(), topic.into(), hash, Timestamp(5), Bytes::copy_from_slice(body))
}
