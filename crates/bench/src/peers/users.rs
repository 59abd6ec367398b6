//! Users who query history as fast as they can: each pages back from the newest message and starts again at the end.

use std::{
    fs::File,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use restante_waku::Multiaddr;
use restante_waku_wire::rpc::store::{StoreQueryRequest, StoreQueryResponse};
use serde::{Deserialize, Serialize};
use tokio::{sync::Barrier, task::JoinSet};

use super::history::{History, close_all, question};
use crate::{
    machine::processor_time,
    measure::{Latencies, rounded},
};

/// The variable with the plan of a child process.
pub(crate) const USERS_VARIABLE: &str = "RESTANTE_BENCH_USERS";
/// How long a user waits after a failed query.
const BACK_OFF: Duration = Duration::from_millis(50);
/// Pages of each user before the clock runs.
const WARM_UP_PAGES: usize = 5;
/// How much longer than its plan a child may take: its nodes have to connect.
const CHILD_PATIENCE: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(20);

/// The load of users.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// The server's address, with its peer id.
    pub(crate) server: String,
    pub(crate) users: usize,
    /// Messages of a page.
    pub(crate) page: u64,
    pub(crate) content_topic: String,
    pub(crate) seconds: f64,
}

/// The result of a load.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    /// Times of pages, from the query to the decoded answer.
    pub(crate) pages: Latencies,
    pub(crate) messages: u64,
    pub(crate) errors: u64,
    /// The first error.
    pub(crate) first_error: Option<String>,
    /// From the first query to the last answer.
    pub(crate) seconds: f64,
    /// Processor time of this process meanwhile.
    pub(crate) worked: Option<Duration>,
    /// Processor time of the server meanwhile, if known.
    pub(crate) server_worked: Option<Duration>,
}

/// A summary that a child process prints.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Summary {
    pub(crate) pages_per_s: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) errors: u64,
    pub(crate) first_error: Option<String>,
}

impl Asked {
    fn add(&mut self, other: Self) {
        self.pages.add(&other.pages);
        self.messages += other.messages;
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
    }

    fn summary(&self) -> Summary {
        Summary {
            pages_per_s: rounded(self.pages.len() as f64 / self.seconds),
            p50_ms: rounded(self.pages.median_ms()),
            p99_ms: rounded(self.pages.p99_ms()),
            errors: self.errors,
            first_error: self.first_error.clone(),
        }
    }
}

/// Runs the users in this process. All of them connect before the first query. `server_worked` returns the server's processor
/// time so far.
pub(crate) async fn ask(
    plan: &Plan,
    server_worked: &(dyn Fn() -> Option<Duration> + Sync),
) -> anyhow::Result<Asked> {
    let server: Multiaddr = plan.server.parse().context("not an address of a server")?;
    let mut connecting = JoinSet::new();
    for _ in 0..plan.users {
        let server = server.clone();
        connecting.spawn(async move { History::start(&server).await });
    }
    let mut users = Vec::new();
    while let Some(connected) = connecting.join_next().await {
        users.push(connected??);
    }
    let all_are_warm = Arc::new(Barrier::new(plan.users + 1));
    let mut asking = JoinSet::new();
    for history in users {
        let user = User { history, plan: plan.clone(), asked: Asked::default() };
        asking.spawn(user.run(all_are_warm.clone()));
    }
    all_are_warm.wait().await;
    let begun = Instant::now();
    let (worked_before, server_before) = (processor_time("self"), server_worked());
    let mut all = Asked::default();
    let mut users = Vec::new();
    while let Some(done) = asking.join_next().await {
        let (asked, history) = done?;
        all.add(asked);
        users.push(history);
    }
    all.seconds = begun.elapsed().as_secs_f64();
    all.worked = since(processor_time("self"), worked_before);
    all.server_worked = since(server_worked(), server_before);
    close_all(users).await;
    Ok(all)
}

/// The difference of two processor times.
pub(crate) fn since(now: Option<Duration>, before: Option<Duration>) -> Option<Duration> {
    now.zip(before).map(|(now, before)| now.saturating_sub(before))
}

struct User {
    history: History,
    plan: Plan,
    asked: Asked,
}

