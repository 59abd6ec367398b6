use super::names;

/// Whether an `Authentication-Results` field with this value claims to be from this server (RFC 8601 §5). The server's name may
/// be preceded by comments, be in quotes and in any case, and be followed by a version. A value that can be parsed in two ways
/// claims it if one of them does.
pub fn claims_to_be_ours(hostname: &str, value: &[u8]) -> bool {
    let words = words(value);
    let whole = words.concat();
    let first = words.first().map(String::as_str).unwrap_or_default();
    is_same(first, hostname) || is_same(&whole, hostname)
}

fn is_same(name: &str, hostname: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let hostname = hostname.strip_suffix('.').unwrap_or(hostname);
    let ours = names::ascii(hostname);
    name.eq_ignore_ascii_case(hostname) || (ours.is_some() && names::ascii(name) == ours)
}

/// The words before the first semicolon, without comments, quotes and white space.
fn words(value: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(value);
    let mut words = vec![String::new()];
    let mut characters = text.chars();
    let (mut depth, mut is_quoted) = (0_usize, false);
    while let Some(character) = characters.next() {
        // A backslash quotes what follows, in quotes and comments.
        let (character, is_literal) = match character {
            '\\' if is_quoted || depth > 0 => (characters.next().unwrap_or('\\'), true),
            character => (character, false),
        };
        match character {
            '"' if depth == 0 && !is_literal => is_quoted = !is_quoted,
            '(' if !is_quoted && !is_literal => depth += 1,
            ')' if depth > 0 && !is_literal => depth -= 1,
            _ if depth > 0 => {}
            ';' if !is_quoted => break,
            ' ' | '\t' | '\r' | '\n' if !is_quoted => words.push(String::new()),
            character => {
                if let Some(word) = words.last_mut() {
                    word.push(character);
                }
            }
        }
    }
    words.retain(|word| !word.is_empty());
    words
}
