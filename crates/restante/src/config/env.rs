//! Settings in the environment: `RESTANTE_ARCHIVE__LOG__SEGMENT_BYTES` is `archive.log.segment_bytes`.

use toml::Value;

use super::{ConfigError, Effective, Origin, Setting, nearest};
use crate::doors;

const PREFIX: &str = "RESTANTE_";
/// Two underscores stand for the dot, since names contain single ones.
const SEPARATOR: &str = "__";
/// Prefixes of our variables that belong to the tests and to the scripts that start services for them.
const OTHERS: [&str; 2] = ["RESTANTE_TEST_", "RESTANTE_SERVICES_"];

/// The settings among the variables; a variable that looks like a setting but is unknown is an error.
pub(super) fn read(
    variables: impl Iterator<Item = (String, String)>,
    effective: &Effective,
) -> Result<Vec<Setting>, ConfigError> {
    let mut settings = Vec::new();
    for (name, text) in variables {
        let Some(rest) = name.strip_prefix(PREFIX) else { continue };
        if !looks_like_setting(&name, rest, effective) {
            continue;
        }
        let key = rest.to_ascii_lowercase().replace(SEPARATOR, ".");
        let Some(known) = effective.value(&key) else {
            if let Some(feature) = effective.feature_without(&key) {
                return Err(ConfigError(format!("environment {name}: {}", doors::built_without(feature))));
            }
            return Err(unknown(&name, effective));
        };
        let value = read_like(known, &text);
        settings.push(Setting { key, value, origin: Origin::Environment(name) });
    }
    settings.sort_by(|one, other| one.key.cmp(&other.key));
    Ok(settings)
}

/// Whether a variable looks like a setting: it has the separator, or begins with a section's name. Others with our prefix are ignored;
/// Kubernetes, for example, sets `RESTANTE_PORT` for a service of that name.
fn looks_like_setting(name: &str, rest: &str, effective: &Effective) -> bool {
    if OTHERS.iter().any(|prefix| name.starts_with(prefix)) {
        return false;
    }
    let section = rest.split('_').next().unwrap_or_default().to_ascii_lowercase();
    rest.contains(SEPARATOR) || effective.is_section(&section)
}

fn unknown(name: &str, effective: &Effective) -> ConfigError {
    let known: Vec<String> = effective.iter().map(|(key, ..)| variable(key)).collect();
    let hint = nearest::hint(name, known.iter().map(String::as_str));
    ConfigError(format!("there is no setting for the environment variable '{name}'{hint}"))
}

/// The variable that sets a key.
pub(crate) fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.to_ascii_uppercase().replace('.', SEPARATOR))
}

/// The text as a value of the type that the key has; if it does not parse, as a text, so that the check reports the key.
fn read_like(known: &Value, text: &str) -> Value {
    let as_text = || Value::String(text.to_owned());
    let as_number = |text: &str| text.trim().parse().map(Value::Integer).ok();
    match known {
        Value::Integer(_) => as_number(text).unwrap_or_else(as_text),
        Value::Boolean(_) => text.trim().parse().map_or_else(|_| as_text(), Value::Boolean),
        Value::Array(_) => {
            if let Some(array) = read_array(text) {
                return array;
            }
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            Value::Array(items.map(|item| as_number(item).unwrap_or_else(|| item.into())).collect())
        }
        _ => as_text(),
    }
}

/// Reads a list that is written as in a file: a list of tables can't be written as comma-separated items.
fn read_array(text: &str) -> Option<Value> {
    let mut table: toml::Table = format!("list = {}", text.trim()).parse().ok()?;
    table.remove("list").filter(Value::is_array)
}
