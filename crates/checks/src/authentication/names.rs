//! Names of domains as they are looked up and compared.

/// The longest name (RFC 1035 §2.3.4), without a trailing dot.
pub(super) const NAME_BYTES_MAX: usize = 253;

/// A domain as the DNS has it: in lower case, internationalized labels as A-labels (RFC 5890), without a trailing dot. `None` if
/// no zone can have it.
pub(super) fn ascii(domain: &str) -> Option<String> {
    let domain = domain.strip_suffix('.').unwrap_or(domain);
    if domain.len() > 4 * NAME_BYTES_MAX {
        return None;
    }
    let domain =
        if domain.is_ascii() { domain.to_ascii_lowercase() } else { idna::domain_to_ascii(domain).ok()? };
    is_name(&domain).then_some(domain)
}

/// Whether labels are of printable ASCII, 1 to 63 bytes each, and the whole is not too long.
pub(super) fn is_name(name: &str) -> bool {
    let is_label =
        |label: &str| (1..=63).contains(&label.len()) && label.bytes().all(|byte| byte.is_ascii_graphic());
    name.len() <= NAME_BYTES_MAX && name.split('.').all(is_label)
}

/// Whether a name can be one of a host or a mail domain: at least two labels of letters, digits, hyphens and underscores.
pub(super) fn is_domain(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    name.contains('.') && is_name(name) && name.bytes().all(is_plain)
}

/// Whether a name is equal to another one or below it.
pub(super) fn is_within(name: &str, ancestor: &str) -> bool {
    name.strip_suffix(ancestor).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// The domain of an address, normalized by [`ascii`].
pub(super) fn domain_of(address: &str) -> Option<String> {
    let (_, domain) = address.rsplit_once('@')?;
    ascii(domain).filter(|domain| is_domain(domain))
}
