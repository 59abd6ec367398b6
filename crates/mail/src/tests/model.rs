//! Random edits against a model that counts everything again after each of them.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use restante_records::Query;

use super::*;

/// One email of the model.
#[derive(Clone, Debug)]
struct ModelEmail {
    mailboxes: BTreeSet<RecordId>,
    keywords: BTreeSet<String>,
    keys: BTreeSet<u64>,
    thread: RecordId,
    size: u64,
    delivery: Option<u64>,
}

#[derive(Clone, Debug)]
struct ModelMailbox {
    name: String,
    parent: Option<RecordId>,
}

/// What an account must be.
#[derive(Debug, Default)]
struct Model {
    emails: BTreeMap<RecordId, ModelEmail>,
    mailboxes: BTreeMap<RecordId, ModelMailbox>,
    /// What was destroyed, in this order.
    vault: Vec<ModelEmail>,
    trash: Option<RecordId>,
    inbox: RecordId,
    junk: RecordId,
}

/// A random edit. Numbers choose among what there is.
#[derive(Clone, Debug)]
enum Step {
    Deliver { keys: BTreeSet<u64>, to_junk: bool },
    Repeat(usize),
    Create { mailboxes: Vec<usize>, keywords: BTreeSet<usize>, keys: BTreeSet<u64> },
    Flag { email: usize, add: BTreeSet<usize>, remove: BTreeSet<usize> },
    Move { email: usize, mailboxes: Vec<usize> },
    Destroy(usize),
    MakeMailbox(Option<usize>),
    MoveMailbox(usize, Option<usize>),
    MakeTrash(usize),
    DestroyMailbox { mailbox: usize, remove_emails: bool },
    Restore(usize),
}

const KEYWORDS: [&str; 5] = ["$seen", "$draft", "$flagged", "work", "home"];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let keys = || prop::collection::btree_set(0_u64..6, 0..3);
    let keywords = || prop::collection::btree_set(0..KEYWORDS.len(), 0..3);
    let mailboxes = || prop::collection::vec(0_usize..50, 1..4);
    let step = prop_oneof![
        4 => (keys(), any::<bool>()).prop_map(|(keys, to_junk)| Step::Deliver { keys, to_junk }),
        1 => (0_usize..50).prop_map(Step::Repeat),
        3 => (mailboxes(), keywords(), keys())
            .prop_map(|(mailboxes, keywords, keys)| Step::Create { mailboxes, keywords, keys }),
        5 => (0_usize..50, keywords(), keywords())
            .prop_map(|(email, add, remove)| Step::Flag { email, add, remove }),
        5 => (0_usize..50, mailboxes()).prop_map(|(email, mailboxes)| Step::Move { email, mailboxes }),
        2 => (0_usize..50).prop_map(Step::Destroy),
        2 => prop::option::of(0_usize..50).prop_map(Step::MakeMailbox),
        1 => (0_usize..50, prop::option::of(0_usize..50))
            .prop_map(|(mailbox, parent)| Step::MoveMailbox(mailbox, parent)),
        1 => (0_usize..50).prop_map(Step::MakeTrash),
        1 => (0_usize..50, any::<bool>())
            .prop_map(|(mailbox, remove_emails)| Step::DestroyMailbox { mailbox, remove_emails }),
        1 => (0_usize..50).prop_map(Step::Restore),
    ];
    prop::collection::vec(step, 1..60)
}

fn chosen<'a, T>(number: usize, among: impl IntoIterator<Item = &'a T>) -> Option<&'a T> {
    let among: Vec<&T> = among.into_iter().collect();
    (!among.is_empty()).then(|| among[number % among.len()])
}

fn names(keywords: &BTreeSet<usize>) -> BTreeSet<String> {
    keywords.iter().map(|keyword| KEYWORDS[*keyword].to_owned()).collect()
}

impl Model {
    async fn of(server: &Server) -> Self {
        let mut model = Self::default();
        for mailbox in server.mailboxes().await {
            let role = mailbox.role.unwrap();
            if role == Role::Trash {
                model.trash = Some(mailbox.id);
            }
            if role == Role::Inbox {
                model.inbox = mailbox.id;
            }
            if role == Role::Junk {
                model.junk = mailbox.id;
            }
            model.mailboxes.insert(mailbox.id, ModelMailbox { name: mailbox.name, parent: mailbox.parent });
        }
        model
    }

