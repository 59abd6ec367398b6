//! Whose domain answers for a message: SPF (RFC 7208), DKIM (RFC 6376), ARC (RFC 8617) and DMARC (RFC 7489).

/// The outcome of a check, with the words of RFC 8601 §2.7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The domain did not say anything.
    None,
    /// The domain answers for the message.
    Pass,
    /// The domain says that it does not.
    Fail,
    /// The domain says that it probably does not.
    SoftFail,
    /// The domain says nothing about it, or what it says can't be used.
    Neutral,
    /// Not known now.
    TempError,
    /// The domain's records can't be understood.
    PermError,
}

/// What the owner of a domain asks for when DMARC fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DmarcPolicy {
    /// Nothing.
    None,
    /// Mail is to be treated as suspicious.
    Quarantine,
    /// Mail is to be refused.
    Reject,
}

/// A DKIM signature of a message and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DkimSignature {
    /// `d=`.
    pub domain: String,
    /// `s=`.
    pub selector: String,
    /// Whether it holds.
    pub outcome: Outcome,
}

/// What was found of the sender of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authentication {
    /// SPF of the envelope sender, or of the name of the client for `<>`.
    pub spf: Outcome,
    /// The domain that SPF was asked for.
    pub spf_domain: String,
    /// Each signature that was looked at.
    pub dkim: Vec<DkimSignature>,
    /// The chain of ARC.
    pub arc: Outcome,
    /// The domain that sealed it last.
    pub arc_domain: Option<String>,
    /// DMARC.
    pub dmarc: Outcome,
    /// Whether SPF passed for a domain that belongs to that of `From`.
    pub is_spf_aligned: bool,
    /// Whether a signature of such a domain holds.
    pub is_dkim_aligned: bool,
    /// What the domain asks for when DMARC fails, with `pct` (RFC 7489 §6.3) applied.
    pub policy: DmarcPolicy,
    /// The domain in the `From` field; none when there is not exactly one such field with one domain.
    pub from: Option<String>,
    /// How many `From` fields the message has.
    pub from_fields: usize,
    /// The domain whose DMARC record was found.
    pub dmarc_domain: Option<String>,
    /// That record as it stands in the DNS, for reports.
    pub dmarc_record: Option<String>,
}
