//! The bytes of a file: `docs/formats/journal.md` describes them.

use std::net::IpAddr;

use restante_core::{Error, Timestamp};
use restante_records::{AccountId, RecordId};

use super::{DeliveryEntry, NotedReply, Outcome};
use crate::Protocol;

/// The bytes before the first record.
pub(super) const HEADER_BYTES: u64 = 16;
const MAGIC: [u8; 8] = *b"RSTNTJNL";
const VERSION: u32 = 3;
/// Their outcomes end with [`QUEUED`] and with [`REPORTED`]. Their readers treat other outcomes as damage and truncate the file
/// there, so nothing is appended to such files.
const EARLIER_VERSIONS: [u32; 2] = [1, 2];
/// Texts are truncated to this: clients choose the lengths of some.
const TEXT_BYTES_MAX: usize = 512;
/// Length and checksum.
const FRAME_BYTES: usize = 8;
/// The fields before the peer.
const FIXED_BYTES: usize = 32;
const TEXTS: usize = 8;
const RECORD_BYTES_MAX: usize = FIXED_BYTES + 16 + TEXTS * (2 + TEXT_BYTES_MAX);

const IS_LMTP: u8 = 1;
const IS_TLS: u8 = 2;
const HAS_ACCOUNT: u8 = 4;
const HAS_V4: u8 = 8;
const HAS_V6: u8 = 16;
const IS_SUBMISSION: u8 = 32;
const IS_SUBMISSIONS: u8 = 64;
const WAS_QUEUED: u8 = 128;

const STORED: u8 = 0;
const REPEATED: u8 = 1;
const REFUSED: u8 = 2;
const BROKEN_OFF: u8 = 3;
const QUEUED: u8 = 4;
const JUNK: u8 = 5;
const QUARANTINED: u8 = 6;
const SENT: u8 = 7;
const POSTPONED: u8 = 8;
const FAILED: u8 = 9;
const REPORTED: u8 = 10;
const RELEASED: u8 = 11;
const NOT_RELEASED: u8 = 12;
const DROPPED: u8 = 13;

/// The header of a file.
pub(super) fn header() -> Vec<u8> {
    let mut header = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
    header.extend_from_slice(&crc32c::crc32c(&header).to_le_bytes());
    header
}

/// The records of a file; `None` if its header is damaged.
///
/// # Errors
/// `Invalid` when a newer version has written it.
pub(super) fn records<'f>(file: &'f [u8], name: &str) -> Result<Option<Records<'f>>, Error> {
    let Some((begin, rest)) = file.split_at_checked(HEADER_BYTES as usize) else { return Ok(None) };
    let (signed, checksum) = begin.split_at(12);
    let (magic, version) = signed.split_at(8);
    if magic != MAGIC || checksum != crc32c::crc32c(signed).to_le_bytes() {
        return Ok(None);
    }
    let is_current = version == VERSION.to_le_bytes();
    if !is_current && EARLIER_VERSIONS.iter().all(|earlier| version != earlier.to_le_bytes()) {
        let what = format!("the journal {name} is of a newer version: use that version, or remove the file");
        return Err(Error::invalid(what));
    }
    Ok(Some(Records { rest, read: HEADER_BYTES, is_current }))
}

/// Iterates over the records of a file, up to the first damaged one.
pub(super) struct Records<'f> {
    rest: &'f [u8],
    /// The offset of the next record.
    pub(super) read: u64,
    /// Whether the file is of this version, so that records may be appended.
    pub(super) is_current: bool,
}

impl<'f> Iterator for Records<'f> {
    /// The record with its frame, and its entry.
    type Item = (&'f [u8], View<'f>);

    fn next(&mut self) -> Option<Self::Item> {
        let mut reader = Reader(self.rest);
        let len = reader.u32()? as usize;
        let checksum = reader.u32()?;
        if len > RECORD_BYTES_MAX {
            return None;
        }
        let body = reader.take(len)?;
        if crc32c::crc32c(body) != checksum {
            return None;
        }
        let view = View::read(body)?;
        let (record, rest) = self.rest.split_at_checked(FRAME_BYTES + len)?;
        self.rest = rest;
        self.read += record.len() as u64;
        Some((record, view))
    }
}

