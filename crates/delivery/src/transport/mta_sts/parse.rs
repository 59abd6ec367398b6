//! The record and the file of a policy (RFC 8461 §3).

use serde::{Deserialize, Serialize};

/// A year: the longest time that a policy may be valid.
pub(super) const MAX_AGE_SECONDS: i64 = 31_557_600;
/// The most patterns of servers that are used.
const HOSTS_MAX: usize = 100;

/// The mode of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Mode {
    Enforce,
    Testing,
    None,
}

/// A policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Policy {
    pub(super) mode: Mode,
    /// Names of servers, or `*.` and a parent, in lower case.
    pub(super) hosts: Vec<String>,
    pub(super) max_age_seconds: i64,
}

/// The id in the `TXT` records of a domain; `None` unless exactly one of them is about MTA-STS (RFC 8461 §3.1).
pub(super) fn id_of(records: &[String]) -> Option<String> {
    let mut found = records.iter().filter(|record| record.starts_with("v=STSv1;"));
    let record = found.next()?;
    if found.next().is_some() {
        return None;
    }
    let id = record.split(';').find_map(|field| field.trim().strip_prefix("id="))?.trim();
    let is_id = (1..=32).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_id.then(|| id.to_owned())
}

/// The policy in a file; `None` when the file is not valid.
pub(super) fn policy(text: &str) -> Option<Policy> {
    let (mut version, mut mode, mut max_age) = (None, None, None);
    let mut hosts = Vec::new();
    for line in text.lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        match name.trim() {
            "version" => version = version.or(Some(value)),
            "mode" => mode = mode.or(Some(value)),
            "max_age" => max_age = max_age.or(Some(value)),
            "mx" if hosts.len() < HOSTS_MAX => hosts.push(value.trim_end_matches('.').to_ascii_lowercase()),
            _ => {}
        }
    }
    let mode = match mode? {
        "enforce" => Mode::Enforce,
        "testing" => Mode::Testing,
        "none" => Mode::None,
        _ => return None,
    };
    let max_age_seconds = max_age?.parse::<i64>().ok().filter(|age| (0..=MAX_AGE_SECONDS).contains(age))?;
    let has_hosts = mode == Mode::None || !hosts.is_empty();
    (version == Some("STSv1") && has_hosts).then_some(Policy { mode, hosts, max_age_seconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out10_a_policy_is_announced_by_one_record() {
        let id = |records: &[&str]| id_of(&records.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(id(&["v=spf1 -all", "v=STSv1; id=20260101T000000;"]).as_deref(), Some("20260101T000000"));
        for none in [
            &["v=STSv1; id=1;", "v=STSv1; id=2;"][..],
            &["v=STSv1;"],
            &["v=STSv1; id=a b"],
            &["v=STSv2; id=1"],
            &["v=STSv1; id=123456789012345678901234567890123"],
            &[],
        ] {
            assert_eq!(id(none), None, "{none:?}");
        }
    }

    #[test]
    fn out10_a_policy_has_all_of_its_parts_or_is_none() {
        let text = "version: STSv1\r\nmode: enforce\nmx: MX.example.net.\nmx: *.example.com\nother: x\nmax_age: 604800\n";
        let hosts = vec!["mx.example.net".to_owned(), "*.example.com".to_owned()];
        assert_eq!(policy(text), Some(Policy { mode: Mode::Enforce, hosts, max_age_seconds: 604_800 }));
        assert!(policy("version: STSv1\nmode: none\nmax_age: 0").is_some());
        for wrong in [
            "",
            "version: STSv1\nmode: enforce\nmax_age: 1",
            "version: STSv1\nmode: enforce\nmx: a.b",
            "version: STSv2\nmode: enforce\nmx: a.b\nmax_age: 1",
            "version: STSv1\nmode: strict\nmx: a.b\nmax_age: 1",
            "version: STSv1\nmode: enforce\nmx: a.b\nmax_age: 99999999",
            "mode: enforce\nmx: a.b\nmax_age: 1",
        ] {
            assert_eq!(policy(wrong), None, "{wrong:?}");
        }
    }
}
