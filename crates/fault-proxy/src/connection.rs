//! One connection: bytes both ways, by the current rules.

use std::{collections::VecDeque, io};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    time::{Instant, sleep_until},
};

use crate::{Direction, End, Rules, Shared, Side, traffic::Interruption};

/// The most bytes that are read at once, and that are held back; further ones wait at their sender.
const CHUNK_BYTES: usize = 64 << 10;
const HELD_BYTES_MAX: usize = 1 << 20;

/// Forwards bytes until both sides have ended, or until the connection is cut.
pub(crate) async fn join(
    client: TcpStream,
    server: TcpStream,
    shared: &Shared,
    mut ends: watch::Receiver<(u64, End)>,
) {
    // Tests count bytes: what was written must not wait for more.
    if client.set_nodelay(true).and_then(|()| server.set_nodelay(true)).is_err() {
        return;
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let mut there = Pump::new(from_client, to_server, Direction::ToServer, shared);
    let mut back = Pump::new(from_server, to_client, Direction::ToClient, shared);
    let ended = tokio::select! {
        _ = async { tokio::try_join!(there.run(), back.run()) } => return,
        changed = ends.changed() => changed,
    };
    let end = ends.borrow_and_update().1;
    let (Ok(()), End::Lose(side)) = (ended, end) else { return };
    // Each side's socket is closed when both its halves are gone.
    let Pump { from: from_client, to: to_server, .. } = there;
    let Pump { from: from_server, to: to_client, .. } = back;
    let (client, server) = ((from_client, to_client), (from_server, to_server));
    let (lost, kept) = match side {
        Side::Client => (client, server),
        Side::Server => (server, client),
    };
    drop(lost);
    while ends.changed().await.is_ok() {
        if matches!(ends.borrow_and_update().1, End::Cut) {
            break;
        }
    }
    drop(kept);
}

/// Forwards the bytes of one direction.
struct Pump<'s> {
    from: OwnedReadHalf,
    to: OwnedWriteHalf,
    rules: watch::Receiver<Rules>,
    direction: Direction,
    shared: &'s Shared,
    /// What has been read and not written, with the time when it is due.
    held: VecDeque<(Instant, Vec<u8>)>,
    held_bytes: usize,
    /// Whether the sender may still send something.
    is_open: bool,
}

impl<'s> Pump<'s> {
    fn new(from: OwnedReadHalf, to: OwnedWriteHalf, direction: Direction, shared: &'s Shared) -> Self {
        let rules = shared.way(direction).0.subscribe();
        Self { from, to, rules, direction, shared, held: VecDeque::new(), held_bytes: 0, is_open: true }
    }

    /// Forwards until the sender has ended and everything has arrived.
    ///
    /// # Errors
    /// The connection is cut: by a fault of ours, or because a side has closed it.
    async fn run(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            self.deliver().await?;
            let rules = *self.rules.borrow_and_update();
            let due = self.held.front().map(|(due, _)| *due).filter(|_| !rules.is_silent);
            if due.is_none() && self.held.is_empty() && !self.is_open {
                return self.to.shutdown().await;
            }
            let may_read = self.is_open && self.held_bytes < HELD_BYTES_MAX;
            tokio::select! {
                count = self.from.read(&mut buffer), if may_read => {
                    let count = count?;
                    self.is_open = count > 0;
                    if let Some(bytes) = buffer.get(..count).filter(|bytes| !bytes.is_empty()) {
                        self.held.push_back((Instant::now() + rules.delay, bytes.to_vec()));
                        self.held_bytes += count;
                    }
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
                _ = self.rules.changed() => {}
            }
        }
    }

    /// Writes what is due.
    async fn deliver(&mut self) -> io::Result<()> {
        while let Some((due, bytes)) = self.held.pop_front() {
            if due > Instant::now() || self.rules.borrow().is_silent {
                self.held.push_front((due, bytes));
                return Ok(());
            }
            let (rules, traffic) = self.shared.way(self.direction);
            let passage = traffic.pass(bytes.len());
            let (passing, rest) = bytes.split_at_checked(passage.bytes).unwrap_or_default();
            self.held_bytes -= passing.len();
            self.to.write_all(passing).await?;
            match passage.fault {
                None => {}
                Some(Interruption::Cut) => return Err(io::ErrorKind::ConnectionReset.into()),
                Some(Interruption::Silence) => {
                    self.held.push_front((due, rest.to_vec()));
                    rules.send_modify(|rules| rules.is_silent = true);
                }
            }
        }
        Ok(())
    }
}
