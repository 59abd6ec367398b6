use std::{
    io,
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering},
};

use restante_core::{ManualClock, Timestamp};
use restante_net::dns::FixedResolver;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio_rustls::TlsAcceptor;

use super::{
    super::{Socket, tests::tls::Authority},
    *,
};

const START: i64 = 1_700_000_000;

/// A server that answers each request with these bytes.
struct Web {
    tls: Arc<rustls::ServerConfig>,
    answer: Mutex<String>,
    requests: AtomicUsize,
}

#[async_trait]
impl Network for Arc<Web> {
    async fn connect(&self, address: SocketAddr) -> io::Result<Box<dyn Socket>> {
        assert_eq!(address, "192.0.2.7:443".parse().unwrap());
        self.requests.fetch_add(1, Ordering::Relaxed);
        let (here, there) = duplex(8_192);
        let (tls, answer) = (TlsAcceptor::from(self.tls.clone()), self.answer.lock().clone());
        tokio::spawn(async move {
            let Ok(mut stream) = tls.accept(there).await else { return };
            let mut request = [0; 1_024];
            let length = stream.read(&mut request).await.unwrap_or(0);
            let text = String::from_utf8_lossy(&request[..length]).into_owned();
            assert!(
                text.starts_with("GET /.well-known/mta-sts.txt HTTP/1.1\r\nhost: mta-sts.example.net\r\n"),
                "{text}"
            );
            let _ = stream.write_all(answer.as_bytes()).await;
            let _ = stream.shutdown().await;
        });
        Ok(Box::new(here))
    }
}

struct World {
    resolver: Arc<FixedResolver>,
    web: Arc<Web>,
    clock: Arc<ManualClock>,
    policies: StsPolicies,
}

fn file(mode: &str, max_age: u32) -> String {
    let text = format!("version: STSv1\nmode: {mode}\nmx: mx.example.net\nmax_age: {max_age}\n");
    format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{text}", text.len())
}

impl World {
    fn new(authority: &Authority, server: &Authority, answer: String) -> Self {
        let tls = server.server("mta-sts.example.net");
        let web = Arc::new(Web { tls, answer: Mutex::new(answer), requests: AtomicUsize::new(0) });
        let resolver = Arc::new(FixedResolver::new());
        resolver.set_addresses("mta-sts.example.net", Answer::Found(vec!["192.0.2.7".parse().unwrap()]));
        let clock = Arc::new(ManualClock::new(Timestamp::from_seconds(START)));
        let config = RemoteConfig { authorities: authority.file().to_owned(), ..RemoteConfig::default() };
        let policies = StsPolicies::new(&config, resolver.clone(), Arc::new(web.clone()), clock.clone());
        let world = Self { resolver, web, clock, policies };
        world.announce("1");
        world
    }

    fn announce(&self, id: &str) {
        self.resolver.set_txt("_mta-sts.example.net", Answer::Found(vec![format!("v=STSv1; id={id};")]));
    }

    fn answers(&self, answer: String) {
        *self.web.answer.lock() = answer;
    }

    fn pass(&self, seconds: i64) {
        self.clock.set(self.clock.now().plus_seconds(seconds));
    }

    async fn is_enforced(&self) -> bool {
        let found = self.policies.policy_of("Example.NET").await;
        let enforced = TlsPolicy::Verified { hosts: vec!["mx.example.net".into()] };
        assert!(found == enforced || found == TlsPolicy::Opportunistic, "{found:?}");
        found == enforced
    }

    fn requests(&self) -> usize {
        self.web.requests.load(Ordering::Relaxed)
    }
}

#[tokio::test(start_paused = true)]
async fn out10_a_policy_is_fetched_once_and_holds_for_its_time() {
    let authority = Authority::new();
    let world = World::new(&authority, &authority, file("enforce", 1_000));
    assert!(world.is_enforced().await && world.is_enforced().await);
    assert_eq!(world.requests(), 1);
    world.resolver.set_txt("_mta-sts.example.net", Answer::Temporary("no answer".into()));
    assert!(world.is_enforced().await, "somebody may hide the record");
    world.pass(1_000);
    assert!(!world.is_enforced().await);
    world.announce("1");
    assert!(world.is_enforced().await, "it is fetched again when its time is over");
    assert_eq!(world.requests(), 2);
}

#[tokio::test(start_paused = true)]
async fn out10_a_new_id_is_a_new_policy() {
    let authority = Authority::new();
    let world = World::new(&authority, &authority, file("enforce", 100_000));
    assert!(world.is_enforced().await);
    world.announce("2");
    world.answers("HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n".into());
    assert!(world.is_enforced().await && world.is_enforced().await, "the old one still holds");
    assert_eq!(world.requests(), 2, "and is not asked for with each message");
    world.pass(RETRY_SECONDS);
    world.answers(file("testing", 1_000));
    assert!(!world.is_enforced().await);
}

