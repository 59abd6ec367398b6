//! `restante restore`

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use clap::{Args, ValueHint};
use indicatif::{DecimalBytes, HumanCount};
use restante_backup::{RestoreOptions, Restored};

use crate::{
    backups, clock,
    commands::backup::{counts, no_backup},
    config::DataFlags,
    progress::Progress,
};

#[derive(Args, Debug)]
pub(crate) struct RestoreFlags {
    /// The backup
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    folder: PathBuf,
    #[command(flatten)]
    data: DataFlags,
    /// Move existing data aside; nothing is removed
    #[arg(long)]
    force: bool,
    /// Restore the node's key, too: the server then is the node that was backed up, which must not run any more
    #[arg(long)]
    keep_node_key: bool,
}

pub(crate) fn run(flags: &RestoreFlags) -> anyhow::Result<ExitCode> {
    if !flags.folder.is_dir() {
        return Err(no_backup(&flags.folder).into());
    }
    let config = flags.data.load()?.config;
    let now = clock::system().now();
    let bar = Progress::bytes("restoring", Some(0));
    let options = RestoreOptions { is_forced: flags.force, keep_node_key: flags.keep_node_key };
    let restored = restante_backup::restore(
        &backups::layout(&config),
        &flags.folder,
        options,
        now,
        &mut |done, total| bar.set_of(done, total),
    );
    drop(bar);
    let restored = restored?;
    for note in &restored.notes {
        eprintln!("restante: {note}");
    }
    let data = std::path::absolute(&config.server.data_dir).context("can't find the data folder")?;
    tell(&restored, &flags.folder, &data, &mut io::stdout().lock())?;
    Ok(ExitCode::SUCCESS)
}

/// Prints what was done, and the next steps.
fn tell(restored: &Restored, folder: &Path, data: &Path, out: &mut dyn Write) -> io::Result<()> {
    let (files, bytes) = (HumanCount(restored.files), DecimalBytes(restored.bytes));
    let (counts, data, folder) = (counts(&restored.counts), data.display(), folder.display());
    writeln!(out, "restored {counts} of {} into {data}: {files} files, {bytes}", restored.taken_at)?;
    for aside in &restored.aside {
        writeln!(
            out,
            "what was there before is in {}: remove it when it is no longer needed",
            aside.display()
        )?;
    }
    if let Some(key) = &restored.key_left {
        writeln!(
            out,
            "the node gets a new key and a new peer id; to keep those of the node that was backed up, which must not run any \
             more, copy {} into {data} before the first start, or restore with --keep-node-key",
            key.display()
        )?;
    }
    writeln!(
        out,
        "next: compare the server's settings with {folder}/settings.toml, restore passwords and keys outside of the data folder, \
         make sure that {data} belongs to the server's user, and start the server"
    )
}
