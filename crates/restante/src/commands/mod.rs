//! One module for each command.

pub(crate) mod backup;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod connected;
pub(crate) mod man;
pub(crate) mod restore;
pub(crate) mod serve;
pub(crate) mod sessions;

use std::process::ExitCode;

use crate::{cli::Command, doors, logging};

/// Runs a command to its end.
pub(crate) async fn run(command: Command) -> anyhow::Result<ExitCode> {
    if !matches!(command, Command::Serve(_)) {
        logging::start_quietly();
    }
    match command {
        Command::Serve(flags) => Box::pin(serve::run(&flags)).await,
        #[cfg(feature = "mail")]
        Command::Mail(command) => Box::pin(doors::mail::commands::run(command)).await,
        #[cfg(feature = "waku")]
        Command::Waku(command) => Box::pin(doors::waku::commands::run(command)).await,
        Command::Sessions(command) => sessions::run(command).await,
        Command::Backup(flags) => backup::run(&flags).await,
        Command::Restore(flags) => restore::run(&flags),
        #[cfg(feature = "bench")]
        Command::Bench(command) => restante_bench::run(command).await.map(|()| ExitCode::SUCCESS),
        Command::Config(command) => config::run(&command),
        Command::Completions(flags) => completions::run(&flags),
        Command::Man(flags) => man::run(&flags),
    }
}
