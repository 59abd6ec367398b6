//! The settings in a backup: those that were set explicitly, without secrets.

use crate::config::{Effective, Origin};

const HEAD: &str = "\
# The settings that were not at their defaults when this backup was taken, wherever they were set. Passwords and keys are
# shown as ***: they are not in the backup. Relative paths are seen from the folder in which the server was started.
";

/// Settings that name a file although their names do not say so.
const FILES: [&str; 2] = ["delivery.remote.authorities", "delivery.remote.smarthost_credentials"];

/// The text of the file. It also names what else a server needs that is not in the backup.
pub(super) fn text(effective: &Effective) -> String {
    let (mut text, mut needed) = (HEAD.to_owned(), Vec::new());
    for (key, value, origin) in effective.shown() {
        if *origin == Origin::Default {
            continue;
        }
        if key.ends_with("_file") || key.ends_with("_files") || FILES.contains(&key) {
            let named = value.as_array().map_or(std::slice::from_ref(&value), Vec::as_slice);
            let paths = named.iter().filter_map(toml::Value::as_str).filter(|path| !path.is_empty());
            needed.extend(paths.map(|path| format!("#   {key}: {path}\n")));
        }
        // A path may contain a line break, which must not end the comment; values have their own escapes.
        let origin = origin.to_string().replace(['\n', '\r'], " ");
        text.push_str(&format!("{key} = {value} # {origin}\n"));
    }
    if !needed.is_empty() {
        text.push_str("# Files that these settings name, and that are not in the backup:\n");
        text.extend(needed.iter().map(|line| line.replace('\r', " ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    fn shown(environment: &[(&str, &str)]) -> String {
        let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        text(&config::load(None, environment, Vec::new()).unwrap())
    }

    #[test]
    fn what_was_set_is_named_and_secrets_are_not() {
        let key = "5a".repeat(32);
        let text = shown(&[
            ("RESTANTE_ARCHIVE__URL", "postgres://me:secret@db/x"),
            ("RESTANTE_WAKU__NODE__KEY", &key),
            ("RESTANTE_REST__TOKEN_FILE", "/etc/restante/token"),
            ("RESTANTE_REST__PORT", "80"),
            ("RESTANTE_TLS__CERTIFICATE_FILES", "/etc/one.crt,/etc/two.crt"),
            ("RESTANTE_TLS__CERTIFICATE_KEY_FILES", "/etc/one.key,/etc/two.key"),
        ]);
        assert!(!text.contains("secret") && !text.contains(&key), "{text}");
        assert!(
            text.contains("archive.url = \"postgres://me:***@db/x\" # environment RESTANTE_ARCHIVE__URL\n")
        );
        assert!(
            text.contains("rest.port = 80 #") && text.contains("#   rest.token_file: /etc/restante/token\n")
        );
        for file in [
            "certificate_files: /etc/one.crt",
            "certificate_files: /etc/two.crt",
            "certificate_key_files: /etc/two.key",
        ] {
            assert!(text.contains(&format!("#   tls.{file}\n")), "{text}");
        }
        let table: toml::Table = text.parse().unwrap();
        assert_eq!(table["rest"]["port"].as_integer(), Some(80));
        assert_eq!(table.len(), 4, "what is at its default is not there: {text}");
    }

    #[test]
    fn without_settings_there_is_nothing_but_the_head() {
        assert_eq!(shown(&[]), HEAD);
    }
}
