//! `restante sessions`: the clients that are connected to a running server.

mod close;
mod count;
mod list;

use std::process::ExitCode;

use clap::Subcommand;
use serde::{Deserialize, Serialize};

use super::backup::explain_token;
use crate::client::escape;

#[derive(Subcommand, Debug)]
pub(crate) enum SessionsCommand {
    /// List sessions, the newest first
    #[command(after_help = LIST_HELP)]
    List(list::ListFlags),
    /// Count sessions and users, and the sessions of each server
    #[command(after_help = "Example:\n  restante sessions count --format json")]
    Count(count::CountFlags),
    /// Close sessions by their ids, or all of a user
    #[command(after_help = CLOSE_HELP)]
    Close(close::CloseFlags),
}

const LIST_HELP: &str = "\
Examples:
  restante sessions list
  restante sessions list --door rest_live --limit 20
  restante sessions list --user 16Uiu2HAmGg4EEHSfV6ww4xkzDUkVpBzjnCjDYrfDzDZRZmFFbuGs
  restante sessions list --node paris | jq -r .user | sort | uniq -c

A table is printed to a terminal and NDJSON to a pipe or file. A session is one client: a peer
with a filter subscription (its user is the peer id), also one that has disconnected and may come
back until its subscription expires, or a live stream (its user is the client's address and port).
Servers that share a table in Redis show the sessions of all of them.
With --user the server looks up one user; without it, it reads all sessions.

The server shows sessions on its listener for operators (operate.listen).";

const CLOSE_HELP: &str = "\
Examples:
  restante sessions close 00060a2c9b5a40001a2b3c4d00000007
  restante sessions close --user 16Uiu2HAmGg4EEHSfV6ww4xkzDUkVpBzjnCjDYrfDzDZRZmFFbuGs
  restante sessions list --door rest_live | jq -r .id | xargs restante sessions close

The client gets the reason (an operator has closed its session), and may come back. Exits with 1
if a session did not exist any more, or could not be reached.";

/// Runs a command to its end.
pub(crate) async fn run(command: SessionsCommand) -> anyhow::Result<ExitCode> {
    let done = match command {
        SessionsCommand::List(flags) => list::run(&flags).await,
        SessionsCommand::Count(flags) => count::run(&flags).await,
        SessionsCommand::Close(flags) => close::run(&flags).await,
    };
    done.map_err(explain_token)
}

/// The path of the sessions on a server.
const SESSIONS_PATH: &str = "/admin/v1/sessions";

/// A page of `GET /admin/v1/sessions`.
#[derive(Debug, Deserialize)]
struct SessionPage {
    sessions: Vec<ShownSession>,
    next: Option<String>,
    complete: bool,
}

/// A session as a server returns it, and as it is printed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ShownSession {
    id: String,
    user: String,
    resource: String,
    priority: Option<i8>,
    node: u32,
    opened_at: String,
    info: serde_json::Map<String, serde_json::Value>,
}

/// The response of `GET /admin/v1/sessions/counts`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SessionCounts {
    sessions: u64,
    users: u64,
    by_node: Vec<NodeCount>,
    complete: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeCount {
    node: u32,
    name: Option<String>,
    sessions: u64,
    lease_ms: Option<u64>,
}

/// The path of sessions with a query.
fn sessions_path(fields: &[(&str, Option<&str>)]) -> String {
    let mut path = SESSIONS_PATH.to_owned();
    for (name, value) in fields {
        if let Some(value) = value {
            let joint = if path.contains('?') { '&' } else { '?' };
            path.push_str(&format!("{joint}{name}={}", escape(value)));
        }
    }
    path
}

fn plural(count: u64) -> String {
    if count == 1 { "1 session".to_owned() } else { format!("{count} sessions") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_escaped() {
        assert_eq!(sessions_path(&[("user", None), ("limit", None)]), "/admin/v1/sessions");
        assert_eq!(
            sessions_path(&[("user", Some("a&b@c d")), ("door", None), ("limit", Some("5"))]),
            "/admin/v1/sessions?user=a%26b%40c%20d&limit=5"
        );
    }
}
