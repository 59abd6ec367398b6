//! The line in front of each message: `From sender Thu Aug 22 12:36:23 2002`.

use restante_mail_wire::header::{Date, as_date};

const WEEKDAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
/// The most words that are parsed. A sender may have several.
const WORDS_MAX: usize = 32;

/// When the message was put into the file, in seconds since 1970; `None` if this is not such a line. A time without a zone counts
/// as UTC.
pub(super) fn time_of(line: &[u8]) -> Option<i64> {
    let rest = std::str::from_utf8(line.strip_prefix(b"From ")?).ok()?;
    let words: Vec<&str> = rest.split_ascii_whitespace().take(WORDS_MAX).collect();
    words.windows(2).enumerate().find_map(|(at, pair)| {
        let [weekday, _] = pair else { return None };
        let is_weekday = WEEKDAYS.contains(&weekday.trim_end_matches(','));
        words.get(at + 1..).filter(|_| is_weekday).and_then(date)
    })
}

/// The time of `Aug 22 12:36:23 2002`, with a zone before or after the year.
fn date(words: &[&str]) -> Option<i64> {
    let [month, day, time, rest @ ..] = words else { return None };
    let is_year = |word: &&&str| word.len() == 4 && word.bytes().all(|byte| byte.is_ascii_digit());
    let rest = rest.get(..3.min(rest.len()))?;
    let year = rest.iter().find(is_year)?;
    let is_zone =
        |word: &&&str| word.starts_with(['+', '-']) || word.starts_with(|c: char| c.is_ascii_alphabetic());
    let zone = rest.iter().find(is_zone).copied().unwrap_or("+0000");
    let written = |zone: &str| as_date(format!("{day} {month} {year} {time} {zone}").as_bytes());
    Some(written(zone).or_else(|| written("+0000"))?.seconds)
}

/// The line for a message that was received at this time.
pub(super) fn line_of(received: i64) -> String {
    // "Thu, 30 Oct 2014 14:12:00 +0000"
    let text = Date { seconds: received, offset_minutes: 0 }.to_rfc_5322();
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    match &*words {
        [weekday, day, month, year, time, _] => {
            let weekday = weekday.trim_end_matches(',');
            format!("From - {weekday} {month} {day:>2} {time} {year}\n")
        }
        _ => "From - Thu Jan  1 00:00:00 1970\n".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_many_programs_have_a_time() {
        for (line, seconds) in [
            ("From exmh-workers-admin@redhat.com  Thu Aug 22 12:36:23 2002\n", 1_030_019_783),
            ("From - Thu Aug 22 12:36:23 2002\r\n", 1_030_019_783),
            ("From 1234567890@xxx Thu Aug 22 12:36:23 +0000 2002\n", 1_030_019_783),
            ("From a@b Thu Aug 22 14:36:23 2002 +0200\n", 1_030_019_783),
            ("From a@b Thu Aug 22 12:36:23 GMT 2002\n", 1_030_019_783),
            ("From foo at bar.com  Thu Aug 22 12:36:23 2002\n", 1_030_019_783),
            ("From a@b Thu Aug 22 12:36 2002\n", 1_030_019_760),
            ("From MAILER-DAEMON Thu Jan  1 00:00:00 1970\n", 0),
        ] {
            assert_eq!(time_of(line.as_bytes()), Some(seconds), "{line}");
        }
    }

    #[test]
    fn a_sentence_is_no_such_line() {
        for line in [
            "From now on all is well.\n",
            "From Mon to Fri 12:00 we are here\n",
            "From Mon Jan 1 we are here\n",
            "From: Thu Aug 22 12:36:23 2002\n",
            ">From a Thu Aug 22 12:36:23 2002\n",
            "From \u{0}\n",
            "From ",
        ] {
            assert_eq!(time_of(line.as_bytes()), None, "{line}");
        }
        assert_eq!(time_of(b"From \xff Thu Aug 22 12:36:23 2002\n"), None);
    }

    #[test]
    fn a_written_line_is_read() {
        for seconds in [0, 1, 951_782_400, 1_030_019_783, 4_102_444_800] {
            assert_eq!(time_of(line_of(seconds).as_bytes()), Some(seconds));
        }
    }
}