    fn chosen_mailboxes(&self, numbers: &[usize]) -> BTreeSet<RecordId> {
        numbers.iter().filter_map(|number| chosen(*number, self.mailboxes.keys())).copied().collect()
    }

    /// The thread of the oldest email that shares a key.
    fn thread_of(&self, keys: &BTreeSet<u64>) -> Option<RecordId> {
        let sharing = self.emails.values().find(|email| !email.keys.is_disjoint(keys));
        sharing.map(|email| email.thread)
    }

    fn is_unread(email: &ModelEmail) -> bool {
        !email.keywords.contains("$seen") && !email.keywords.contains("$draft")
    }

    /// The counters of a mailbox, as RFC 8621 §2 defines them.
    fn counters(&self, mailbox: RecordId) -> [u64; 5] {
        let here = || self.emails.values().filter(|email| email.mailboxes.contains(&mailbox));
        let threads: BTreeSet<RecordId> = here().map(|email| email.thread).collect();
        let unread_threads = threads.iter().filter(|thread| {
            let mut emails = self.emails.values().filter(|email| email.thread == **thread);
            emails.any(|email| {
                let is_in_trash = self.trash.is_some_and(|trash| email.mailboxes.contains(&trash));
                let counts = match Some(mailbox) == self.trash {
                    true => is_in_trash,
                    false => !(is_in_trash && email.mailboxes.len() == 1),
                };
                counts && Self::is_unread(email)
            })
        });
        [
            here().count() as u64,
            here().filter(|email| Self::is_unread(email)).count() as u64,
            threads.len() as u64,
            unread_threads.count() as u64,
            here().map(|email| email.size).sum(),
        ]
    }

    fn destroy(&mut self, id: RecordId) {
        self.vault.push(self.emails.remove(&id).unwrap());
    }

    fn is_below(&self, mailbox: RecordId, above: RecordId) -> bool {
        let mut next = Some(mailbox);
        while let Some(id) = next {
            if id == above {
                return true;
            }
            next = self.mailboxes[&id].parent;
        }
        false
    }
}

/// Does a step on both sides.
async fn take(server: &Server, model: &mut Model, number: u64, step: Step) {
    match step {
        Step::Deliver { keys, to_junk } => {
            let ids: Vec<u64> = keys.iter().copied().collect();
            let message = message(number, &ids);
            let size = message.size;
            let delivery = Delivery { to_junk, ..delivery(message) };
            let delivered = server.mail.deliver(ACCOUNT, delivery).await.unwrap();
            let Delivered::New(id) = delivered else { panic!("{number} is new") };
            let thread = server.state(id).await.thread;
            assert_eq!(model.thread_of(&keys).unwrap_or(thread), thread);
            let mailbox =
                if to_junk && model.mailboxes.contains_key(&model.junk) { model.junk } else { model.inbox };
            let keywords = to_junk.then(|| "$junk".to_owned()).into_iter().collect();
            let mailboxes = [mailbox].into();
            model
                .emails
                .insert(id, ModelEmail { mailboxes, keywords, keys, thread, size, delivery: Some(number) });
        }
        Step::Repeat(chosen_email) => {
            let known = model.emails.values().chain(&model.vault).filter_map(|email| email.delivery.as_ref());
            let Some(delivered) = chosen(chosen_email, known) else { return };
            let again = server.mail.deliver(ACCOUNT, delivery(message(*delivered, &[]))).await.unwrap();
            assert_eq!(again, Delivered::Repeated);
        }
        Step::Create { mailboxes, keywords, keys } => {
            let ids: Vec<u64> = keys.iter().copied().collect();
            let message = message(number, &ids);
            let (size, mailboxes, keywords) =
                (message.size, model.chosen_mailboxes(&mailboxes), names(&keywords));
            let ids: Vec<RecordId> = mailboxes.iter().copied().collect();
            let new =
                NewEmail { keywords: keywords.iter().cloned().collect(), ..new_email(&ids, &[], message) };
            let created = server.mail.create_email(ACCOUNT, new).await.unwrap();
            let thread = created.thread;
            assert_eq!(model.thread_of(&keys).unwrap_or(thread), thread);
            let email = ModelEmail { mailboxes, keywords, keys, thread, size, delivery: None };
            model.emails.insert(created.id, email);
        }
        Step::Flag { email, add, remove } => {
            let Some(id) = chosen(email, model.emails.keys()).copied() else { return };
            let (add, remove) = (names(&add), names(&remove));
            let keywords = &mut model.emails.get_mut(&id).unwrap().keywords;
            keywords.retain(|keyword| !remove.contains(keyword));
            keywords.extend(add.iter().cloned());
            server.update(id, keyword_update(Patch::Parts { add, remove })).await;
        }
        Step::Move { email, mailboxes } => {
            let Some(id) = chosen(email, model.emails.keys()).copied() else { return };
            let mailboxes = model.chosen_mailboxes(&mailboxes);
            let ids: Vec<RecordId> = mailboxes.iter().copied().collect();
            server.update(id, move_to(&ids)).await;
            model.emails.get_mut(&id).unwrap().mailboxes = mailboxes;
        }
        Step::Destroy(email) => {
            let Some(id) = chosen(email, model.emails.keys()).copied() else { return };
            server.mail.destroy_email(ACCOUNT, id, None).await.unwrap();
            model.destroy(id);
        }
        Step::Restore(entry) => restore(server, model, entry).await,
        other => take_mailboxes(server, model, number, other).await,
    }
}

