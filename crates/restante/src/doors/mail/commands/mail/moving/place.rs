//! Maps the folders of a source to mailboxes.

use std::collections::{BTreeSet, HashMap};

use restante_core::Error;
use restante_mail::{Mail, MailConfig, MailError, Mailbox, MailboxSet, NewMailbox, Parent, Role};
use restante_mail_files::Folder;
use restante_records::{AccountId, RecordId};

use super::mover::store_error;

/// The mailboxes of some folders, and how many of them were created.
///
/// A folder maps to the mailbox with its role, if the source has one; else to the mailbox with its path; else to the one with the role
/// that its name suggests. Otherwise a mailbox is created, with those above it.
pub(super) async fn mailboxes(
    mail: &Mail,
    account: AccountId,
    folders: BTreeSet<Folder>,
) -> Result<(HashMap<Folder, RecordId>, u64), Error> {
    let mut ids = HashMap::with_capacity(folders.len());
    if folders.is_empty() {
        return Ok((ids, 0));
    }
    let failed = |error| store_error(error, "can't read the mailboxes");
    mail.prepare(account).await.map_err(failed)?;
    let (list, _) = mail.mailboxes(account).await.map_err(failed)?;
    let mut known = Known::of(&list);
    let mut made = 0;
    for folder in folders {
        let path = possible_path(&known.below_inbox(&folder.path), mail.config());
        let id = match known.find(&folder, &path) {
            Some(id) => id,
            None => make(mail, account, &mut known, &folder, &path, &mut made).await?,
        };
        ids.insert(folder, id);
    }
    Ok((ids, made))
}

/// The mailboxes of an account, for the lookup of folders.
struct Known {
    by_path: HashMap<Vec<String>, RecordId>,
    by_role: HashMap<&'static str, RecordId>,
    /// The path of the inbox.
    inbox: Option<Vec<String>>,
}

impl Known {
    fn of(list: &[Mailbox]) -> Self {
        let inbox = list.iter().find(|mailbox| mailbox.role == Some(Role::Inbox));
        let by_path = list.iter().map(|mailbox| (path(list, mailbox), mailbox.id)).collect();
        let by_role = list.iter().filter_map(|mailbox| Some((mailbox.role?.as_str(), mailbox.id))).collect();
        Self { by_path, by_role, inbox: inbox.map(|inbox| path(list, inbox)) }
    }

    /// A path in which `INBOX` is the inbox, whatever its name: no other mailbox can have that name (RFC 9051 §5.1).
    fn below_inbox(&self, path: &[String]) -> Vec<String> {
        let mut names = path.to_vec();
        let is_below = names.first().is_some_and(|name| name.eq_ignore_ascii_case("INBOX"));
        if let Some(inbox) = self.inbox.as_ref().filter(|_| is_below) {
            names.splice(..1, inbox.iter().cloned());
        }
        names
    }

    fn find(&self, folder: &Folder, path: &[String]) -> Option<RecordId> {
        let of_role = folder.role.as_deref().and_then(|role| self.by_role.get(role)).copied();
        let of_path = || self.by_path.get(path).copied();
        if folder.is_guess { of_path().or(of_role) } else { of_role.or_else(of_path) }
    }
}

/// The names from the top level to a mailbox.
pub(super) fn path(list: &[Mailbox], mailbox: &Mailbox) -> Vec<String> {
    let mut names = vec![mailbox.name.clone()];
    let mut parent = mailbox.parent;
    // The list is ordered by id; no path is longer than it.
    while let Some(above) = parent
        && let Ok(at) = list.binary_search_by_key(&above, |mailbox| mailbox.id)
        && let Some(mailbox) = list.get(at)
        && names.len() <= list.len()
    {
        names.push(mailbox.name.clone());
        parent = mailbox.parent;
    }
    names.reverse();
    names
}

/// A valid path of mailboxes: names without control characters and slashes, limited in length and number.
fn possible_path(path: &[String], config: &MailConfig) -> Vec<String> {
    let depth = config.mailbox_depth_max.get();
    let mut names = path.to_vec();
    if names.len() > depth {
        let last = names.split_off(depth - 1).join("-");
        names.push(last);
    }
    names.iter().map(|name| possible_name(name, config.mailbox_name_bytes_max.get())).collect()
}

