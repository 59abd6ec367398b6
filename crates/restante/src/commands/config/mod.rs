//! `restante config`

mod check;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::Subcommand;

use crate::{
    config::{Effective, Origin, ServeFlags},
    exit,
};

#[derive(Subcommand, Debug)]
pub(crate) enum ConfigCommand {
    /// Print every setting in use and its origin, as TOML
    #[command(after_help = "Example:\n  RESTANTE_REST__PORT=80 restante config show --retention time:86400")]
    Show(ServeFlags),
    /// Check whether a server would start with these settings
    #[command(after_help = "Example:\n  restante config check --config /etc/restante.toml")]
    Check(ServeFlags),
}

pub(crate) use check::Findings;

pub(crate) fn run(command: &ConfigCommand) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    match command {
        ConfigCommand::Show(flags) => show(&flags.load()?, &mut out)?,
        ConfigCommand::Check(flags) => return Ok(check(&flags.load()?, &mut out)?),
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a line for each finding. Warnings only are no failure: a server would start.
fn check(effective: &Effective, out: &mut dyn Write) -> io::Result<ExitCode> {
    let findings = check::check(&effective.config);
    for warning in &findings.warnings {
        writeln!(out, "warning: {warning}")?;
    }
    for problem in &findings.problems {
        writeln!(out, "error: {problem}")?;
    }
    if !findings.problems.is_empty() {
        return Ok(exit::found_wrong());
    }
    let set = effective.iter().filter(|(.., origin)| **origin != Origin::Default).count();
    writeln!(out, "the settings are fine: {set} set, the others at their defaults")?;
    Ok(ExitCode::SUCCESS)
}

/// Prints a line for each key, as valid TOML, with the origins in aligned comments.
fn show(effective: &Effective, out: &mut dyn Write) -> io::Result<()> {
    let lines: Vec<(String, &Origin)> =
        effective.shown().map(|(key, value, origin)| (format!("{key} = {value}"), origin)).collect();
    let width = lines.iter().map(|(line, _)| line.len()).max().unwrap_or(0);
    for (line, origin) in lines {
        writeln!(out, "{line:<width$}  # {origin}")?;
    }
    Ok(())
}
