//! Users who ask for history as fast as they can: each walks back from the newest message, page by page, and begins anew at
//! the end.

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

/// Tells a child process which users it is to be.
pub(crate) const USERS_OF: &str = "RESTANTE_BENCH_USERS";
/// How long a user waits after a question that failed.
const BACK_OFF: Duration = Duration::from_millis(50);
/// Pages before the clock runs, for each user.
const WARM_UP_PAGES: usize = 5;
/// How much longer than it was told a child may take: its nodes have to connect.
const CHILD_PATIENCE: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(20);

/// What users do.
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

/// What came of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    /// Times of pages, from the question to the decoded answer.
    pub(crate) pages: Latencies,
    pub(crate) messages: u64,
    pub(crate) errors: u64,
    /// What the first error was.
    pub(crate) complaint: Option<String>,
    /// From the first question to the last answer.
    pub(crate) seconds: f64,
    /// What this process worked meanwhile.
    pub(crate) worked: Option<Duration>,
    /// What the server worked meanwhile, if somebody can tell.
    pub(crate) server_worked: Option<Duration>,
}

/// The same in a few words, from process to process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Told {
    pub(crate) pages_per_s: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) errors: u64,
    pub(crate) complaint: Option<String>,
}

impl Asked {
    fn add(&mut self, other: Self) {
        self.pages.add(&other.pages);
        self.messages += other.messages;
        self.errors += other.errors;
        self.complaint = self.complaint.take().or(other.complaint);
    }

    fn told(&self) -> Told {
        Told {
            pages_per_s: rounded(self.pages.len() as f64 / self.seconds),
            p50_ms: rounded(self.pages.median_ms()),
            p99_ms: rounded(self.pages.p99_ms()),
            errors: self.errors,
            complaint: self.complaint.clone(),
        }
    }
}

/// Lets the users of this process ask. They are connected before the first of them begins. `server_worked` tells how long the
/// server's processors have worked until now.
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

/// What was worked between two moments.
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
        let failed = (self.asked.errors, self.asked.complaint.take());
        self.asked = Asked { errors: failed.0, complaint: failed.1, ..Asked::default() };
        all_are_warm.wait().await;
        let until = Instant::now() + Duration::from_secs_f64(self.plan.seconds);
        request = first.clone();
        while Instant::now() < until {
            request = self.step(&first, request).await;
        }
        (self.asked, self.history)
    }

    /// Asks for a page; the question for the next one.
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
                self.asked.complaint.get_or_insert_with(|| format!("{error:#}"));
                tokio::time::sleep(BACK_OFF).await;
                first.clone()
            }
        }
    }

    /// A page before the last is full, and every message has its data.
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

/// Users in a process of their own, killed when this goes out of scope.
pub(crate) struct Elsewhere {
    child: Child,
    said: std::path::PathBuf,
    until: Instant,
}

impl Elsewhere {
    /// Starts this program once more to be the users. What they have to say goes into files in `folder`.
    pub(crate) fn start(plan: &Plan, folder: &Path) -> anyhow::Result<Self> {
        let (said, log) = (folder.join("users.out"), folder.join("users.log"));
        let child = when_nobody_else_wants_to_run()?
            .args(["bench", "relay"])
            .env(USERS_OF, serde_json::to_string(plan)?)
            .stdin(Stdio::null())
            .stdout(File::create(&said)?)
            .stderr(File::create(&log)?)
            .spawn()
            .context("can't start the users' process")?;
        let until = Instant::now() + Duration::from_secs_f64(plan.seconds) + CHILD_PATIENCE;
        Ok(Self { child, said, until })
    }

    /// Waits for the users' end and hears what they saw.
    pub(crate) async fn told(mut self) -> anyhow::Result<Told> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "the users' process ended with {status}");
                let said = std::fs::read(&self.said)?;
                return serde_json::from_slice(&said).context("can't understand the users' process");
            }
            if Instant::now() > self.until {
                bail!("the users' process did not end in time");
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        // Both fail when the process has ended already, and then there is nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// This program again, as a process that runs when no other does: users have machines of their own, so their work must not be
/// taken from the server's. Where util-linux's `chrt` is missing, the lowest priority must do, which [`tell`] takes.
fn when_nobody_else_wants_to_run() -> anyhow::Result<Command> {
    let program = std::env::current_exe()?;
    let has_chrt = Command::new("chrt").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !has_chrt {
        return Ok(Command::new(program));
    }
    let mut command = Command::new("chrt");
    command.args(["--idle", "0"]).arg(program);
    Ok(command)
}

/// What the process of users does.
pub(crate) async fn tell(plan: &str) -> anyhow::Result<()> {
    const LOWEST_PRIORITY: i32 = 19;
    rustix::process::nice(LOWEST_PRIORITY).context("can't give way to others")?;
    let asked = ask(&serde_json::from_str(plan)?, &|| None).await?;
    println!("{}", serde_json::to_string(&asked.told())?);
    Ok(())
}
