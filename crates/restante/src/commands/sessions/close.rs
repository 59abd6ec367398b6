//! `restante sessions close`

use std::{
    io::{self, BufRead, IsTerminal, Write},
    process::ExitCode,
};

use anyhow::Context;
use clap::{ArgGroup, Args};
use http::StatusCode;
use restante_sessions::SessionId;
use serde::Deserialize;

use super::{SESSIONS_PATH, SessionPage, plural, sessions_path};
use crate::{
    client::{OperatorFlags, Refused, RestClient},
    exit,
};

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("whose").required(true).args(["ids", "user"]))]
pub(crate) struct CloseFlags {
    #[command(flatten)]
    operator: OperatorFlags,
    /// The sessions, as `restante sessions list` names them
    #[arg(value_name = "ID")]
    ids: Vec<SessionId>,
    /// All sessions of this user
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Only the user's session with this resource
    #[arg(long, value_name = "RESOURCE", requires = "user", conflicts_with = "ids")]
    resource: Option<String>,
    /// Don't ask before several sessions of a user are closed
    #[arg(long)]
    yes: bool,
}

/// The response to a DELETE.
#[derive(Debug, Deserialize)]
struct Closed {
    closed: u64,
    complete: bool,
}

pub(crate) async fn run(flags: &CloseFlags) -> anyhow::Result<ExitCode> {
    let client = flags.operator.client()?;
    match &flags.user {
        Some(user) => close_user(&client, flags, user).await,
        None => close_ids(&client, &flags.ids).await,
    }
}

async fn close_ids(client: &RestClient, ids: &[SessionId]) -> anyhow::Result<ExitCode> {
    let mut closed = 0;
    for id in ids {
        match client.delete(&format!("{SESSIONS_PATH}/{id}")).await {
            Ok(_) => closed += 1,
            Err(error) if is_session_gone(&error) => eprintln!("restante: there is no session {id}"),
            Err(error) => {
                writeln!(io::stdout(), "closed {}", plural(closed))?;
                return Err(error);
            }
        }
    }
    writeln!(io::stdout(), "closed {}", plural(closed))?;
    Ok(if closed == ids.len() as u64 { ExitCode::SUCCESS } else { exit::found_wrong() })
}

/// Whether the server supports sessions but does not know this id. A server without sessions also returns 404, but with another text.
fn is_session_gone(error: &anyhow::Error) -> bool {
    let is_gone = |refused: &Refused| {
        refused.status == StatusCode::NOT_FOUND && refused.text.starts_with("no session has this id")
    };
    error.downcast_ref().is_some_and(is_gone)
}

async fn close_user(client: &RestClient, flags: &CloseFlags, user: &str) -> anyhow::Result<ExitCode> {
    let path = sessions_path(&[("user", Some(user)), ("resource", flags.resource.as_deref())]);
    if !flags.yes && io::stdin().is_terminal() && !is_meant(client, &path, user).await? {
        writeln!(io::stdout(), "closed nothing")?;
        return Ok(exit::found_wrong());
    }
    let body = client.delete(&path).await?;
    let Closed { closed, complete } =
        serde_json::from_slice(&body).context("the server's answer does not say what was closed")?;
    writeln!(io::stdout(), "closed {}", plural(closed))?;
    if !complete {
        eprintln!("restante: other servers are out of reach: sessions of theirs go on");
    }
    Ok(if complete { ExitCode::SUCCESS } else { exit::found_wrong() })
}

/// Whether the sessions should be closed: asks the user if there are several.
async fn is_meant(client: &RestClient, path: &str, user: &str) -> anyhow::Result<bool> {
    let body = client.get(path).await?;
    let page: SessionPage =
        serde_json::from_slice(&body).context("the server's answer is no list of sessions")?;
    let (count, more) = (page.sessions.len() as u64, if page.next.is_some() { " and more" } else { "" });
    if count <= 1 {
        return Ok(true);
    }
    eprint!("close {}{more} of {}? [y/N] ", plural(count), crate::output::printable(user));
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
