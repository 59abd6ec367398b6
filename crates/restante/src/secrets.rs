//! Secrets in separate files, and those in arguments that are shown.

use std::{fs::File, io::Read, path::Path};

use anyhow::{Context, bail};

/// No secret is longer; a file that was named by mistake may be.
const SECRET_BYTES_MAX: u64 = 4 << 10;

/// Reads the first line of a file, which is the secret.
pub(crate) fn read(what: &str, file: &Path) -> anyhow::Result<String> {
    let failed = || format!("can't read the {what} in {}", file.display());
    let mut bytes = Vec::new();
    // One byte more shows that it is too long: a truncated secret would be useless.
    File::open(file)
        .and_then(|file| file.take(SECRET_BYTES_MAX + 1).read_to_end(&mut bytes))
        .with_context(failed)?;
    if bytes.len() as u64 > SECRET_BYTES_MAX {
        bail!("{}: it is longer than {SECRET_BYTES_MAX} bytes", failed());
    }
    let secret = std::str::from_utf8(&bytes).with_context(failed)?.lines().next().unwrap_or_default();
    if secret.is_empty() {
        bail!("{}: it is empty", failed());
    }
    Ok(secret.to_owned())
}

/// An argument with `***` instead of the passwords of a URL: of everything between the first colon after the scheme and the last `@`,
/// since the URL may be mistyped, and of the values of `password=`.
pub(crate) fn without_passwords(argument: &str) -> String {
    const PARAMETER: &str = "password=";
    let mut shown = argument.to_owned();
    if let Some((user_info, host)) = argument.rsplit_once('@') {
        let after_scheme = user_info.find("://").map_or(0, |at| at + "://".len());
        let colon = user_info.get(after_scheme..).and_then(|rest| rest.find(':'));
        if let Some(user) = colon.and_then(|colon| user_info.get(..after_scheme + colon)) {
            shown = format!("{user}:***@{host}");
        }
    }
    let mut parts = shown.split(PARAMETER);
    let mut masked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let after = part.find('&').and_then(|at| part.get(at..)).unwrap_or_default();
        masked.push_str(&format!("{PARAMETER}***{after}"));
    }
    masked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_an_argument_is_not_shown() {
        for (argument, shown) in [
            ("postgres://me:secret@h/db?schema=BAD", "postgres://me:***@h/db?schema=BAD"),
            ("postgre://me:se@c:r/et@h:5432/db", "postgre://me:***@h:5432/db"),
            ("redis://:secret@cache/2", "redis://:***@cache/2"),
            ("postgres:me:secret@h", "postgres:***@h"),
            (
                "postgres://h/db?password=secret&x=1&sslpassword=more",
                "postgres://h/db?password=***&x=1&sslpassword=***",
            ),
            ("anna@example.org", "anna@example.org"),
            ("opensearch://me@search:9200", "opensearch://me@search:9200"),
            ("http://127.0.0.1:80", "http://127.0.0.1:80"),
        ] {
            assert_eq!(without_passwords(argument), shown);
        }
    }

    fn read_from(bytes: &[u8]) -> anyhow::Result<String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        std::fs::write(&file, bytes).unwrap();
        read("token", &file)
    }

    #[test]
    fn a_secret_is_the_file_without_the_end_of_its_line() {
        assert_eq!(read_from(b"secret").unwrap(), "secret");
        assert_eq!(read_from(b" a secret \r\n").unwrap(), " a secret ");
    }

    #[test]
    fn a_file_that_holds_no_secret_is_refused_and_not_shown() {
        let longest = vec![b'x'; SECRET_BYTES_MAX as usize];
        assert_eq!(read_from(&longest).unwrap().as_bytes(), longest);
        let longer = [longest.as_slice(), b"x"].concat();
        for (bytes, why) in [(&longer[..], "longer"), (b"\n", "empty"), (b"xxx\xff", "utf-8")] {
            let error = format!("{:#}", read_from(bytes).unwrap_err());
            assert!(error.contains("can't read the token in ") && error.contains(why), "{error}");
            assert!(!error.contains("xxx"), "{error}");
        }
    }
}
