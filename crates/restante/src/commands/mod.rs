//! One module for each command.

pub(crate) mod archive;
pub(crate) mod backup;
pub(crate) mod blobs;
pub(crate) mod completions;
pub(crate) mod config;
mod connected;
pub(crate) mod directory;
mod findings;
pub(crate) mod man;
pub(crate) mod publish;
pub(crate) mod query;
pub(crate) mod records;
pub(crate) mod restore;
mod retention;
mod serve;
pub(crate) mod sessions;
mod size;
mod stores;
pub(crate) mod tidying;

use std::process::ExitCode;

use crate::{cli::Command, logging};

/// Runs a command to its end.
pub(crate) async fn run(command: Command) -> anyhow::Result<ExitCode> {
    if !matches!(command, Command::Serve(_)) {
        logging::start_quietly();
    }
    match command {
        Command::Serve(flags) => Box::pin(serve::run(&flags)).await,
        Command::Publish(flags) => publish::run(&flags).await,
        Command::Query(flags) => query::run(&flags).await,
        Command::Sessions(command) => sessions::run(command).await,
        Command::Archive(command) => archive::run(command).await,
        Command::Records(command) => records::run(command).await,
        Command::Blobs(command) => blobs::run(command).await,
        Command::Backup(flags) => backup::run(&flags).await,
        Command::Restore(flags) => restore::run(&flags),
        Command::Bench(command) => restante_bench::run(command).await.map(|()| ExitCode::SUCCESS),
        Command::Setup(flags) => directory::setup::run(&flags).await,
        Command::Domain(command) => directory::domain::run(command).await,
        Command::Account(command) => directory::account::run(command).await,
        Command::Alias(command) => directory::alias::run(command).await,
        Command::Token(command) => directory::token::run(command).await,
        Command::Log(flags) => directory::log::run(&flags).await,
        Command::Config(command) => config::run(&command),
        Command::Completions(flags) => completions::run(&flags),
        Command::Man(flags) => man::run(&flags),
    }
}
