//! Names of attachments that are refused.

/// Patterns of names: `*` matches any characters, and case is ignored.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patterns(Vec<String>);

impl Patterns {
    pub(crate) fn new(patterns: &[String]) -> Self {
        Self(patterns.iter().map(|pattern| pattern.to_lowercase()).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first name that a pattern matches.
    pub(crate) fn find<'n>(&self, names: &'n [String]) -> Option<&'n String> {
        names.iter().find(|name| {
            // Some systems open `a.exe. ` as `a.exe`.
            let name = name.trim_end_matches(['.', ' ']).to_lowercase();
            self.0.iter().any(|pattern| matches(pattern, &name))
        })
    }
}

/// Whether a name matches a pattern: the first part is at its beginning, the last at its end, and the others follow each other.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut left) = name.strip_prefix(first) else { return false };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    for part in middle.split('*') {
        let Some(at) = left.find(part) else { return false };
        left = left.get(at + part.len()..).unwrap_or_default();
    }
    left.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chk15_names_are_found_in_any_case_and_spelling() {
        let patterns = ["*.exe", "Invoice*2026*.JS", "setup", "a*b*c*"].map(str::to_owned);
        let patterns = Patterns::new(&patterns);
        for name in [
            "x.exe",
            "X.EXE",
            ".exe",
            "photo.jpg.exe",
            "x.exe. ",
            "x.exe...",
            "invoice 1 of 2026 (2).js",
            "Setup",
            "abc",
            "a-b-c-",
        ] {
            assert!(patterns.find(&[name.to_owned()]).is_some(), "{name}");
        }
        for name in ["x.exe.txt", "exe", "invoice.js", "setup.sh", "acb", "", "ab"] {
            assert!(patterns.find(&[name.to_owned()]).is_none(), "{name}");
        }
        let names = ["a.txt", "b.exe", "c.exe"].map(str::to_owned);
        assert_eq!(patterns.find(&names).map(String::as_str), Some("b.exe"));
        assert!(Patterns::default().find(&names).is_none());
    }
}