/// Appends an entry as a record.
pub(super) fn write(entry: &DeliveryEntry, out: &mut Vec<u8>) {
    let begin = out.len();
    out.extend_from_slice(&[0; FRAME_BYTES]);
    let (outcome, email) = match &entry.outcome {
        Outcome::Stored(id) => (STORED, id.0),
        Outcome::Junk { email, .. } => (JUNK, email.0),
        Outcome::Quarantined(_) => (QUARANTINED, 0),
        Outcome::Repeated => (REPEATED, 0),
        Outcome::Refused(_) => (REFUSED, 0),
        Outcome::BrokenOff => (BROKEN_OFF, 0),
        Outcome::Queued => (QUEUED, 0),
        Outcome::Sent(_) => (SENT, 0),
        Outcome::Postponed(_) => (POSTPONED, 0),
        Outcome::Failed(_) => (FAILED, 0),
        Outcome::Reported(_) => (REPORTED, 0),
        Outcome::Released { email, .. } => (RELEASED, email.map_or(0, |email| email.0)),
        Outcome::NotReleased(_) => (NOT_RELEASED, 0),
        Outcome::Dropped(_) => (DROPPED, 0),
    };
    let (code, status, reason) = match (&entry.outcome, entry.outcome.reply()) {
        (_, Some(reply)) => (reply.code, &*reply.status, &*reply.reason),
        (Outcome::Junk { reason, .. } | Outcome::Quarantined(reason), None) => (0, "", &**reason),
        (Outcome::Released { by, .. } | Outcome::Dropped(by), None) => (0, "", &**by),
        (_, None) => (0, "", ""),
    };
    let mut flags = match entry.protocol {
        None => WAS_QUEUED,
        Some(Protocol::Smtp) => 0,
        Some(Protocol::Lmtp) => IS_LMTP,
        Some(Protocol::Submission) => IS_SUBMISSION,
        Some(Protocol::Submissions) => IS_SUBMISSIONS,
    };
    flags |= if entry.is_tls { IS_TLS } else { 0 };
    flags |= if entry.account.is_some() { HAS_ACCOUNT } else { 0 };
    flags |= match entry.peer {
        None => 0,
        Some(IpAddr::V4(_)) => HAS_V4,
        Some(IpAddr::V6(_)) => HAS_V6,
    };
    out.extend_from_slice(&entry.time.0.to_le_bytes());
    out.extend_from_slice(&[flags, outcome]);
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&entry.account.as_ref().map_or(0, |(account, _)| account.0).to_le_bytes());
    out.extend_from_slice(&email.to_le_bytes());
    out.extend_from_slice(&entry.bytes.to_le_bytes());
    match entry.peer {
        None => {}
        Some(IpAddr::V4(ip)) => out.extend_from_slice(&ip.octets()),
        Some(IpAddr::V6(ip)) => out.extend_from_slice(&ip.octets()),
    }
    let address = entry.account.as_ref().map_or("", |(_, address)| address);
    let message_id = entry.message_id.as_deref().unwrap_or_default();
    let texts: [&str; TEXTS] =
        [&entry.hello, &entry.sender, &entry.recipient, address, &entry.id, message_id, status, reason];
    for text in texts {
        let text = cut(text);
        out.extend_from_slice(&(text.len() as u16).to_le_bytes()); // at most TEXT_BYTES_MAX
        out.extend_from_slice(text.as_bytes());
    }
    let body = out.get(begin + FRAME_BYTES..).unwrap_or_default();
    let (len, checksum) = (body.len() as u32, crc32c::crc32c(body));
    if let Some(frame) = out.get_mut(begin..begin + FRAME_BYTES) {
        let (to_len, to_checksum) = frame.split_at_mut(4);
        to_len.copy_from_slice(&len.to_le_bytes());
        to_checksum.copy_from_slice(&checksum.to_le_bytes());
    }
}

/// A text truncated to the length that a record stores.
pub(super) fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(TEXT_BYTES_MAX)).unwrap_or_default()
}

