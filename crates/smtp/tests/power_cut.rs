//! Power cuts while mail is delivered by LMTP and the peer repeats what was not answered: nothing that was acknowledged is lost,
//! nothing is stored twice, and all counters are right.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::Path,
    sync::Arc,
};

use async_trait::async_trait;
use restante_blobs::FilesConfig;
use restante_core::{Error, ManualClock, Timestamp, nonzero};
use restante_directory::{self as directory, EmailAddress, Resolution, State};
use restante_mail::{Mail, MailConfig, MailMetrics, email, vault};
use restante_operate::Door;
use restante_power_cut::{Child, child, cuts, record};
use restante_records::{AccountId, Get, Query, Record, Schema};
use restante_smtp::{
    LmtpAddress, LmtpConfig, MailDelivery, Parts, Recipients, SmtpConfig, SmtpDoor, SmtpMetrics,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

const TEST: &str = "sm10_mail_survives_power_cuts_and_is_stored_once_when_the_peer_repeats_it";
const USERS: u32 = 3;
const PEERS: u32 = 4;
const MAILS_OF_PEER: u32 = 12;
/// The most emails or vault entries of an account.
const ALL: usize = 1_000;

/// `user0@example.org` and so on.
struct Users;

#[async_trait]
impl Recipients for Users {
    async fn resolve(&self, address: &EmailAddress) -> Result<Resolution, Error> {
        let Some(user) = address.local().strip_prefix("user").and_then(|number| number.parse().ok()) else {
            return Ok(Resolution::Unknown);
        };
        let (account, address) = (account(user), address.clone());
        let (state, quota_bytes, detail) = (State::Active, None, None);
        Ok(Resolution::Targets(vec![directory::Target::Account {
            account,
            address,
            state,
            quota_bytes,
            detail,
        }]))
    }
}

fn account(user: u32) -> AccountId {
    AccountId(100 + user)
}

/// The users that get a mail: one, two or all.
fn recipients(mail: u32) -> Vec<u32> {
    (0..USERS).filter(|user| (mail % 7 + 1) >> user & 1 == 1).collect()
}

/// Some mails are of one thread, and some have a file of their own.
fn text(mail: u32) -> String {
    let thread = mail % 9;
    let words = "words of a mail\r\n".repeat(if mail % 8 == 5 { 100 } else { 1 + mail as usize % 30 });
    format!(
        "Message-ID: <{mail}@example.net>\r\nReferences: <thread{thread}@example.net>\r\nSubject: {thread}\r\n\r\n{words}"
    )
}

/// The number of the mail in a stored message.
fn number_of(raw: &[u8]) -> u32 {
    let raw = std::str::from_utf8(raw).unwrap();
    let id = raw.split_once("Message-ID: <").unwrap().1;
    let number = id.split_once('@').unwrap().0.parse().unwrap();
    assert!(raw.ends_with(&text(number)), "mail {number} is another one: {raw}");
    number
}

struct Server {
    door: SmtpDoor,
    mail: Mail,
    records: restante_records::Opened,
    blobs: restante_blobs::Opened,
}

impl Server {
    /// Small logs and packs, so that they are rotated many times.
    async fn open(folder: &Path) -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::from_seconds(1_800_000_000)));
        let url = restante_records::EngineUrl::Lmdb(folder.join("records"));
        let mut records = restante_records::Config::new(url, Schema::new(restante_mail::kinds()).unwrap());
        records.lmdb.log_bytes = 32 << 10;
        records.clock = clock.clone();
        let url = restante_blobs::EngineUrl::Files(folder.join("blobs"));
        let mut blobs = restante_blobs::Config::new(url);
        blobs.files = FilesConfig { packed_bytes_max: 1_000, pack_bytes: nonzero!(8_000) };
        blobs.clock = clock.clone();
        let blobs = restante_blobs::open(blobs).await.unwrap();
        let unsynced = restante_blobs::unsynced(blobs.blobs.clone());
        records.unsynced_blobs = Some(unsynced.clone());
        let records = restante_records::open(records).await.unwrap();
        records.upkeep.put_blobs_again(unsynced).await.unwrap();
        let (config, metrics) = (MailConfig::default(), MailMetrics::default());
        let mail = Mail::new(records.records.clone(), blobs.blobs.clone(), clock.clone(), config, metrics);
        let smtp = SmtpConfig { hostname: "mail.example.org".to_owned(), ..SmtpConfig::default() };
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let lmtp = LmtpConfig { listen: vec![LmtpAddress::Tcp(any)], ..LmtpConfig::default() };
        let parts = Parts {
            recipients: Arc::new(Users),
            delivery: Arc::new(MailDelivery::new(mail.clone(), &smtp)),
            journal: None,
            certificates: None,
            clock,
            submission: None,
            forwards: None,
            checks: None,
            quarantine: None,
            metrics: SmtpMetrics::default(),
            net: Default::default(),
        };
        let door = SmtpDoor::start(parts, smtp, lmtp).await.unwrap();
        Self { door, mail, records, blobs }
    }

    async fn close(self) {
        self.door.close().await;
        self.records.upkeep.close().await.unwrap();
        self.blobs.upkeep.close().await.unwrap();
    }

    async fn peer(&self) -> Peer {
        let LmtpAddress::Tcp(address) = self.door.lmtp_addresses()[0] else { panic!("it is a port") };
        let mut peer = Peer(BufReader::new(TcpStream::connect(address).await.unwrap()));
        peer.expect("220").await;
        peer.say("LHLO peer.example.net", "250").await;
        peer
    }

    /// All emails of a user, and all entries of the vault.
    async fn stored(&self, user: u32) -> [Vec<Record>; 2] {
        let mut found = [Vec::new(), Vec::new()];
        let indexes = [(email::KIND, email::BY_THREAD), (vault::KIND, vault::BY_DELETED_AT)];
        for ((kind, index), found) in indexes.into_iter().zip(&mut found) {
            let query = Query::new(kind, index).limit(ALL);
            let ids = self.mail.records().query(account(user), &query).await.unwrap().ids;
            if !ids.is_empty() {
                let get = Get::whole(kind, ids);
                let records = self.mail.records().get(account(user), &get).await.unwrap();
                *found = records.into_iter().flatten().collect(); // another peer may have destroyed one since
            }
        }
        found
    }

    /// The mail of a record, by the bytes of its blob.
    async fn mail_of(&self, record: &Record) -> u32 {
        let [blob] = record.body.blobs[..] else { panic!("a record of mail has one blob") };
        let mut source =
            self.blobs.blobs.read(blob, 0..u64::MAX).await.expect("the blob of a record is there");
        let mut raw = Vec::new();
        while let Some(chunk) = source.next().await.unwrap() {
            raw.extend_from_slice(&chunk);
        }
        number_of(&raw)
    }

    /// How often each mail is among the emails of a user, and how often in the vault. Counters are right.
    async fn count(&self, user: u32) -> BTreeMap<u32, [u32; 2]> {
        let mut counts = BTreeMap::new();
        for (place, records) in self.stored(user).await.iter().enumerate() {
            for record in records {
                counts.entry(self.mail_of(record).await).or_insert([0, 0])[place] += 1;
            }
        }
        assert_eq!(self.mail.check(account(user)).await.unwrap(), [], "user {user}");
        counts
    }

    async fn destroy(&self, mail: u32, user: u32) {
        for record in &self.stored(user).await[0] {
            if self.mail_of(record).await == mail {
                self.mail.destroy_email(account(user), record.id, None).await.unwrap();
            }
        }
    }
}

