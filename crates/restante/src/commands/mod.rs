//! One module for each command.

pub(crate) mod backup;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod connected;
pub(crate) mod findings;
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
        Command::Publish(flags) => doors::waku::commands::publish::run(&flags).await,
        Command::Query(flags) => doors::waku::commands::query::run(&flags).await,
        Command::Sessions(command) => sessions::run(command).await,
        Command::Archive(command) => doors::waku::commands::archive::run(command).await,
        Command::Records(command) => doors::mail::commands::records::run(command).await,
        Command::Blobs(command) => doors::mail::commands::blobs::run(command).await,
        Command::Backup(flags) => backup::run(&flags).await,
        Command::Restore(flags) => restore::run(&flags),
        Command::Bench(command) => restante_bench::run(command).await.map(|()| ExitCode::SUCCESS),
        Command::Setup(flags) => doors::mail::commands::directory::setup::run(&flags).await,
        Command::Domain(command) => doors::mail::commands::directory::domain::run(command).await,
        Command::Account(command) => doors::mail::commands::directory::account::run(command).await,
        Command::Alias(command) => doors::mail::commands::directory::alias::run(command).await,
        Command::Token(command) => doors::mail::commands::directory::token::run(command).await,
        Command::Log(flags) => doors::mail::commands::directory::log::run(&flags).await,
        Command::Config(command) => config::run(&command),
        Command::Completions(flags) => completions::run(&flags),
        Command::Man(flags) => man::run(&flags),
    }
}
