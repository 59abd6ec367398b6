//! The base subject of RFC 5256, section 2.1, by which threads are found and emails are sorted.

/// A subject without the additions of replies, forwards and mailing lists: `Re:`, `Fwd:`, `[list]`, `(fwd)`, `[fwd: ...]`.
///
/// `subject` is decoded text, as returned by [`crate::header::as_text`]. White space is collapsed to single spaces. Case is
/// preserved; compare base subjects without regard to it (`i;unicode-casemap`).
pub fn base_subject(subject: &str) -> String {
    let joined = join_white_space(subject);
    let mut rest = joined.as_str();
    // Each round removes at least the six characters of a wrapper, and scans the rest a bounded number of times.
    loop {
        rest = without_trailers(rest);
        rest = without_leaders_and_blobs(rest);
        let Some(inner) = forwarded(rest) else { return rest.to_owned() };
        rest = inner;
    }
}

/// Step 1: tabs and folds become spaces, and several spaces one.
fn join_white_space(subject: &str) -> String {
    let mut joined = String::with_capacity(subject.len());
    for character in subject.chars() {
        let is_space = matches!(character, ' ' | '\t' | '\r' | '\n');
        if !is_space {
            joined.push(character);
        } else if !joined.ends_with(' ') {
            joined.push(' ');
        }
    }
    joined
}

/// Step 2: `(fwd)` and white space at the end.
fn without_trailers(mut subject: &str) -> &str {
    loop {
        subject = subject.trim_end_matches(' ');
        match strip_suffix_ignore_case(subject, "(fwd)") {
            Some(before) => subject = before,
            None => return subject,
        }
    }
}

/// Steps 3 to 5: `re:`, `fw:`, `fwd:`, each with blobs before it and one blob in it, then blobs unless nothing would remain.
fn without_leaders_and_blobs(mut subject: &str) -> &str {
    loop {
        subject = subject.trim_start_matches(' ');
        // All blobs at once: looking for a leader after each one of them would take quadratic time.
        let mut blobs_end = subject;
        while let Some(after) = after_blob(blobs_end) {
            blobs_end = after;
        }
        if let Some(after) = after_reply_or_forward(blobs_end) {
            subject = after;
            continue;
        }
        while let Some(after) = after_blob(subject) {
            if after.is_empty() {
                break;
            }
            subject = after;
        }
        return subject;
    }
}

/// Step 6: the text between `[fwd:` and `]`.
fn forwarded(subject: &str) -> Option<&str> {
    strip_prefix_ignore_case(subject, "[fwd:")?.strip_suffix(']')
}

/// The text after `[...]`, which has no brackets inside, and the white space that follows it.
fn after_blob(subject: &str) -> Option<&str> {
    let inner = subject.strip_prefix('[')?;
    let end = inner.find(['[', ']'])?;
    let after = inner.get(end..)?.strip_prefix(']')?;
    Some(after.trim_start_matches(' '))
}

/// The text after `re:`, `fw:` or `fwd:`, with white space and one blob before the colon.
fn after_reply_or_forward(subject: &str) -> Option<&str> {
    let after = strip_prefix_ignore_case(subject, "re")
        .or_else(|| strip_prefix_ignore_case(subject, "fwd"))
        .or_else(|| strip_prefix_ignore_case(subject, "fw"))?;
    let after = after.trim_start_matches(' ');
    after_blob(after).unwrap_or(after).strip_prefix(':')
}

fn strip_prefix_ignore_case<'s>(text: &'s str, prefix: &str) -> Option<&'s str> {
    let (start, rest) = text.split_at_checked(prefix.len())?;
    start.eq_ignore_ascii_case(prefix).then_some(rest)
}

fn strip_suffix_ignore_case<'s>(text: &'s str, suffix: &str) -> Option<&'s str> {
    let (rest, end) = text.split_at_checked(text.len().checked_sub(suffix.len())?)?;
    end.eq_ignore_ascii_case(suffix).then_some(rest)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn eq3_base_subject_is_that_of_rfc_5256() {
        let rows = [
            ("", ""),
            ("hello", "hello"),
            ("  hello \t\r\n world  ", "hello world"),
            ("Re: hello", "hello"),
            ("RE:hello", "hello"),
            ("re : hello", "hello"),
            ("re [3]: hello", "hello"),
            ("re[3] : hello", "hello"),
            ("Fw: hello", "hello"),
            ("FWD: Re: fwd: hello", "hello"),
            ("hello (fwd)", "hello"),
            ("hello (FWD) (fwd)  ", "hello"),
            ("[list] hello", "hello"),
            ("[list] Re: [other] hello", "hello"),
            ("Re: [list] [a][b] Re: hello", "hello"),
            ("[list]", "[list]"),
            ("Re: [list]", "[list]"),
            ("[a][list]", "[list]"),
            ("[a] [b] Re:", ""),
            ("[fwd: hello]", "hello"),
            ("[Fwd: Re: hello (fwd)]", "hello"),
            ("Re: [fwd: [fwd: [list] hello]] (fwd)", "hello"),
            ("[fwd: hello] world", "world"),
            ("[fwd:]", ""),
            ("Re: ", ""),
            ("re", "re"),
            ("Reply: hello", "Reply: hello"),
            ("Refined hello", "Refined hello"),
            ("re: [", "["),
            ("[unclosed hello", "[unclosed hello"),
            ("a [b] Re: c", "a [b] Re: c"),
            ("Fw: grüße", "grüße"),
            ("(fwd)", ""),
            ("AW: hello", "AW: hello"), // not in the RFC
        ];
        for (subject, base) in rows {
            assert_eq!(base_subject(subject), base, "{subject:?}");
        }
    }

    #[test]
    fn eq3_base_subject_of_hostile_subjects_takes_linear_time() {
        const COPIES: usize = 50_000;
        let rows = [
            ("[a]".repeat(COPIES), "[a]".to_owned()),
            ("[a]".repeat(COPIES) + "x", "x".to_owned()),
            ("re:".repeat(COPIES), String::new()),
            ("[fwd:".repeat(COPIES) + &"]".repeat(COPIES), String::new()),
            ("(fwd)".repeat(COPIES), String::new()),
            ("[".repeat(COPIES), "[".repeat(COPIES)),
            ("re [".repeat(COPIES), "re [".repeat(COPIES).trim_end().to_owned()),
        ];
        for (subject, base) in rows {
            assert!(base_subject(&subject) == base);
        }
    }

    proptest! {
        #[test]
        fn eq3_base_subject_of_a_base_subject_is_itself(subject in "(\\PC|re:|fwd:|\\[fwd:|\\]|\\[|\\(fwd\\)| ){0,16}") {
            let base = base_subject(&subject);
            prop_assert_eq!(base_subject(&base), base);
        }
    }
}
