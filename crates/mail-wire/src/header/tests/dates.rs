use proptest::prelude::*;

use super::super::{date::Date, *};

fn shown(value: &str) -> Option<String> {
    as_date(value.as_bytes()).map(|date| date.to_string())
}

#[test]
fn e4_date_keeps_its_zone() {
    let rows = [
        (" Thu, 30 Oct 2014 14:12:00 +0800", "2014-10-30T14:12:00+08:00"),
        // RFC 5322, appendix A.
        (" Fri, 21 Nov 1997 09:55:06 -0600", "1997-11-21T09:55:06-06:00"),
        (
            " Thu,\r\n      13\r\n        Feb\r\n          1969\r\n      23:32\r\n               -0330 (Newfoundland Time)",
            "1969-02-13T23:32:00-03:30",
        ),
        (" 21 Nov 97 09:55:06 GMT", "1997-11-21T09:55:06Z"),
        (" Fri, 21 Nov 1997 09(comment):   55  :  06 -0600", "1997-11-21T09:55:06-06:00"),
        (" 1 Jan 00 00:00 UT", "2000-01-01T00:00:00Z"),
        (" 1 Jan 49 00:00 Z", "2049-01-01T00:00:00Z"),
        (" 1 Jan 50 00:00 -0000", "1950-01-01T00:00:00Z"),
        (" 1 Jan 102 00:00 A", "2002-01-01T00:00:00Z"),
        (" Mon, 1 jan 2024 01:02:03 EST", "2024-01-01T01:02:03-05:00"),
        (" 1 Jan 2024 01:02:03 PDT", "2024-01-01T01:02:03-07:00"),
        (" 1 Jan 2024 01:02:03 CET", "2024-01-01T01:02:03Z"),
        (" 29 Feb 2024 23:59:60 +0000", "2024-03-01T00:00:00Z"),
        (" Mon 1 January 2024 1:02:03 +0100", "2024-01-01T01:02:03+01:00"),
        (" 1 Jan 2024 01:02:03", "2024-01-01T01:02:03Z"),
        (" 1 Jan 2024 01:02:03 +01:00", "2024-01-01T01:02:03+01:00"),
        (" 1 Jan 2024 01:02:03 GMT+0100", "2024-01-01T01:02:03+01:00"),
        (" 31 Dec 9999 23:59:59 +2359", "9999-12-31T23:59:59+23:59"),
        (" 1 Jan 1900 00:00:00 +0000", "1900-01-01T00:00:00Z"),
    ];
    for (value, date) in rows {
        assert_eq!(shown(value).as_deref(), Some(date), "{value:?}");
    }
}

#[test]
fn e4_date_is_null_when_it_is_none() {
    let rows = [
        "",
        " ",
        "yesterday",
        "Mon,",
        "2014-10-30T14:12:00Z",
        "32 Jan 2024 00:00 +0000",
        "0 Jan 2024 00:00 +0000",
        "29 Feb 2023 00:00 +0000",
        "29 Feb 1900 00:00 +0000",
        "1 Foo 2024 00:00 +0000",
        "1 Jan 2024",
        "1 Jan 2024 24:00 +0000",
        "1 Jan 2024 00:60 +0000",
        "1 Jan 2024 00:00:61 +0000",
        "1 Jan 1899 00:00 +0000",
        "1 Jan 10000 00:00 +0000",
        "1 Jan 2024 00:00 +2400",
        "1 Jan 2024 00:00 +0060",
        "1 Jan 2024 00:00 +01",
        "1 Jan 2024 a:00 +0000",
        "1 Ja 2024 00:00 +0000",
        "1 Jan 99999999999 00:00 +0000",
        "-1 Jan 2024 00:00 +0000",
        "1, Jan 2024 00:00 +0000",
    ];
    for value in rows {
        assert_eq!(shown(value), None, "{value:?}");
    }
}

#[test]
fn e5_sent_at_is_a_jmap_date_both_ways() {
    let seconds = |text| Date::parse(text).map(|date| (date.seconds, date.offset_minutes));
    assert_eq!(seconds("2014-10-30T14:12:00+08:00"), Some((1_414_649_520, 480)));
    assert_eq!(seconds("2014-10-30T06:12:00Z"), Some((1_414_649_520, 0)));
    assert_eq!(seconds("1970-01-01T00:00:00.250Z"), Some((0, 0)));
    assert_eq!(seconds("1969-12-31T23:59:59-00:01"), Some((59, -1)));
    let date = Date { seconds: 1_414_649_520, offset_minutes: 480 };
    assert_eq!(date.to_rfc_5322(), "Thu, 30 Oct 2014 14:12:00 +0800");
    let refused = [
        "",
        "2014-10-30",
        "2014-10-30T14:12:00",
        "2014-10-30t14:12:00Z",
        "2014-10-30T14:12:00z",
        "2014-10-30T14:12:00.0Z",
        "2014-10-30T14:12:00.Z",
        "2014-10-30T14:12:00.1xZ",
        "2014-10-30T14:12Z",
        "2014-10-30T24:00:00Z",
        "2014-13-30T14:12:00Z",
        "2014-10-32T14:12:00Z",
        "14-10-30T14:12:00Z",
        "2014-10-30T14:12:00+0800",
        "2014-10-30T14:12:00+24:00",
        "+014-10-30T14:12:00Z",
        "2014-10-30T14:12:00Z ",
        "2014-10-30T14:12:00ü08:00",
    ];
    for text in refused {
        assert_eq!(Date::parse(text), None, "{text}");
    }
}

#[test]
fn e4_dates_of_other_origin_are_shown_within_four_digits_of_the_year() {
    let shown = |seconds| Date { seconds, offset_minutes: 60 }.to_string();
    assert_eq!(shown(i64::MAX), "9999-12-31T23:59:59+01:00");
    assert_eq!(shown(i64::MIN), "0000-01-01T00:00:00+01:00");
}

proptest! {
    #[test]
    fn e4_date_written_and_read_again_is_the_same(seconds in -2_208_000_000_i64..253_402_000_000, offset_minutes in -1_439_i16..1_440) {
        let date = Date { seconds, offset_minutes };
        prop_assume!(date.to_string().starts_with(|digit| digit >= '1'));
        prop_assert_eq!(Date::parse(&date.to_string()), Some(date));
        prop_assert_eq!(as_date(date.to_rfc_5322().as_bytes()), Some(date));
    }
}
