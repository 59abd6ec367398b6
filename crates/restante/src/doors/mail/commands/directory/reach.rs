//! How a command accesses the directory: in records that no server has open, or through the server that has.

use std::{path::PathBuf, sync::Arc};

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use clap::{Args, ValueHint};
use http::StatusCode;
use restante_core::ErrorKind;
use restante_directory::{
    Actor, Answer, Directory, DirectoryMetrics, EmailAddress, NewPassword, Operation, PAGE_MAX, Page,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    backups,
    client::{OperatorFlags, Refused, RestClient, own_token},
    clock,
    commands::backup::{explain, explain_guess, server_of},
    config::{Config, RecordsFlags},
    doors::mail::{commands::mail::Operator, erasing::Eraser, journal, records},
    exit::{self, UsageError},
    output::ReportFormat,
    secrets,
};

/// The path for operations on the directory on a running server.
pub(super) const PATH: &str = "/admin/v1/directory";

/// Whose directory, and how to print.
#[derive(Args, Debug)]
pub(crate) struct DirectoryFlags {
    #[command(flatten)]
    records: RecordsFlags,
    /// Use this server instead of the one of the settings [default: that one, if it is running]
    #[arg(long, value_name = "URL")]
    rest: Option<String>,
    /// A file with the server's token or an operator's; without it RESTANTE_TOKEN counts, then operate.token_file of the settings
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    token_file: Option<PathBuf>,
    /// How to print
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) format: ReportFormat,
}

/// The body of a request to a running server.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Request<O> {
    /// The user who runs the command, for the log.
    pub(crate) by: String,
    /// The data folder that the command is for, if the command has found the server by its settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<PathBuf>,
    pub(crate) operation: O,
}

/// Executes the operations of a command.
pub(crate) enum Reached {
    /// This process, in records that no other process has open.
    Here { opened: restante_records::Opened, config: Box<Config> },
    /// The server that has the records open.
    Server(RunningServer),
}

/// A running server.
pub(crate) struct RunningServer {
    client: RestClient,
    /// If it was found by the settings: the settings, and its URL.
    guess: Option<(Box<Config>, String)>,
}

impl Reached {
    /// Does one operation of the directory.
    pub(crate) async fn operate(&self, operation: Operation) -> anyhow::Result<Answer> {
        match self {
            Self::Here { opened, config } => operate_on(opened, config, operation).await,
            Self::Server(server) => server.ask(PATH, operation).await,
        }
    }

    /// All items of a list, page after page.
    pub(crate) async fn list<T>(
        &self,
        page: impl Fn(Option<String>, usize) -> Operation,
        read: impl Fn(Answer) -> Option<Page<T>>,
    ) -> anyhow::Result<Vec<T>> {
        let (mut items, mut after) = (Vec::new(), None);
        loop {
            let answer = self.operate(page(after, PAGE_MAX)).await?;
            let page = read(answer).context("the server's answer is no page of a list")?;
            items.extend(page.items);
            after = page.next;
            if after.is_none() {
                return Ok(items);
            }
        }
    }

    /// Closes the records, if this process has them open.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        match self {
            Self::Here { opened, .. } => opened.upkeep.close().await.context("can't close the records"),
            Self::Server(_) => Ok(()),
        }
    }
}

impl RunningServer {
    /// Makes the server do one operation.
    pub(crate) async fn ask<O: Serialize, A: DeserializeOwned>(
        &self,
        path: &str,
        operation: O,
    ) -> anyhow::Result<A> {
        let answer = self.ask_with(path, operation, |request| Ok(serde_json::to_vec(request)?)).await?;
        serde_json::from_slice(&answer).context("the server's answer is none to such an operation")
    }

    /// Makes the server do one operation, with a request and a response in any form.
    pub(crate) async fn ask_with<O>(
        &self,
        path: &str,
        operation: O,
        write: impl FnOnce(&Request<O>) -> anyhow::Result<Vec<u8>>,
    ) -> anyhow::Result<Bytes> {
        let data = self.guess.as_ref().map(|(config, _)| backups::data_folder(config));
        let request = write(&Request { by: user(), data, operation })?;
        match self.client.post(path, request).await {
            Ok(answer) => Ok(answer),
            Err(error) => match (error.downcast_ref::<Refused>(), &self.guess) {
                // A refusal by the operation itself already says what to do.
                (Some(refused), _) if is_of_route(refused) => Err(anyhow!("{}", refused.text)),
                (_, Some((config, url))) => Err(explain_guess(explain(error), config, url)),
                (_, None) => Err(explain(error)),
            },
        }
    }
}

impl DirectoryFlags {
    /// The settings.
    pub(super) fn config(&self) -> anyhow::Result<Config> {
        Ok(self.records.load()?.config)
    }

    /// Opens the records, or finds the server that has them open.
    pub(crate) async fn reach(&self) -> anyhow::Result<Reached> {
        self.reach_or_make(false).await
    }

    /// The same; with `makes_records` it creates missing records.
    async fn reach_or_make(&self, makes_records: bool) -> anyhow::Result<Reached> {
        if let Some(url) = &self.rest {
            let client = OperatorFlags::of(url.clone(), self.token_file.clone()).client()?;
            return Ok(Reached::Server(RunningServer { client, guess: None }));
        }
        let config = Box::new(self.records.load()?.config);
        backups::check_not_halfway(&config)?;
        match open(&config, makes_records).await {
            Ok(opened) => Ok(Reached::Here { opened, config }),
            Err(error) if exit::kind(&error) == Some(ErrorKind::Conflict) => {
                let url = server_of(&config)?;
                let token_file = self.token_file.clone().or_else(|| own_token(&config));
                let client = OperatorFlags::of(url.clone(), token_file).client()?;
                Ok(Reached::Server(RunningServer { client, guess: Some((config, url)) }))
            }
            Err(error) => Err(error),
        }
    }

