//! `restante log`: what operators did.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use restante_directory::{Answer, Operation};

use super::{reach::DirectoryFlags, show};

#[derive(Args, Debug)]
pub(crate) struct LogFlags {
    /// Print at most this many lines
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    limit: u16,
    #[command(flatten)]
    flags: DirectoryFlags,
}

pub(crate) async fn run(LogFlags { limit, flags }: &LogFlags) -> anyhow::Result<ExitCode> {
    let Answer::Log(lines) = flags.operate(Operation::Log { limit: usize::from(*limit) }).await? else {
        bail!("the server's answer is no log");
    };
    show::list(&lines, flags.format, show::LOG_HEAD, show::operation)?;
    Ok(ExitCode::SUCCESS)
}
