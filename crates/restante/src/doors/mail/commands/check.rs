//! `restante check`: the stores compared with each other.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    process::ExitCode,
};

use clap::Args;
use futures_util::{StreamExt, TryStreamExt, stream};
use indicatif::HumanCount;
use restante_core::{BlobId, ErrorKind};
use restante_directory::{Answer, Operation, PAGE_MAX};
use restante_mail::{MailError, email};
use restante_records::{AccountId, DUMP_RECORDS_MAX, Dumped, RecordId, RecordKey, Revision};
use serde::Serialize;

use super::{
    directory::{reach::command_line, show},
    findings,
    mail::Operator,
};
use crate::{
    commands::serve,
    config::{Config, RecordsFlags},
    doors::mail::{blobs, door::has_jmap, records, search},
    exit,
    output::ReportFormat,
    progress::Progress,
};

/// The most findings that are listed; further ones are only counted.
const FINDINGS_MAX: usize = 1_000;
/// Concurrent requests to the blob store.
const BLOBS_AT_ONCE: usize = 32;

#[derive(Args, Debug)]
pub(crate) struct CheckFlags {
    #[command(flatten)]
    stores: RecordsFlags,
    /// Check each store by itself, too: every record, every blob and the whole index are read
    #[arg(long)]
    all: bool,
    /// Correct what is derived from emails: counters, and the search index, which a server makes again as soon as one runs
    #[arg(long)]
    rebuild: bool,
    /// How to print
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: ReportFormat,
}

/// What a check found.
#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    records: u64,
    accounts: u64,
    /// The number of problems.
    wrong: u64,
    /// The number of problems that were corrected.
    corrected: u64,
    /// At most [`FINDINGS_MAX`].
    findings: Vec<Found>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Found {
    place: String,
    what: String,
}

impl Report {
    fn note(&mut self, place: impl Into<String>, what: impl Into<String>) {
        self.wrong += 1;
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Found { place: place.into(), what: what.into() });
        }
    }

    /// Records damage that has ended a step of the check, so that the following steps are still run.
    ///
    /// # Errors
    /// Any other error.
    fn note_damage(&mut self, place: &str, step: anyhow::Result<()>) -> anyhow::Result<()> {
        match step {
            Err(error) if exit::kind(&error) == Some(ErrorKind::Corrupt) => {
                self.note(place, format!("{error:#}"));
                Ok(())
            }
            step => step,
        }
    }

    /// Adds the findings of a store's own check.
    fn add(&mut self, wrong: u64, findings: impl Iterator<Item = (String, String)>) {
        let before = self.wrong;
        findings.for_each(|(place, what)| self.note(place, what));
        self.wrong = before + wrong;
    }
}

/// The stores of a server.
struct Stores {
    records: restante_records::Opened,
    blobs: restante_blobs::Opened,
    /// The error is of kind `NotFound` when there is no index, and `Corrupt` when it is damaged.
    search: anyhow::Result<restante_search::Opened>,
}

impl Stores {
    async fn open(config: &Config) -> anyhow::Result<Self> {
        let records = records::open_existing(config).await?;
        // The blobs of a new server are created when it first starts. A missing location that the settings name may be mistyped.
        let blobs = match config.blobs.url {
            Some(_) => blobs::open_existing(config).await?,
            None => blobs::open(config, Default::default()).await?,
        };
        records::put_blobs_again(&records, &blobs).await?;
        let search = match search::open_existing(config).await {
            Err(error) if !matches!(exit::kind(&error), Some(ErrorKind::NotFound | ErrorKind::Corrupt)) => {
                return Err(error);
            }
            opened => opened,
        };
        Ok(Self { records, blobs, search })
    }

    async fn close(&self) -> anyhow::Result<()> {
        if let Ok(search) = &self.search {
            search.upkeep.close().await?;
        }
        self.blobs.upkeep.close().await?;
        Ok(self.records.upkeep.close().await?)
    }
}

/// Runs the command to completion.
pub(super) async fn run(flags: &CheckFlags) -> anyhow::Result<ExitCode> {
    let config = flags.stores.load()?.config;
    let stores = Stores::open(&config).await?;
    let report = check(flags, &config, &stores).await;
    stores.close().await?;
    let report = report?;
    match flags.format {
        ReportFormat::Text => print(&report, &mut io::stdout().lock())?,
        ReportFormat::Json => show::json(&report)?,
    }
    Ok(if report.wrong == report.corrected { ExitCode::SUCCESS } else { exit::found_wrong() })
}

