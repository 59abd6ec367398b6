use std::{fs, path::Path};

use proptest::{collection::vec, prelude::*, sample::select};

use crate::properties;

/// Pieces that hostile fields are made of.
fn pieces() -> impl Strategy<Value = String> {
    let piece = select(vec![
        "DKIM-Signature:",
        "ARC-Seal:",
        "ARC-Message-Signature:",
        "ARC-Authentication-Results:",
        "From:",
        "from :",
        "Authentication-Results:",
        "\r\n",
        "\r\n ",
        "\n",
        ";",
        "=",
        "v=1",
        "a=rsa-sha256",
        "a=ed25519-sha256",
        "d=example.com",
        "d=a..b",
        "s=s",
        "h=from",
        "h=from:from",
        "b=",
        "bh=",
        "AAAA",
        "l=1",
        "l=99999999999999999999",
        "i=1",
        "i=2",
        "i=@example.com",
        "c=relaxed",
        "c=simple/simple",
        "cv=none",
        "cv=pass",
        "t=1",
        "x=2",
        "a@example.com",
        "<a@b.example>",
        ",",
        ":",
        "\"",
        "(",
        ")",
        "\\",
        "\u{e4}",
        "\0",
        "%",
        " ",
        "\t",
        "mail.example.org",
        "v=spf1 ",
        "include:%{d}",
        "a:%{ir}.%{v}.%{d}",
        "redirect=%{o2}",
        "exists:%{l1r-}.%{h}",
        "mx",
        "ptr",
        "ip4:1.2.3.4/8",
        "ip6:::/0",
        "v=DMARC1; p=reject; ",
        "pct=1",
    ]);
    vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn chk2_nothing_that_a_message_says_makes_a_check_panic(text in pieces()) {
        properties::authentication(text.as_bytes());
    }

    #[test]
    fn chk2_no_bytes_make_a_check_panic(bytes in vec(any::<u8>(), 0..600)) {
        properties::authentication(&bytes);
    }
}

#[test]
fn chk2_the_seeds_of_the_fuzzer_hold() {
    let root = Path::new("../..");
    let folder = root.join("tests").join("fuzz/corpus/authentication");
    let seeds: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(seeds.len() >= 4, "the seeds were not found");
    for seed in seeds {
        println!("{}", seed.display()); // shown when the property fails
        properties::authentication(&fs::read(&seed).unwrap());
    }
}
