//! Announcements of commits: this server's before they are acknowledged, those of other servers when they appear in the feed.
//!
//! Positions in the feed are dense and in the order of commits. Everything up to the position that the listener has seen is
//! announced. This server's own commits may be ahead of it; those are remembered until the listener reaches them, so that an
//! account's revisions rise.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::{
    AccountId, Announcement, PeerCommit, Position, Revision, Watch,
    watch::{Announcer, PeerSender},
};

/// The most accounts that are remembered while the feed can't be read. Beyond that, some commits are announced twice.
const AHEAD_MAX: usize = 65_536;

pub(crate) struct Announcements {
    announcer: Announcer,
    /// Commits of this server, to be passed to other servers.
    pub(crate) peers: PeerSender,
    known: Mutex<Known>,
}

struct Known {
    /// All commits up to this position are announced.
    seen: Position,
    /// Commits announced ahead of `seen`.
    ahead: HashMap<AccountId, (Revision, Position)>,
}

impl Announcements {
    /// Announces commits after a position.
    pub(crate) fn from(seen: Position) -> Self {
        Self {
            announcer: Announcer::new(),
            peers: PeerSender::new(),
            known: Mutex::new(Known { seen, ahead: HashMap::new() }),
        }
    }

    pub(crate) fn watch(&self) -> Watch {
        self.announcer.watch()
    }

    /// The position up to which all commits are announced.
    pub(crate) fn seen(&self) -> Position {
        self.known.lock().seen
    }

    /// Announces a commit of this server, unless it was announced already.
    pub(crate) fn committed(&self, account: AccountId, revision: Revision, position: Position) {
        let commit = PeerCommit { account, revision, position };
        self.peers.send(commit);
        self.ahead(commit);
    }

    /// Announces a commit ahead of the feed, unless it was announced already.
    pub(crate) fn ahead(&self, commit: PeerCommit) {
        let PeerCommit { account, revision, position } = commit;
        let mut known = self.known.lock();
        let is_announced = known.ahead.get(&account).is_some_and(|(announced, _)| *announced >= revision);
        if position <= known.seen || is_announced {
            return;
        }
        if known.ahead.len() >= AHEAD_MAX {
            known.ahead.clear();
        }
        known.ahead.insert(account, (revision, position));
        self.announcer.announce(Announcement { account, revision });
    }

    /// Announces a row of the feed, unless it was announced already. Rows come in the order of their positions.
    pub(crate) fn heard(&self, account: AccountId, revision: Revision, position: Position) {
        let mut known = self.known.lock();
        if position <= known.seen {
            return;
        }
        known.seen = position;
        if let Some((announced, at)) = known.ahead.get(&account).copied() {
            if at <= position || announced <= revision {
                known.ahead.remove(&account);
            }
            if announced >= revision {
                return;
            }
        }
        self.announcer.announce(Announcement { account, revision });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: AccountId = AccountId(1);
    const B: AccountId = AccountId(2);

    fn announced(watch: &mut Watch) -> Vec<(AccountId, u64)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut all = Vec::new();
        runtime.block_on(async {
            // A watch with something to deliver returns at once.
            while let Ok(Some(next)) = tokio::time::timeout(std::time::Duration::ZERO, watch.next()).await {
                let next = next.unwrap();
                all.push((next.account, next.revision.0));
            }
        });
        all
    }

    #[test]
    fn own_commits_are_announced_once_however_the_feed_and_the_answers_come() {
        let announcements = Announcements::from(Position(10));
        let mut watch = announcements.watch();
        announcements.committed(A, Revision(5), Position(11));
        announcements.heard(A, Revision(5), Position(11));
        // The feed reports it before the task that committed continues.
        announcements.heard(A, Revision(6), Position(12));
        announcements.committed(A, Revision(6), Position(12));
        // A later commit is announced before an earlier one.
        announcements.committed(A, Revision(8), Position(14));
        announcements.committed(A, Revision(7), Position(13));
        announcements.heard(A, Revision(7), Position(13));
        announcements.heard(A, Revision(8), Position(14));
        assert_eq!(announced(&mut watch), [(A, 5), (A, 6), (A, 8)]);
        assert!(announcements.known.lock().ahead.is_empty());
    }

    #[test]
    fn commits_that_other_servers_pass_on_are_announced_once_and_not_passed_back() {
        let announcements = Announcements::from(Position(10));
        let (mut watch, mut passed) = (announcements.watch(), announcements.peers.commits());
        let commit = |account, revision, position| PeerCommit {
            account,
            revision: Revision(revision),
            position: Position(position),
        };
        announcements.ahead(commit(A, 5, 12));
        announcements.ahead(commit(A, 5, 12));
        announcements.ahead(commit(A, 4, 11)); // late
        announcements.ahead(commit(B, 1, 10)); // before `seen`
        announcements.heard(A, Revision(5), Position(12));
        announcements.ahead(commit(A, 5, 12));
        announcements.heard(B, Revision(2), Position(13));
        announcements.committed(B, Revision(3), Position(14));
        assert_eq!(announced(&mut watch), [(A, 5), (B, 2), (B, 3)]);
        drop(announcements);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let passed = runtime.block_on(async { [passed.next().await, passed.next().await] });
        assert_eq!(passed, [Some(commit(B, 3, 14)), None]);
    }

    #[test]
    fn commits_of_others_are_announced_and_what_was_seen_is_not() {
        let announcements = Announcements::from(Position(10));
        let mut watch = announcements.watch();
        announcements.heard(B, Revision(1), Position(10));
        announcements.committed(A, Revision(2), Position(12));
        announcements.heard(A, Revision(1), Position(11));
        announcements.heard(A, Revision(2), Position(12));
        announcements.heard(A, Revision(3), Position(13));
        announcements.heard(B, Revision(2), Position(14));
        assert_eq!(announced(&mut watch), [(A, 2), (A, 3), (B, 2)]);
        assert_eq!(announcements.seen(), Position(14));
    }
}