async fn restore(server: &Server, model: &mut Model, number: usize) {
    let entries = server.mail.vault(ACCOUNT, None, 100).await.unwrap().entries;
    let mut ids: Vec<RecordId> = entries.iter().map(|entry| entry.id).collect();
    ids.sort_unstable(); // all were destroyed in one second
    assert_eq!(ids.len(), model.vault.len().min(100));
    if ids.is_empty() || model.vault.len() > 100 {
        return;
    }
    let number = number % ids.len();
    let mut email = model.vault.remove(number);
    let restored = server.mail.restore(ACCOUNT, ids[number], None).await.unwrap();
    email.mailboxes.retain(|mailbox| model.mailboxes.contains_key(mailbox));
    if email.mailboxes.is_empty() {
        // One that a step moved below another mailbox is not the place for it.
        let is_place = |mailbox: &Mailbox| mailbox.parent.is_none() && mailbox.name == "Restored";
        let made = server.mailboxes().await.into_iter().find(is_place).unwrap().id;
        model.mailboxes.insert(made, ModelMailbox { name: "Restored".into(), parent: None });
        email.mailboxes.insert(made);
    }
    assert_eq!(model.thread_of(&email.keys).unwrap_or(restored.thread), restored.thread);
    email.thread = restored.thread;
    model.emails.insert(restored.id, email);
}

