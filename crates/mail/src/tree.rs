//! The tree of mailboxes: what a set of changes makes of it (rules MB1 to MB3, MB7, T3).
//!
//! All entries are applied, then the rules of the tree are checked and the entries that break them are refused, until no rule is
//! broken. So two mailboxes can swap their names, and a parent can be destroyed together with its children.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use restante_records::RecordId;
use unicode_normalization::{UnicodeNormalization, is_nfc};

use crate::{
    MailConfig, MailError, Mailbox, MailboxSet, MailboxUpdate, Parent, Role,
    mailboxes::{FIRST_NEW_ID, NEXT},
};

/// After so many passes, all entries of a set that are left are refused: only a set that is built for it needs more.
const PASSES_MAX: usize = 32;
/// One more than the largest sortOrder (RFC 8621 §2).
const SORT_ORDER_END: u32 = 1 << 31;
/// The name at the top that belongs to the inbox, in any case (RFC 9051 §5.1).
const INBOX: &str = "inbox";

/// A set that was planned.
#[derive(Debug)]
pub(crate) struct PlannedSet {
    /// For each create that is made: its number in the set, and the mailbox. Parents come before their children, and the id of the
    /// n-th one is [`FIRST_NEW_ID`] + n.
    pub(crate) created: Vec<(usize, Mailbox)>,
    /// The mailboxes that change, in their new form.
    pub(crate) updated: BTreeMap<RecordId, Mailbox>,
    /// The mailboxes that are destroyed.
    pub(crate) destroyed: BTreeSet<RecordId>,
    /// Why creates are refused.
    pub(crate) create_errors: BTreeMap<usize, MailError>,
    /// Why updates are refused.
    pub(crate) update_errors: BTreeMap<usize, MailError>,
    /// Why destroys are refused.
    pub(crate) destroy_errors: BTreeMap<usize, MailError>,
}

/// An entry of a set. Later ones are refused before earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Entry {
    Create(usize),
    Update(usize),
    Destroy(usize),
}

/// A mailbox after the set, and the last entries that set its parent or name and its role; `None` where it keeps what it had before.
#[derive(Clone)]
struct Node {
    mailbox: Mailbox,
    /// The entry that set its parent or its name.
    moved_by: Option<Entry>,
    role_by: Option<Entry>,
}

/// The mailboxes with the accepted entries applied.
struct Tree<'m> {
    old: &'m BTreeMap<RecordId, Mailbox>,
    changed: BTreeMap<RecordId, Node>,
    destroyed: BTreeMap<RecordId, Entry>,
}

/// The entry that gave a mailbox its name, if one did, and the mailbox.
type NameHolder = (Option<Entry>, RecordId);

/// Entries and why they are refused.
type Refused = BTreeMap<Entry, MailError>;

/// Plans a set on the mailboxes of an account.
pub(crate) fn plan(old: &BTreeMap<RecordId, Mailbox>, set: &MailboxSet, config: &MailConfig) -> PlannedSet {
    let mut refused = check_entries(old, set, config);
    let mut passes = 0;
    loop {
        let tree = Tree::new(old, set, &refused);
        let broken = tree.broken(config);
        if broken.is_empty() {
            return planned(&tree, set, refused);
        }
        refused.extend(broken);
        passes += 1;
        if passes == PASSES_MAX {
            refuse_rest(set, &mut refused);
        }
    }
}

/// Refuses all entries that are not refused yet.
fn refuse_rest(set: &MailboxSet, refused: &mut Refused) {
    let creates = (0..set.create.len()).map(Entry::Create);
    let updates = (0..set.update.len()).map(Entry::Update);
    let destroys = (0..set.destroy.len()).map(Entry::Destroy);
    for entry in creates.chain(updates).chain(destroys) {
        let why = "too many other changes of the same request are refused: make this one alone";
        refused.entry(entry).or_insert_with(|| MailError::invalid("name", why));
    }
}

/// Checks each entry by itself.
fn check_entries(old: &BTreeMap<RecordId, Mailbox>, set: &MailboxSet, config: &MailConfig) -> Refused {
    let mut refused = Refused::new();
    for (number, new) in set.create.iter().enumerate() {
        let mut wrong = Wrong::default();
        wrong.name(&new.name, config);
        wrong.role(new.role.as_deref());
        wrong.sort_order(new.sort_order);
        wrong.parent(new.parent, old, set);
        refused.extend(wrong.error().map(|error| (Entry::Create(number), error)));
    }
    for (number, (id, update)) in set.update.iter().enumerate() {
        let error = match old.get(id) {
            None => Some(MailError::NotFound),
            Some(mailbox) => check_update(mailbox, update, old, set, config),
        };
        refused.extend(error.map(|error| (Entry::Update(number), error)));
    }
    let mut seen = BTreeSet::new();
    for (number, id) in set.destroy.iter().enumerate() {
        let error = match old.get(id) {
            Some(mailbox) if mailbox.role == Some(Role::Inbox) => {
                Some(MailError::Forbidden("the inbox can't be destroyed"))
            }
            Some(_) if seen.insert(*id) => None,
            _ => Some(MailError::NotFound),
        };
        refused.extend(error.map(|error| (Entry::Destroy(number), error)));
    }
    refused
}

