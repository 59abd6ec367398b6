//! `restante sessions count`

use std::{
    io::{self, Write},
    process::ExitCode,
};

use anyhow::Context;
use clap::{Args, ValueEnum};
use indicatif::HumanCount;

use super::{SESSIONS_PATH, SessionCounts};
use crate::{
    client::{OperatorFlags, RestClient},
    output::printable,
};

#[derive(Args, Debug)]
pub(crate) struct CountFlags {
    #[command(flatten)]
    operator: OperatorFlags,
    /// How to print
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: CountFormat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum CountFormat {
    /// A table, for people.
    Text,
    /// One JSON object.
    Json,
}

pub(crate) async fn run(flags: &CountFlags) -> anyhow::Result<ExitCode> {
    let counts = ask(&flags.operator.client()?).await?;
    let mut out = io::stdout().lock();
    match flags.format {
        CountFormat::Text => print(&counts, &mut out)?,
        CountFormat::Json => writeln!(out, "{}", serde_json::to_string_pretty(&counts)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Requests the counts of a server.
pub(super) async fn ask(client: &RestClient) -> anyhow::Result<SessionCounts> {
    let body = client.get(&format!("{SESSIONS_PATH}/counts")).await?;
    serde_json::from_slice(&body).context("the server's answer has no counts of sessions")
}

fn print(counts: &SessionCounts, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "sessions   {}", HumanCount(counts.sessions))?;
    writeln!(out, "users      {}", HumanCount(counts.users))?;
    if !counts.complete {
        writeln!(out, "other servers are out of reach: theirs are not counted")?;
    }
    writeln!(out, "\n{:>10}  {:>12}  {:>8}  name", "node", "sessions", "lease")?;
    for node in &counts.by_node {
        let lease = node.lease_ms.map(|ms| format!("{:.1} s", ms as f64 / 1e3));
        let name = node.name.as_deref().map(printable).unwrap_or_default();
        let (lease, sessions) = (lease.unwrap_or_default(), HumanCount(node.sessions).to_string());
        writeln!(out, "{:>10}  {sessions:>12}  {lease:>8}  {name}", node.node)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_for_people() {
        let counts = serde_json::json!({
            "sessions": 12_345, "users": 2, "complete": false,
            "byNode": [{"node": 1, "name": "pa\u{1b}ris", "sessions": 12_000, "leaseMs": 11_250},
                       {"node": 4_000_000_000_u32, "name": null, "sessions": 345, "leaseMs": null}],
        });
        let mut out = Vec::new();
        print(&serde_json::from_value(counts).unwrap(), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            "sessions   12,345\nusers      2\nother servers are out of reach: theirs are not counted\n\n\
             \x20     node      sessions     lease  name\n\
             \x20        1        12,000    11.2 s  pa ris\n\
             4000000000           345            \n"
        );
    }
}
