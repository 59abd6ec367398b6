//! `restante search rebuild`

use std::{
    io::{self, Write},
    process::ExitCode,
};

use restante_core::ErrorKind;

use super::{IndexFlags, REBUILD_PATH};
use crate::{
    commands::backup::explain_token,
    config::Config,
    doors::mail::{records, search},
    exit,
};

pub(super) async fn run(flags: &IndexFlags) -> anyhow::Result<ExitCode> {
    let what = match flags.server()? {
        Some(server) => {
            server.post(REBUILD_PATH, Vec::new()).await.map_err(explain_token)?;
            "the server makes the search index again: restante_follow_lag_seconds{follower=\"indexer\"} says how far it is"
        }
        None => {
            let config = flags.stores.load()?.config;
            match search::open_existing(&config).await {
                Ok(opened) => {
                    opened.upkeep.rebuild().await?;
                    opened.upkeep.close().await?;
                }
                Err(error) if exit::kind(&error) == Some(ErrorKind::Corrupt) => {
                    search::make_again(&config).await?;
                }
                Err(error) if exit::kind(&error) == Some(ErrorKind::NotFound) && is_unmade(&config)? => {}
                Err(error) => return Err(error),
            }
            "a server makes the search index again as soon as one runs"
        }
    };
    writeln!(io::stdout().lock(), "{what}")?;
    Ok(ExitCode::SUCCESS)
}

/// Whether no server has run since the folder was set up or restored. A missing index elsewhere may have a mistyped location.
fn is_unmade(config: &Config) -> anyhow::Result<bool> {
    Ok(config.search.url.is_none() && records::are_there(config)?)
}