impl User {
    async fn run(mut self, all_are_warm: Arc<Barrier>) -> (Asked, History) {
        let first = question(&self.plan.content_topic, self.plan.page);
        let mut request = first.clone();
        for _ in 0..WARM_UP_PAGES {
            request = self.step(&first, request).await;
        }
        let failed = (self.asked.errors, self.asked.first_error.take());
        self.asked = Asked { errors: failed.0, first_error: failed.1, ..Asked::default() };
        all_are_warm.wait().await;
        let until = Instant::now() + Duration::from_secs_f64(self.plan.seconds);
        request = first.clone();
        while Instant::now() < until {
            request = self.step(&first, request).await;
        }
        (self.asked, self.history)
    }

    /// Requests a page and returns the request for the next one.
    async fn step(&mut self, first: &StoreQueryRequest, request: StoreQueryRequest) -> StoreQueryRequest {
        let begun = Instant::now();
        let answer = self.history.page(&request).await.and_then(|answer| self.check(answer));
        match answer {
            Ok(answer) => {
                self.asked.pages.record(begun.elapsed());
                self.asked.messages += answer.messages.len() as u64;
                let cursor = answer.pagination_cursor;
                if cursor.is_none() { first.clone() } else { with_cursor(request, cursor) }
            }
            Err(error) => {
                self.asked.errors += 1;
                self.asked.first_error.get_or_insert_with(|| format!("{error:#}"));
                tokio::time::sleep(BACK_OFF).await;
                first.clone()
            }
        }
    }

    /// Checks that a page before the last is full, and that every message has its data.
    fn check(&self, answer: StoreQueryResponse) -> anyhow::Result<StoreQueryResponse> {
        let is_full = answer.messages.len() as u64 == self.plan.page;
        ensure!(is_full || answer.pagination_cursor.is_none(), "a page before the last is not full");
        let has_all_data = answer.messages.iter().all(|entry| entry.message.is_some());
        ensure!(has_all_data, "a message of a page has no data");
        Ok(answer)
    }
}

fn with_cursor(mut request: StoreQueryRequest, cursor: Option<bytes::Bytes>) -> StoreQueryRequest {
    request.pagination_cursor = cursor;
    request
}

/// Users in a child process, killed when this goes out of scope.
pub(crate) struct ChildUsers {
    child: Child,
    output: std::path::PathBuf,
    until: Instant,
}

impl ChildUsers {
    /// Starts this program again as the users. Its output goes to files in `folder`.
    pub(crate) fn start(plan: &Plan, folder: &Path) -> anyhow::Result<Self> {
        let (output, log) = (folder.join("users.out"), folder.join("users.log"));
        let child = idle_command()?
            .args(["bench", "relay"])
            .env(USERS_VARIABLE, serde_json::to_string(plan)?)
            .stdin(Stdio::null())
            .stdout(File::create(&output)?)
            .stderr(File::create(&log)?)
            .spawn()
            .context("can't start the users' process")?;
        let until = Instant::now() + Duration::from_secs_f64(plan.seconds) + CHILD_PATIENCE;
        Ok(Self { child, output, until })
    }

    /// Waits for the child's end and returns its summary.
    pub(crate) async fn summary(mut self) -> anyhow::Result<Summary> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "the users' process ended with {status}");
                let output = std::fs::read(&self.output)?;
                return serde_json::from_slice(&output)
                    .context("can't parse the output of the users' process");
            }
            if Instant::now() > self.until {
                bail!("the users' process did not end in time");
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

impl Drop for ChildUsers {
    fn drop(&mut self) {
        // Both fail if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command that starts this program at idle priority: real users have machines of their own, so theirs must not take the
/// server's processor time. Without util-linux's `chrt` it has the lowest priority, which [`run_child`] sets.
fn idle_command() -> anyhow::Result<Command> {
    let program = std::env::current_exe()?;
    let has_chrt = Command::new("chrt").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !has_chrt {
        return Ok(Command::new(program));
    }
    let mut command = Command::new("chrt");
    command.args(["--idle", "0"]).arg(program);
    Ok(command)
}

/// Runs a plan in the child process and prints its summary.
pub(crate) async fn run_child(plan: &str) -> anyhow::Result<()> {
    const LOWEST_PRIORITY: i32 = 19;
    rustix::process::nice(LOWEST_PRIORITY).context("can't lower the priority")?;
    let asked = ask(&serde_json::from_str(plan)?, &|| None).await?;
    println!("{}", serde_json::to_string(&asked.summary())?);
    Ok(())
}
