//! Where an engine is and who may use it: flags, files and environment.

use std::path::Path;

use anyhow::Context;

use crate::random::Random;

/// The value of a flag, else that of an environment variable.
pub(crate) fn named(flag: Option<&String>, variable: &str) -> Option<String> {
    let set = std::env::var(variable).ok().filter(|value| !value.is_empty());
    flag.cloned().or(set)
}

/// The text of a file with a secret, without the line end.
///
/// # Errors
/// When it can't be read or is empty.
pub(super) fn secret(file: &Path) -> anyhow::Result<String> {
    let name = file.display();
    let text = std::fs::read_to_string(file).with_context(|| format!("can't read {name}"))?;
    let secret = text.trim_end_matches(['\n', '\r']);
    anyhow::ensure!(!secret.is_empty(), "{name} is empty: it should hold nothing but the password");
    Ok(secret.to_owned())
}

/// User and password of a file with one line: user:password.
///
/// # Errors
/// When it can't be read or has another form.
#[cfg(any(feature = "cassandra", feature = "rabbitmq"))]
pub(super) fn credentials(file: &Path) -> anyhow::Result<(String, String)> {
    let line = secret(file)?;
    let form = || format!("{} should hold one line: user:password", file.display());
    let (user, password) = line.split_once(':').with_context(form)?;
    Ok((user.to_owned(), password.to_owned()))
}

/// A name that no other run has: lowercase letters, digits and underscores, as every engine allows.
pub(crate) fn fresh_name() -> String {
    let salt = u64::from(std::process::id()) ^ nanos_now();
    format!("restante_bench_{:08x}", Random::new(salt, 7).bits() as u32)
}

fn nanos_now() -> u64 {
    use restante_core::{Clock, SystemClock};
    SystemClock.now().0 as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_has_no_line_end_and_is_not_empty() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        std::fs::write(&file, "open sesame \r\n").unwrap();
        assert_eq!(secret(&file).unwrap(), "open sesame ");
        std::fs::write(&file, "\n").unwrap();
        assert!(secret(&file).unwrap_err().to_string().contains("is empty"));
        assert!(secret(&folder.path().join("none")).is_err());
    }

    #[test]
    #[cfg(any(feature = "cassandra", feature = "rabbitmq"))]
    fn credentials_are_user_and_password() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("credentials");
        std::fs::write(&file, "restante:with:colon\n").unwrap();
        assert_eq!(credentials(&file).unwrap(), ("restante".to_owned(), "with:colon".to_owned()));
        std::fs::write(&file, "restante\n").unwrap();
        let error = credentials(&file).unwrap_err().to_string();
        assert!(error.contains("user:password"), "{error}");
    }

    #[test]
    fn names_of_two_runs_differ() {
        let name = fresh_name();
        assert!(name.starts_with("restante_bench_") && name.len() == 23, "{name}");
        assert_ne!(name, fresh_name());
    }
}
