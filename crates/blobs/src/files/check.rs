//! Reading everything, and reporting defects.

use restante_core::{BlobId, ErrorKind};

use super::{read, recover::file_ids, schema::file_name, shared::Shared};
use crate::{Error, Report};

/// Blobs that are looked up at once.
const PAGE_BLOBS: usize = 1_024;

pub(super) fn check(shared: &Shared, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
    let mut report = Report::default();
    if let Some(damage) = shared.index()?.damaged_page()? {
        report.note(
            "index",
            format!("{damage}, or close the store and move the folder index away to have it rebuilt"),
        );
        return Ok(report);
    }
    let mut after = None;
    loop {
        let page = shared.page(after, PAGE_BLOBS)?;
        let Some((last, _)) = page.last() else { break };
        after = Some(*last);
        for (id, _) in page {
            check_blob(shared, id, &mut report, progress)?;
        }
    }
    check_files(shared, &mut report)?;
    Ok(report)
}

fn check_blob(
    shared: &Shared,
    id: BlobId,
    report: &mut Report,
    progress: &(dyn Fn(u64, u64) + Send + Sync),
) -> Result<(), Error> {
    let before = report.bytes;
    let mut seen = |bytes| {
        report.bytes += bytes;
        progress(report.bytes, shared.ledger.lock().totals().1.max(report.bytes));
    };
    let found = read::verify(shared, id, &mut seen);
    let is_there = || Ok(shared.find(id)?.is_some());
    match found {
        Ok(Some(_)) => report.blobs += 1,
        // Removed since the page was read, or during the read.
        Ok(None) => {}
        Err(error) if error.kind() == ErrorKind::NotFound && !is_there()? => report.bytes = before,
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) && is_there()? => {
            report.blobs += 1;
            report.note(format!("blob {id}"), error.to_string());
        }
        Err(error) if error.kind() == ErrorKind::Corrupt => {} // removed during the read
        Err(error) if shared.index().is_ok() => {
            report.blobs += 1;
            report.note(format!("blob {id}"), error.to_string());
        }
        Err(error) => return Err(error), // closed meanwhile
    }
    Ok(())
}

/// Reports files that belong to no blob, which waste space.
fn check_files(shared: &Shared, report: &mut Report) -> Result<(), Error> {
    for id in file_ids(shared).map_err(|error| Error::io("list", "the files of blobs", error))? {
        let id = id.map_err(|error| Error::io("list", "the files of blobs", error))?;
        let index = shared.index()?;
        // In this order: a file is noted as loose before it exists, and until after it belongs to a blob.
        let is_expected = index.is_loose(id)? || has_file(shared, id)?;
        if !is_expected {
            report.note(
                file_name(id).0,
                "a file that belongs to no blob: it can be removed while the store is closed",
            );
        }
    }
    Ok(())
}

fn has_file(shared: &Shared, id: BlobId) -> Result<bool, Error> {
    // A file that was removed after the folder was listed is not a defect.
    let is_gone = || !shared.disk.path(&file_name(id).0).exists();
    Ok(shared.find(id)?.is_some_and(|entry| entry.location == super::index::Location::File) || is_gone())
}
