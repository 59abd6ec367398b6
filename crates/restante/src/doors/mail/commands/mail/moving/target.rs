//! Executes the operations of a command: in this process, or through the server that has the stores open.

use anyhow::{Context, bail};
use bytes::Bytes;
use restante_directory::{Directory, DirectoryMetrics, EmailAddress};
use restante_mail::{Mail, MailMetrics};

use super::{
    frame,
    mover::{Item, KnownMessage, Mover, Moving, MovingAnswer, MovingOperation, Outcome},
    page::{ExportedItem, FolderInfo},
    route::PATH,
};
use crate::{
    clock,
    config::Config,
    doors::mail::{
        blobs,
        commands::directory::reach::{DirectoryFlags, Reached, RunningServer},
        mismatch::{self, Mismatch},
    },
};

/// An account in the stores that a command moves mail into or out of.
pub(super) struct Target {
    reached: ReachedMover,
    address: EmailAddress,
    /// The longest message that is accepted.
    pub(super) message_bytes_max: u64,
}

enum ReachedMover {
    Here { mover: Box<Mover>, records: restante_records::Opened, blobs: restante_blobs::Opened },
    Server(Box<RunningServer>),
}

/// The longest incoming message that the settings allow.
pub(crate) fn message_bytes_max(config: &Config) -> u64 {
    let of_smtp = config.smtp.message_bytes_max.get() as u64;
    of_smtp.max(config.jmap.upload_bytes_max.get()).min(config.blobs.blob_bytes_max.get())
}

impl Target {
    /// Opens the stores, or finds the server that has them open; the account must exist.
    pub(super) async fn open(flags: &DirectoryFlags, address: &EmailAddress) -> anyhow::Result<Self> {
        let reached = match flags.reach().await? {
            Reached::Server(server) => ReachedMover::Server(Box::new(server)),
            Reached::Here { opened, config } => {
                let blobs = match blobs::open(&config, Default::default()).await {
                    Ok(blobs) => blobs,
                    Err(error) => {
                        opened.upkeep.close().await.context("can't close the records")?;
                        return Err(error);
                    }
                };
                let mover = open_mover(&opened, &blobs, &config).await?;
                ReachedMover::Here { mover: Box::new(mover), records: opened, blobs }
            }
        };
        let mut target = Self { reached, address: address.clone(), message_bytes_max: 0 };
        match target.ask(MovingOperation::Begin, &[]).await {
            Ok((MovingAnswer::Begun { message_bytes_max, .. }, _)) => {
                target.message_bytes_max = message_bytes_max;
                Ok(target)
            }
            Ok(_) => bail!("the server's answer is none to this operation"),
            Err(error) => {
                target.close().await?;
                Err(error)
            }
        }
    }

    async fn ask(
        &self,
        moving: MovingOperation,
        messages: &[Bytes],
    ) -> anyhow::Result<(MovingAnswer, Bytes)> {
        let moving = Moving { address: self.address.clone(), moving };
        match &self.reached {
            ReachedMover::Here { mover, .. } => {
                // A refusal has the same exit code as when a running server refuses.
                let done = mover.operate(moving, messages.to_vec()).await;
                let (answer, messages) = done.map_err(|error| anyhow::anyhow!("{error}"))?;
                Ok((answer, messages.concat().into()))
            }
            ReachedMover::Server(server) => {
                let write = |request: &_| Ok(frame::write(request, messages)?);
                let answer = server.ask_with(PATH, moving, write).await?;
                frame::read(answer).context("the server's answer is none to this operation")
            }
        }
    }

    /// The mailboxes of the account.
    pub(super) async fn folders(&self) -> anyhow::Result<Vec<FolderInfo>> {
        match self.ask(MovingOperation::Folders, &[]).await? {
            (MovingAnswer::Folders(folders), _) => Ok(folders),
            _ => bail!("the server's answer is none to this operation"),
        }
    }

    /// Creates the missing mailboxes of folders, and returns how many there were.
    pub(super) async fn create(&self, folders: Vec<restante_mail_files::Folder>) -> anyhow::Result<u64> {
        if folders.is_empty() {
            return Ok(0);
        }
        match self.ask(MovingOperation::Create { folders }, &[]).await? {
            (MovingAnswer::Created(made), _) => Ok(made),
            _ => bail!("the server's answer is none to this operation"),
        }
    }

    /// Which messages are already imported.
    pub(super) async fn known(&self, messages: Vec<KnownMessage>) -> anyhow::Result<Vec<bool>> {
        let count = messages.len();
        match self.ask(MovingOperation::Known { messages }, &[]).await? {
            (MovingAnswer::Known(known), _) if known.len() == count => Ok(known),
            _ => bail!("the server's answer is none to this operation"),
        }
    }

    /// Imports messages, and returns the outcome for each, and how many mailboxes were created.
    pub(super) async fn add(
        &self,
        items: Vec<Item>,
        messages: &[Bytes],
    ) -> anyhow::Result<(Vec<Outcome>, u64)> {
        if items.is_empty() {
            return Ok((Vec::new(), 0));
        }
        let count = items.len();
        match self.ask(MovingOperation::Add { messages: items }, messages).await? {
            (MovingAnswer::Added { outcomes, mailboxes }, _) if outcomes.len() == count => {
                Ok((outcomes, mailboxes))
            }
            _ => bail!("the server's answer is none to this operation"),
        }
    }

    /// A page of emails with their messages, and where the next one begins.
    pub(super) async fn page(
        &self,
        mailbox: Option<u64>,
        after: Option<String>,
    ) -> anyhow::Result<(Vec<(ExportedItem, Bytes)>, Option<String>)> {
        let (MovingAnswer::Page { items, next }, bytes) =
            self.ask(MovingOperation::Page { mailbox, after }, &[]).await?
        else {
            bail!("the server's answer is none to this operation");
        };
        let messages = frame::messages(bytes, items.iter().map(|item| item.bytes))?;
        Ok((items.into_iter().zip(messages).collect(), next))
    }

    /// Closes the stores, if this process has them open.
    pub(super) async fn close(self) -> anyhow::Result<()> {
        let ReachedMover::Here { mover, records, blobs } = self.reached else { return Ok(()) };
        drop(mover);
        let (records, blobs) = tokio::join!(records.upkeep.close(), blobs.upkeep.close());
        records.context("can't close the records")?;
        blobs.context("can't close the blobs")
    }
}

async fn open_mover(
    records: &restante_records::Opened,
    blobs: &restante_blobs::Opened,
    config: &Config,
) -> anyhow::Result<Mover> {
    match mismatch::find(config, records, blobs).await? {
        Some(mismatch) if mismatch.blobs_are_missing => return Err(mismatch.as_error().into()),
        Some(Mismatch { error, .. }) => tracing::warn!(%error, "records and blobs don't belong together"),
        None => {}
    }
    let (settings, metrics) = (config.directory.clone(), DirectoryMetrics::default());
    let (directory, _) = Directory::open(records, settings, clock::system(), metrics).await?;
    let (limits, metrics) = (config.mail.limits.clone(), MailMetrics::default());
    let mail = Mail::new(records.records.clone(), blobs.blobs.clone(), clock::system(), limits, metrics);
    Ok(Mover { mail, directory, message_bytes_max: message_bytes_max(config) })
}