async fn take_mailboxes(server: &Server, model: &mut Model, number: u64, step: Step) {
    match step {
        Step::MakeMailbox(parent) => {
            let parent = parent.and_then(|parent| chosen(parent, model.mailboxes.keys())).copied();
            let name = format!("m{number}");
            let at = parent.map_or(Parent::Top, Parent::Mailbox);
            let set = MailboxSet { create: vec![new_mailbox(&name, at)], ..MailboxSet::default() };
            if let Ok(made) = &server.set(set).await.created[0] {
                model.mailboxes.insert(made.id, ModelMailbox { name, parent });
            }
        }
        Step::MoveMailbox(mailbox, parent) => {
            let id = *chosen(mailbox, model.mailboxes.keys()).unwrap();
            let parent = parent.and_then(|parent| chosen(parent, model.mailboxes.keys())).copied();
            let at = parent.map_or(Parent::Top, Parent::Mailbox);
            let update = MailboxUpdate { parent: Some(at), ..MailboxUpdate::default() };
            let is_loop = parent.is_some_and(|parent| model.is_below(parent, id));
            let is_inbox = id == model.inbox && parent.is_some();
            let set = MailboxSet { update: vec![(id, update)], ..MailboxSet::default() };
            let is_moved = server.set(set).await.updated[0].is_ok();
            assert!(!(is_moved && (is_loop || is_inbox)));
            if is_moved {
                model.mailboxes.get_mut(&id).unwrap().parent = parent;
            }
        }
        Step::MakeTrash(mailbox) => {
            let id = *chosen(mailbox, model.mailboxes.keys()).unwrap();
            let role = |role: Option<&str>| MailboxUpdate {
                role: Some(role.map(str::to_owned)),
                ..MailboxUpdate::default()
            };
            let mut update: Vec<(RecordId, MailboxUpdate)> = vec![(id, role(Some("trash")))];
            update.extend(model.trash.filter(|trash| *trash != id).map(|trash| (trash, role(None))));
            let outcome = server.set(MailboxSet { update, ..MailboxSet::default() }).await;
            let is_inbox = id == model.inbox;
            assert_eq!(outcome.updated[0].is_ok(), !is_inbox);
            model.trash = if is_inbox { None } else { Some(id) };
            if id == model.junk {
                model.junk = RecordId(0);
            }
        }
        Step::DestroyMailbox { mailbox, remove_emails } => {
            let id = *chosen(mailbox, model.mailboxes.keys()).unwrap();
            let has_child = model.mailboxes.values().any(|mailbox| mailbox.parent == Some(id));
            let emails: Vec<RecordId> = model
                .emails
                .iter()
                .filter(|(_, email)| email.mailboxes.contains(&id))
                .map(|(id, _)| *id)
                .collect();
            let set = MailboxSet { destroy: vec![id], remove_emails, ..MailboxSet::default() };
            let outcome = server.set(set).await.destroyed.remove(0);
            let is_possible = id != model.inbox && !has_child && (remove_emails || emails.is_empty());
            assert_eq!(outcome.is_ok(), is_possible, "{outcome:?}");
            if !is_possible {
                return;
            }
            for email in emails {
                if model.emails[&email].mailboxes.len() == 1 {
                    model.destroy(email);
                } else {
                    model.emails.get_mut(&email).unwrap().mailboxes.remove(&id);
                }
            }
            model.mailboxes.remove(&id);
            model.trash = model.trash.filter(|trash| *trash != id);
        }
        other => panic!("{other:?} is no step of mailboxes"),
    }
}

async fn compare(server: &Server, model: &Model) {
    let mailboxes = server.mailboxes().await;
    assert_eq!(mailboxes.len(), model.mailboxes.len());
    for mailbox in mailboxes {
        let known = &model.mailboxes[&mailbox.id];
        assert_eq!((&mailbox.name, mailbox.parent), (&known.name, known.parent));
        let Mailbox { total, unread, threads, unread_threads, bytes, .. } = mailbox;
        let counters = [total, unread, threads, unread_threads, bytes];
        assert_eq!(counters, model.counters(mailbox.id), "{}", mailbox.name);
        // Rule MB5: a query of the mailbox has as many emails as it says.
        let query = Query::new(email::KIND, email::BY_MAILBOX).equals(mailbox.id);
        assert_eq!(server.opened.records.count(ACCOUNT, &query).await.unwrap().entries, total);
    }
    let usage = server.mail.usage(ACCOUNT).await.unwrap();
    let bytes = model.emails.values().map(|email| email.size).sum();
    assert_eq!((usage.bytes, usage.emails), (bytes, model.emails.len() as u64));
}

/// Takes the steps one after the other; both sides are equal after each of them.
async fn take_all(steps: Vec<Step>) {
    let server = Server::new().await;
    let mut model = Model::of(&server).await;
    for (number, step) in (1..).zip(steps) {
        take(&server, &mut model, number, step).await;
        compare(&server, &model).await;
    }
    for (id, email) in &model.emails {
        let state = server.state(*id).await;
        assert!(state.mailboxes.iter().eq(&email.mailboxes));
        let keywords: BTreeSet<String> = server.keywords(*id).await.into_iter().collect();
        assert_eq!(keywords, email.keywords);
        assert_eq!(state.thread, email.thread);
    }
    server.assert_sound().await;
}

proptest! {
    /// `PROPTEST_CASES=35000` makes a million edits.
    #[test]
    fn mb5_random_edits_leave_what_a_recount_of_a_model_gives(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(take_all(steps));
    }
}

