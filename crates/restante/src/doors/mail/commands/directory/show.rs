//! How the directory is printed.

use std::io::{self, Write};

use indicatif::DecimalBytes;
use restante_core::Timestamp;
use restante_directory::{
    AccountInfo, AccountSummary, AliasInfo, DomainInfo, GrantInfo, OperationEntry, Role, Scope, State,
    TokenInfo,
};
use serde::Serialize;

use crate::{
    output::ReportFormat,
    output::{printable, write_json},
};

/// Prints rows of a list in columns, or as one JSON array.
pub(crate) fn list<T: Serialize>(
    items: &[T],
    format: ReportFormat,
    head: &[&str],
    row: impl Fn(&T) -> Vec<String>,
) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match format {
        ReportFormat::Json => json(&items),
        ReportFormat::Text if items.is_empty() => Ok(()),
        ReportFormat::Text => columns(&mut out, head, items.iter().map(row).collect()),
    }
}

/// Prints a value as one line of JSON.
pub(crate) fn json(value: &impl Serialize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    write_json(&mut out, value)?;
    writeln!(out)
}

fn columns(out: &mut dyn Write, head: &[&str], rows: Vec<Vec<String>>) -> io::Result<()> {
    let rows: Vec<Vec<String>> =
        rows.into_iter().map(|row| row.iter().map(|cell| printable(cell)).collect()).collect();
    let width = |at: usize, head: &str| {
        let widest = rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max();
        widest.unwrap_or(0).max(head.chars().count())
    };
    let widths: Vec<usize> = head.iter().enumerate().map(|(at, head)| width(at, head)).collect();
    let head: Vec<String> = head.iter().map(|head| (*head).to_owned()).collect();
    for row in [&head].into_iter().chain(&rows) {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        writeln!(out, "{}", cells.join("  ").trim_end())?;
    }
    Ok(())
}

pub(super) const DOMAIN_HEAD: &[&str] = &["domain", "separator", "catch-all"];

pub(super) fn domain(domain: &DomainInfo) -> Vec<String> {
    let separator = domain.separator.map_or("none".into(), String::from);
    let catch_all = domain.catch_all.as_ref().map_or("none".into(), ToString::to_string);
    vec![domain.domain.to_string(), separator, catch_all]
}

pub(super) const ACCOUNT_HEAD: &[&str] = &["address", "number", "state", "role", "quota"];

pub(super) fn account(account: &AccountSummary) -> Vec<String> {
    vec![
        account.address.to_string(),
        account.account.to_string(),
        state(account.state).into(),
        role(account.role).into(),
        quota(account.quota_bytes),
    ]
}

pub(super) const ALIAS_HEAD: &[&str] = &["alias", "targets"];

pub(super) fn alias(alias: &AliasInfo) -> Vec<String> {
    let targets: Vec<String> = alias.targets.iter().map(ToString::to_string).collect();
    vec![alias.address.to_string(), targets.join(" ")]
}

pub(super) const TOKEN_HEAD: &[&str] = &["id", "name", "scope", "made", "expires"];

pub(super) fn token(token: &TokenInfo) -> Vec<String> {
    let scopes: Vec<&str> = token.scopes.iter().map(|known| scope(*known)).collect();
    let expires = token.expires.map_or("never".into(), time);
    vec![token.id.clone(), token.name.clone(), scopes.join(","), time(token.created), expires]
}

pub(super) const LOG_HEAD: &[&str] = &["time", "who", "what"];

pub(super) fn operation(operation: &OperationEntry) -> Vec<String> {
    let at = Timestamp(operation.at).seconds();
    vec![time(at), operation.who.clone(), operation.what.clone()]
}

/// Prints one account, one line for each property.
pub(super) fn whole_account(info: &AccountInfo) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let summary = &info.summary;
    let mut line = |name: &str, value: &str| writeln!(out, "{name:<10} {}", printable(value));
    line("address", &summary.address.to_string())?;
    line("number", &summary.account.to_string())?;
    line("state", state(summary.state))?;
    line("role", role(summary.role))?;
    line("quota", &quota(summary.quota_bytes))?;
    line("added", &time(info.created))?;
    for password in &info.passwords {
        let name = password.name.as_deref().map_or("its own".to_owned(), |name| format!("for {name}"));
        line("password", &format!("{name}, set {}", time(password.created)))?;
    }
    for known in &info.tokens {
        line("token", &token(known).join("  "))?;
    }
    let access = |grant: &GrantInfo| match grant.access {
        restante_directory::Access::Read => "reads",
        restante_directory::Access::Write => "writes",
    };
    for grant in &info.may_use {
        line("grant", &format!("{} the mail of {}", access(grant), grant.address))?;
    }
    for grant in &info.used_by {
        line("grant", &format!("{} {} this mail", grant.address, access(grant)))?;
    }
    Ok(())
}

fn state(state: State) -> &'static str {
    match state {
        State::Active => "active",
        State::Disabled => "disabled",
    }
}

fn role(role: Role) -> &'static str {
    match role {
        Role::User => "user",
        Role::Operator => "operator",
    }
}

fn scope(scope: Scope) -> &'static str {
    match scope {
        Scope::Mail => "mail",
        Scope::Send => "send",
        Scope::Chat => "chat",
        Scope::Operate => "operate",
    }
}

fn quota(bytes: Option<u64>) -> String {
    bytes.map_or("none".into(), |bytes| DecimalBytes(bytes).to_string())
}

/// Seconds since 1970 as a date and a time of day, in UTC.
pub(crate) fn time(seconds: i64) -> String {
    let text = Timestamp::from_seconds(seconds).to_string();
    text.split_once('.').map_or(text.clone(), |(whole, _)| format!("{whole}Z"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let mut out = Vec::new();
        let rows = vec![vec!["a".to_owned(), "bb".into()], vec!["c\u{1b}[2J".into(), "d".into()]];
        columns(&mut out, &["x", "y"], rows).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "x      y\na      bb\nc [2J  d\n");
    }

    #[test]
    fn times_have_no_fractions() {
        assert_eq!(time(1_554_076_800), "2019-04-01T00:00:00Z");
    }
}
