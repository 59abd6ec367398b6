//! Maps flags of files to keywords of JMAP.

/// The keyword in JMAP and IMAP's registry for a flag that programs use under another name.
pub fn well_known_keyword(flag: &str) -> Option<&'static str> {
    const NAMES: [(&str, &str); 12] = [
        ("\\seen", "$seen"),
        ("\\answered", "$answered"),
        ("\\flagged", "$flagged"),
        ("\\draft", "$draft"),
        ("forwarded", "$forwarded"),
        ("passed", "$forwarded"),
        ("junk", "$junk"),
        ("nonjunk", "$notjunk"),
        ("notjunk", "$notjunk"),
        ("$nonjunk", "$notjunk"),
        ("mdnsent", "$mdnsent"),
        ("important", "$important"),
    ];
    let flag = flag.to_ascii_lowercase();
    NAMES.iter().find(|(name, _)| *name == flag).map(|(_, keyword)| *keyword)
}

/// A flag as a keyword; `None` for those IMAP flags that JMAP does not have.
pub(crate) fn keyword_of(flag: &str) -> Option<String> {
    match well_known_keyword(flag) {
        Some(keyword) => Some(keyword.to_owned()),
        None if flag.starts_with('\\') || flag.is_empty() => None,
        None => Some(flag.to_ascii_lowercase()),
    }
}

/// The letters of Maildir and their keywords, sorted by letter. `T`, marked for deletion, has none.
pub(crate) const MAILDIR_LETTERS: [(char, &str); 5] =
    [('D', "$draft"), ('F', "$flagged"), ('P', "$forwarded"), ('R', "$answered"), ('S', "$seen")];

/// The letters of `X-Status` in an mbox and their keywords.
pub(crate) const STATUS_LETTERS: [(char, &str); 3] = [('A', "$answered"), ('F', "$flagged"), ('T', "$draft")];
