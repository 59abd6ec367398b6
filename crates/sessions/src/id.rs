use std::{fmt, str::FromStr};

use restante_core::Timestamp;

/// The id of a running node: a process that starts again is another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The id of a session, which is never used again.
///
/// Ids are totally ordered: by the time at which they were opened, then by node. A node never opens two sessions at the same
/// microsecond: its clock is made strictly increasing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId {
    /// When it was opened, in microseconds since the epoch.
    pub opened_us: u64,
    /// The node that opened it.
    pub node: NodeId,
    /// The user hash: with it a node finds the session in its table without an index of ids.
    pub user_hash: u32,
}

/// Bytes of an id as of [`SessionId::to_bytes`].
pub const SESSION_ID_BYTES: usize = 16;

impl SessionId {
    /// When it was opened.
    pub fn opened_at(self) -> Timestamp {
        Timestamp(i64::try_from(self.opened_us).map_or(i64::MAX, |us| us.saturating_mul(1_000)))
    }

    /// Big-endian, so that bytes have the order of ids.
    pub fn to_bytes(self) -> [u8; SESSION_ID_BYTES] {
        let id =
            u128::from(self.opened_us) << 64 | u128::from(self.node.0) << 32 | u128::from(self.user_hash);
        id.to_be_bytes()
    }

    /// The id with these bytes.
    pub fn from_bytes(bytes: [u8; SESSION_ID_BYTES]) -> Self {
        let id = u128::from_be_bytes(bytes);
        // Each cast keeps its own bits.
        Self { opened_us: (id >> 64) as u64, node: NodeId((id >> 32) as u32), user_hash: id as u32 }
    }
}

impl fmt::Display for SessionId {
    /// 32 lower-case hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:08x}{:08x}", self.opened_us, self.node.0, self.user_hash)
    }
}

/// The text is not a session id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a session id has 32 hexadecimal digits")]
pub struct ParseSessionIdError;

impl FromStr for SessionId {
    type Err = ParseSessionIdError;

    fn from_str(text: &str) -> Result<Self, ParseSessionIdError> {
        let is_hex = text.len() == 2 * SESSION_ID_BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_hex {
            return Err(ParseSessionIdError);
        }
        let id = u128::from_str_radix(text, 16).map_err(|_| ParseSessionIdError)?;
        Ok(Self::from_bytes(id.to_be_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_bytes_and_text_and_keep_their_order() {
        let id = |opened_us, node, user_hash| SessionId { opened_us, node: NodeId(node), user_hash };
        let ids =
            [id(0, 0, 0), id(1, 0, u32::MAX), id(1, 2, 0), id(2, 0, 7), id(u64::MAX, u32::MAX, u32::MAX)];
        for pair in ids.windows(2) {
            assert!(pair[0] < pair[1] && pair[0].to_bytes() < pair[1].to_bytes());
            assert!(pair[0].to_string() < pair[1].to_string());
        }
        for id in ids {
            assert_eq!(SessionId::from_bytes(id.to_bytes()), id);
            assert_eq!(id.to_string().parse(), Ok(id));
        }
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for text in ["", "00", "+0000000000000000000000000000000", "0000000000000000000000000000000g"] {
            assert_eq!(text.parse::<SessionId>(), Err(ParseSessionIdError), "{text}");
        }
    }
}
