//! `restante records erase`

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use indicatif::HumanCount;
use restante_directory::FIRST_ACCOUNT;
use restante_records::AccountId;

use crate::{config::RecordsFlags, doors::mail::records, exit::UsageError, progress::Progress};

#[derive(Args, Debug)]
pub(crate) struct EraseFlags {
    #[command(flatten)]
    records: RecordsFlags,
    /// The number of a user's account, as `restante account show` prints it
    account: u32,
    /// Erase: only a backup brings the records back
    #[arg(long)]
    yes: bool,
}

/// Records and tombstones that are erased between two progress updates.
const STEP: usize = 4_096;

pub(super) async fn run(flags: &EraseFlags) -> anyhow::Result<ExitCode> {
    let account = AccountId(flags.account);
    if account.0 < FIRST_ACCOUNT {
        let what = format!(
            "account {} is internal, the server needs what it has: accounts of users have numbers from {FIRST_ACCOUNT} on",
            account.0
        );
        return Err(UsageError(what).into());
    }
    if !flags.yes {
        bail!("only a backup brings the records of account {} back: add --yes to erase them", account.0);
    }
    let opened = records::open_existing(&flags.records.load()?.config).await?;
    let progress = Progress::counting("records", "erasing", None);
    let mut erased_records = 0;
    loop {
        let erased = opened.upkeep.erase(account, STEP).await?;
        erased_records += erased.records;
        progress.set(erased_records);
        if !erased.has_more {
            break;
        }
    }
    drop(progress);
    opened.upkeep.close().await?;
    println!("erased {} records of account {}", HumanCount(erased_records), account.0);
    Ok(ExitCode::SUCCESS)
}