#[tokio::test(start_paused = true)]
async fn out10_what_is_no_policy_demands_nothing() {
    let authority = Authority::new();
    for answer in [
        file("none", 1_000),
        file("enforce", 99_999_999),
        "HTTP/1.1 302 Found\r\nLocation: https://example.com/\r\nContent-Length: 0\r\n\r\n".into(),
        format!("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{}", "x".repeat(100_000)),
        "no HTTP\r\n\r\n".into(),
        String::new(),
    ] {
        let world = World::new(&authority, &authority, answer.clone());
        assert!(!world.is_enforced().await, "{}", &answer[..answer.len().min(60)]);
        assert_eq!(world.requests(), 1);
    }
    let foreign = World::new(&authority, &Authority::new(), file("enforce", 1_000));
    assert!(!foreign.is_enforced().await, "another authority");
}

#[tokio::test(start_paused = true)]
async fn out10_the_policies_that_are_kept_are_bounded() {
    let authority = Authority::new();
    let world = World::new(&authority, &authority, file("enforce", 1_000));
    for n in 0..DOMAINS_MAX + 10 {
        let policy = Policy { mode: Mode::Enforce, hosts: Vec::new(), max_age_seconds: 1 };
        let known = Known { id: "1".into(), policy: Some((policy, START + 10 + n as i64)), retry: None };
        world.policies.keep(&format!("{n}.example"), known, START);
    }
    assert_eq!(world.policies.known.lock().len(), DOMAINS_MAX);
    assert!(!world.policies.known.lock().contains_key("0.example"), "it ends first");
}

/// Waits until another thread has written the file, which does not depend on the test's time.
async fn until_written(folder: &std::path::Path, domain: &str) {
    let file = folder.join("mta-sts.json");
    while !std::fs::read_to_string(&file).is_ok_and(|text| text.contains(domain)) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn out10_a_policy_holds_over_a_restart() {
    let authority = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    let start = || {
        let mut world = World::new(&authority, &authority, file("enforce", 1_000));
        world.policies = world.policies.with_folder(folder.path());
        world
    };
    let first = start();
    assert!(first.is_enforced().await);
    until_written(folder.path(), "example.net").await;

    let second = start();
    second.resolver.set_txt("_mta-sts.example.net", Answer::NoRecords);
    assert!(second.is_enforced().await, "somebody may hide the record");
    second.announce("1");
    assert!(second.is_enforced().await);
    assert_eq!(second.requests(), 0, "it is the same policy");
    second.pass(1_000);
    let third = start();
    third.resolver.set_txt("_mta-sts.example.net", Answer::NoRecords);
    third.pass(1_000);
    assert!(!third.is_enforced().await, "its time is over");
}

#[tokio::test]
async fn out10_a_file_of_policies_that_is_damaged_or_from_another_time_is_none() {
    let authority = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    let far = START + 40_000_000;
    let policy = |until: i64| {
        format!(
            r#"{{"domain":"example.net","id":"1","mode":"enforce","hosts":["mx.example.net"],"max_age_seconds":9,"until":{until}}}"#
        )
    };
    let whole = |format: u32, until: i64| format!(r#"{{"format":{format},"policies":[{}]}}"#, policy(until));
    for (text, is_held) in [
        (whole(1, START + 1), true),
        (whole(1, START), false),
        (whole(1, far), false),
        (whole(2, START + 1), false),
        (whole(1, START + 1)[..40].to_owned(), false),
        (" ".repeat(9 << 20), false),
        (String::new(), false),
    ] {
        std::fs::write(folder.path().join("mta-sts.json"), &text).unwrap();
        let mut world = World::new(&authority, &authority, file("none", 1_000));
        world.policies = world.policies.with_folder(folder.path());
        world.resolver.set_txt("_mta-sts.example.net", Answer::NoRecords);
        assert_eq!(world.is_enforced().await, is_held, "{}", &text[..text.len().min(60)]);
    }
    // The file is replaced by what is fetched.
    let mut world = World::new(&authority, &authority, file("enforce", 1_000));
    world.policies = world.policies.with_folder(folder.path());
    assert!(world.is_enforced().await);
    until_written(folder.path(), "mx.example.net").await;
    let names = std::fs::read_dir(folder.path()).unwrap().count();
    assert!(names <= 2, "the file, and the next one while it is written");
}