fn possible_name(name: &str, bytes_max: usize) -> String {
    let possible = |c: char| match c {
        '/' => '-',
        c if c.is_control() => ' ',
        c => c,
    };
    let mut possible: String = name.chars().map(possible).collect();
    while possible.len() > bytes_max {
        possible.pop();
    }
    let trimmed = possible.trim();
    if trimmed.is_empty() { "_".to_owned() } else { trimmed.to_owned() }
}

/// Creates the mailbox of a folder, and missing ones above it.
async fn make(
    mail: &Mail,
    account: AccountId,
    known: &mut Known,
    folder: &Folder,
    path: &[String],
    made: &mut u64,
) -> Result<RecordId, Error> {
    let mut parent = Parent::Top;
    let mut last = None;
    for depth in 1..=path.len() {
        let Some((names, name)) = path.get(..depth).and_then(|names| Some((names, names.last()?))) else {
            break;
        };
        let id = match known.by_path.get(names) {
            Some(id) => *id,
            None => {
                // A role from the source that no mailbox has.
                let role = folder.role.clone().filter(|_| depth == path.len() && !folder.is_guess);
                let role = role.filter(|role| Role::of(role.as_bytes()).is_some());
                let mailbox =
                    NewMailbox { name: name.clone(), parent, role, sort_order: 0, is_subscribed: true };
                let set = MailboxSet { create: vec![mailbox], ..MailboxSet::default() };
                let failed =
                    |error| store_error(error, &format!("can't make the mailbox '{}'", names.join("/")));
                let outcome = mail.set_mailboxes(account, set).await.map_err(failed)?;
                let id = match outcome.created.into_iter().next() {
                    Some(Ok(created)) => {
                        *made += 1;
                        created.id
                    }
                    // Its name in normalization form C exists, or another process has just created it.
                    Some(Err(MailError::AlreadyExists { existing })) => existing,
                    Some(Err(error)) => return Err(failed(error)),
                    None => return Err(Error::internal("a set of mailboxes has no outcome")),
                };
                known.by_path.insert(names.to_vec(), id);
                id
            }
        };
        parent = Parent::Mailbox(id);
        last = Some(id);
    }
    last.ok_or_else(|| Error::invalid("a folder of the source has no name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_mailbox_can_have_are_changed() {
        let config = MailConfig::default();
        let path = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            possible_path(&names, &config)
        };
        assert_eq!(path(&["a\tb", " ", "c/d"]), ["a b", "_", "c-d"]);
        assert_eq!(path(&["x"; 12])[9], "x-x-x");
        assert_eq!(path(&[&"ä".repeat(300)])[0].len(), 490);
    }

    #[test]
    fn a_role_that_was_said_counts_more_than_a_name_and_a_name_more_than_a_guess() {
        let mailbox = |id, name: &str, role, parent| Mailbox {
            id: RecordId(id),
            name: name.to_owned(),
            role,
            parent,
            ..Mailbox::default()
        };
        let list = [
            mailbox(1, "Eingang", Some(Role::Inbox), None),
            mailbox(2, "Sent", Some(Role::Sent), None),
            mailbox(3, "Sent Items", None, None),
            mailbox(4, "Old", None, Some(RecordId(3))),
        ];
        let known = Known::of(&list);
        let named = |names: &[&str]| Folder::named(names.iter().map(|name| (*name).to_owned()).collect());
        let find = |folder: &Folder| known.find(folder, &folder.path).map(|id| id.0);
        assert_eq!(find(&named(&["INBOX"])), Some(1));
        assert_eq!(find(&named(&["Sent Items"])), Some(3));
        assert_eq!(find(&named(&["Sent Messages"])), Some(2));
        assert_eq!(find(&Folder::of_role("Sent Items", "sent")), Some(2));
        assert_eq!(find(&named(&["Sent Items", "Old"])), Some(4));
        assert_eq!(find(&named(&["Old"])), None);
        let below = |names: &[&str]| known.below_inbox(&named(names).path);
        assert_eq!(below(&["INBOX", "Old"]), ["Eingang", "Old"]);
        assert_eq!(below(&["Inbox"]), ["Eingang"]);
        assert_eq!(below(&["Old", "INBOX"]), ["Old", "INBOX"]);
    }
}
