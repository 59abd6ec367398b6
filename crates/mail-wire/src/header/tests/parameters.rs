use super::super::*;

/// A field's value, the text before its parameters, and the parameters.
type Row<'r> = (&'r str, &'r str, &'r [(&'r str, &'r str)]);

fn check(rows: &[Row<'_>]) {
    for (field, value, parameters) in rows {
        let found = as_parameters(field.as_bytes());
        let pairs: Vec<(&str, &str)> =
            found.parameters.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!((found.value.as_str(), pairs.as_slice()), (*value, *parameters), "{field:?}");
    }
}

#[test]
fn e6_parameters_are_read_with_their_quotes_and_comments() {
    check(&[
        ("", "", &[]),
        (" Text/PLAIN", "text/plain", &[]),
        (" text/plain; charset=us-ascii (Plain text)", "text/plain", &[("charset", "us-ascii")]), // RFC 2045
        (" text/plain; Charset=\"us-ascii\"", "text/plain", &[("charset", "us-ascii")]),
        (
            " text / plain (c) ;\r\n\tcharset = utf-8 ; format=flowed;",
            "text/plain",
            &[("charset", "utf-8"), ("format", "flowed")],
        ),
        (
            " attachment; filename=\"a\\\"b; c.txt\"; size=1",
            "attachment",
            &[("filename", "a\"b; c.txt"), ("size", "1")],
        ),
        (" attachment; filename=a b.txt", "attachment", &[("filename", "a b.txt")]),
        (" attachment; filename=a(1).txt", "attachment", &[("filename", "a(1).txt")]),
        (
            " attachment; filename=\"unclosed.txt; size=1",
            "attachment",
            &[("filename", "unclosed.txt"), ("size", "1")],
        ),
        (" attachment; filename=\"\"", "attachment", &[("filename", "")]),
        (" a; x=1; X=2; y", "a", &[("x", "1")]),
        (" a; =1; b=; ; c=3", "a", &[("b", ""), ("c", "3")]),
        ("; charset=utf-8", "", &[("charset", "utf-8")]),
        (" multipart/mixed; boundary=\"=_a?b:c\"", "multipart/mixed", &[("boundary", "=_a?b:c")]),
        // Missing semicolons.
        (" multipart/mixed\r\n\tboundary=\"x\"", "multipart/mixed", &[("boundary", "x")]),
        (" a/b c = d; e=f", "a/b", &[("c", "d"), ("e", "f")]),
        (" a/b (c=d); e=f", "a/b", &[("e", "f")]),
        (" a; b=\"1\" c=\"2\" (x=y) d", "a", &[("b", "1"), ("c", "2")]),
        (" a; name=grüße", "a", &[("name", "grüße")]),
        (" a; name=\"fol\r\n ded\"", "a", &[("name", "fol ded")]),
    ]);
}

#[test]
fn e6_names_are_decoded_by_rfc_2231() {
    check(&[
        // RFC 2231, sections 3 and 4.
        (
            " message/external-body; access-type=URL;\r\n URL*0=\"ftp://\";\r\n URL*1=\"cs.utk.edu/pub/moore/bulk-mailer/bulk-mailer.tar\"",
            "message/external-body",
            &[("access-type", "URL"), ("url", "ftp://cs.utk.edu/pub/moore/bulk-mailer/bulk-mailer.tar")],
        ),
        (
            " application/x-stuff;\r\n title*=us-ascii'en-us'This%20is%20%2A%2A%2Afun%2A%2A%2A",
            "application/x-stuff",
            &[("title", "This is ***fun***")],
        ),
        (
            " application/x-stuff;\r\n title*0*=us-ascii'en'This%20is%20even%20more%20;\r\n title*1*=%2A%2A%2Afun%2A%2A%2A%20;\r\n title*2=\"isn't it!\"",
            "application/x-stuff",
            &[("title", "This is even more ***fun*** isn't it!")],
        ),
        (" a; name*=UTF-8''gr%C3%BC%C3%9Fe", "a", &[("name", "grüße")]),
        (" a; name*=iso-8859-1''gr%FC%DFe", "a", &[("name", "grüße")]),
        (" a; name*=''gr%C3%BC", "a", &[("name", "grü")]),
        (" a; name*=gr%C3%BC", "a", &[("name", "grü")]),
        (" a; name*=\"utf-8''gr%C3%BC\"", "a", &[("name", "grü")]),
        (" a; name*=x-unknown''gr%C3%BC", "a", &[("name", "grü")]),
        (" a; name*=utf-8''e%CC%81", "a", &[("name", "é")]),
        (" a; name*=utf-8''100%25%2", "a", &[("name", "100%%2")]),
        (" a; name*=utf-8''a%0D%0Ab%00", "a", &[("name", "ab")]),
        // Sections in any order, split within a character, with a gap, repeated.
        (" a; name*1*=%9F; name*0*=utf-8''%C3", "a", &[("name", "ß")]),
        (" a; name*0=x; name*2=z; name*1=y", "a", &[("name", "xyz")]),
        (" a; name*0=x; name*2=z", "a", &[("name", "x")]),
        (" a; name*0=x; name*0=v; name*1=y; name*1=w", "a", &[("name", "xy")]),
        (" a; name*1=y; name*2=z", "a", &[]),
        (" a; name*x=y; name*=", "a", &[("name", "")]),
        // The best form is used, wherever it is.
        (
            " a; b=1; filename=plain; filename*=utf-8''%C3%9F; c=2",
            "a",
            &[("b", "1"), ("filename", "ß"), ("c", "2")],
        ),
        (" a; filename*=utf-8''%C3%9F; filename=plain", "a", &[("filename", "ß")]),
        (" a; filename=plain; filename*0=con; filename*1=tinued", "a", &[("filename", "continued")]),
        (" a; filename*=utf-8''best; filename*0*=utf-8''worse; filename*1=x", "a", &[("filename", "best")]),
    ]);
}

#[test]
fn e6_names_are_decoded_by_rfc_2047_as_mail_in_use_has_them() {
    check(&[
        (" a; name=\"=?utf-8?B?Z3LDvMOfZQ==?=\"", "a", &[("name", "grüße")]),
        (" a; filename==?utf-8?q?gr=C3=BC?=", "a", &[("filename", "grü")]),
        (" a; filename=\"=?utf-8?q?a?=\r\n =?utf-8?q?b.txt?=\"", "a", &[("filename", "ab.txt")]),
        (" a; other=\"=?utf-8?q?a?=\"", "a", &[("other", "=?utf-8?q?a?=")]),
    ]);
}