async fn check(flags: &CheckFlags, config: &Config, stores: &Stores) -> anyhow::Result<Report> {
    let mut report = Report::default();
    if flags.all {
        check_each(stores, &mut report).await?;
    }
    check_index(config, stores, flags.rebuild, &mut report).await?;
    let compared = compare(stores, flags, &mut report).await;
    report.note_damage("the comparison of records, blobs and index ends here", compared)?;
    let counted = count_again(config, stores, flags.rebuild, &mut report).await;
    report.note_damage("the counting of mail ends here", counted)?;
    Ok(report)
}

/// Checks each store by itself.
async fn check_each(stores: &Stores, report: &mut Report) -> anyhow::Result<()> {
    let progress = Progress::counting("rows", "checking records", Some(0));
    let found = stores.records.upkeep.check(&|done, total| progress.set_of(done, total)).await?;
    report.add(found.wrong, found.findings.into_iter().map(|finding| (finding.place, finding.what)));
    drop(progress);
    let progress = Progress::bytes("checking blobs", Some(0));
    let found = stores.blobs.upkeep.check(&|done, total| progress.set_of(done, total)).await?;
    report.add(found.wrong, found.findings.into_iter().map(|finding| (finding.place, finding.what)));
    drop(progress);
    let Ok(search) = &stores.search else { return Ok(()) };
    let progress = Progress::bytes("checking the index", Some(0));
    let found = search.upkeep.check(&|done, total| progress.set_of(done, total)).await?;
    found.damaged.into_iter().for_each(|part| report.note(part, "it is damaged or missing"));
    Ok(())
}

/// Whether a server has run on the data folder since it was set up or restored.
fn has_run(config: &Config) -> bool {
    config.server.data_dir.join(serve::LOCK_FILE).exists()
}

/// Records an index that is damaged, or missing although a server has run with emails. A backup contains none.
async fn check_index(
    config: &Config,
    stores: &Stores,
    rebuild: bool,
    report: &mut Report,
) -> anyhow::Result<()> {
    let Err(error) = &stores.search else { return Ok(()) };
    if exit::kind(error) == Some(ErrorKind::Corrupt) {
        report.note("search index", format!("{error:#}"));
        if rebuild {
            search::make_again(config).await?;
            report.corrected += 1;
        }
    } else if has_jmap(config) && has_run(config) {
        let stats = stores.records.upkeep.stats().await?;
        let emails = stats.kinds.iter().find(|share| share.kind == email::KIND);
        let emails = emails.map_or(0, |share| share.records);
        if emails > 0 {
            let emails = HumanCount(emails);
            let what = format!("there is none of {emails} emails: a server makes it when it starts");
            report.note("search index", what);
            report.corrected += u64::from(rebuild); // by the next start
        }
    }
    Ok(())
}

/// Compares records with blobs and with the index. Damaged records are noted, unless each store was checked by itself, and left out.
async fn compare(stores: &Stores, flags: &CheckFlags, report: &mut Report) -> anyhow::Result<()> {
    let progress = Progress::counting("records", "comparing stores", None);
    let mut after = None;
    let mut emails = Emails::default();
    let mut differences = 0;
    loop {
        let page = stores.records.upkeep.dump(after, DUMP_RECORDS_MAX).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.key);
        find_missing_blobs(&page, stores, report).await?;
        report.records += page.len() as u64;
        progress.set(report.records);
        for Dumped { key, record } in page {
            if emails.account != Some(key.account) {
                differences += compare_index(&emails, stores, report).await?;
                emails = Emails { account: Some(key.account), created: BTreeMap::new() };
            }
            match record {
                Ok(record) if key.kind == email::KIND => {
                    emails.created.insert(key.id, record.created);
                }
                Ok(_) => {}
                Err(damage) => {
                    if key.kind == email::KIND {
                        // Whether the index has to have it is not known. What is newer than the index is neither missing nor surplus.
                        emails.created.insert(key.id, Revision(u64::MAX));
                    }
                    if !flags.all {
                        report.note(records::place(key), format!("it can't be read: {}", damage.0));
                    }
                }
            }
        }
    }
    differences += compare_index(&emails, stores, report).await?;
    if let Ok(search) = &stores.search
        && flags.rebuild
        && differences > 0
    {
        search.upkeep.rebuild().await?;
        report.corrected += differences;
    }
    Ok(())
}