fn check_update(
    mailbox: &Mailbox,
    update: &MailboxUpdate,
    old: &BTreeMap<RecordId, Mailbox>,
    set: &MailboxSet,
    config: &MailConfig,
) -> Option<MailError> {
    let mut wrong = Wrong::default();
    if let Some(name) = &update.name {
        wrong.name(name, config);
    }
    if let Some(role) = &update.role {
        wrong.role(role.as_deref());
    }
    if let Some(sort_order) = update.sort_order {
        wrong.sort_order(sort_order);
    }
    if let Some(parent) = update.parent {
        wrong.parent(parent, old, set);
    }
    if let Some(error) = wrong.error() {
        return Some(error);
    }
    let changed = updated(mailbox, update);
    let is_other =
        (&changed.name, changed.parent, changed.role) != (&mailbox.name, mailbox.parent, mailbox.role);
    let is_inbox = mailbox.role == Some(Role::Inbox);
    (is_inbox && is_other)
        .then_some(MailError::Forbidden("the inbox keeps its name, its parent and its role"))
}

/// The properties of an entry that have invalid values.
#[derive(Default)]
struct Wrong {
    properties: Vec<&'static str>,
    why: Vec<String>,
}

impl Wrong {
    fn note(&mut self, property: &'static str, why: impl Into<String>) {
        self.properties.push(property);
        self.why.push(why.into());
    }

    fn name(&mut self, name: &str, config: &MailConfig) {
        let bytes_max = config.mailbox_name_bytes_max.get();
        // A name that is far too long is not normalized first: normalization can make it three times as long.
        if name.len() > bytes_max.saturating_mul(4) || normalized(name).len() > bytes_max {
            self.note("name", format!("the name has more than {bytes_max} bytes"));
        } else if name.is_empty() {
            self.note("name", "the name is empty");
        } else if name.chars().any(|character| character.is_control() || character == '/') {
            self.note("name", "the name has a control character or a slash");
        }
    }

    fn role(&mut self, role: Option<&str>) {
        if role.is_some_and(|role| Role::of(role.as_bytes()).is_none()) {
            self.note("role", "there is no such role");
        }
    }

    fn sort_order(&mut self, sort_order: u32) {
        if sort_order >= SORT_ORDER_END {
            self.note("sortOrder", "the sort order is 2^31 or more");
        }
    }

    fn parent(&mut self, parent: Parent, old: &BTreeMap<RecordId, Mailbox>, set: &MailboxSet) {
        let is_possible = match parent {
            Parent::Top => true,
            Parent::Mailbox(id) => old.contains_key(&id),
            Parent::Created(number) => number < set.create.len(),
        };
        if !is_possible {
            self.note("parentId", "there is no such parent");
        }
    }

    fn error(self) -> Option<MailError> {
        let Self { properties, why } = self;
        (!properties.is_empty()).then(|| MailError::Invalid { properties, why: why.join("; ") })
    }
}

fn normalized(name: &str) -> String {
    if is_nfc(name) { name.to_owned() } else { name.nfc().collect() }
}

fn parent_id(parent: Parent) -> Option<RecordId> {
    match parent {
        Parent::Top => None,
        Parent::Mailbox(id) => Some(id),
        Parent::Created(number) => Some(new_id(number)),
    }
}

fn new_id(number: usize) -> RecordId {
    RecordId(FIRST_NEW_ID + number as u64)
}

/// A mailbox with an update that was checked.
fn updated(mailbox: &Mailbox, update: &MailboxUpdate) -> Mailbox {
    let role_of = |role: &Option<String>| role.as_ref().and_then(|role| Role::of(role.as_bytes()));
    Mailbox {
        name: update.name.as_deref().map_or_else(|| mailbox.name.clone(), normalized),
        parent: update.parent.map_or(mailbox.parent, parent_id),
        role: update.role.as_ref().map_or(mailbox.role, role_of),
        sort_order: update.sort_order.unwrap_or(mailbox.sort_order),
        is_subscribed: update.is_subscribed.unwrap_or(mailbox.is_subscribed),
        ..mailbox.clone()
    }
}

