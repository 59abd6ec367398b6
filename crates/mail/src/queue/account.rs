use restante_records::AccountId;
use sha2::{Digest, Sha256};

/// The number of reserved accounts that the queue is spread over, so that its commits rarely wait for each other on any engine.
pub const QUEUE_ACCOUNTS: u8 = 64;

/// The first reserved account of the queue.
const FIRST: u32 = 128;

/// The reserved account of the gate.
pub(super) const GATE: AccountId = AccountId(192);

/// One of the reserved accounts of the queue, by its number from 0 to 63.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueAccount(u8);

impl QueueAccount {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..QUEUE_ACCOUNTS).map(Self)
    }

    /// The account of a message. It decides where the records are stored, so it never changes.
    pub fn of_key(key: &[u8; 32]) -> Self {
        let hash = Sha256::digest(key);
        let first = hash.first().copied().unwrap_or_default();
        Self(first % QUEUE_ACCOUNTS)
    }

    /// The queue account with this account id; `None` for an account outside the queue.
    pub fn of_account(account: AccountId) -> Option<Self> {
        let number = u8::try_from(account.0.checked_sub(FIRST)?).ok()?;
        (number < QUEUE_ACCOUNTS).then_some(Self(number))
    }

    /// The account that holds its records.
    pub fn account(self) -> AccountId {
        AccountId(FIRST + u32::from(self.0))
    }

    /// Its number.
    pub fn number(self) -> usize {
        usize::from(self.0)
    }
}

/// The 64-bit hash by which the records of a message are found.
pub(super) fn key_hash(key: &[u8; 32]) -> u64 {
    let hash = Sha256::digest(key);
    // The first byte chooses the account.
    let eight = hash.get(8..16).and_then(|eight| eight.try_into().ok());
    u64::from_be_bytes(eight.unwrap_or_default())
}
