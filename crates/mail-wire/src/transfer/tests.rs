use proptest::prelude::*;

use super::*;

/// The octets, and whether there was a problem.
fn decoded(encoding: &str, body: &[u8]) -> (Vec<u8>, bool) {
    let Decoded { bytes, is_problem } = decode(encoding, body);
    (bytes.into_owned(), is_problem)
}

#[test]
fn e8_bodies_that_need_no_decoding_are_not_copied() {
    for encoding in ["", "7bit", " 8BIT ", "Binary"] {
        let decoded = decode(encoding, b"=41\x00\xff");
        assert!(matches!(decoded.bytes, Cow::Borrowed(b"=41\x00\xff")));
        assert!(!decoded.is_problem);
    }
}

#[test]
fn e8_an_unknown_encoding_is_a_problem() {
    assert_eq!(decoded("x-uuencode", b"=41"), (b"=41".to_vec(), true));
}

#[test]
fn e8_base64_is_decoded_as_far_as_it_goes() {
    let rows: &[(&[u8], &[u8], bool)] = &[
        (b"", b"", false),
        (b"aGVsbG8gd29ybGQ=", b"hello world", false),
        (b"aGVs\r\nbG8g\r\nd29ybGQ=\r\n", b"hello world", false),
        (b" aG Vs\tbG8g\nd29ybGQ = ", b"hello world", false),
        (b"YQ==", b"a", false),
        (b"YR==", b"a", false), // leftover bits that are not zero
        (b"YQ", b"a", true),    // truncated
        (b"YWI", b"ab", true),
        (b"YWJj", b"abc", false),
        (b"YWJjZ", b"abc", true),
        (b"YWJj====", b"abc", true),
        (b"YQ==\r\n-- \r\nlist footer", b"a", true),
        (b"YW*Jj", b"abc", true),
        (b"\xff\xfe", b"", true),
        (b"=", b"", true),
    ];
    for (body, bytes, is_problem) in rows {
        assert_eq!(decoded("BASE64", body), (bytes.to_vec(), *is_problem), "{}", body.escape_ascii());
    }
}

#[test]
fn e8_quoted_printable_is_decoded_as_far_as_it_goes() {
    let rows: &[(&[u8], &[u8], bool)] = &[
        (b"", b"", false),
        (
            b"Now's the time =\r\nfor all folk to come=\r\n to the aid of their country.",
            b"Now's the time for all folk to come to the aid of their country.",
            false,
        ), // RFC 2045
        (b"a=3Db=3db", b"a=b=b", false),
        (b"trailing  \t\r\nnext", b"trailing\r\nnext", false),
        (b"soft=  \r\nbreak", b"softbreak", false),
        (b"bare\nline=\nfeed", b"bare\nlinefeed", false),
        (b"ends with =", b"ends with ", false),
        (b"a=zzb", b"a=zzb", true),
        (b"a=4", b"a=4", true),
        (b"a==41", b"a=A", true),
        (b"8bit \xfc", b"8bit \xfc", false),
        (b"=00=0D=0A=", b"\0\r\n", false),
    ];
    for (body, bytes, is_problem) in rows {
        assert_eq!(
            decoded("Quoted-Printable", body),
            (bytes.to_vec(), *is_problem),
            "{}",
            body.escape_ascii()
        );
    }
}

proptest! {
    #[test]
    fn e8_base64_of_any_bytes_is_decoded_in_both_ways(bytes: Vec<u8>) {
        let encoded = STANDARD.encode_to_string(&bytes);
        prop_assert_eq!(base64(encoded.as_bytes()), (bytes.clone(), None));
        prop_assert_eq!(base64_in_parts(encoded.as_bytes()), (bytes, None));
    }

    #[test]
    fn e8_no_body_makes_decoding_panic(bytes: Vec<u8>, text in "[=0-9A-F \r\n]{0,64}") {
        for encoding in ["base64", "quoted-printable"] {
            prop_assert!(decode(encoding, &bytes).bytes.len() <= bytes.len());
            prop_assert!(decode(encoding, text.as_bytes()).bytes.len() <= text.len());
        }
    }
}