impl<'m> Tree<'m> {
    /// The tree with all entries that are not refused.
    fn new(old: &'m BTreeMap<RecordId, Mailbox>, set: &MailboxSet, refused: &Refused) -> Self {
        let mut changed = BTreeMap::new();
        for (number, new) in set.create.iter().enumerate() {
            let entry = Entry::Create(number);
            if refused.contains_key(&entry) {
                continue;
            }
            let mailbox = Mailbox {
                id: new_id(number),
                name: normalized(&new.name),
                parent: parent_id(new.parent),
                role: new.role.as_ref().and_then(|role| Role::of(role.as_bytes())),
                sort_order: new.sort_order,
                is_subscribed: new.is_subscribed,
                uid_next: 1,
                shape: NEXT,
                ..Mailbox::default()
            };
            let node = Node { mailbox, moved_by: Some(entry), role_by: Some(entry) };
            changed.insert(new_id(number), node);
        }
        for (number, (id, update)) in set.update.iter().enumerate() {
            let entry = Entry::Update(number);
            let Some(before) = old.get(id).filter(|_| !refused.contains_key(&entry)) else { continue };
            let node = changed.entry(*id).or_insert_with(|| Node {
                mailbox: before.clone(),
                moved_by: None,
                role_by: None,
            });
            node.mailbox = updated(&node.mailbox, update);
            let is_moved = (&node.mailbox.name, node.mailbox.parent) != (&before.name, before.parent);
            node.moved_by = is_moved.then_some(entry);
            node.role_by = (node.mailbox.role != before.role).then_some(entry);
        }
        let mut destroyed = BTreeMap::new();
        for (number, id) in set.destroy.iter().enumerate() {
            if !refused.contains_key(&Entry::Destroy(number)) {
                destroyed.insert(*id, Entry::Destroy(number));
            }
        }
        Self { old, changed, destroyed }
    }

    /// A mailbox as it is after the set.
    fn get(&self, id: RecordId) -> Option<&Mailbox> {
        if self.destroyed.contains_key(&id) {
            return None;
        }
        self.changed.get(&id).map(|node| &node.mailbox).or_else(|| self.old.get(&id))
    }

    /// All mailboxes after the set.
    fn all(&self) -> impl Iterator<Item = &Mailbox> {
        let old = self.old.keys().filter(|id| !self.changed.contains_key(id));
        old.chain(self.changed.keys()).filter_map(|id| self.get(*id))
    }

    fn moved_by(&self, id: RecordId) -> Option<Entry> {
        self.changed.get(&id).and_then(|node| node.moved_by)
    }

    /// The entries that break a rule of the tree. Names are compared only when no other rule is broken, since a refused entry keeps
    /// its old name.
    fn broken(&self, config: &MailConfig) -> Refused {
        if self.changed.is_empty() && self.destroyed.is_empty() {
            return Refused::new();
        }
        let mut broken = self.without_parent();
        broken.extend(self.too_deep(config.mailbox_depth_max.get()));
        broken.extend(self.second_of_role());
        broken.extend(self.too_many(config.mailboxes_max.get()));
        if broken.is_empty() { self.same_name() } else { broken }
    }

    fn without_parent(&self) -> Refused {
        let mut broken = Refused::new();
        for mailbox in self.all() {
            let Some(parent) = mailbox.parent.filter(|parent| self.get(*parent).is_none()) else { continue };
            if let Some(entry) = self.destroyed.get(&parent) {
                broken.insert(*entry, MailError::HasChild);
            } else if let Some(entry) = self.moved_by(mailbox.id) {
                broken.insert(entry, MailError::invalid("parentId", "the parent is not made"));
            }
        }
        broken
    }

    /// Mailboxes that are nested too deep or in a loop, by the entry that moved the lowest of those above them.
    fn too_deep(&self, depth_max: usize) -> Refused {
        let mut broken = Refused::new();
        let longest = depth_max.max(self.old.len() + self.changed.len());
        for mailbox in self.all() {
            let mut depth = 1;
            let mut moved_by = self.moved_by(mailbox.id);
            let mut above = mailbox.parent;
            while let Some(parent) = above.and_then(|parent| self.get(parent)) {
                depth += 1;
                let is_blamed = depth > depth_max && moved_by.is_some();
                if is_blamed || depth > longest {
                    break; // a loop, at the latest
                }
                moved_by = moved_by.or_else(|| self.moved_by(parent.id));
                above = parent.parent;
            }
            if depth > depth_max
                && let Some(entry) = moved_by
            {
                let why = format!("the mailbox would be in a loop or deeper than {depth_max} levels");
                broken.insert(entry, MailError::invalid("parentId", why));
            }
        }
        broken
    }

