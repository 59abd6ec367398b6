//! What the emails of a thread add to the counters of mailboxes (rule MB4).

use std::{collections::BTreeMap, fmt};

use restante_records::RecordId;

use crate::{EmailState, Mailbox};

/// What a thread adds to the counters of one mailbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) total: u64,
    pub(crate) unread: u64,
    /// 1 when an email of the thread is in the mailbox.
    pub(crate) threads: u64,
    pub(crate) unread_threads: u64,
    pub(crate) bytes: u64,
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { total, unread, threads, unread_threads, bytes } = self;
        write!(
            f,
            "{total} emails ({unread} unread) in {threads} threads ({unread_threads} unread) of {bytes} bytes"
        )
    }
}

/// What a thread adds to each mailbox that has an email of it.
pub(crate) type Shares = BTreeMap<RecordId, Share>;

/// The shares of a thread with these emails. `trash` is the mailbox with that role.
pub(crate) fn of_thread<'e>(
    emails: impl IntoIterator<Item = &'e EmailState>,
    trash: Option<RecordId>,
) -> Shares {
    let mut shares = Shares::new();
    let mut is_unread_outside_trash = false;
    let mut is_unread_in_trash = false;
    for email in emails {
        let is_unread = email.is_unread();
        for mailbox in &email.mailboxes {
            let share = shares.entry(*mailbox).or_default();
            share.total += 1;
            share.unread += u64::from(is_unread);
            share.threads = 1;
            share.bytes += email.size;
            if is_unread && Some(*mailbox) == trash {
                is_unread_in_trash = true;
            } else if is_unread {
                is_unread_outside_trash = true;
            }
        }
    }
    // RFC 8621 §2: an unread email that is only in the trash makes the thread unread there, and nowhere else.
    for (mailbox, share) in &mut shares {
        let is_unread = if Some(*mailbox) == trash { is_unread_in_trash } else { is_unread_outside_trash };
        share.unread_threads = u64::from(is_unread);
    }
    shares
}

/// Adds `more` to the shares of an account, thread by thread.
pub(crate) fn add(shares: &mut Shares, more: &Shares) {
    for (mailbox, share) in more {
        let sum = shares.entry(*mailbox).or_default();
        sum.total += share.total;
        sum.unread += share.unread;
        sum.threads += share.threads;
        sum.unread_threads += share.unread_threads;
        sum.bytes += share.bytes;
    }
}

impl Share {
    /// The counters of a mailbox.
    pub(crate) fn of_mailbox(mailbox: &Mailbox) -> Self {
        Self {
            total: mailbox.total,
            unread: mailbox.unread,
            threads: mailbox.threads,
            unread_threads: mailbox.unread_threads,
            bytes: mailbox.bytes,
        }
    }

    /// Makes these the counters of a mailbox.
    pub(crate) fn store_in(self, mailbox: &mut Mailbox) {
        mailbox.total = self.total;
        mailbox.unread = self.unread;
        mailbox.threads = self.threads;
        mailbox.unread_threads = self.unread_threads;
        mailbox.bytes = self.bytes;
    }

    /// These counters after a thread's share of them has changed. On a damaged store, a counter that would become negative becomes 0.
    pub(crate) fn changed(self, before: Self, after: Self) -> Self {
        let changed = |counter: u64, before: u64, after: u64| (counter + after).saturating_sub(before);
        Self {
            total: changed(self.total, before.total, after.total),
            unread: changed(self.unread, before.unread, after.unread),
            threads: changed(self.threads, before.threads, after.threads),
            unread_threads: changed(self.unread_threads, before.unread_threads, after.unread_threads),
            bytes: changed(self.bytes, before.bytes, after.bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::email_state::DRAFT;

    const INBOX: RecordId = RecordId(1);
    const TRASH: RecordId = RecordId(2);

    fn email(mailboxes: &[RecordId], is_unseen: bool, keywords: &[u64]) -> EmailState {
        let (mailboxes, keywords) = (mailboxes.to_vec(), keywords.to_vec());
        EmailState { mailboxes, is_unseen, keywords, size: 10, ..EmailState::default() }
    }

    fn unread_threads(emails: &[EmailState]) -> (u64, u64) {
        let shares = of_thread(emails, Some(TRASH));
        let of = |mailbox| shares.get(&mailbox).map_or(0, |share: &Share| share.unread_threads);
        (of(INBOX), of(TRASH))
    }

    #[test]
    fn mb4_unread_threads_ignore_what_is_unread_in_the_trash_only() {
        let read = email(&[INBOX], false, &[]);
        assert_eq!(unread_threads(&[read.clone(), email(&[TRASH], true, &[])]), (0, 1));
        assert_eq!(unread_threads(&[read.clone(), email(&[INBOX, TRASH], true, &[])]), (1, 1));
        assert_eq!(unread_threads(&[read.clone(), email(&[RecordId(3)], true, &[])]), (1, 0));
        let read_in_trash = email(&[TRASH], false, &[]);
        assert_eq!(unread_threads(&[email(&[INBOX], true, &[]), read_in_trash]), (1, 0));
        assert_eq!(unread_threads(&[read.clone(), email(&[INBOX], true, &[DRAFT])]), (0, 0));
        assert_eq!(unread_threads(&[read, email(&[], true, &[])]), (0, 0));
    }

    #[test]
    fn mb4_a_thread_counts_once_in_each_mailbox_and_a_draft_is_not_unread() {
        let emails = [
            email(&[INBOX], true, &[]),
            email(&[INBOX, RecordId(3)], true, &[DRAFT]),
            email(&[INBOX], false, &[]),
        ];
        let shares = of_thread(&emails, Some(TRASH));
        let inbox = Share { total: 3, unread: 1, threads: 1, unread_threads: 1, bytes: 30 };
        assert_eq!(shares.get(&INBOX), Some(&inbox));
        let other = Share { total: 1, unread: 0, threads: 1, unread_threads: 1, bytes: 10 };
        assert_eq!(shares.get(&RecordId(3)), Some(&other));
        assert_eq!(shares.len(), 2);
    }
}
