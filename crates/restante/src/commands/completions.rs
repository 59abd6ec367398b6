//! `restante completions`

use std::{io, process::ExitCode};

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::cli::Cli;

#[derive(Args, Debug)]
pub(crate) struct CompletionsFlags {
    /// Which shell
    shell: Shell,
}

pub(crate) fn run(flags: &CompletionsFlags) -> anyhow::Result<ExitCode> {
    // Generated in memory first: the generator panics when it can't write, but a closed pipe should not cause a panic.
    let mut script = Vec::new();
    clap_complete::generate(flags.shell, &mut Cli::command(), "restante", &mut script);
    io::Write::write_all(&mut io::stdout(), &script)?;
    Ok(ExitCode::SUCCESS)
}
