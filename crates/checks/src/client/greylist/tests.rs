use std::num::NonZero;

use restante_core::{ManualClock, Timestamp};
use restante_disk::testing::{FailingDisk, FailurePlan, InjectedFailure};

use super::*;

const NOW: i64 = 1_800_000_000;

struct World {
    clock: Arc<ManualClock>,
    greylist: Greylist,
}

fn config(entries_max: usize) -> GreylistConfig {
    GreylistConfig {
        enabled: true,
        entries_max: NonZero::new(entries_max).unwrap(),
        ..GreylistConfig::default()
    }
}

fn world(entries_max: usize) -> World {
    let clock = Arc::new(ManualClock::new(Timestamp::from_seconds(NOW)));
    World { greylist: Greylist::in_memory(config(entries_max), clock.clone()), clock }
}

impl World {
    fn at(&self, seconds: i64) {
        self.clock.set(Timestamp::from_seconds(NOW + seconds));
    }

    fn admits(&self, client: &str, sender: &str, recipient: &str) -> bool {
        self.greylist.admit(client.parse().unwrap(), sender, recipient).is_ok()
    }
}

#[test]
fn chk11_a_first_message_waits_and_then_its_network_sends_freely() {
    let world = world(100);
    let refused = world.greylist.admit("192.0.2.1".parse().unwrap(), "a@x.example", "b@example.org");
    let refused = refused.unwrap_err();
    assert_eq!((refused.code, refused.enhanced, refused.check), (451, "4.7.1", "greylist"));
    assert_eq!(refused.text, "greylisted: try again in 300 seconds");
    world.at(299);
    assert!(!world.admits("192.0.2.1", "a@x.example", "b@example.org"), "too early");
    world.at(300);
    assert!(!world.admits("192.0.3.1", "a@x.example", "b@example.org"), "another network");
    assert!(!world.admits("192.0.2.1", "other@x.example", "b@example.org"), "another sender");
    assert!(!world.admits("192.0.2.1", "a@x.example", "c@example.org"), "another recipient");
    assert!(world.admits("192.0.2.99", "A@X.example", "B@Example.org"), "the same from a neighbour");
    assert!(world.admits("192.0.2.1", "new@x.example", "c@example.org"), "the network is known now");
    assert!(world.admits("::ffff:192.0.2.7", "", "c@example.org"));
}

#[test]
fn chk11_networks_of_ipv6_have_64_bits() {
    let world = world(100);
    assert!(!world.admits("2001:db8:1:2::1", "a", "b"));
    world.at(300);
    assert!(!world.admits("2001:db8:1:3::1", "a", "b"));
    assert!(world.admits("2001:db8:1:2:ffff::", "a", "b"));
}

#[test]
fn chk11_a_client_is_remembered_as_long_as_it_sends() {
    let world = world(100);
    let month = i64::try_from(GreylistConfig::default().remembered_seconds.get()).unwrap();
    world.admits("192.0.2.1", "a", "b");
    world.at(300);
    assert!(world.admits("192.0.2.1", "a", "b"));
    world.at(300 + month - 1);
    assert!(world.admits("192.0.2.1", "c", "d"), "it is remembered from here on again");
    world.at(300 + 2 * month - 2);
    assert!(world.admits("192.0.2.1", "e", "f"));
    world.at(300 + 3 * month);
    assert!(!world.admits("192.0.2.1", "g", "h"), "it was silent for too long");
}

#[test]
fn chk11_a_first_attempt_does_not_count_for_ever() {
    let world = world(100);
    world.admits("192.0.2.1", "a", "b");
    world.at(2 * 86_400);
    assert!(!world.admits("192.0.2.1", "a", "b"));
    world.at(2 * 86_400 + 300);
    assert!(world.admits("192.0.2.1", "a", "b"));
}

#[test]
fn chk11_a_flood_of_attempts_takes_bounded_memory_and_displaces_no_known_client() {
    let world = world(1_000);
    world.admits("192.0.2.1", "a", "b");
    world.at(300);
    assert!(world.admits("192.0.2.1", "a", "b"));
    for number in 0..20_000_u32 {
        let client = IpAddr::from((0x0a00_0000 + (number << 8)).to_be_bytes());
        assert!(world.greylist.admit(client, "spam", "b").is_err());
    }
    assert_eq!(world.greylist.entries(), (1, 1_000));
    assert!(world.admits("192.0.2.1", "c", "d"));
    let state = world.greylist.state.lock();
    assert_eq!(state.waiting.page(0, usize::MAX).0.len(), 1_000, "both maps have the same entries");
}

