//! Hints between servers that share a queue: "this recipient is due". The records are authoritative; a hint only determines which
//! server looks.

use bytes::Bytes;
use restante_mail::queue::{DueItem, QueueAccount, QueuedId};
use restante_records::{AccountId, RecordId};

const VERSION: u8 = 1;

/// The bytes of a hint: a version, the account and the record, and the domain.
pub(super) fn encode(item: &DueItem) -> Bytes {
    let mut bytes = Vec::with_capacity(13 + item.domain.len());
    bytes.push(VERSION);
    bytes.extend_from_slice(&item.id.account.0.to_be_bytes());
    bytes.extend_from_slice(&item.id.record.0.to_be_bytes());
    bytes.extend_from_slice(item.domain.as_bytes());
    bytes.into()
}

/// The recipient that a server's hint is about; `None` for bytes that are not a hint of this version.
pub fn decode(bytes: &[u8]) -> Option<DueItem> {
    let (version, rest) = bytes.split_first()?;
    let (account, rest) = rest.split_first_chunk()?;
    let (record, domain) = rest.split_first_chunk()?;
    let id = QueuedId {
        account: AccountId(u32::from_be_bytes(*account)),
        record: RecordId(u64::from_be_bytes(*record)),
    };
    let is_known = *version == VERSION && QueueAccount::of_account(id.account).is_some();
    is_known.then_some(DueItem { id, domain: String::from_utf8(domain.to_vec()).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_read_back_and_other_bytes_are_refused() {
        let account = QueueAccount::all().next().unwrap().account();
        let item =
            DueItem { id: QueuedId { account, record: RecordId(77) }, domain: "example.org".to_owned() };
        let bytes = encode(&item);
        assert_eq!(decode(&bytes), Some(item.clone()));
        for length in 0..13 {
            assert_eq!(decode(&bytes[..length]), None);
        }
        let mut other = bytes.to_vec();
        other[0] = 2;
        assert_eq!(decode(&other), None);
        let elsewhere = DueItem { id: QueuedId { account: AccountId(1), ..item.id }, ..item };
        assert_eq!(decode(&encode(&elsewhere)), None);
        assert_eq!(decode(&[bytes.as_ref(), &[0xff]].concat()), None);
    }
}
