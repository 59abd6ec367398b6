//! `restante archive import` from an archive of another server.

use std::process::ExitCode;

use restante_archive::{Archive, Metrics};
use restante_core::MessageHash;
use restante_import::{Batch, Extent, Findings, Location, Options, Owner, Source};
use serde::{Deserialize, Serialize};

use super::{
    import::{ImportFlags, Imported, list, tell},
    state::StateFile,
};
use crate::{
    doors::waku::archives::{self, Access},
    exit::{self, UsageError},
    progress::Progress,
    signals::Stop,
};

/// The progress of an import, as stored in its state file.
#[derive(Debug, Default, Deserialize, Serialize)]
struct ImportState {
    /// What is imported where, to check that a state belongs to the command.
    import: String,
    after: Option<String>,
    /// The hash of the last message that was stored. States of earlier versions have none.
    #[serde(default)]
    last: Option<String>,
    stored: u64,
    duplicates: u64,
    refused: Listed,
    renamed: Listed,
}

/// [`Findings`] as stored in a file.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct Listed {
    count: u64,
    listed: Vec<String>,
}

/// What an import has done, including the earlier imports that it continues.
#[derive(Default)]
struct Progressed {
    imported: Imported,
    refused: Findings,
    renamed: Findings,
    after: Option<String>,
    /// The last message that was stored.
    last: Option<MessageHash>,
    /// The last one that an earlier command has counted; some sources return it again.
    counted: Option<MessageHash>,
}

pub(super) async fn run(flags: &ImportFlags, location: Location) -> anyhow::Result<ExitCode> {
    let config = flags.archive.load()?.config;
    let (from, to) = (location.to_string(), config.archive_url().to_string());
    let options = flags.options();
    let import = describe(&from, &to, &options);
    let file = StateFile::new(flags.state.as_deref(), "import", [&from, &to]);
    let mut progressed = Progressed::begin(file.load()?, &file, &import)?;
    let begun = Options { after: progressed.after.clone(), ..options.clone() };
    let mut source = restante_import::open(location.clone(), flags.owner(), begun).await?;
    if source.owner == Owner::Nwaku && flags.pubsub_topic.is_some() {
        let what =
            "--pubsub-topic is for archives of a Status mailserver: each message of nwaku's has its own";
        return Err(UsageError(what.into()).into());
    }
    let opened = archives::open(&config, Access::Write, Metrics::default()).await?;
    if !progressed.is_of(&*opened.archive, &file).await? {
        progressed = Progressed::default();
        source = restante_import::open(location, flags.owner(), options).await?;
    }
    let stop = Stop::on_signals()?;
    let keeper = Keeper { file: &file, import: &import };
    let ended = store(source, &*opened.archive, &mut progressed, &keeper, &stop).await;
    opened.upkeep.close().await?;
    let is_done = ended?;
    list("taken under another hash", &progressed.renamed);
    let code = tell(&progressed.imported, &progressed.refused);
    if !is_done {
        eprintln!("stopped before the end: the same command continues there");
        return Ok(exit::interrupted());
    }
    file.remove()?;
    Ok(code)
}

/// Identifies the import by everything that its messages depend on.
fn describe(from: &str, to: &str, options: &Options) -> String {
    let rehash = if options.rehash { ", --rehash" } else { "" };
    format!("{from} to {to}, pubsub topic {}{rehash}", options.pubsub_topic)
}

/// Stores all messages of the source, and the progress; returns whether that was everything, or the import was stopped. The source
/// reads ahead by itself.
async fn store(
    mut source: Source,
    archive: &dyn Archive,
    progressed: &mut Progressed,
    keeper: &Keeper<'_>,
    stop: &Stop,
) -> anyhow::Result<bool> {
    let progress = match source.extent {
        Some(Extent::Bytes(bytes)) => Progress::bytes("importing", Some(bytes)),
        Some(Extent::Rows(rows)) => Progress::counting("messages", "importing", Some(rows)),
        None => Progress::counting("messages", "importing", None),
    };
    while let Some(batch) = source.next().await? {
        let done = batch.done;
        progressed.take(batch, archive).await?;
        keeper.keep(progressed)?;
        progress.set(done);
        if stop.is_requested() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Stores the progress of an import.
struct Keeper<'a> {
    file: &'a StateFile,
    import: &'a str,
}

impl Keeper<'_> {
    fn keep(&self, progressed: &Progressed) -> anyhow::Result<()> {
        self.file.save(&progressed.to_state(self.import))
    }
}

impl Progressed {
    /// The state of an earlier command, or an empty one.
    fn begin(state: Option<ImportState>, file: &StateFile, import: &str) -> anyhow::Result<Self> {
        if let Some(state) = &state {
            file.check(&state.import, import)?;
        }
        let ImportState { after, last, stored, duplicates, refused, renamed, .. } = state.unwrap_or_default();
        let findings = |Listed { count, listed }| Findings { count, listed };
        let imported = Imported { stored, duplicates };
        let last = last.map(|hash| hash.parse::<MessageHash>()).transpose()?;
        Ok(Self {
            imported,
            refused: findings(refused),
            renamed: findings(renamed),
            after,
            last,
            counted: last,
        })
    }

    /// Whether the archive has the messages that an earlier command has stored.
    async fn is_of(&self, archive: &dyn Archive, file: &StateFile) -> anyhow::Result<bool> {
        match self.last {
            Some(last) => file.is_of(archive, last).await,
            None => Ok(self.imported.stored + self.imported.duplicates == 0),
        }
    }

    /// Stores a batch and returns when it is durable.
    async fn take(&mut self, batch: Batch, archive: &dyn Archive) -> anyhow::Result<()> {
        if let Some(last) = batch.messages.last() {
            let last = last.message_hash;
            let is_again = |counted: &mut MessageHash| {
                batch.messages.iter().any(|message| message.message_hash == *counted)
            };
            let again = self.counted.take_if(is_again);
            self.imported.add(&archive.append(batch.messages).await?);
            self.imported.duplicates = self.imported.duplicates.saturating_sub(u64::from(again.is_some()));
            self.last = Some(last);
        }
        self.refused.extend(batch.refused);
        self.renamed.extend(batch.renamed);
        self.after = batch.after.or(self.after.take());
        Ok(())
    }

    fn to_state(&self, import: &str) -> ImportState {
        let listed = |findings: &Findings| Listed { count: findings.count, listed: findings.listed.clone() };
        ImportState {
            import: import.to_owned(),
            after: self.after.clone(),
            last: self.last.map(|hash| hash.to_string()),
            stored: self.imported.stored,
            duplicates: self.imported.duplicates,
            refused: listed(&self.refused),
            renamed: listed(&self.renamed),
        }
    }
}