/// The emails of an account, with the revisions that created them.
#[derive(Default)]
struct Emails {
    account: Option<AccountId>,
    created: BTreeMap<RecordId, Revision>,
}

/// Records the missing blobs of records.
async fn find_missing_blobs(page: &[Dumped], stores: &Stores, report: &mut Report) -> anyhow::Result<()> {
    let mut places: BTreeMap<BlobId, RecordKey> = BTreeMap::new();
    for dumped in page {
        for id in dumped.record.iter().flat_map(|record| &record.body.blobs) {
            places.entry(*id).or_insert(dumped.key);
        }
    }
    let sizes = places.into_iter().map(async |(id, key)| {
        let size = stores.blobs.blobs.size(id).await?;
        anyhow::Ok(size.is_none().then_some((id, key)))
    });
    let missing: Vec<_> = stream::iter(sizes).buffered(BLOBS_AT_ONCE).try_collect().await?;
    for (id, key) in missing.into_iter().flatten() {
        report.note(records::place(key), format!("its blob {id} is missing"));
    }
    Ok(())
}

/// Records the differences between the emails of an account and the index; returns how many there are.
async fn compare_index(emails: &Emails, stores: &Stores, report: &mut Report) -> anyhow::Result<u64> {
    let (Some(account), Ok(search)) = (emails.account, &stores.search) else { return Ok(0) };
    let records = stores.records.records.as_ref();
    let found = restante_indexer::compare(records, search.search.as_ref(), account, &emails.created).await?;
    let place = |id: &RecordId| format!("account {}, email {}", account.0, id.0);
    found.missing.iter().for_each(|id| report.note(place(id), "it is not in the search index"));
    found
        .surplus
        .iter()
        .for_each(|id| report.note(place(id), "the search index has it, and it does not exist"));
    Ok((found.missing.len() + found.surplus.len()) as u64)
}

/// Compares the counters of each account with a recount.
async fn count_again(
    config: &Config,
    stores: &Stores,
    rebuild: bool,
    report: &mut Report,
) -> anyhow::Result<()> {
    let operator = Operator::open(&stores.records, config).await?;
    let progress = Progress::counting("accounts", "counting mail again", None);
    let mut after = None;
    loop {
        let operation = Operation::Accounts { domain: None, after, limit: PAGE_MAX };
        let Answer::Accounts(page) = operator.directory.operate(&command_line(), operation).await? else {
            anyhow::bail!("the directory answered another operation");
        };
        for summary in page.items {
            let account = AccountId(summary.account);
            let found = match rebuild {
                true => operator.mail.rebuild(account).await,
                false => operator.mail.check(account).await,
            };
            match found.map_err(MailError::into_store) {
                Ok(found) => {
                    for finding in found {
                        report.corrected += u64::from(rebuild && finding.is_derived);
                        report.note(format!("{}, {}", summary.address, finding.place), finding.what);
                    }
                }
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    report.note(summary.address.to_string(), format!("its mail can't be counted: {error}"));
                }
                Err(error) => return Err(error.into()),
            }
            report.accounts += 1;
            progress.set(report.accounts);
        }
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}

fn print(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let found = report.findings.iter().map(|found| (&*found.place, &*found.what));
    findings::print(found, report.wrong, out)?;
    let (records, accounts) = (HumanCount(report.records), HumanCount(report.accounts));
    let verdict = findings::verdict(report.wrong);
    write!(out, "checked {records} records and the mail of {accounts} accounts: {verdict}")?;
    match report.corrected {
        0 => writeln!(out),
        corrected => writeln!(out, ", {} corrected", HumanCount(corrected)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_come_before_the_verdict() {
        let mut report = Report { records: 1_234, accounts: 2, ..Report::default() };
        report.note("account 1, email 7", "it is not in the search index");
        report.add(2, [("x.pack".to_owned(), "checksum is wrong".to_owned())].into_iter());
        report.corrected = 1;
        let mut out = Vec::new();
        print(&report, &mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "account 1, email 7: it is not in the search index\nx.pack: checksum is wrong\nand 1 more\n\
             checked 1,234 records and the mail of 2 accounts: 3 damaged places, 1 corrected\n"
        );
    }
}