/// A mail server that delivers.
struct Peer(BufReader<TcpStream>);

impl Peer {
    async fn expect(&mut self, code: &str) {
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).await.unwrap();
            assert!(line.starts_with(code), "expected {code}: {line:?}");
            if line.as_bytes()[3] == b' ' {
                return;
            }
        }
    }

    async fn say(&mut self, line: &str, code: &str) {
        self.0.write_all(format!("{line}\r\n").as_bytes()).await.unwrap();
        self.expect(code).await;
    }

    /// Sends a mail; `stored` is called with each recipient when its reply has arrived.
    async fn send(&mut self, mail: u32, mut stored: impl FnMut(u32)) {
        self.say("MAIL FROM:<sender@example.net>", "250").await;
        for user in recipients(mail) {
            self.say(&format!("RCPT TO:<user{user}@example.org>"), "250").await;
        }
        self.say("DATA", "354").await;
        self.0.write_all(format!("{}.\r\n", text(mail)).as_bytes()).await.unwrap();
        for user in recipients(mail) {
            self.expect("250").await;
            stored(user);
        }
    }
}

/// The mails that a user destroys as soon as they are stored.
fn is_destroyed(mail: u32) -> bool {
    mail % 5 == 2
}

/// Several peers deliver at the same time, sometimes the same mail twice, and users destroy some of it.
async fn run(child: Arc<Child>) {
    let server = Arc::new(Server::open(child.folder()).await);
    let mut peers = tokio::task::JoinSet::new();
    for peer in 0..PEERS {
        let (server, child) = (server.clone(), child.clone());
        peers.spawn(async move {
            let mut connection = server.peer().await;
            for mail in (0..MAILS_OF_PEER).map(|n| n * PEERS + peer) {
                child.acknowledge(&format!("sending {mail} 0")).unwrap();
                for _ in 0..=mail % 2 {
                    let stored = |user| child.acknowledge(&format!("stored {mail} {user}")).unwrap();
                    connection.send(mail, stored).await;
                }
                for user in recipients(mail).into_iter().filter(|_| is_destroyed(mail)) {
                    child.acknowledge(&format!("destroying {mail} {user}")).unwrap();
                    server.destroy(mail, user).await;
                    child.acknowledge(&format!("destroyed {mail} {user}")).unwrap();
                }
            }
        });
    }
    peers.join_all().await;
    Arc::into_inner(server).expect("all peers have ended").close().await;
}

