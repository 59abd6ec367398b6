//! Recounts what is derived from emails: the counters of mailboxes and of the account.

use std::collections::BTreeSet;

use restante_core::Error;
use restante_records::{Cursor, RecordId};

use crate::{
    EmailState, Finding, Role,
    counts::{self, Share, Shares},
    place::{mailbox_of_place, uid_of_place},
    read::Reader,
    view::View,
};

/// The most mailboxes that one commit corrects.
const REPAIRS_MAX: usize = 1_024;
/// The most findings that are returned.
const FINDINGS_MAX: usize = 1_000;

/// What is counted over all emails.
#[derive(Default)]
struct Recount {
    shares: Shares,
    bytes: u64,
    emails: u64,
    /// The highest UID that each mailbox has given.
    uids: std::collections::BTreeMap<RecordId, u64>,
    findings: Vec<Finding>,
}

/// Compares the counters of an account with its emails. With `is_repair`, wrong ones are corrected in the view. Returns the
/// findings, and whether there are more to correct.
pub(crate) async fn recount(
    reader: &Reader<'_>,
    view: &mut View,
    is_repair: bool,
) -> Result<(Vec<Finding>, bool), Error> {
    let mut recount = Recount::default();
    let mut thread: Option<(RecordId, Vec<EmailState>)> = None;
    let mut after: Option<Cursor> = None;
    loop {
        // In the order of threads, so that only the emails of one thread and of one page are in memory.
        let (emails, next) = reader.emails_by_thread(after).await?;
        let mut threads = BTreeSet::new();
        for (id, email) in emails {
            recount.email(id, &email, view);
            threads.insert(email.thread);
            match &mut thread {
                Some((current, emails)) if *current == email.thread => emails.push(email),
                _ => {
                    let finished = thread.replace((email.thread, vec![email]));
                    recount.thread(finished, view);
                }
            }
        }
        for missing in reader.missing_threads(threads.into_iter().collect()).await? {
            recount.note(format!("thread {}", missing.0), "has emails and no record".into(), false);
        }
        after = next;
        if after.is_none() {
            break;
        }
    }
    recount.thread(thread, view);
    recount.vault(reader.vault_bytes().await?, view, is_repair);
    let has_more = recount.compare(view, is_repair);
    Ok((recount.findings, has_more))
}

impl Recount {
    fn note(&mut self, place: String, what: String, is_derived: bool) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding { place, what, is_derived });
        }
    }

    /// Counts an email, and checks that its properties agree with each other.
    fn email(&mut self, id: RecordId, email: &EmailState, view: &View) {
        self.emails += 1;
        self.bytes += email.size;
        let mut undeleted = BTreeSet::new();
        for place in &email.places {
            let (mailbox, uid) = (mailbox_of_place(*place), uid_of_place(*place));
            let highest = self.uids.entry(mailbox).or_default();
            *highest = uid.max(*highest);
            if !email.deleted.contains(place) {
                undeleted.insert(mailbox);
            }
        }
        let name = || format!("email {}", id.0);
        if !undeleted.iter().eq(&email.mailboxes) {
            self.note(name(), "its mailboxes are not those of its places".into(), false);
        }
        if email.deleted.iter().any(|place| !email.places.contains(place)) {
            self.note(name(), "it has deleted places that it does not have".into(), false);
        }
        if email.places.is_empty() {
            self.note(name(), "it is in no mailbox".into(), false);
        }
        for mailbox in email.mailboxes.iter().filter(|mailbox| !view.mailboxes().contains_key(mailbox)) {
            self.note(name(), format!("it is in mailbox {}, which does not exist", mailbox.0), false);
        }
    }

    fn thread(&mut self, thread: Option<(RecordId, Vec<EmailState>)>, view: &View) {
        if let Some((_, emails)) = thread {
            counts::add(&mut self.shares, &counts::of_thread(&emails, view.mailbox_of(Role::Trash)));
        }
    }

    /// Compares the bytes of the vault, if they were ever counted.
    fn vault(&mut self, bytes: u64, view: &mut View, is_repair: bool) {
        let Some(stored) = view.account.vault_bytes.filter(|stored| *stored != bytes) else { return };
        self.note("the vault".into(), format!("has {stored} bytes, counted {bytes}"), true);
        if is_repair {
            view.change_account().vault_bytes = Some(bytes);
        }
    }

    /// Adds findings for wrong counters, and corrects them if `is_repair`; returns whether some are left.
    fn compare(&mut self, view: &mut View, is_repair: bool) -> bool {
        let (bytes, emails) = (self.bytes, self.emails);
        let stored = (view.account.bytes, view.account.count);
        if stored != (bytes, emails) {
            let what = format!("has {} bytes in {} emails, counted {bytes} in {emails}", stored.0, stored.1);
            self.note("the account".into(), what, true);
            if is_repair {
                let account = view.change_account();
                (account.bytes, account.count) = (bytes, emails);
            }
        }
        let mut wrong = Vec::new();
        for (id, mailbox) in view.mailboxes() {
            let (stored, counted) =
                (Share::of_mailbox(mailbox), self.shares.get(id).copied().unwrap_or_default());
            let uid_next = self.uids.get(id).map_or(1, |uid| uid + 1);
            if stored != counted {
                wrong.push((*id, format!("has {stored}, but {counted} were counted"), counted, uid_next));
            } else if mailbox.uid_next < uid_next {
                let what = format!("gives UID {} next, and {} is in use", mailbox.uid_next, uid_next - 1);
                wrong.push((*id, what, counted, uid_next));
            }
        }
        let has_more = wrong.len() > REPAIRS_MAX;
        for (id, what, counted, uid_next) in wrong.into_iter().take(REPAIRS_MAX) {
            self.note(format!("mailbox {}", id.0), what, true);
            if is_repair && let Some(mailbox) = view.change_counters(id) {
                counted.store_in(mailbox);
                mailbox.uid_next = mailbox.uid_next.max(uid_next);
            }
        }
        has_more
    }
}
