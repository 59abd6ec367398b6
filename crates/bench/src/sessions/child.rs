//! Child processes: this program again, with a task in its environment. A process that holds one table and nothing else shows
//! that table's memory.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use super::{entries, memory, restante_table::RestanteTable};

/// The variable with a child's task.
pub(super) const TASK: &str = "RESTANTE_BENCH_SESSIONS_TASK";

/// A child measures private memory and prints it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Task {
    /// Bytes of a session at each of these fills, which ascend.
    Fill { has_info: bool, fills: Vec<u32> },
    /// Bytes of a map of this many entries, in this many maps.
    Maps { keys: u16, maps: u32 },
}

/// Starts children.
#[derive(Clone, Debug)]
pub struct Runner {
    /// The program of the children.
    pub program: PathBuf,
    /// Their arguments.
    pub args: &'static [&'static str],
    /// The variable with the task.
    pub variable: &'static str,
}

impl Runner {
    /// Starts a child with a task and returns the figures that it prints as a JSON list.
    ///
    /// # Errors
    /// When the child does not start, fails or prints something else.
    pub async fn run<T: Serialize>(&self, task: &T) -> anyhow::Result<Vec<f64>> {
        let mut child = Command::new(&self.program);
        child
            .args(self.args)
            .env(self.variable, serde_json::to_string(task)?)
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        let output = tokio::task::spawn_blocking(move || child.output()).await?;
        let output = output.with_context(|| format!("can't start {}", self.program.display()))?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            bail!("the child process ended with {}: {}", output.status, stderr.trim());
        }
        serde_json::from_slice(&output.stdout).context("can't parse the output of the child process")
    }
}

/// Runs the task of a child process and prints its figures.
pub(super) async fn run_task(task: &str) -> anyhow::Result<()> {
    let task = serde_json::from_str(task).context("can't parse the task")?;
    let figures = measure(task).await?;
    println!("{}", serde_json::to_string(&figures)?);
    Ok(())
}

async fn measure(task: Task) -> anyhow::Result<Vec<f64>> {
    match task {
        Task::Fill { has_info, fills } => memory::fill(&RestanteTable::open().await?, has_info, &fills),
        Task::Maps { keys, maps } => Ok(vec![entries::bytes_of::<restante_sessions::InfoBuf>(keys, maps)?]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_task_survives_encoding() {
        let task = Task::Fill { has_info: true, fills: vec![1_000, 2_000] };
        let text = serde_json::to_string(&task).unwrap();
        let figures = measure(serde_json::from_str(&text).unwrap()).await.unwrap();
        assert_eq!(figures.len(), 2);
        assert_eq!(measure(Task::Maps { keys: 3, maps: 100 }).await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_child_that_fails_is_an_error() {
        let runner = Runner { program: "/bin/false".into(), args: &[], variable: TASK };
        let task = Task::Maps { keys: 3, maps: 1 };
        assert!(runner.run(&task).await.unwrap_err().to_string().contains("ended with"));
    }
}
