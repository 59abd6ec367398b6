//! Announcements, their encoding, and their listeners.

use restante_core::{AccountId, Identity, Revision};
use tokio::sync::broadcast;

/// The most announcements that wait for a slow listener.
const WAITING_MAX: usize = 1_024;

/// A commit of another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The store that was committed to.
    pub store: Identity,
    /// The account.
    pub account: AccountId,
    /// Its revision.
    pub revision: Revision,
    /// The position of the commit in the feed of the store.
    pub position: u64,
}

/// Announcements were left out before the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("announcements were left out")]
pub struct Missed;

/// Receives announcements.
pub struct Listener(broadcast::Receiver<Result<Announcement, Missed>>);

impl Listener {
    /// Waits for the next announcement; `None` when the engine is closed.
    ///
    /// # Errors
    /// [`Missed`] when some were left out; those after them follow.
    pub async fn next(&mut self) -> Option<Result<Announcement, Missed>> {
        match self.0.recv().await {
            Ok(heard) => Some(heard),
            Err(broadcast::error::RecvError::Lagged(_)) => Some(Err(Missed)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

/// Passes announcements to the listeners of this server. Clones share the listeners.
#[derive(Clone)]
pub(crate) struct Listeners(broadcast::Sender<Result<Announcement, Missed>>);

impl Listeners {
    pub(crate) fn new() -> Self {
        Self(broadcast::Sender::new(WAITING_MAX))
    }

    pub(crate) fn listen(&self) -> Listener {
        Listener(self.0.subscribe())
    }

    pub(crate) fn heard(&self, heard: Result<Announcement, Missed>) {
        let _ = self.0.send(heard); // fails when nobody listens
    }
}

/// Encodes and decodes the messages between servers.
#[cfg(any(feature = "rabbitmq", feature = "redis"))]
pub(crate) mod message {
    use super::*;

    const VERSION: u8 = 1;
    const HEAD_BYTES: usize = 1 + 16;
    const ONE_BYTES: usize = 16 + 4 + 8 + 8;

    /// A message: the version, the sender, then each announcement. One without announcements only shows that the sender reaches
    /// the engine.
    pub(crate) fn encode(sender: Identity, announcements: &[Announcement]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + announcements.len() * ONE_BYTES);
        bytes.push(VERSION);
        bytes.extend_from_slice(&sender.0);
        for one in announcements {
            bytes.extend_from_slice(&one.store.0);
            bytes.extend_from_slice(&one.account.0.to_be_bytes());
            bytes.extend_from_slice(&one.revision.0.to_be_bytes());
            bytes.extend_from_slice(&one.position.to_be_bytes());
        }
        bytes
    }

    /// The sender and its announcements; `None` if the bytes aren't a valid message.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Identity, Vec<Announcement>)> {
        let (version, rest) = bytes.split_first()?;
        let (sender, rest) = rest.split_first_chunk::<16>()?;
        if *version != VERSION || rest.len() % ONE_BYTES != 0 {
            return None;
        }
        let announcements: Option<Vec<Announcement>> = rest.chunks_exact(ONE_BYTES).map(one).collect();
        Some((Identity(*sender), announcements?))
    }

    fn one(bytes: &[u8]) -> Option<Announcement> {
        let (store, rest) = bytes.split_first_chunk::<16>()?;
        let (account, rest) = rest.split_first_chunk()?;
        let (revision, rest) = rest.split_first_chunk()?;
        let (position, _) = rest.split_first_chunk()?;
        Some(Announcement {
            store: Identity(*store),
            account: AccountId(u32::from_be_bytes(*account)),
            revision: Revision(u64::from_be_bytes(*revision)),
            position: u64::from_be_bytes(*position),
        })
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn messages_read_back_and_other_bytes_are_refused() {
            let sender = Identity([7; 16]);
            let one = Announcement {
                store: Identity([9; 16]),
                account: AccountId(3),
                revision: Revision(u64::MAX),
                position: 5,
            };
            for announcements in [vec![], vec![one], vec![one; 3]] {
                let bytes = encode(sender, &announcements);
                assert_eq!(decode(&bytes), Some((sender, announcements)));
                for length in 0..bytes.len() {
                    let cut = decode(bytes.get(..length).unwrap());
                    assert!(cut.is_none_or(|(_, cut)| cut.len() * ONE_BYTES + HEAD_BYTES == length));
                }
            }
            let mut other = encode(sender, &[one]);
            other[0] = 2;
            assert_eq!(decode(&other), None);
        }
    }
}
