use restante_core::ErrorKind;

use crate::{AccountId, Error, Get, Record, Records};

/// [`Records::get`] that skips damaged records: returns the records in the order of the ids, with an error of kind `Corrupt` for
/// each damaged one. If one is damaged, the records are read one by one, so no longer as of one moment.
///
/// # Errors
/// Those of [`Records::get`] except `Corrupt`.
pub async fn get_each(
    records: &dyn Records,
    account: AccountId,
    get: &Get,
) -> Result<Vec<Result<Option<Record>, Error>>, Error> {
    match records.get(account, get).await {
        Ok(found) => return Ok(found.into_iter().map(Ok).collect()),
        Err(error) if error.kind() == ErrorKind::Corrupt => {}
        Err(error) => return Err(error),
    }
    let mut found = Vec::with_capacity(get.ids.len());
    for id in &get.ids {
        let one = Get { kind: get.kind, ids: vec![*id], with_body: get.with_body };
        match records.get(account, &one).await {
            Ok(record) => found.push(Ok(record.into_iter().next().flatten())),
            Err(error) if error.kind() == ErrorKind::Corrupt => found.push(Err(error)),
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}
