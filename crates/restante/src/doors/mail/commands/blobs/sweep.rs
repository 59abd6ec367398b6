//! `restante blobs sweep`

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::Args;
use indicatif::{DecimalBytes, HumanCount};

use crate::{
    backups, clock,
    config::RecordsFlags,
    doors::mail::{
        blobs, records,
        tidying::{self, before},
    },
};

#[derive(Args, Debug)]
pub(crate) struct SweepFlags {
    #[command(flatten)]
    places: RecordsFlags,
    /// Keep blobs that were put within this many seconds [default: blobs.sweep_grace_seconds]
    #[arg(long, value_name = "SECONDS")]
    grace: Option<u64>,
    /// Make the blobs those of these records, whatever records they were put for: after records were intentionally created
    /// anew. Blobs without a reference in these are removed
    #[arg(long)]
    adopt: bool,
}

/// Both stores are open here and nowhere else, so no commit can be in progress that refers to a blob which is removed.
pub(super) async fn run(flags: &SweepFlags) -> anyhow::Result<ExitCode> {
    let config = flags.places.load()?.config;
    // Records that were only partly restored would not name all blobs.
    backups::check_not_halfway(&config)?;
    tidying::check_records_last(&config)?;
    let records = records::open_existing(&config).await?;
    let blobs = blobs::open_existing(&config).await?;
    if flags.adopt {
        blobs.upkeep.set_owner(records.upkeep.identity()).await?;
    }
    records::put_blobs_again(&records, &blobs).await?;
    let grace = flags.grace.unwrap_or(config.blobs.sweep_grace_seconds.get());
    let swept = tidying::sweep(&records.upkeep, &blobs, before(clock::system().now(), grace)).await?;
    blobs.upkeep.close().await?;
    records.upkeep.close().await?;
    let (looked_at, removed) = (HumanCount(swept.blobs), HumanCount(swept.removed));
    let bytes = DecimalBytes(swept.removed_bytes);
    writeln!(io::stdout().lock(), "looked at {looked_at} blobs, removed {removed} of {bytes}")?;
    Ok(ExitCode::SUCCESS)
}
