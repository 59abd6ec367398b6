/// The totals of a generation's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Generation {
    pub(super) messages: i64,
    pub(super) body_bytes: i64,
    pub(super) oldest: i64,
    pub(super) newest: i64,
}

impl Generation {
    pub(super) const EMPTY: Self = Self { messages: 0, body_bytes: 0, oldest: i64::MAX, newest: i64::MIN };

    pub(super) fn count(&mut self, timestamp: i64, body_len: i64) {
        self.messages += 1;
        self.body_bytes += body_len;
        self.oldest = self.oldest.min(timestamp);
        self.newest = self.newest.max(timestamp);
    }
}