/// An entry that borrows from the bytes of its file. Unknown texts are empty.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'f> {
    pub(super) time: Timestamp,
    flags: u8,
    outcome: u8,
    code: u16,
    pub(super) account: Option<AccountId>,
    email: RecordId,
    bytes: u64,
    peer: Option<IpAddr>,
    hello: &'f str,
    pub(super) sender: &'f str,
    pub(super) recipient: &'f str,
    pub(super) address: &'f str,
    pub(super) id: &'f str,
    pub(super) message_id: &'f str,
    status: &'f str,
    reason: &'f str,
}

impl<'f> View<'f> {
    fn read(body: &'f [u8]) -> Option<Self> {
        let mut reader = Reader(body);
        let time = Timestamp(reader.u64()? as i64); // two's complement
        let [flags, outcome] = reader.array()?;
        if outcome > DROPPED {
            return None;
        }
        let code = u16::from_le_bytes(reader.array()?);
        let account = Some(AccountId(reader.u32()?)).filter(|_| flags & HAS_ACCOUNT != 0);
        let (email, bytes) = (RecordId(reader.u64()?), reader.u64()?);
        let peer = match flags & (HAS_V4 | HAS_V6) {
            0 => None,
            HAS_V4 => Some(IpAddr::from(reader.array::<4>()?)),
            _ => Some(IpAddr::from(reader.array::<16>()?)),
        };
        let view = Self {
            time,
            flags,
            outcome,
            code,
            account,
            email,
            bytes,
            peer,
            hello: reader.text()?,
            sender: reader.text()?,
            recipient: reader.text()?,
            address: reader.text()?,
            id: reader.text()?,
            message_id: reader.text()?,
            status: reader.text()?,
            reason: reader.text()?,
        };
        reader.0.is_empty().then_some(view)
    }

    pub(super) fn to_entry(self) -> DeliveryEntry {
        let reply = || NotedReply {
            code: self.code,
            status: self.status.to_owned().into(),
            reason: self.reason.to_owned().into(),
        };
        let outcome = match self.outcome {
            STORED => Outcome::Stored(self.email),
            REPEATED => Outcome::Repeated,
            BROKEN_OFF => Outcome::BrokenOff,
            QUEUED => Outcome::Queued,
            JUNK => Outcome::Junk { email: self.email, reason: self.reason.to_owned().into() },
            QUARANTINED => Outcome::Quarantined(self.reason.to_owned().into()),
            SENT => Outcome::Sent(reply()),
            POSTPONED => Outcome::Postponed(reply()),
            FAILED => Outcome::Failed(reply()),
            REPORTED => Outcome::Reported(reply()),
            RELEASED => Outcome::Released {
                email: Some(self.email).filter(|email| email.0 != 0),
                by: self.reason.to_owned().into(),
            },
            NOT_RELEASED => Outcome::NotReleased(reply()),
            DROPPED => Outcome::Dropped(self.reason.to_owned().into()),
            _ => Outcome::Refused(reply()),
        };
        DeliveryEntry {
            time: self.time,
            protocol: match self.flags & (IS_LMTP | IS_SUBMISSION | IS_SUBMISSIONS | WAS_QUEUED) {
                WAS_QUEUED => None,
                IS_LMTP => Some(Protocol::Lmtp),
                IS_SUBMISSION => Some(Protocol::Submission),
                IS_SUBMISSIONS => Some(Protocol::Submissions),
                _ => Some(Protocol::Smtp),
            },
            is_tls: self.flags & IS_TLS != 0,
            peer: self.peer,
            hello: self.hello.to_owned(),
            sender: self.sender.to_owned(),
            recipient: self.recipient.to_owned(),
            account: self.account.map(|account| (account, self.address.to_owned())),
            id: self.id.to_owned(),
            message_id: Some(self.message_id).filter(|id| !id.is_empty()).map(str::to_owned),
            bytes: self.bytes,
            outcome,
        }
    }
}

/// Takes values from the front of bytes.
struct Reader<'f>(&'f [u8]);

impl<'f> Reader<'f> {
    fn take(&mut self, len: usize) -> Option<&'f [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const LEN: usize>(&mut self) -> Option<[u8; LEN]> {
        self.take(LEN)?.try_into().ok()
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Option<&'f str> {
        let len = u16::from_le_bytes(self.array()?);
        std::str::from_utf8(self.take(usize::from(len))?).ok()
    }
}
