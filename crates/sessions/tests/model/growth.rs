//! A table that grows to thousands of users, shrinks to none and grows again, with records of very different sizes.

use rand::{RngExt, SeedableRng, seq::IteratorRandom};
use rand_chacha::ChaCha8Rng;
use restante_sessions::Ended;

use crate::{
    common::{
        OwnedChange, OwnedValue,
        engines::{Engine, TestTable, run},
        node::Node,
    },
    table::Model,
};

/// Sessions that each user may have.
const SESSIONS_PER_USER_MAX: usize = 6;
/// Users have more resources to choose from than sessions, so that they reach the limit.
const RESOURCES: usize = 8;

/// The sizes to which the table grows and shrinks, in order.
fn sizes(engine: Engine) -> &'static [usize] {
    match engine {
        Engine::Memory => &[4_000, 40, 2_500, 0, 600, 1],
        Engine::Redis => &[300, 5, 150, 0],
    }
}

/// The seed: RESTANTE_TEST_SEED, or a fixed one.
fn seed() -> u64 {
    std::env::var("RESTANTE_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

pub(crate) fn agrees_while_it_grows_and_shrinks(engine: Engine) {
    let seed = seed();
    println!("RESTANTE_TEST_SEED={seed}");
    run(engine, async |table| grow_and_shrink(&table, seed).await);
}

async fn grow_and_shrink(table: &TestTable, seed: u64) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let node = table.node_with_limit(SESSIONS_PER_USER_MAX).await;
    let mut model = Model::new(SESSIONS_PER_USER_MAX);
    let mut size = 0;
    for goal in sizes(table.engine) {
        while size != *goal {
            let grows = size < *goal;
            // Mostly towards the goal, now and then away from it.
            if grows == random.random_bool(0.85) {
                open(&node, &mut model, &mut random).await;
            } else {
                close(&node, &mut model, &mut random).await;
            }
            if random.random_bool(0.2) {
                change(&node, &mut model, &mut random).await;
            }
            size = model.len();
        }
        model.check(&node).await;
    }
    assert_eq!(node.ended_sessions().await, model.ended_sessions(node.here()));
}

async fn open(node: &Node, model: &mut Model, random: &mut ChaCha8Rng) {
    // A few users have many sessions, most have one.
    let user =
        if random.random_bool(0.1) { random.random_range(0..20) } else { random.random_range(0..5_000) };
    let user = format!("{user}@{}", "example.".repeat(user % 40));
    let resource = "r".repeat(1 + random.random_range(0..RESOURCES) * 20);
    let changes = changes(random);
    model.open(node, &user, &resource, &changes).await;
    assert_eq!(node.user(&user).await, model.user(&user));
}

async fn close(node: &Node, model: &mut Model, random: &mut ChaCha8Rng) {
    let Some(id) = model.ids().choose(random) else { return };
    let user = node.id(id).await.unwrap().user;
    let why = if random.random_bool(0.8) { Ended::Left } else { Ended::Slow };
    model.close(node, id, why).await;
    assert_eq!(node.user(&user).await, model.user(&user));
}

async fn change(node: &Node, model: &mut Model, random: &mut ChaCha8Rng) {
    let Some(id) = model.ids().choose(random) else { return };
    let changes = changes(random);
    if random.random() {
        model.presence(node, id, random.random_bool(0.5).then(|| random.random()), &changes).await;
    } else {
        model.merge(node, id, &changes).await;
    }
    let user = node.id(id).await.unwrap().user;
    assert_eq!(node.user(&user).await, model.user(&user));
}

/// Usually small changes, sometimes one as long as an info may be.
fn changes(random: &mut ChaCha8Rng) -> Vec<OwnedChange> {
    let len_max = match random.random_range(0..100) {
        0..60 => 0,
        60..90 => 30,
        90..99 => 500,
        _ => 16_370,
    };
    let mut changes = vec![(random.random_range(0..4), Some(OwnedValue::Number(random.random())))];
    if len_max > 0 {
        let text = "x".repeat(random.random_range(0..len_max));
        changes.push((random.random_range(0..4), Some(OwnedValue::Text(text))));
    }
    if random.random_bool(0.3) {
        changes.push((random.random_range(0..4), None));
    }
    changes
}
