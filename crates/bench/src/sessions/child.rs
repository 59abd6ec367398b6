//! This program once more, to look at the memory of a process that holds one table and nothing else.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use super::{
    entries::{self, ContainerKind},
    memory::{self, TableKind},
};

/// Tells the child what it is to do.
pub(super) const TASK_OF: &str = "RESTANTE_BENCH_SESSIONS_TASK";

/// What a child does before it tells its memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Task {
    /// Open sessions, and tell the bytes of each at these fills, which are in order.
    Fill { table: TableKind, has_info: bool, fills: Vec<u32> },
    /// Make so many maps of so many entries, and tell the bytes of each.
    Containers { kind: ContainerKind, keys: u16, maps: u32 },
}

/// Starts children.
#[derive(Clone, Debug)]
pub(super) struct Runner {
    pub(super) program: PathBuf,
}

impl Runner {
    /// Starts a child and reads the figures that it prints.
    pub(super) async fn run(&self, task: &Task) -> anyhow::Result<Vec<f64>> {
        let mut child = Command::new(&self.program);
        child
            .args(["bench", "sessions"])
            .env(TASK_OF, serde_json::to_string(task)?)
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        let output = tokio::task::spawn_blocking(move || child.output()).await?;
        let output = output.with_context(|| format!("can't start {}", self.program.display()))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("the child process ended with {}: {}", output.status, said.trim());
        }
        serde_json::from_slice(&output.stdout).context("can't understand the child process")
    }
}

/// What the child does.
pub(super) async fn tell(task: &str) -> anyhow::Result<()> {
    let task = serde_json::from_str(task).context("can't understand the task")?;
    let figures = do_task(task).await?;
    println!("{}", serde_json::to_string(&figures)?);
    Ok(())
}

async fn do_task(task: Task) -> anyhow::Result<Vec<f64>> {
    match task {
        Task::Fill { table, has_info, fills } => memory::tell(table, has_info, &fills).await,
        Task::Containers { kind, keys, maps } => Ok(vec![entries::tell(kind, keys, maps)?]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_task_survives_the_way_to_the_child() {
        let task = Task::Fill { table: TableKind::Sharded, has_info: true, fills: vec![1_000, 2_000] };
        let text = serde_json::to_string(&task).unwrap();
        let figures = do_task(serde_json::from_str(&text).unwrap()).await.unwrap();
        assert_eq!(figures.len(), 2);
        let task = Task::Containers { kind: ContainerKind::Info, keys: 3, maps: 100 };
        assert_eq!(do_task(task).await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_child_that_fails_is_an_error() {
        let runner = Runner { program: "/bin/false".into() };
        let task = Task::Containers { kind: ContainerKind::Info, keys: 3, maps: 1 };
        assert!(runner.run(&task).await.unwrap_err().to_string().contains("ended with"));
    }
}
