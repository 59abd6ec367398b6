//! `restante domain records` and `restante domain check`: the DNS records of a domain.

use std::{
    io::{self, Write},
    net::SocketAddr,
    process::ExitCode,
};

use anyhow::Context;
use clap::Args;
use restante_delivery::{
    dkim::Operation,
    domain_records::{DomainFacts, Finding, Status, check, expected},
};
use restante_directory::Domain;
use restante_net::dns::{ResolverConfig, SystemResolver};

use super::{dkim, reach::DirectoryFlags, show};
use crate::{
    config::Config,
    output::{ReportFormat, printable},
};

pub(super) const RECORDS_HELP: &str = "\
Example:
  restante domain records example.org

It prints lines of a zone file: where mail goes, which servers send it, the DKIM keys, what mail
programs look for. Names of this server come from smtp.hostname and public.url.";

pub(super) const CHECK_HELP: &str = "\
Examples:
  restante domain check example.org
  restante domain check example.org --resolver 192.0.2.53:53
  restante domain check example.org --format json | jq '.[] | select(.status != \"ok\")'

Each record is ok, missing, differs, or unknown: then no name server answers, or what is there
can't be judged from here. The exit code is 1 if a record is missing or differs. Ask a name server
of the domain itself to see a change at once; others remember old answers for a while.";

#[derive(Args, Debug)]
pub(crate) struct DomainRecordsFlags {
    /// The domain, as example.org
    domain: Domain,
    #[command(flatten)]
    flags: DirectoryFlags,
}

#[derive(Args, Debug)]
pub(crate) struct CheckFlags {
    /// The domain, as example.org
    domain: Domain,
    /// Ask this name server [default: those of the system]
    #[arg(long, value_name = "ADDRESS:PORT")]
    resolver: Option<SocketAddr>,
    #[command(flatten)]
    flags: DirectoryFlags,
}

/// The facts about a domain from the settings and the keys.
async fn facts(domain: Domain, flags: &DirectoryFlags) -> anyhow::Result<DomainFacts> {
    let config = flags.config()?;
    let reached = flags.reach().await?;
    let keys = dkim::operate(&reached, Operation::List { domain: domain.clone() }).await;
    reached.close().await?;
    let host = config.smtp.hostname.to_ascii_lowercase();
    Ok(DomainFacts {
        keys: keys?,
        jmap: jmap(&config, &host),
        submission_port: config.submission.listen.first().map(|address| address.port()),
        submissions_port: config.submission.listen_tls.first().map(|address| address.port()),
        mta_sts_policy: config.public.mta_sts.policy(&host),
        domain,
        host,
    })
}

/// The host and port at which clients find JMAP.
fn jmap(config: &Config, host: &str) -> Option<(String, u16)> {
    if config.public.listen.is_empty() {
        return None;
    }
    let uri: Option<http::Uri> = String::from(config.public.url.clone()).parse().ok();
    let of_url = uri.as_ref().and_then(|uri| {
        let port = if uri.scheme_str() == Some("http") { 80 } else { 443 };
        Some((uri.host()?.to_owned(), uri.port_u16().unwrap_or(port)))
    });
    // Without a URL, it is assumed that there is a proxy with TLS.
    Some(of_url.unwrap_or_else(|| (host.to_owned(), 443)))
}

pub(super) async fn run_records(
    DomainRecordsFlags { domain, flags }: DomainRecordsFlags,
) -> anyhow::Result<ExitCode> {
    let records = expected(&facts(domain, &flags).await?);
    let lines: Vec<String> = records.iter().map(ToString::to_string).collect();
    match flags.format {
        ReportFormat::Json => show::json(&lines)?,
        ReportFormat::Text => {
            let mut out = io::stdout().lock();
            for line in lines {
                writeln!(out, "{line}")?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn run_check(flags: CheckFlags) -> anyhow::Result<ExitCode> {
    let CheckFlags { domain, resolver, flags } = flags;
    let facts = facts(domain, &flags).await?;
    let config = ResolverConfig { servers: resolver.into_iter().collect(), ..ResolverConfig::default() };
    let resolver = SystemResolver::new(&config).context("can't check the records")?;
    let findings = check(&facts, &resolver).await;
    match flags.format {
        ReportFormat::Json => show::json(&findings)?,
        ReportFormat::Text => print(&findings)?,
    }
    let is_wrong = |finding: &Finding| matches!(finding.status, Status::Missing | Status::Differs);
    Ok(if findings.iter().any(is_wrong) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Prints a line for each record, and below it what is wrong with it.
fn print(findings: &[Finding]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for finding in findings {
        let status = match finding.status {
            Status::Ok => "ok",
            Status::Missing => "missing",
            Status::Differs => "differs",
            Status::Unknown => "unknown",
        };
        writeln!(out, "{status:<8} {:<5} {}", finding.record_type, printable(&finding.name))?;
        if finding.status != Status::Ok {
            writeln!(out, "         expected {}", printable(&finding.expected))?;
            for found in &finding.found {
                writeln!(out, "         found    {}", printable(found))?;
            }
        }
        if let Some(advice) = &finding.advice {
            writeln!(out, "         {}", printable(advice))?;
        }
    }
    Ok(())
}
