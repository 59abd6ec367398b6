//! The properties of a mailbox as clients see them (RFC 8621 §2).

use restante_directory::Access;
use restante_mail::{Mailbox, Role};

use crate::core::{IdType, Members};

/// A property of a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MailboxProperty {
    Id,
    Name,
    ParentId,
    Role,
    SortOrder,
    TotalEmails,
    UnreadEmails,
    TotalThreads,
    UnreadThreads,
    MyRights,
    IsSubscribed,
}

/// The properties that change whenever mail arrives or is read: named by Mailbox/changes when nothing else has changed (S7).
pub(super) const COUNTS: [&str; 4] = ["totalEmails", "unreadEmails", "totalThreads", "unreadThreads"];

impl MailboxProperty {
    pub(super) const ALL: [Self; 11] = [
        Self::Id,
        Self::Name,
        Self::ParentId,
        Self::Role,
        Self::SortOrder,
        Self::TotalEmails,
        Self::UnreadEmails,
        Self::TotalThreads,
        Self::UnreadThreads,
        Self::MyRights,
        Self::IsSubscribed,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::Name => "name",
            Self::ParentId => "parentId",
            Self::Role => "role",
            Self::SortOrder => "sortOrder",
            Self::TotalEmails => "totalEmails",
            Self::UnreadEmails => "unreadEmails",
            Self::TotalThreads => "totalThreads",
            Self::UnreadThreads => "unreadThreads",
            Self::MyRights => "myRights",
            Self::IsSubscribed => "isSubscribed",
        }
    }
}

/// Writes mailboxes for a user.
#[derive(Debug)]
pub(super) struct Writer {
    rights_of_inbox: String,
    rights_of_others: String,
}

impl Writer {
    pub(super) fn new(access: Access) -> Self {
        let is_writable = access == Access::Write;
        Self { rights_of_inbox: rights(is_writable, true), rights_of_others: rights(is_writable, false) }
    }

    /// Writes a property with its value.
    pub(super) fn write(&self, property: MailboxProperty, mailbox: &Mailbox, out: &mut impl Members) {
        let name = property.name();
        match property {
            MailboxProperty::Id => IdType::Mailbox.write(mailbox.id, out.member(name)),
            MailboxProperty::Name => out.field(name, &mailbox.name),
            MailboxProperty::ParentId => match mailbox.parent {
                Some(parent) => IdType::Mailbox.write(parent, out.member(name)),
                None => out.raw(name, "null"),
            },
            MailboxProperty::Role => out.field(name, &mailbox.role.map(Role::as_str)),
            MailboxProperty::SortOrder => out.field(name, &mailbox.sort_order),
            MailboxProperty::TotalEmails => out.field(name, &mailbox.total),
            MailboxProperty::UnreadEmails => out.field(name, &mailbox.unread),
            MailboxProperty::TotalThreads => out.field(name, &mailbox.threads),
            MailboxProperty::UnreadThreads => out.field(name, &mailbox.unread_threads),
            MailboxProperty::MyRights => out.raw(name, self.rights(mailbox)),
            MailboxProperty::IsSubscribed => out.field(name, &mailbox.is_subscribed),
        }
    }

    fn rights(&self, mailbox: &Mailbox) -> &str {
        match mailbox.role {
            Some(Role::Inbox) => &self.rights_of_inbox,
            _ => &self.rights_of_others,
        }
    }
}

/// MB1: all nine flags. A user with write access may do everything, but not rename or delete the inbox, to which mail is delivered.
fn rights(is_writable: bool, is_inbox: bool) -> String {
    let may_move = is_writable && !is_inbox;
    let rights = serde_json::json!({
        "mayReadItems": true,
        "mayAddItems": is_writable,
        "mayRemoveItems": is_writable,
        "maySetSeen": is_writable,
        "maySetKeywords": is_writable,
        "mayCreateChild": is_writable,
        "mayRename": may_move,
        "mayDelete": may_move,
        "maySubmit": is_writable,
    });
    rights.to_string()
}
