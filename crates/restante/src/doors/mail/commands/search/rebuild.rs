//! `restante search rebuild`

use std::{
    io::{self, Write},
    process::ExitCode,
};

use super::{IndexFlags, REBUILD_PATH};
use crate::{commands::backup::explain_token, doors::mail::search};

pub(super) async fn run(flags: &IndexFlags) -> anyhow::Result<ExitCode> {
    let what = match flags.server()? {
        Some(server) => {
            server.post(REBUILD_PATH, Vec::new()).await.map_err(explain_token)?;
            "the server makes the search index again: restante_follow_lag_seconds{follower=\"indexer\"} says how far it is"
        }
        None => {
            let opened = search::open_existing(&flags.stores.load()?.config).await?;
            opened.upkeep.rebuild().await?;
            opened.upkeep.close().await?;
            "a server makes the search index again as soon as one runs"
        }
    };
    writeln!(io::stdout().lock(), "{what}")?;
    Ok(ExitCode::SUCCESS)
}
