//! How the binary ends: the exit codes, and errors as one line on stderr.

use std::{error::Error, io, process::ExitCode};

use clap::error::ContextValue;
use restante_core::ErrorKind;

use crate::{
    config::{ConfigError, plain_argument},
    output::printable,
    secrets,
};

/// The command failed, or found something wrong.
const FAILED: u8 = 1;
/// The command line or the configuration can't be used; clap ends with the same code.
const USAGE: u8 = 2;
/// Another process holds a required resource.
const HELD: u8 = 3;
/// The command was stopped before it was done: the code that a shell reports for Ctrl-C.
const INTERRUPTED: u8 = 130;

/// A command line that can't be used, found after clap had read it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

/// The code of a command that did its work and found something wrong.
pub(crate) fn found_wrong() -> ExitCode {
    ExitCode::from(FAILED)
}

/// The code of a command that was stopped and can be resumed.
pub(crate) fn interrupted() -> ExitCode {
    ExitCode::from(INTERRUPTED)
}

/// Prints what is wrong with a command line, or the requested help, and returns the exit code.
pub(crate) fn usage(mut error: clap::Error) -> ExitCode {
    if !error.use_stderr() {
        error.exit(); // help and version, which go to stdout
    }
    hide_passwords(&mut error);
    let rendered = error.render();
    let is_terminal = io::IsTerminal::is_terminal(&io::stderr());
    let text = if is_terminal { rendered.ansi().to_string() } else { rendered.to_string() };
    eprint!("{}", plain_argument(&text));
    ExitCode::from(USAGE)
}

/// Hides passwords in quoted parts of the command line: in a URL that was refused, or that is in an unexpected position.
fn hide_passwords(error: &mut clap::Error) {
    let mut shown = Vec::new();
    for (kind, value) in error.context() {
        if let ContextValue::String(argument) = value {
            shown.push((kind, ContextValue::String(secrets::without_passwords(argument))));
        }
    }
    for (kind, value) in shown {
        error.insert(kind, value);
    }
}

/// Prints the error and returns the exit code.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if is_closed_pipe(error) {
        return ExitCode::SUCCESS; // `restante query | head`: the reader has enough
    }
    eprintln!("restante: {}", one_line(error));
    ExitCode::from(code(error))
}

fn code(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if cause.is::<ConfigError>() || cause.is::<UsageError>() {
            return USAGE;
        }
        let is_taken = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
        if kind_of(cause) == Some(ErrorKind::Conflict) || cause.downcast_ref().is_some_and(is_taken) {
            return HELD;
        }
    }
    FAILED
}

/// The kind of an error, if it or one of its causes has one.
pub(crate) fn kind(error: &anyhow::Error) -> Option<ErrorKind> {
    error.chain().find_map(kind_of)
}

fn kind_of(cause: &(dyn Error + 'static)) -> Option<ErrorKind> {
    cause.downcast_ref().map(restante_core::Error::kind)
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let closed = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    error.downcast_ref().is_some_and(closed)
}

/// The error and its causes, joined by colons. A cause whose text is already in the line is left out.
fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = printable(&cause.to_string());
        if line.is_empty() {
            line = text;
        } else if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy() -> anyhow::Error {
        anyhow::Error::new(io::Error::new(io::ErrorKind::AddrInUse, "in use")).context("can't listen")
    }

    #[test]
    fn the_code_tells_what_kind_of_trouble_it_was() {
        let locked = restante_core::Error::conflict("locked");
        assert_eq!(code(&anyhow::Error::new(locked).context("can't open")), HELD);
        assert_eq!(code(&busy()), HELD);
        assert_eq!(code(&UsageError("both".into()).into()), USAGE);
        assert_eq!(code(&anyhow::anyhow!("disk")), FAILED);
    }

    #[test]
    fn causes_are_joined_and_not_repeated() {
        assert_eq!(one_line(&busy()), "can't listen: in use");
        let inner = io::Error::other("no\nroom");
        let error = anyhow::Error::new(inner).context("can't write x: no room");
        assert_eq!(one_line(&error), "can't write x: no room");
    }
}
