use super::super::*;

/// A list in short: `name|email`, groups as `group{...}`.
fn shown(value: &[u8]) -> String {
    let address = |address: &Address| match &address.name {
        Some(name) => format!("{name}|{}", address.email),
        None => address.email.clone(),
    };
    let group = |group: &Group| {
        let addresses: Vec<String> = group.addresses.iter().map(address).collect();
        let addresses = addresses.join(", ");
        group.name.as_ref().map_or(addresses.clone(), |name| format!("{name}{{{addresses}}}"))
    };
    as_grouped_addresses(value).iter().map(group).collect::<Vec<_>>().join("; ")
}

fn check(rows: &[(&str, &str)]) {
    for (value, expected) in rows {
        assert_eq!(shown(value.as_bytes()), *expected, "{value:?}");
    }
}

#[test]
fn e4_addresses_are_those_of_the_standards() {
    check(&[
        // RFC 8621, section 4.1.2.
        (
            " \"  James Smythe\" <james@example.com>, Friends:\r\n jane@example.com, =?UTF-8?Q?John_Sm=C3=AEth?=\r\n <john@example.com>;",
            "James Smythe|james@example.com; Friends{jane@example.com, John Smîth|john@example.com}",
        ),
        // RFC 5322, appendix A.
        ("John Doe <jdoe@machine.example>", "John Doe|jdoe@machine.example"),
        ("\"Joe Q. Public\" <john.q.public@example.com>", "Joe Q. Public|john.q.public@example.com"),
        (
            "Mary Smith <mary@x.test>, jdoe@example.org, Who? <one@y.test>",
            "Mary Smith|mary@x.test, jdoe@example.org, Who?|one@y.test",
        ),
        (
            "<boss@nil.test>, \"Giant; \\\"Big\\\" Box\" <sysservices@example.net>",
            "boss@nil.test, Giant; \"Big\" Box|sysservices@example.net",
        ),
        (
            "A Group:Ed Jones <c@a.test>,joe@where.test,John <jdoe@one.test>;",
            "A Group{Ed Jones|c@a.test, joe@where.test, John|jdoe@one.test}",
        ),
        ("Undisclosed recipients:;", "Undisclosed recipients{}"),
        ("Pete(A nice \\) chap) <pete(his account)@silly.test(his host)>", "Pete|pete@silly.test"),
        (
            "A Group(Some people)\r\n     :Chris Jones <c@(Chris's host.)public.example>,\r\n  joe@example.org,\r\n John <jdoe@one.test> (my dear friend); (the end of the group)",
            "A Group{Chris Jones|c@public.example, joe@example.org, John|jdoe@one.test}",
        ),
        ("(Empty list)(start)Hidden recipients  :(nobody(that I know))  ;", "Hidden recipients{}"),
        // Obsolete syntax, RFC 5322, appendix A.6.1.
        ("Joe Q. Public <john.q.public@example.com>", "Joe Q. Public|john.q.public@example.com"),
        (
            "Mary Smith <@node.test:mary@example.net>, , jdoe@test  . example",
            "Mary Smith|mary@example.net, jdoe@test.example",
        ),
        ("<@a.test,@b.test : jdoe @ one . test>", "jdoe@one.test"),
        // RFC 2047, section 8.
        ("=?US-ASCII?Q?Keith_Moore?= <moore@cs.utk.edu>", "Keith Moore|moore@cs.utk.edu"),
        ("=?ISO-8859-1?Q?Andr=E9?= Pirard <PIRARD@vm1.ulg.ac.be>", "André Pirard|PIRARD@vm1.ulg.ac.be"),
        // RFC 6532.
        ("Grüße <grüße@beispiel.example>", "Grüße|grüße@beispiel.example"),
    ]);
}

