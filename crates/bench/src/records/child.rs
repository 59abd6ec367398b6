//! A child process for each measurement, so that counters and memory are those of one store alone.

use std::{
    io::Read,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{batch, churn, fill::Load, group, read, seed, store::RecordsEngine};

/// The variable with a child's task.
pub(super) const TASK: &str = "RESTANTE_BENCH_RECORDS_TASK";
/// The interval of checks whether the child has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A job on a fresh store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) engine: RecordsEngine,
    /// The empty folder of the store.
    pub(super) folder: PathBuf,
    pub(super) seed: u64,
    pub(super) is_quick: bool,
    pub(super) job: Job,
}

/// The measurements.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Job {
    /// Sink's mails.
    Seed { entities: u64 },
    /// Mails in commits.
    Batch { entities: u64, batch: u64, accounts: u32 },
    /// Flag changes.
    Churn { entities: u64, batch: u64, changes: u64 },
    /// Reads.
    Read { entities: u64, batch: u64 },
    /// Committers.
    Group,
}

/// Where tasks are run.
#[derive(Clone, Debug)]
pub(super) enum Runner {
    /// In a process of their own.
    Child(PathBuf),
    /// In this process, as tests do.
    #[cfg(test)]
    Here,
}

impl Runner {
    /// Runs a task and returns its figures.
    pub(super) async fn run<F: DeserializeOwned>(&self, task: &Task) -> anyhow::Result<F> {
        let figures = match self {
            Self::Child(program) => in_child(program, task).await?,
            #[cfg(test)]
            Self::Here => Box::pin(do_task(task)).await?,
        };
        serde_json::from_value(figures).context("can't parse the figures of a measurement")
    }
}

/// A child that is killed when this is dropped.
struct Guarded(Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        // Both fail if the child has already ended.
        let _ = self.0.kill();
        let _: Result<ExitStatus, _> = self.0.wait();
    }
}

async fn in_child(program: &PathBuf, task: &Task) -> anyhow::Result<serde_json::Value> {
    let child = Command::new(program)
        .args(["bench", "records"])
        .env(TASK, serde_json::to_string(task)?)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("can't start {}", program.display()))?;
    let mut child = Guarded(child);
    // Its output fits into a pipe, so it can end before it is read.
    let status = loop {
        if let Some(status) = child.0.try_wait()? {
            break status;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    };
    if !status.success() {
        bail!("a measurement in a child process ended with {status}; its error is above");
    }
    let mut figures = String::new();
    let mut pipe = child.0.stdout.take().context("the child process has no output")?;
    pipe.read_to_string(&mut figures)?;
    serde_json::from_str(&figures).context("can't parse the output of the child process")
}

/// Runs the task of a child process and prints its figures.
pub(super) async fn run_task(task: &str) -> anyhow::Result<()> {
    let task = serde_json::from_str(task).context("can't parse the task")?;
    let figures = Box::pin(do_task(&task)).await?;
    println!("{figures}");
    Ok(())
}

async fn do_task(task: &Task) -> anyhow::Result<serde_json::Value> {
    let (engine, folder, seed) = (task.engine, &task.folder, task.seed);
    let figures = match task.job {
        Job::Seed { entities } => serde_json::to_value(seed::measure(engine, folder, seed, entities).await?),
        Job::Batch { entities, batch, accounts } => {
            let load = Load { seed, entities, batch, accounts, inbox_every: 2 };
            serde_json::to_value(batch::measure(engine, folder, load).await?)
        }
        Job::Churn { entities, batch, changes } => {
            let load = Load { seed, entities, batch, accounts: 1, inbox_every: 2 };
            serde_json::to_value(churn::measure(engine, folder, load, changes).await?)
        }
        Job::Read { entities, batch } => {
            let load = read::load(seed, entities, batch);
            serde_json::to_value(read::measure(engine, folder, load, task.is_quick).await?)
        }
        Job::Group => serde_json::to_value(group::measure(engine, folder, seed, task.is_quick).await?),
    };
    Ok(figures?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_child_that_fails_is_an_error() {
        let task = Task {
            engine: RecordsEngine::Memory,
            folder: PathBuf::new(),
            seed: 0,
            is_quick: true,
            job: Job::Group,
        };
        let runner = Runner::Child("/bin/false".into());
        let error = runner.run::<serde_json::Value>(&task).await.unwrap_err();
        assert!(error.to_string().contains("ended with"), "{error}");
        let text = serde_json::to_string(&task).unwrap();
        let same: Task = serde_json::from_str(&text).unwrap();
        assert!(matches!((same.engine, same.job), (RecordsEngine::Memory, Job::Group)));
    }
}
