//! What operators read of attempts.

use restante_core::nonzero;
use restante_delivery::DeliveryConfig;
use tokio::time::sleep;

use crate::world::*;

fn quick() -> DeliveryConfig {
    DeliveryConfig {
        retry_seconds: vec![0, 60],
        retry_jitter_percent: 0,
        delay_notice_seconds: 30,
        domain_down_seconds: 0,
        faults_max: nonzero!(1),
        ..DeliveryConfig::default()
    }
}

async fn noted(world: &World, key: u8, recipients: &[&str]) -> Vec<String> {
    world.add(key, recipients).await;
    let running = world.run();
    sleep(seconds(20)).await;
    running.stop().await;
    std::mem::take(&mut *world.log.noted.lock())
}

#[tokio::test(start_paused = true)]
async fn jrn1_each_attempt_is_noted_with_the_reply_and_the_message_id() {
    let world = World::new(quick()).await;
    world.behave("no.example", Behavior { reply: reply(550, "5.1.1"), ..Behavior::default() });
    let mut found = noted(&world, 1, &["a@b.example", "c@no.example", "d@here.example"]).await;
    found.sort();
    let expected = [
        "1@here.example a@b.example away: delivered 250",
        "1@here.example anna@here.example here: delivered 250", // the report
        "1@here.example c@no.example away: failed 550",
        "1@here.example c@no.example away: reported Failed",
        "1@here.example d@here.example here: delivered 250",
    ];
    assert_eq!(found, expected);
}

#[tokio::test(start_paused = true)]
async fn jrn1_delays_are_noted_and_the_end_after_them() {
    let world = World::new(DeliveryConfig { expire_seconds: nonzero!(100), ..quick() }).await;
    world.behave("b.example", Behavior { down: Some(reply(451, "4.4.1")), ..Behavior::default() });
    world.add(7, &["a@b.example"]).await;
    let running = world.run();
    sleep(seconds(300)).await;
    running.stop().await;
    let found = std::mem::take(&mut *world.log.noted.lock());
    let of = |outcome: &str| format!("unprepared7@here.example a@b.example away: {outcome}");
    assert_eq!(found[0], of("postponed 451 no"));
    assert_eq!(found[1], of("postponed 451 no"));
    assert_eq!(found[2], of("reported Delayed"));
    assert!(found.contains(&of("failed 554")) && found.contains(&of("reported Failed")), "{found:?}");
}

#[tokio::test(start_paused = true)]
async fn jrn1_a_message_that_can_not_be_prepared_is_noted_with_the_reason() {
    let world = World::new(quick()).await;
    world.log.broken.lock().insert(9);
    let found = noted(&world, 9, &["a@b.example"]).await;
    let [only] = &found[..] else { panic!("{found:?}") };
    assert!(only.starts_with("unprepared9@here.example a@b.example away: postponed 451 "), "{only}");
    assert!(only.contains("its blob is gone"), "{only}");
}
