//! Promises of the engine `s3` only.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

mod common;
#[path = "s3/copying.rs"]
mod copying;
#[path = "s3/faults.rs"]
mod faults;
#[path = "s3/proxy.rs"]
mod proxy;
#[path = "s3/servers.rs"]
mod servers;

use common::{Engine, TestStore, run_trials, trial};

/// Lists tests, each of which gets a new store.
macro_rules! trials {
    ($($room:ident::$name:ident),* $(,)?) => {
        [Engine::S3, Engine::Minio].into_iter().flat_map(|engine| [
            $(trial(engine, concat!(stringify!($room), "::", stringify!($name)), move || {
                let store = TestStore::new(engine);
                let runtime =
                    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
                runtime.block_on($room::$name(store));
            })),*
        ]).collect()
    };
}

fn main() {
    run_trials(trials![
        copying::blobs_move_to_a_storage_and_back_also_when_interrupted,
        faults::a_storage_that_is_gone_is_an_error_until_it_is_back,
        faults::a_storage_that_does_not_answer_is_an_error,
        faults::a_slow_storage_is_waited_for,
        faults::a_request_for_fewer_requests_is_followed,
        faults::a_clock_that_is_wrong_is_named,
        faults::a_put_that_is_cut_is_repeated,
        faults::a_put_whose_answer_is_lost_is_resolved,
        faults::a_put_that_fails_is_whole_or_absent_and_can_be_repeated,
        faults::a_read_that_is_cut_goes_on,
        faults::the_cache_answers_while_the_storage_is_gone,
        faults::wrong_keys_and_settings_are_named,
        faults::encryption_is_asked_for,
        servers::servers_see_each_others_blobs_and_touches,
        servers::a_blob_that_was_removed_too_early_comes_back,
        servers::the_trash_is_emptied_after_a_week_and_keeps_what_is_due,
        servers::foreign_and_damaged_objects_are_reported,
        servers::other_formats_owners_and_manifests_are_refused,
        servers::a_bucket_that_is_missing_is_named,
        servers::no_blob_is_lost_between_sweeps_puts_and_touches_of_two_servers,
    ])
}