    fn second_of_role(&self) -> Refused {
        let mut holders: BTreeMap<Role, Vec<Option<Entry>>> = BTreeMap::new();
        for mailbox in self.all() {
            let role_by = self.changed.get(&mailbox.id).and_then(|node| node.role_by);
            if let Some(role) = mailbox.role {
                holders.entry(role).or_default().push(role_by);
            }
        }
        let mut broken = Refused::new();
        for mut entries in holders.into_values() {
            entries.sort_unstable(); // a mailbox that had the role keeps it; otherwise the first entry gets it
            for entry in entries.into_iter().skip(1).flatten() {
                broken.insert(entry, MailError::invalid("role", "another mailbox has this role"));
            }
        }
        broken
    }

    fn too_many(&self, mailboxes_max: usize) -> Refused {
        let creates = self.changed.values().filter_map(|node| match node.moved_by {
            Some(entry @ Entry::Create(_)) => Some(entry),
            _ => None,
        });
        let creates: BTreeSet<Entry> = creates.collect();
        let excess = (self.old.len() + creates.len()).saturating_sub(self.destroyed.len() + mailboxes_max);
        creates.into_iter().rev().take(excess).map(|entry| (entry, MailError::OverQuota)).collect()
    }

    /// Mailboxes that have the name of a sibling, and those at the top that have the inbox's name.
    fn same_name(&self) -> Refused {
        let mut broken = Refused::new();
        let mut first: HashMap<(Option<RecordId>, &str), NameHolder> = HashMap::new();
        let mut others = Vec::new();
        for mailbox in self.all() {
            let moved_by = self.moved_by(mailbox.id);
            let is_inbox = mailbox.role == Some(Role::Inbox);
            if mailbox.parent.is_none() && !is_inbox && mailbox.name.eq_ignore_ascii_case(INBOX) {
                let entry = moved_by.or_else(|| self.changed.get(&mailbox.id).and_then(|node| node.role_by));
                let error = MailError::invalid("name", "this name belongs to the inbox");
                broken.extend(entry.map(|entry| (entry, error)));
                continue;
            }
            let key = (mailbox.parent, mailbox.name.as_str());
            let this = (moved_by, mailbox.id);
            let known = first.entry(key).or_insert(this);
            if *known == this {
                continue;
            }
            // A mailbox that had the name before keeps it; otherwise the first entry gets it.
            let other = if this < *known { std::mem::replace(known, this) } else { this };
            others.push((key, other.0));
        }
        for (key, entry) in others {
            let existing = first.get(&key).map_or(RecordId(0), |(_, id)| *id);
            broken.extend(entry.map(|entry| (entry, MailError::AlreadyExists { existing })));
        }
        broken
    }
}

/// The plan for a set whose remaining entries break no rule.
fn planned(tree: &Tree<'_>, set: &MailboxSet, refused: Refused) -> PlannedSet {
    let made: Vec<usize> =
        (0..set.create.len()).filter(|number| !refused.contains_key(&Entry::Create(*number))).collect();
    // Ids of creates follow each other in the commit, without those that are refused.
    let numbers: HashMap<RecordId, RecordId> =
        made.iter().enumerate().map(|(n, number)| (new_id(*number), new_id(n))).collect();
    let renumbered = |id: RecordId| if id.0 < FIRST_NEW_ID { Some(id) } else { numbers.get(&id).copied() };
    let at_end = |node: &Node| Mailbox {
        parent: node.mailbox.parent.and_then(renumbered),
        shape: NEXT,
        ..node.mailbox.clone()
    };
    let created =
        made.iter().filter_map(|number| Some((*number, at_end(tree.changed.get(&new_id(*number))?))));
    let updated = tree.changed.iter().filter(|(id, node)| {
        let before = tree.old.get(id);
        before.is_some_and(|before| *before != node.mailbox) && !tree.destroyed.contains_key(id)
    });
    let mut plan = PlannedSet {
        created: created.collect(),
        updated: updated.map(|(id, node)| (*id, at_end(node))).collect(),
        destroyed: tree.destroyed.keys().copied().collect(),
        create_errors: BTreeMap::new(),
        update_errors: BTreeMap::new(),
        destroy_errors: BTreeMap::new(),
    };
    for (entry, error) in refused {
        let error = match error {
            MailError::AlreadyExists { existing } => match renumbered(existing) {
                Some(existing) => MailError::AlreadyExists { existing },
                None => MailError::invalid("name", "another mailbox of this request has this name"),
            },
            other => other,
        };
        match entry {
            Entry::Create(number) => plan.create_errors.insert(number, error),
            Entry::Update(number) => plan.update_errors.insert(number, error),
            Entry::Destroy(number) => plan.destroy_errors.insert(number, error),
        };
    }
    plan
}