#[test]
fn chk11_a_network_displaces_no_attempts_of_others() {
    let world = world(1_000);
    assert!(!world.admits("198.51.100.1", "a", "b"));
    for number in 0..5_000 {
        assert!(!world.admits("192.0.2.1", &format!("{number}"), "b"));
    }
    assert_eq!(world.greylist.entries(), (0, 1 + WAITING_PER_NETWORK_MAX as usize));
    world.at(300);
    assert!(world.admits("198.51.100.1", "a", "b"));
    assert!(world.admits("192.0.2.1", "7", "b"), "one that is remembered lets its network pass");
    assert!(world.admits("192.0.2.1", "4999", "b"));
}

#[test]
fn chk11_known_clients_are_bounded_and_the_one_that_was_silent_longest_goes() {
    let world = world(2);
    for (step, client) in ["192.0.2.1", "192.0.3.1"].into_iter().enumerate() {
        let start = step as i64 * 1_000;
        world.at(start);
        world.admits(client, "a", "b");
        world.at(start + 300);
        assert!(world.admits(client, "a", "b"));
    }
    world.at(10_000);
    assert!(world.admits("192.0.2.1", "c", "d"));
    world.admits("192.0.4.1", "a", "b");
    world.at(10_300);
    assert!(world.admits("192.0.4.1", "a", "b"));
    assert_eq!(world.greylist.entries().0, 2);
    assert!(world.admits("192.0.2.1", "e", "f"));
    assert!(!world.admits("192.0.3.1", "e", "f"));
}

#[test]
fn chk11_a_clock_that_goes_back_opens_nothing() {
    let world = world(10);
    world.admits("192.0.2.1", "a", "b");
    world.at(-100_000);
    assert!(!world.admits("192.0.2.1", "a", "b"));
}

#[tokio::test]
async fn chk11_what_was_learned_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(Timestamp::from_seconds(NOW)));
    let open =
        || Arc::new(Greylist::open(&folder.path().join("checks"), config(100), clock.clone()).unwrap());
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let first = open();
    assert!(first.admit(ip("192.0.2.1"), "a", "b").is_err());
    clock.set(Timestamp::from_seconds(NOW + 300));
    assert!(first.admit(ip("192.0.2.1"), "a", "b").is_ok());
    assert!(first.admit(ip("192.0.3.1"), "a", "b").is_err());
    first.save().await.unwrap();
    let second = open();
    assert_eq!(second.entries(), (1, 1));
    assert!(second.admit(ip("192.0.2.1"), "new", "b").is_ok());
    clock.set(Timestamp::from_seconds(NOW + 600));
    assert!(second.admit(ip("192.0.3.1"), "a", "b").is_ok());
    assert_eq!(first.remembered().known, open().remembered().known, "nothing was written by the second one");
}

#[tokio::test]
async fn chk11_a_damaged_file_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(Timestamp::from_seconds(NOW)));
    let open = || Greylist::open(folder.path(), config(100), clock.clone()).map(Arc::new);
    let greylist = open().unwrap();
    assert!(greylist.admit("192.0.2.1".parse().unwrap(), "a", "b").is_err());
    greylist.save().await.unwrap();
    let path = folder.path().join("greylist");
    let whole = std::fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        assert_eq!(open().unwrap().entries(), (0, 0), "byte {at}");
        std::fs::write(&path, &whole[..at]).unwrap();
        assert_eq!(open().unwrap().entries(), (0, 0), "cut at {at}");
    }
    std::fs::write(&path, &whole).unwrap();
    assert_eq!(open().unwrap().entries(), (0, 1));
}

#[tokio::test]
async fn chk11_a_failed_write_leaves_the_old_file_and_is_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(Timestamp::from_seconds(NOW)));
    let ip: IpAddr = "192.0.2.1".parse().unwrap();
    let faults = FailurePlan::none();
    let disk = Arc::new(FailingDisk::new(folder.path(), faults.clone()));
    let greylist = Arc::new(Greylist::on(disk, config(100), clock.clone()).unwrap());
    assert!(greylist.admit(ip, "a", "b").is_err());
    greylist.save().await.unwrap();
    let steps = faults.steps();
    assert!(steps > 3, "each step of a write is failed once");
    for step in 1..=steps {
        assert!(greylist.admit(ip, &format!("sender {step}"), "b").is_err());
        let before = Greylist::open(folder.path(), config(100), clock.clone()).unwrap().entries().1;
        faults.fail_at(step, InjectedFailure::Fails);
        let failed = greylist.save().await.is_err();
        faults.clear();
        let after = Greylist::open(folder.path(), config(100), clock.clone()).unwrap().entries().1;
        assert!(failed, "step {step}");
        assert!(after == before || after == greylist.entries().1, "one or the other file is there whole");
        greylist.save().await.unwrap();
        let written = Greylist::open(folder.path(), config(100), clock.clone()).unwrap().entries().1;
        assert_eq!(written, greylist.entries().1, "step {step}");
    }
}
