//! kill -9 under traffic: what was acknowledged is served after the restart.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread::{self, JoinHandle},
};

use crate::support::{Server, folder, message, now, publish_path, request, said};

const PUBLISHERS: usize = 8;
const ROUNDS: usize = 5;
/// Acknowledgements after which the server is killed, in the middle of further requests.
const ACKNOWLEDGED_BEFORE_KILL: usize = 60;

#[test]
fn acknowledged_messages_survive_kill_9_under_traffic() {
    let (_guard, folder) = folder();
    let mut acknowledged = BTreeSet::new();
    for round in 0..ROUNDS {
        let server = Server::start(&folder);
        let publishers = Publishers::start(server.address(), round);
        for _ in 0..ACKNOWLEDGED_BEFORE_KILL * (round + 1) / 2 {
            publishers.acknowledged.recv().unwrap();
        }
        server.kill();
        acknowledged.extend(publishers.finish());

        let server = Server::start(&folder);
        let served: BTreeSet<String> = server.payloads(100).into_iter().collect();
        let lost: Vec<&String> = acknowledged.difference(&served).collect();
        assert!(lost.is_empty(), "round {round}: {} of {} lost: {lost:?}", lost.len(), acknowledged.len());
        // Messages that were stored but not acknowledged in time may be there; none may be there that was never sent.
        assert!(served.iter().all(|payload| payload.starts_with("round ")), "{served:?}");
        server.kill();
    }
    assert!(acknowledged.len() >= ACKNOWLEDGED_BEFORE_KILL * ROUNDS);
    assert!(said(&folder, &["archive", "check"]).contains("all sound"));
}

/// Threads that publish until the server is gone.
struct Publishers {
    threads: Vec<JoinHandle<Vec<String>>>,
    acknowledged: Receiver<()>,
}

impl Publishers {
    fn start(address: SocketAddr, round: usize) -> Self {
        let (tell, acknowledged) = sync_channel(100_000);
        let publisher = |number| {
            let tell = tell.clone();
            thread::spawn(move || publish(address, &format!("round {round} publisher {number}"), &tell))
        };
        let threads = (0..PUBLISHERS).map(publisher).collect();
        Self { threads, acknowledged }
    }

    /// The payloads that were acknowledged.
    fn finish(self) -> Vec<String> {
        self.threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    }
}

/// Publishes one message after the other until there is no answer, and returns those that were acknowledged.
fn publish(address: SocketAddr, name: &str, tell: &SyncSender<()>) -> Vec<String> {
    let mut acknowledged = Vec::new();
    for number in 0.. {
        let payload = format!("{name} message {number}");
        let Some(answer) = request(address, "POST", &publish_path(), &message(&payload, now()).to_string())
        else {
            break;
        };
        assert_eq!(answer.status, 200, "{name}: {}", answer.body);
        acknowledged.push(payload);
        let _ = tell.try_send(()); // nobody counts any more
    }
    acknowledged
}
