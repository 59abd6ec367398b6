//! `restante man`

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::Context;
use clap::{Args, CommandFactory, ValueHint};

use crate::cli::Cli;

#[derive(Args, Debug)]
pub(crate) struct ManFlags {
    /// Write the pages into this folder
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    out: PathBuf,
}

pub(crate) fn run(flags: &ManFlags) -> anyhow::Result<ExitCode> {
    let folder = &flags.out;
    fs::create_dir_all(folder).with_context(|| format!("can't make the folder {}", folder.display()))?;
    clap_mangen::generate_to(Cli::command(), folder)
        .with_context(|| format!("can't write man pages into {}", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}