    /// Does one operation.
    pub(super) async fn operate(&self, operation: Operation) -> anyhow::Result<Answer> {
        // Adding a domain is usually the first operation of an operator.
        let makes_records = matches!(operation, Operation::AddDomain { .. });
        let reached = self.reach_or_make(makes_records).await?;
        let done = reached.operate(operation).await;
        reached.close().await?;
        done
    }

    /// All items of a list, page after page.
    pub(super) async fn list<T>(
        &self,
        page: impl Fn(Option<String>, usize) -> Operation,
        read: impl Fn(Answer) -> Option<Page<T>>,
    ) -> anyhow::Result<Vec<T>> {
        let reached = self.reach().await?;
        let items = reached.list(page, read).await;
        reached.close().await?;
        items
    }
}

/// Whether the response comes from the route itself: the path exists, and the request has passed the guards.
fn is_of_route(refused: &Refused) -> bool {
    let is_unknown = refused.status == StatusCode::NOT_FOUND && refused.text.starts_with("no such path");
    !is_unknown && !matches!(refused.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
}

/// Opens records; creates missing ones only with `makes_records`.
async fn open(config: &Config, makes_records: bool) -> anyhow::Result<restante_records::Opened> {
    let is_new = makes_records && !records::are_there(config)?;
    let opened = match makes_records {
        true => records::open(config, Default::default()).await,
        false => records::open_existing(config).await,
    };
    if is_new && opened.is_ok() {
        // A relative path in the settings of a server that runs in another folder means another place here.
        let folder = std::path::absolute(&config.server.data_dir)?;
        eprintln!("restante: there were no records: new ones are made below {}", folder.display());
    }
    opened.map_err(|error| match exit::kind(&error) {
        None => anyhow::anyhow!(
            "{error:#}; in a new folder run `restante setup DOMAIN` or `restante domain add DOMAIN` first"
        ),
        Some(_) => error,
    })
}

/// Does one operation in records that this process has open.
pub(super) async fn operate_on(
    opened: &restante_records::Opened,
    config: &Config,
    operation: Operation,
) -> anyhow::Result<Answer> {
    let metrics = DirectoryMetrics::default();
    let (directory, _) = Directory::open(opened, config.directory.clone(), clock::system(), metrics).await?;
    let actor = command_line();
    // A refusal has the same exit code as when a running server refuses.
    directory.operate(&actor, operation).await.map_err(|error| anyhow!("{error}"))
}

/// Erases the mail of removed accounts in records that this process has open. If a server has the journal of deliveries open, the
/// server erases their entries there itself.
pub(crate) async fn eraser(opened: &restante_records::Opened, config: &Config) -> anyhow::Result<Eraser> {
    let Operator { mail, directory, .. } = Operator::open(opened, config).await?;
    let journal = journal::open_unless_held(config)?;
    let (records, clock) = (opened.upkeep.clone(), clock::system());
    let (actor, journal_erased) = (command_line(), Arc::default());
    Ok(Eraser { mail, directory, records, clock, actor, journal, journal_erased })
}

/// The actor for operations that a command does itself.
pub(crate) fn command_line() -> Actor {
    Actor(format!("{} on the command line", user()))
}

/// The user who runs the command, for the log of operations.
fn user() -> String {
    let name = ["SUDO_USER", "USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok());
    name.filter(|name| !name.is_empty() && name.len() <= 64 && !name.chars().any(char::is_control))
        .unwrap_or_else(|| format!("user {}", rustix::process::getuid().as_raw()))
}

/// Where a new password comes from. A command line is seen by everybody on the machine, so none comes from there.
#[derive(Args, Debug)]
pub(crate) struct PasswordFlags {
    /// Read the password from the first line of this file, or from stdin with -
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    password_file: Option<PathBuf>,
    /// Generate a password and print it once
    #[arg(long, conflicts_with = "password_file")]
    generate: bool,
}

impl PasswordFlags {
    /// The password; prompts for it on a terminal when no flag gives its source.
    pub(super) fn read(&self, address: &EmailAddress) -> anyhow::Result<NewPassword> {
        if self.generate {
            return Ok(NewPassword::Generated);
        }
        let password = match &self.password_file {
            Some(file) if file.as_os_str() == "-" => first_line()?,
            Some(file) => secrets::read("password", file)?,
            None => ask_twice(address)?,
        };
        Ok(NewPassword::Given(password))
    }
}

fn first_line() -> anyhow::Result<String> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).context("can't read the password from stdin")?;
    let line = line.trim_end_matches(['\r', '\n']);
    if line.is_empty() {
        bail!("stdin has no password: its first line is empty");
    }
    Ok(line.to_owned())
}

fn ask_twice(address: &EmailAddress) -> anyhow::Result<String> {
    let terminal = console::Term::stderr();
    if !std::io::IsTerminal::is_terminal(&std::io::stdin()) || !terminal.is_term() {
        let what =
            "no password was named: use --generate, --password-file FILE or --password-file - for stdin";
        return Err(UsageError(what.to_owned()).into());
    }
    let ask = |what: &str| -> anyhow::Result<String> {
        terminal.write_str(&format!("{what} for {address}: "))?;
        terminal.read_secure_line().context("can't read the password")
    };
    let password = ask("New password")?;
    if ask("The same again")? != password {
        bail!("the two passwords differ: nothing was changed");
    }
    Ok(password)
}
