//! `restante dmarc`: the DMARC results of received mail, in the records of a stopped server or of a running one.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    io::{self, Write},
    net::IpAddr,
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
};

use anyhow::bail;
use axum::{
    Extension, Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use clap::{Args, Subcommand};
use restante_core::{Error, Timestamp};
use restante_delivery::aggregate::{feedback_of, write_xml};
use restante_directory::{Directory, DirectoryMetrics, Login};
use restante_http::{Audience, Route};
use restante_mail::dmarc::{Disposition, DmarcRows, DomainSeen, SeenRow};
use serde::{Deserialize, Serialize};

use super::directory::{
    parse_request,
    reach::{DirectoryFlags, Reached},
    refusal, show,
};
use crate::{
    clock,
    config::Config,
    doors::mail::reporting,
    exit,
    moment::{Moment, parse_moment},
};

/// The path on a running server.
const PATH: &str = "/admin/v1/dmarc";
/// The most domains and sources of a response: those with the most failures.
const DOMAINS_MAX: usize = 1_000;
const SOURCES_MAX: usize = 1_000;
/// The most days of a response.
const DAYS_MAX: usize = 100;
const DAY_SECONDS: i64 = 86_400;

#[derive(Subcommand, Debug)]
pub(crate) enum DmarcCommand {
    /// List the domains of a day with the messages that passed and failed, those with the most failures first
    #[command(after_help = "Examples:\n  restante dmarc list\n  restante dmarc list --day 2026-11-22")]
    List(DmarcListFlags),
    /// Print the aggregate report about a domain (RFC 7489), as XML
    #[command(after_help = "Example:\n  restante dmarc report example.net --day 2026-11-22")]
    Report(DmarcReportFlags),
}

#[derive(Args, Debug)]
pub(crate) struct DmarcListFlags {
    /// The day, in UTC [default: today]
    #[arg(long, value_name = "DAY", value_parser = parse_moment)]
    day: Option<Moment>,
    #[command(flatten)]
    flags: DirectoryFlags,
}

#[derive(Args, Debug)]
pub(crate) struct DmarcReportFlags {
    /// The domain that has the DMARC record
    #[arg(value_name = "DOMAIN")]
    domain: String,
    /// The day, in UTC [default: today]
    #[arg(long, value_name = "DAY", value_parser = parse_moment)]
    day: Option<Moment>,
    #[command(flatten)]
    flags: DirectoryFlags,
}

/// The queries of operators on the counts.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum DmarcOperation {
    /// The days that have counts, the newest first.
    Days,
    /// The domains of a day, given in days since 1970.
    List { day: u64 },
    /// The addresses that sent mail of a domain.
    Sources { day: u64, domain: String },
    /// The report about a domain.
    Report { day: u64, domain: String },
}

/// What an operation returns.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum DmarcAnswer {
    Days(Vec<u64>),
    Listed(Vec<DomainLine>),
    Sources(Vec<SourceLine>),
    /// XML; null when nothing was counted.
    Report(Option<String>),
}

/// A domain of a day.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct DomainLine {
    /// Empty for the messages that exceed the rows of the day.
    domain: String,
    passed: u64,
    failed: u64,
    /// Whether a report about the day was sent; null while that is not known.
    #[serde(default)]
    was_reported: Option<bool>,
}

/// An address that sent mail of a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct SourceLine {
    /// Null for the messages that exceed the rows of the day.
    source: Option<IpAddr>,
    passed: u64,
    failed: u64,
    /// Messages with a valid signature of an aligned domain.
    dkim: u64,
    /// Messages for whose aligned domain SPF passed.
    spf: u64,
    /// Messages that were put into Junk or quarantine because of it.
    quarantined: u64,
    /// Messages that were refused because of it.
    refused: u64,
}

/// Answers the queries of operators.
#[derive(Clone)]
pub(crate) struct Operator {
    rows: DmarcRows,
    directory: Directory,
    config: Arc<Config>,
}

impl Operator {
    pub(crate) fn new(rows: DmarcRows, directory: Directory, config: Config) -> Self {
        Self { rows, directory, config: Arc::new(config) }
    }

    async fn operate(&self, operation: DmarcOperation) -> Result<DmarcAnswer, Error> {
        match operation {
            DmarcOperation::Days => Ok(DmarcAnswer::Days(self.rows.days(DAYS_MAX).await?)),
            DmarcOperation::List { day } => {
                let reported = self.rows.reported(day).await?;
                let domains = self.rows.domains(day).await?.into_iter().take(DOMAINS_MAX);
                let line = |DomainSeen { domain, passed, failed }| {
                    let was_reported = reported.get(&domain).copied();
                    DomainLine { domain, passed, failed, was_reported }
                };
                Ok(DmarcAnswer::Listed(domains.map(line).collect()))
            }
            DmarcOperation::Sources { day, domain } => {
                Ok(DmarcAnswer::Sources(self.sources(day, &domain).await?))
            }
            DmarcOperation::Report { day, domain } => {
                let email = reporting::sender(&self.config, &self.directory).await?;
                let (domain, hostname) = (domain.to_lowercase(), &self.config.smtp.hostname);
                let feedback = feedback_of(&self.rows, day, &domain, hostname, &email).await?;
                Ok(DmarcAnswer::Report(feedback.as_ref().map(write_xml)))
            }
        }
    }
}

