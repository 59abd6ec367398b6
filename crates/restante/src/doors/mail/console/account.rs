//! The data of the page of an account. It contains nothing of the content of emails.

use std::collections::HashMap;

use restante_core::Error;
use restante_directory::{AccountInfo, AccountSummary};
use restante_jmap::Connections;
use restante_mail::{Mail, Mailbox, VaultUsage};
use restante_records::{AccountId, RecordId};
use serde_json::{Value, json};

/// The most emails of a vault that are counted for the page of its account.
const VAULT_EMAILS_MAX: u64 = 10_000;
/// The most mailboxes that are shown. An account may have ten thousand.
const MAILBOXES_MAX: usize = 1_000;
/// The most levels of mailboxes that are read, more than can exist: damaged records may have a cycle.
const DEPTH_MAX: usize = 64;

/// An account with its mail.
pub(super) async fn show(
    mail: &Mail,
    info: &AccountInfo,
    connections: Connections,
) -> Result<Value, restante_mail::MailError> {
    let account = AccountId(info.summary.account);
    let usage = mail.usage(account).await?;
    let (mailboxes, _) = mail.mailboxes(account).await?;
    let vault = mail.vault_usage(account, VAULT_EMAILS_MAX).await?;
    Ok(json!({
        "account": info,
        "usage": {"bytes": usage.bytes, "emails": usage.emails},
        "mailboxes": show_mailboxes(&mailboxes),
        "mailboxesInAll": mailboxes.len(),
        "vault": show_vault(&vault),
        "vaultSeconds": mail.config().vault_seconds,
        "connections": {"eventStreams": connections.event_streams, "webSockets": connections.web_sockets},
    }))
}

/// An account of a list.
pub(super) async fn show_line(mail: &Mail, account: &AccountSummary) -> Result<Value, Error> {
    let usage = mail.usage(AccountId(account.account)).await.map_err(|error| match error {
        restante_mail::MailError::Store(error) => error,
        error => Error::internal(error.to_string()),
    })?;
    Ok(json!({"account": account, "usage": {"bytes": usage.bytes, "emails": usage.emails}}))
}

fn show_mailboxes(mailboxes: &[Mailbox]) -> Vec<Value> {
    let by_id: HashMap<RecordId, &Mailbox> = mailboxes.iter().map(|mailbox| (mailbox.id, mailbox)).collect();
    let mut shown: Vec<(u32, String, &Mailbox)> =
        mailboxes.iter().map(|mailbox| (mailbox.sort_order, path(mailbox, &by_id), mailbox)).collect();
    shown.sort_by(|(one_order, one, _), (other_order, other, _)| (one_order, one).cmp(&(other_order, other)));
    let show = |(_, path, mailbox): (u32, String, &Mailbox)| {
        json!({
            "id": mailbox.id.0,
            "path": path,
            "role": mailbox.role.map(|role| role.as_str()),
            "emails": mailbox.total,
            "unread": mailbox.unread,
            "threads": mailbox.threads,
            "bytes": mailbox.bytes,
        })
    };
    shown.into_iter().take(MAILBOXES_MAX).map(show).collect()
}

/// The names of a mailbox and of those above it, as in `Archive/2024`.
fn path(mailbox: &Mailbox, by_id: &HashMap<RecordId, &Mailbox>) -> String {
    let mut names = vec![mailbox.name.as_str()];
    let mut parent = mailbox.parent;
    while let Some(above) = parent.and_then(|id| by_id.get(&id))
        && names.len() < DEPTH_MAX
    {
        names.push(&above.name);
        parent = above.parent;
    }
    names.reverse();
    names.join("/")
}

fn show_vault(vault: &VaultUsage) -> Value {
    json!({
        "emails": vault.emails,
        "bytes": vault.bytes,
        "oldest": vault.oldest,
        "newest": vault.newest,
        "isWhole": vault.is_whole,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mailbox(id: u64, name: &str, parent: Option<u64>, sort_order: u32) -> Mailbox {
        let (id, parent) = (RecordId(id), parent.map(RecordId));
        Mailbox { id, name: name.to_owned(), parent, sort_order, ..Mailbox::default() }
    }

    fn paths(mailboxes: &[Mailbox]) -> Vec<String> {
        let shown = show_mailboxes(mailboxes);
        shown.iter().map(|mailbox| mailbox["path"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn mailboxes_have_their_paths_and_stand_in_their_order() {
        let mailboxes = [
            mailbox(1, "2024", Some(2), 0),
            mailbox(2, "Archive", None, 0),
            mailbox(3, "Inbox", None, 0),
            mailbox(4, "last", None, 7),
            mailbox(5, "lost", Some(99), 0),
        ];
        assert_eq!(paths(&mailboxes), ["Archive", "Archive/2024", "Inbox", "lost", "last"]);
    }

    #[test]
    fn a_loop_of_damaged_mailboxes_ends() {
        let mailboxes = [mailbox(1, "a", Some(2), 0), mailbox(2, "b", Some(1), 0)];
        assert_eq!(paths(&mailboxes)[0].split('/').count(), DEPTH_MAX);
    }
}