/// Random edits rarely come to this.
#[tokio::test]
async fn a_second_mailbox_of_restored_emails_is_made_when_the_first_was_moved() {
    let [inbox, archive, restored] = [0, 3, 5];
    let create =
        || Step::Create { mailboxes: vec![archive], keywords: BTreeSet::new(), keys: BTreeSet::new() };
    let destroy = Step::DestroyMailbox { mailbox: archive, remove_emails: true };
    let moved = Step::MoveMailbox(restored, Some(inbox));
    take_all(vec![create(), create(), destroy, Step::Restore(0), moved, Step::Restore(0)]).await;
}

/// One of several writers: edits of emails that others edit, too, and mailboxes that come and go. Returns the deliveries that
/// were stored and the emails that it destroyed.
async fn write(mail: Mail, writer: usize, emails: Vec<RecordId>, mailboxes: Vec<RecordId>) -> (usize, usize) {
    let (mut delivered, mut destroyed) = (0, 0);
    for round in 0..150_usize {
        let email = emails[(round * 7 + writer) % emails.len()];
        let mailbox = mailboxes[(round + 3 * writer) % mailboxes.len()];
        let keyword = KEYWORDS[(round + writer) % KEYWORDS.len()];
        let number = 1_000 * (writer as u64 + 1) + round as u64;
        let message = message(number, &[number % 5]);
        let edited = match round % 6 {
            0 => mail.deliver(ACCOUNT, delivery(message)).await.map(|_| delivered += 1),
            1 => mail.update_email(ACCOUNT, email, add_keywords(&[keyword])).await.map(drop),
            2 => mail.update_email(ACCOUNT, email, move_to(&[mailbox])).await.map(drop),
            3 => mail.update_email(ACCOUNT, email, remove_keywords(&[keyword])).await.map(drop),
            4 if round % 5 == 0 => mail.destroy_email(ACCOUNT, email, None).await.map(|_| destroyed += 1),
            4 => Ok(()),
            _ => make_and_destroy_mailbox(&mail, number, email, message).await,
        };
        // The other writer may have destroyed the email.
        assert!(matches!(edited, Ok(()) | Err(MailError::NotFound)), "{edited:?}");
    }
    (delivered, destroyed)
}

/// Makes a mailbox, puts an old and a new email into it, and destroys it with the new one.
async fn make_and_destroy_mailbox(
    mail: &Mail,
    number: u64,
    old: RecordId,
    message: StoredMessage,
) -> Result<(), MailError> {
    let create = vec![new_mailbox(&format!("m{number}"), Parent::Top)];
    let set = MailboxSet { create, ..MailboxSet::default() };
    let made = mail.set_mailboxes(ACCOUNT, set).await?.created.remove(0)?.id;
    mail.create_email(ACCOUNT, new_email(&[made], &["$draft"], message)).await?;
    let moved = mail.update_email(ACCOUNT, old, add_to(made)).await;
    assert!(matches!(moved, Ok(_) | Err(MailError::NotFound)), "{moved:?}");
    let set = MailboxSet { destroy: vec![made], remove_emails: true, ..MailboxSet::default() };
    mail.set_mailboxes(ACCOUNT, set).await?.destroyed.remove(0)
}

/// Two servers with two callers each change the same emails and mailboxes of one store at once: each edit is made once, on what
/// the others made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mb5_two_writers_on_one_store_end_with_counters_that_a_recount_gives() {
    let server = Server::new().await;
    let mailboxes: Vec<RecordId> = server.mailboxes().await.iter().map(|mailbox| mailbox.id).collect();
    let mut emails = Vec::new();
    for number in 0..20 {
        emails.push(server.deliver(message(number, &[number % 5])).await);
    }
    let second = server.second().await;
    let writers = [server.mail.clone(), second.clone(), server.mail.clone(), second];
    let tasks = writers
        .into_iter()
        .enumerate()
        .map(|(writer, mail)| tokio::spawn(write(mail, writer, emails.clone(), mailboxes.clone())));
    let mut expected = 20;
    for task in tasks.collect::<Vec<_>>() {
        let (delivered, destroyed) = task.await.unwrap();
        expected = expected + delivered - destroyed;
    }
    assert_eq!(server.mail.usage(ACCOUNT).await.unwrap().emails, expected as u64);
    assert_eq!(server.mailboxes().await.len(), mailboxes.len());
    server.assert_sound().await;
}
