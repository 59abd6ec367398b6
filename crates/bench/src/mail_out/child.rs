//! A process of its own in which the long queue is opened, so that its memory is that of the queue alone.

use std::{path::PathBuf, process::Stdio};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use super::opening::{self, Opening};

/// The variable with the task of a child.
pub(super) const TASK: &str = "RESTANTE_BENCH_MAIL_OUT_TASK";

/// What to open.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) folder: PathBuf,
    pub(super) seed: u64,
    pub(super) is_quick: bool,
}

/// Where to open it.
#[derive(Clone, Debug)]
pub(super) enum Runner {
    /// In a process of its own.
    Child(PathBuf),
    /// In this process, as tests do.
    #[cfg(test)]
    Here,
}

impl Runner {
    pub(super) async fn run(&self, task: &Task) -> anyhow::Result<Opening> {
        match self {
            Self::Child(program) => in_child(program.clone(), task).await,
            #[cfg(test)]
            Self::Here => opening::measure(task).await,
        }
    }
}

async fn in_child(program: PathBuf, task: &Task) -> anyhow::Result<Opening> {
    let task = serde_json::to_string(task)?;
    let running = tokio::task::spawn_blocking(move || {
        let mut command = std::process::Command::new(&program);
        command.args(["bench", "mail-out"]).env(TASK, task).stdin(Stdio::null()).stderr(Stdio::inherit());
        command.output().with_context(|| format!("can't start {}", program.display()))
    });
    let output = running.await??;
    ensure!(
        output.status.success(),
        "a measurement in a child process ended with {}; its error is above",
        output.status
    );
    serde_json::from_slice(&output.stdout).context("can't parse the output of the child process")
}

/// Runs the task of a child process and prints its figures.
pub(super) async fn run_task(task: &str) -> anyhow::Result<()> {
    let task = serde_json::from_str(task).context("can't parse the task")?;
    println!("{}", serde_json::to_string(&opening::measure(&task).await?)?);
    Ok(())
}
