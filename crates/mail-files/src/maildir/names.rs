//! Names of files and folders.

use crate::{
    Folder,
    keywords::{MAILDIR_LETTERS, keyword_of},
    utf_7,
};

/// How many keywords of a folder have a letter, `a` to `z`.
pub(super) const LETTERS: usize = 26;
/// What our own names contain after the time and the id.
const OURS: &str = ".restante";
/// In our own names: the file has the original bytes, and not LF instead of CRLF.
const EXACT: &str = ",X=exact";

/// The parsed name of a message's file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FileName {
    pub(super) keywords: Vec<String>,
    /// When it was put into the Maildir, in seconds since 1970.
    pub(super) stored: Option<i64>,
    /// The id that our own export assigned to it.
    pub(super) id: Option<u64>,
    pub(super) is_exact: bool,
}

/// Parses a name. `letters` are the keywords of the folder that have letters.
pub(super) fn parse(name: &str, letters: &[String]) -> FileName {
    let (base, flags) = name.rsplit_once(":2,").or_else(|| name.rsplit_once(";2,")).unwrap_or((name, ""));
    let mut keywords: Vec<String> = Vec::new();
    for flag in flags.chars() {
        let known = MAILDIR_LETTERS.iter().find(|(letter, _)| *letter == flag);
        keywords.extend(known.map(|(_, keyword)| (*keyword).to_owned()));
        let number =
            u32::from(flag).checked_sub(u32::from('a')).and_then(|number| usize::try_from(number).ok());
        keywords.extend(number.and_then(|number| letters.get(number)).and_then(|flag| keyword_of(flag)));
    }
    keywords.sort_unstable();
    keywords.dedup();
    let (time, rest) = base.split_once('.').unwrap_or((base, ""));
    let id = rest.split_once(OURS).and_then(|(id, _)| id.strip_prefix('E')?.parse().ok());
    FileName {
        keywords,
        stored: time.parse().ok(),
        id,
        is_exact: id.is_some() && base.split_once(OURS).is_some_and(|(_, fields)| fields.contains(EXACT)),
    }
}

/// The name of the file of an exported message, and the keywords that have no letter in it.
pub(super) fn write(
    (id, received): (u64, i64),
    (bytes, wire_bytes): (usize, usize),
    is_exact: bool,
    flags: &str,
) -> String {
    let exact = if is_exact { EXACT } else { "" };
    format!("{}.E{id}{OURS},S={bytes},W={wire_bytes}{exact}:2,{flags}", received.max(0))
}

/// The keywords of a folder in the order of their letters, as in Dovecot's file `dovecot-keywords`.
pub(super) fn letters(file: &str) -> Vec<String> {
    let mut letters: Vec<String> = Vec::new();
    for line in file.lines() {
        let Some((number, keyword)) = line.split_once(' ') else { continue };
        let Some(number) = number.parse::<usize>().ok().filter(|number| *number < LETTERS) else { continue };
        if letters.len() <= number {
            letters.resize(number + 1, String::new());
        }
        if let Some(letter) = letters.get_mut(number) {
            keyword.trim().clone_into(letter);
        }
    }
    letters
}

/// The mailbox of a folder: the names of the folders above it, and its own. In Maildir++ its own name contains all of them: `.Work.Old`.
pub(super) fn folder(above: &[String], name: &str) -> Vec<String> {
    let decoded = |name: &str| utf_7::decode(name).unwrap_or_else(|| name.to_owned());
    match name.strip_prefix('.') {
        Some(dotted) => {
            let names = dotted.split('.').filter(|name| !name.is_empty()).map(decoded);
            above.iter().cloned().chain(names).collect()
        }
        None => above.iter().cloned().chain([decoded(name)]).collect(),
    }
}

/// The folder of a mailbox in Maildir++; the inbox is the Maildir itself.
pub(super) fn folder_of(folder: &Folder) -> String {
    match folder.role.as_deref() {
        Some("inbox") => String::new(),
        _ => folder.path.iter().flat_map(|name| [".".to_owned(), utf_7::encode(name)]).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_flags_and_keywords() {
        let letters = letters("0 NonJunk\n1 Later\n3 $MDNSent\n99 no\nx y\n");
        let name = parse("1030019783.M20046P2137V0801I0004.host,S=4542,W=4642:2,RSbdz", &letters);
        assert_eq!(name.keywords, ["$answered", "$mdnsent", "$seen", "later"]);
        assert_eq!((name.stored, name.id, name.is_exact), (Some(1_030_019_783), None, false));
        assert_eq!(parse("x:2,DFPTc", &letters).keywords, ["$draft", "$flagged", "$forwarded"]);
        assert_eq!(parse("", &letters), FileName::default());
        assert_eq!(parse("1.E5.other,X=exact:2,", &letters).id, None);
    }

    #[test]
    fn a_written_name_is_read() {
        let name = parse(&write((17, -5), (1, 2), true, "FSa"), &["later".to_owned()]);
        let keywords = ["$flagged", "$seen", "later"].map(str::to_owned).to_vec();
        assert_eq!(name, FileName { keywords, stored: Some(0), id: Some(17), is_exact: true });
        assert!(!parse(&write((17, 5), (1, 2), false, ""), &[]).is_exact);
    }

    #[test]
    fn a_mailbox_has_its_folder() {
        let path = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>();
        for names in [&["Work", "Old"][..], &["Entwürfe"], &["a.b/c", "&"], &["x y"]] {
            let folder = Folder::named(path(names));
            assert_eq!(super::folder(&[], &folder_of(&folder)), path(names));
        }
        assert_eq!(folder(&path(&["Work"]), "Old.2"), path(&["Work", "Old.2"]));
        assert_eq!(folder_of(&Folder::of_role("Eingang", "inbox")), "");
    }
}
