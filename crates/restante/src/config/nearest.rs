//! Finds the known name that was probably meant.

/// Names less similar than this (0 to 1) are not suggested.
const LIKENESS_MIN: f64 = 0.75;

/// `: did you mean 'x'?`, or nothing when no known name is similar.
pub(super) fn hint<'a>(unknown: &str, known: impl Iterator<Item = &'a str>) -> String {
    let mut best: Option<((f64, f64), &str)> = None;
    for name in known {
        let likeness = likeness(unknown, name);
        if best.is_none_or(|(least, _)| likeness > least) {
            best = Some((likeness, name));
        }
    }
    match best {
        Some(((likeness, _), name)) if likeness >= LIKENESS_MIN => format!(": did you mean '{name}'?"),
        _ => String::new(),
    }
}

/// The similarity of two keys. A correct name in a wrong section counts nearly as much as a misspelt one; among several with that name
/// the whole key decides.
fn likeness(unknown: &str, known: &str) -> (f64, f64) {
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let whole = strsim::normalized_damerau_levenshtein(unknown, known);
    let name = strsim::normalized_damerau_levenshtein(&last(unknown), &last(known));
    (whole.max(name * 0.95), whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 5] =
        ["delivery.remote.port", "rest.port", "rest.address", "archive.url", "archive.log.segment_bytes"];

    #[test]
    fn slips_are_recognised() {
        for (unknown, meant) in [
            ("rest.prot", "rest.port"),
            ("port", "rest.port"),
            ("rset.port", "rest.port"),
            ("archive.segment_bytes", "archive.log.segment_bytes"),
            ("archive.uri", "archive.url"),
        ] {
            assert_eq!(hint(unknown, KNOWN.into_iter()), format!(": did you mean '{meant}'?"));
        }
    }

    #[test]
    fn nothing_far_is_suggested() {
        assert_eq!(hint("tls.certificate", KNOWN.into_iter()), "");
    }
}
