use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// A mailbox of a source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Folder {
    /// The names from the top level down to it, at least one.
    pub path: Vec<String>,
    /// Its role in JMAP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Whether the role was guessed from the name: an existing mailbox of this name takes precedence then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_guess: bool,
}

/// The roles that names at the top level imply; the names are in lowercase.
const ROLES_OF_NAMES: [(&str, &str); 24] = [
    ("inbox", "inbox"),
    ("drafts", "drafts"),
    ("draft", "drafts"),
    ("sent", "sent"),
    ("sent items", "sent"),
    ("sent messages", "sent"),
    ("sent mail", "sent"),
    ("sent-mail", "sent"),
    ("outbox", "sent"),
    ("archive", "archive"),
    ("archives", "archive"),
    ("all mail", "archive"),
    ("junk", "junk"),
    ("junk mail", "junk"),
    ("junk e-mail", "junk"),
    ("junk email", "junk"),
    ("spam", "junk"),
    ("bulk", "junk"),
    ("bulk mail", "junk"),
    ("trash", "trash"),
    ("bin", "trash"),
    ("deleted", "trash"),
    ("deleted items", "trash"),
    ("deleted messages", "trash"),
];

impl Folder {
    /// A folder with this path; at the top level, its name may imply a role.
    pub fn named(path: Vec<String>) -> Self {
        let role = match &*path {
            [name] => {
                let name = name.to_lowercase();
                ROLES_OF_NAMES.iter().find(|(known, _)| *known == name).map(|(_, role)| (*role).to_owned())
            }
            _ => None,
        };
        let is_guess = role.is_some();
        Self { path, role, is_guess }
    }

    /// The folder with a role.
    pub fn of_role(name: &str, role: &str) -> Self {
        Self { path: vec![name.to_owned()], role: Some(role.to_owned()), is_guess: false }
    }

    /// A number that identifies it among the folders of its source; it depends only on the path.
    pub fn number(&self) -> u64 {
        let mut hash = Sha256::new();
        for name in &self.path {
            hash.update((name.len() as u64).to_be_bytes());
            hash.update(name);
        }
        hash.finalize().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(path: &[&str]) -> Folder {
        Folder::named(path.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn a_well_known_name_at_the_top_stands_for_a_role() {
        assert_eq!(folder(&["INBOX"]).role.as_deref(), Some("inbox"));
        assert_eq!(folder(&["Sent Items"]).role.as_deref(), Some("sent"));
        assert_eq!(folder(&["Work"]).role, None);
        assert_eq!(folder(&["Work", "Sent"]).role, None);
    }

    #[test]
    fn a_number_tells_paths_apart() {
        assert_eq!(folder(&["a", "b"]).number(), folder(&["a", "b"]).number());
        assert_ne!(folder(&["a", "b"]).number(), folder(&["ab"]).number());
        assert_ne!(folder(&["a", "b"]).number(), folder(&["a/b"]).number());
    }
}