impl Operator {
    /// The addresses that sent mail of a domain on a day, those with the most failures first. It reads all rows of the domain.
    async fn sources(&self, day: u64, domain: &str) -> Result<Vec<SourceLine>, Error> {
        let mut sources: BTreeMap<Option<IpAddr>, SourceLine> = BTreeMap::new();
        let mut after = None;
        loop {
            let page = self.rows.rows(day, domain, after).await?;
            for seen in page.rows {
                sources.entry(seen.row.source).or_default().add(&seen);
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let mut sources: Vec<SourceLine> = sources.into_values().collect();
        sources.sort_by_key(|line| Reverse((line.failed, line.passed)));
        sources.truncate(SOURCES_MAX);
        Ok(sources)
    }
}

impl SourceLine {
    fn add(&mut self, SeenRow { row, count, record: _ }: &SeenRow) {
        self.source = row.source;
        *(if row.is_pass() { &mut self.passed } else { &mut self.failed }) += count;
        if row.dkim_aligned {
            self.dkim += count;
        }
        if row.spf_aligned {
            self.spf += count;
        }
        match row.disposition {
            Disposition::None => {}
            Disposition::Quarantine => self.quarantined += count,
            Disposition::Reject => self.refused += count,
        }
    }
}

/// The route of a server that keeps its mail below a data folder.
pub(crate) fn route(operator: Operator, data: PathBuf) -> Route {
    let answer = move |login: Option<Extension<Arc<Login>>>, body: Bytes| {
        let operator = operator.clone();
        let login = login.map(|Extension(login)| login);
        let request = parse_request(&body, &data, login.as_deref());
        answer(operator, request)
    };
    Route::post(PATH, "what DMARC found of received mail", answer).with_audience(Audience::Operators)
}

async fn answer(
    operator: Operator,
    request: Result<(String, DmarcOperation), (StatusCode, String)>,
) -> Response {
    match request {
        Ok((_, operation)) => match operator.operate(operation).await {
            Ok(answer) => Json(answer).into_response(),
            Err(error) => refusal(&error),
        },
        Err(refused) => refused.into_response(),
    }
}

/// Runs a command to completion.
pub(crate) async fn run(command: DmarcCommand) -> anyhow::Result<ExitCode> {
    match command {
        DmarcCommand::List(flags) => {
            let operation = DmarcOperation::List { day: day_of(flags.day) };
            let DmarcAnswer::Listed(domains) = ask(&flags.flags, operation).await? else {
                bail!("the server's answer is no list of domains");
            };
            let row = |line: &DomainLine| {
                let domain = if line.domain.is_empty() { "(others)" } else { &line.domain };
                let report = match line.was_reported {
                    Some(true) => "sent",
                    Some(false) => "none",
                    None => "-",
                };
                let counts = [line.failed.to_string(), line.passed.to_string()];
                [vec![domain.to_owned()], counts.to_vec(), vec![report.to_owned()]].concat()
            };
            show::list(&domains, flags.flags.format, &["domain", "failed", "passed", "report"], row)?;
        }
        DmarcCommand::Report(flags) => {
            let operation = DmarcOperation::Report { day: day_of(flags.day), domain: flags.domain.clone() };
            let DmarcAnswer::Report(report) = ask(&flags.flags, operation).await? else {
                bail!("the server's answer is no report");
            };
            let Some(xml) = report else {
                writeln!(io::stderr(), "restante: nothing was counted of {} on that day", flags.domain)?;
                return Ok(exit::found_wrong());
            };
            write!(io::stdout(), "{xml}")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn ask(flags: &DirectoryFlags, operation: DmarcOperation) -> anyhow::Result<DmarcAnswer> {
    let reached = flags.reach().await?;
    let answered = async {
        match &reached {
            Reached::Here { opened, config } => {
                let (settings, metrics) = (config.directory.clone(), DirectoryMetrics::default());
                let (directory, _) = Directory::open(opened, settings, clock::system(), metrics).await?;
                let operator = Operator::new(reporting::rows(opened, config), directory, (**config).clone());
                operator.operate(operation).await.map_err(|error| anyhow::anyhow!("{error}"))
            }
            Reached::Server(server) => server.ask(PATH, operation).await,
        }
    };
    let answered = answered.await;
    reached.close().await?;
    answered
}

/// The day of a time, in days since 1970.
fn day_of(moment: Option<Moment>) -> u64 {
    let now = clock::system().now();
    day_at(moment.map_or(now, |moment| moment.resolve(now)))
}

fn day_at(at: Timestamp) -> u64 {
    u64::try_from(at.seconds().div_euclid(DAY_SECONDS)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chk21_a_source_is_shown_with_what_passed_and_what_was_done() {
        let row = |dkim_aligned, spf_aligned, disposition| restante_mail::dmarc::Row {
            domain: "example.net".to_owned(),
            source: Some("192.0.2.1".parse().unwrap()),
            disposition,
            dkim_aligned,
            spf_aligned,
            ..restante_mail::dmarc::Row::others()
        };
        let mut line = SourceLine::default();
        for (row, count) in [
            (row(true, false, Disposition::None), 5),
            (row(true, true, Disposition::None), 4),
            (row(false, false, Disposition::Quarantine), 2),
            (row(false, false, Disposition::Reject), 1),
        ] {
            line.add(&SeenRow { row, record: None, count });
        }
        let source = Some("192.0.2.1".parse().unwrap());
        let expected =
            SourceLine { source, passed: 9, failed: 3, dkim: 9, spf: 4, quarantined: 2, refused: 1 };
        assert_eq!(line, expected);
    }

    #[test]
    fn chk21_a_day_is_one_of_utc() {
        let day = |text: &str| day_at(parse_moment(text).unwrap().resolve(Timestamp::from_seconds(0)));
        assert_eq!(day("2023-11-14"), 19_675);
        assert_eq!(day("2023-11-14T23:59:59Z"), 19_675);
        assert_eq!(day("2023-11-15"), 19_676);
    }
}