#[test]
fn e4_addresses_have_names_unquoted_unfolded_and_trimmed() {
    check(&[
        ("\"a \\\"b\\\" \\\\c\" <x@y>", "a \"b\" \\c|x@y"),
        ("\"one\r\n two  three \" <x@y>", "one two  three|x@y"),
        ("  one \r\n\t two  <x@y>", "one two|x@y"),
        ("\"\" <x@y>", "x@y"),
        ("\"one\" \"two\" three <x@y>", "one two three|x@y"),
        ("e\u{301} <x@y>", "é|x@y"),
        ("=?utf-8?q?a?= =?utf-8?q?b?= c <x@y>", "ab c|x@y"),
        ("=?utf-8?Q?Smith,_J=2E?= <x@y>", "Smith, J.|x@y"),
        ("=?utf-8?Q?Smith,J@z?= <x@y>", "Smith,J@z|x@y"),
        ("=?utf-8?q?a?=<x@y>", "a|x@y"),
        // Not where RFC 2047 forbids it.
        ("\"=?utf-8?q?a?=\" <x@y>", "=?utf-8?q?a?=|x@y"),
        ("b=?utf-8?q?a?= <x@y>", "b=?utf-8?q?a?=|x@y"),
        ("\"b\"=?utf-8?q?a?= <x@y>", "b=?utf-8?q?a?=|x@y"),
        ("=?utf-8?q?a?=b <x@y>", "=?utf-8?q?a?=b|x@y"),
        ("=?x-unknown?q?a?= <x@y>", "=?x-unknown?q?a?=|x@y"),
        ("<=?utf-8?q?a?=@y>", "=?utf-8?q?a?=@y"),
    ]);
    assert_eq!(shown(b"\"a\0\xff\" <x\0\xff@y>"), "a\u{fffd}|x\u{fffd}@y");
}

#[test]
fn e4_addresses_take_a_comment_for_a_missing_name() {
    check(&[
        ("jdoe@example.com (John Doe)", "John Doe|jdoe@example.com"),
        ("jdoe@example.com (John (\"Jack\") Doe\\))", "John (\"Jack\") Doe)|jdoe@example.com"),
        ("jdoe@example.com (=?iso-8859-1?q?Andr=E9?= (=?utf-8?q?a?=))", "André (a)|jdoe@example.com"),
        ("<jdoe@example.com> (John)", "John|jdoe@example.com"),
        ("J <jdoe@example.com> (John)", "J|jdoe@example.com"),
        ("(before) jdoe@example.com", "jdoe@example.com"),
        ("pete(his account)@silly.test(his host)", "his host|pete@silly.test"),
        ("a@b (A), c@d, e@f (E)", "A|a@b, c@d, E|e@f"),
        ("a@b ( )", "a@b"),
        ("a@b (one) (two)", "one|a@b"),
        ("g (group):a@b;", "g{a@b}"),
    ]);
}

#[test]
fn e4_addresses_are_read_as_well_as_they_can_be() {
    check(&[
        ("", ""),
        (" , ,, ;", ""),
        ("<>", ""),
        ("John <>", "John|"),
        ("john", "john"),
        ("John Smith", "John Smith"),
        ("John Smith jdoe@example.com", "John Smith|jdoe@example.com"),
        ("\"John Smith\" jdoe@example.com", "John Smith|jdoe@example.com"),
        ("a@b c@d", "a@b, c@d"),
        ("<a@b> <c@d>", "a@b, c@d"),
        ("A <a@b> C <c@d>", "A|a@b, C|c@d"),
        ("a@b; c@d; ", "a@b, c@d"),
        ("A <a@b", "A|a@b"),
        ("A <a@b, C <c@d>", "A|a@b, C|c@d"),
        ("A <a@b; C <c@d>", "A|a@b, C|c@d"),
        ("A <a@b <c@d>", "A|a@b, c@d"),
        ("A <<a@b>>", "A|a@b"),
        ("A <a@b> trailing", "A|a@b"),
        ("G: a@b", "G{a@b}"),
        ("G: a@b, H: c@d;, e@f", "G{a@b}; H{c@d}; e@f"),
        ("a@b, G:c@d;, e@f, g@h", "a@b; G{c@d}; e@f, g@h"),
        (": a@b", "a@b"),
        ("\"unclosed <a@b>", "unclosed|a@b"),
        ("John (unclosed <a@b>", "John (unclosed|a@b"),
        ("[List] x <a@b>", "[List] x|a@b"),
        ("[unclosed <a@b>", "[unclosed|a@b"),
        ("a@[127.0.0.1], b@[IPv6:::1]", "a@[127.0.0.1], b@[IPv6:::1]"),
        ("\"john doe\"@example.com", "\"john doe\"@example.com"),
        ("<\"john \\\" doe\" @ example.com>", "\"john \\\" doe\"@example.com"),
        ("<john doe@example.com>", "john doe@example.com"),
        ("<a@b@c>", "a@b@c"),
        ("@", "@"),
        ("a@", "a@"),
        ("a > b", "a b"),
        ("<mailto:a@b>", "mailto:a@b"),
        ("a@b:25", "a@b:25"),
        ("\"John\"jdoe@example.com", "John|jdoe@example.com"),
        ("<Undisclosed-Recipient:;@example.com>", "Undisclosed-Recipient:;@example.com"),
    ]);
}