/// What the peers and the users know before a power cut: mails, and recipients of mails.
#[derive(Default)]
struct Known {
    sending: BTreeSet<u32>,
    stored: BTreeSet<(u32, u32)>,
    destroying: BTreeSet<(u32, u32)>,
    destroyed: BTreeSet<(u32, u32)>,
}

impl Known {
    fn of(acknowledged: &[&str]) -> Self {
        let mut known = Self::default();
        for line in acknowledged {
            let mut words = line.split(' ');
            let mut next = || words.next().unwrap();
            let (what, mail, user) = (next(), next().parse().unwrap(), next().parse().unwrap());
            match what {
                "sending" => drop(known.sending.insert(mail)),
                "stored" => drop(known.stored.insert((mail, user))),
                "destroying" => drop(known.destroying.insert((mail, user))),
                "destroyed" => drop(known.destroyed.insert((mail, user))),
                other => panic!("'{other}' was not acknowledged by the test"),
            }
        }
        known
    }
}

async fn verify(folder: &Path, known: &Known) {
    let server = Server::open(folder).await;
    for user in 0..USERS {
        let counts = server.count(user).await;
        for (mail, [emails, destroyed]) in &counts {
            assert_eq!(emails + destroyed, 1, "mail {mail} is there twice");
            assert!(
                known.sending.contains(mail) && recipients(*mail).contains(&user),
                "mail {mail} of nobody"
            );
        }
        for (mail, _) in known.stored.iter().filter(|(_, other)| *other == user) {
            assert!(counts.contains_key(mail), "mail {mail} was acknowledged to user {user}");
        }
    }
    // The peer repeats everything: what was not answered, and also what was, as if the replies had been lost.
    let mut peer = server.peer().await;
    let next = PEERS * MAILS_OF_PEER;
    for mail in known.sending.iter().copied().chain([next, next + 1]) {
        peer.send(mail, |_| ()).await;
    }
    for user in 0..USERS {
        let counts = server.count(user).await;
        for mail in known.sending.iter().copied().chain([next, next + 1]) {
            let is_mine = recipients(mail).contains(&user);
            let expected = match (is_mine, counts.get(&mail)) {
                (false, found) => found.is_none(),
                (true, Some([0, 1])) => known.destroying.contains(&(mail, user)),
                (true, Some([1, 0])) => !known.destroyed.contains(&(mail, user)),
                (true, _) => false,
            };
            assert!(expected, "mail {mail} of user {user}: {:?}", counts.get(&mail));
        }
    }
    assert_eq!(server.blobs.upkeep.check(&|_, _| ()).await.unwrap().findings, []);
    drop(peer);
    server.close().await;
}

#[test]
fn sm10_mail_survives_power_cuts_and_is_stored_once_when_the_peer_repeats_it() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    if let Some(child) = child().unwrap() {
        return runtime.block_on(run(Arc::new(child)));
    }
    let log = record(TEST).unwrap();
    log.replay(cuts(40), 10, |cut| {
        runtime.block_on(verify(cut.folder(), &Known::of(cut.acknowledged())));
    })
    .unwrap();
}
