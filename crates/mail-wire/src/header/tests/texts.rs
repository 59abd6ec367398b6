use super::super::*;

#[test]
fn e4_raw_keeps_all_but_nul_and_bad_utf_8() {
    assert_eq!(as_raw(b" one\r\n\ttwo  =?utf-8?q?x?= "), " one\r\n\ttwo  =?utf-8?q?x?= ");
    assert_eq!(as_raw(b"a\0b\xffc\xc3\xbc"), "ab\u{fffd}cü");
    assert_eq!(as_raw("e\u{301}".as_bytes()), "e\u{301}", "Raw is not normalized");
}

#[test]
fn e4_text_is_unfolded_decoded_and_normalized() {
    let rows = [
        ("", ""),
        (" hello", "hello"),
        ("hello", "hello"),
        ("\r\n hello", "hello"),
        ("  \r\n \t hello  world ", "hello  world "),
        (" one\r\n two\r\n\tthree\n four", "one two\tthree four"),
        (" e\u{301}", "é"),
        (" =?utf-8?q?e=CC=81?=", "é"),
        (" =?UTF-8?B?Z3LDvMOfZQ==?=", "grüße"),
        (" =?iso-8859-1?Q?gr=FC=DFe?= there", "grüße there"),
        (" =?US-ASCII*EN?Q?Keith_Moore?=", "Keith Moore"), // RFC 2231
        (" raw grüße", "raw grüße"),
        (" =?utf-8?q?_two?=  words", " two  words"),
        (" =?utf-8?q?=E4=B8?= =?utf-8?q?=AD?=", "中"), // cut within a character
        (" =?iso-2022-jp?B?GyRCJDMbKEI=?= =?iso-2022-jp?B?GyRCJHMbKEI=?=", "こん"), // each begins in ASCII
        (" =?utf-8?b?5LitA?= =?utf-8?q?x?=", "=?utf-8?b?5LitA?= x"), // six bits are left over
        (" =?utf-8?B?YWI?=", "ab"),                    // without padding
    ];
    for (value, text) in rows {
        assert_eq!(as_text(value.as_bytes()), text, "{value:?}");
    }
    assert_eq!(as_text(b" =?iso-8859-1?q?Fr\xf6sche?="), "Frösche", "octets that should be encoded");
    assert_eq!(as_text(b" bad \xff utf-8 and\0NUL"), "bad \u{fffd} utf-8 andNUL");
}

#[test]
fn e4_text_joins_neighbouring_encoded_words() {
    // RFC 2047, section 8.
    let rows = [
        ("=?ISO-8859-1?Q?a?=", "a"),
        ("=?ISO-8859-1?Q?a?= b", "a b"),
        ("=?ISO-8859-1?Q?a?= =?ISO-8859-1?Q?b?=", "ab"),
        ("=?ISO-8859-1?Q?a?=  =?ISO-8859-1?Q?b?=", "ab"),
        ("=?ISO-8859-1?Q?a?=\r\n  =?ISO-8859-1?Q?b?=", "ab"),
        ("=?ISO-8859-1?Q?a_b?=", "a b"),
        ("=?ISO-8859-1?Q?a?= =?ISO-8859-2?Q?_b?=", "a b"),
        ("=?ISO-8859-1?Q?a?= b =?ISO-8859-1?Q?c?=", "a b c"),
        ("=?x-unknown?Q?a?= =?ISO-8859-1?Q?b?=", "=?x-unknown?Q?a?= b"),
    ];
    for (value, text) in rows {
        assert_eq!(as_text(value.as_bytes()), text, "{value:?}");
        let address = format!("jdoe@example.com ({value})");
        assert_eq!(as_addresses(address.as_bytes())[0].name.as_deref(), Some(text), "{address:?}");
    }
}

#[test]
fn e4_text_decodes_no_encoded_word_that_is_illegal() {
    let rows = [
        "a=?utf-8?q?b?=",
        "=?utf-8?q?b?=c",
        "=?utf-8?q?a?==?utf-8?q?b?=",
        "(=?utf-8?q?b?=)",
        "\"=?utf-8?q?b?=\"",
        "=?utf-8?q?a b?=",
        "=?utf-8?x?b?=",
        "=?utf-8?q?b?",
        "=?utf-8?qq?b?=",
        "=??q?b?=",
        "=?utf 8?q?b?=",
        "=?utf-8?b?grün?=",
        "=?x-unknown?q?b?=",
        "=?utf-8?q?=ZZ?=",
        "=?utf-8?q?=4?=",
        "=?utf-8?b?****?=",
        "=?",
        "=?=",
        "=?utf-8?q",
    ];
    for value in rows {
        assert_eq!(as_text(value.as_bytes()), value);
    }
}

#[test]
fn e4_text_drops_encoded_control_characters() {
    assert_eq!(as_text(b"=?utf-8?q?a=00=0D=0ABcc:_x=7F=1B=C2=85?="), "aBcc: x");
    assert_eq!(as_text(b"=?utf-8?b?AA0KAA==?="), "");
}
