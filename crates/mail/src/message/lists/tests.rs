use super::super::{read, structure};

/// A part: a leaf with the lines of its header and its name, or a multipart.
enum Tree {
    Leaf(&'static str, char),
    Multi(&'static str, Vec<Tree>),
}
use Tree::{Leaf, Multi};

impl Tree {
    fn write(&self, depth: usize, out: &mut String) {
        match self {
            Leaf(header, letter) => out.push_str(&format!("{header}\r\n\r\n{letter}")),
            Multi(subtype, parts) => {
                out.push_str(&format!("Content-Type: multipart/{subtype}; boundary=b{depth}\r\n\r\n"));
                for part in parts {
                    out.push_str(&format!("\r\n--b{depth}\r\n"));
                    part.write(depth + 1, out);
                }
                out.push_str(&format!("\r\n--b{depth}--\r\n"));
            }
        }
    }

    fn message(&self) -> String {
        let mut message = String::new();
        self.write(0, &mut message);
        message
    }

    /// The letters of textBody, htmlBody and attachments.
    fn lists(&self) -> [String; 3] {
        let message = self.message();
        let structure = structure(message.as_bytes());
        let letters = |list: &[u16]| {
            list.iter()
                .map(|number| structure.part(*number).unwrap().body.of(message.as_bytes())[0] as char)
                .collect()
        };
        [letters(&structure.text_body), letters(&structure.html_body), letters(&structure.attachments)]
    }
}

const PLAIN: &str = "Content-Type: text/plain";
const NAMED_PLAIN: &str = "Content-Type: text/plain; name=x.txt";
const HTML: &str = "Content-Type: text/html";
const IMAGE: &str = "Content-Type: image/png";
const PDF: &str = "Content-Type: application/pdf";
const MESSAGE: &str = "Content-Type: message/rfc822";
const ATTACHED_IMAGE: &str = "Content-Type: image/jpeg\r\nContent-Disposition: attachment";

#[test]
fn e7_lists_of_the_example_of_rfc_8621() {
    const INLINE_PLAIN: &str = "Content-Type: text/plain\r\nContent-Disposition: inline";
    const INLINE_IMAGE: &str = "Content-Type: image/jpeg\r\nContent-Disposition: inline";
    let tree = Multi(
        "mixed",
        vec![
            Leaf(INLINE_PLAIN, 'A'),
            Multi(
                "mixed",
                vec![
                    Multi(
                        "alternative",
                        vec![
                            Multi(
                                "mixed",
                                vec![
                                    Leaf(INLINE_PLAIN, 'B'),
                                    Leaf(INLINE_IMAGE, 'C'),
                                    Leaf(INLINE_PLAIN, 'D'),
                                ],
                            ),
                            Multi("related", vec![Leaf(HTML, 'E'), Leaf("Content-Type: image/jpeg", 'F')]),
                        ],
                    ),
                    Leaf(ATTACHED_IMAGE, 'G'),
                    Leaf("Content-Type: application/x-excel", 'H'),
                    Leaf(MESSAGE, 'J'),
                ],
            ),
            Leaf(INLINE_PLAIN, 'K'),
        ],
    );
    assert_eq!(tree.lists(), ["ABCDK", "AEK", "CFGHJ"]);
}

#[test]
fn e7_lists_of_single_parts() {
    assert_eq!(Leaf(PLAIN, 'A').lists(), ["A", "A", ""]);
    assert_eq!(Leaf("Subject: x", 'A').lists(), ["A", "A", ""]);
    assert_eq!(Leaf(NAMED_PLAIN, 'A').lists(), ["A", "A", ""], "the first of its multipart");
    assert_eq!(Leaf(HTML, 'A').lists(), ["A", "A", ""]);
    assert_eq!(Leaf(IMAGE, 'A').lists(), ["A", "A", ""]);
    assert_eq!(Leaf(PDF, 'A').lists(), ["", "", "A"]);
    assert_eq!(Leaf("Content-Type: text/csv", 'A').lists(), ["", "", "A"]);
    assert_eq!(Leaf(ATTACHED_IMAGE, 'A').lists(), ["", "", "A"]);
    assert_eq!(
        Leaf("Content-Type: TEXT/Plain\r\nContent-Disposition: ATTACHMENT; x=y", 'A').lists(),
        ["", "", "A"]
    );
    assert_eq!(Leaf(MESSAGE, 'A').lists(), ["", "", "A"]);
}

#[test]
fn e7_an_alternative_gives_plain_to_text_and_html_to_html() {
    let alternative = |parts| Multi("alternative", parts);
    assert_eq!(alternative(vec![Leaf(PLAIN, 'A'), Leaf(HTML, 'B')]).lists(), ["A", "B", ""]);
    assert_eq!(alternative(vec![Leaf(HTML, 'B'), Leaf(PLAIN, 'A')]).lists(), ["A", "B", ""]);
    let calendar = Leaf("Content-Type: text/calendar", 'C');
    assert_eq!(alternative(vec![Leaf(PLAIN, 'A'), Leaf(HTML, 'B'), calendar]).lists(), ["A", "B", "C"]);
    let image = Leaf(IMAGE, 'C');
    assert_eq!(alternative(vec![image, Leaf(PLAIN, 'A'), Leaf(HTML, 'B')]).lists(), ["A", "B", "C"]);
}

#[test]
fn e7_what_an_alternative_gives_to_one_list_alone_is_in_the_other_too() {
    let alternative = |parts| Multi("alternative", parts);
    assert_eq!(alternative(vec![Leaf(HTML, 'A')]).lists(), ["A", "A", ""]);
    assert_eq!(alternative(vec![Leaf(PLAIN, 'A'), Leaf(PLAIN, 'B')]).lists(), ["AB", "AB", ""]);
    let tree = Multi("mixed", vec![Leaf(PLAIN, 'A'), alternative(vec![Leaf(HTML, 'B')]), Leaf(PLAIN, 'C')]);
    assert_eq!(tree.lists(), ["ABC", "ABC", ""]);
    let nested = alternative(vec![Leaf(HTML, 'A'), alternative(vec![Leaf(HTML, 'B')])]);
    assert_eq!(nested.lists(), ["B", "AB", ""], "the inner one has given to both");
    assert_eq!(alternative(vec![Leaf(PDF, 'A')]).lists(), ["", "", "A"]);
}

#[test]
fn e7_below_an_alternative_the_first_text_closes_the_other_list_of_its_branch() {
    let branches = Multi(
        "alternative",
        vec![
            Multi("mixed", vec![Leaf(PLAIN, 'A'), Leaf(IMAGE, 'B'), Leaf(HTML, 'C')]),
            Multi("mixed", vec![Leaf(HTML, 'D'), Leaf(IMAGE, 'E'), Leaf(PLAIN, 'F')]),
        ],
    );
    // RFC 8621's algorithm puts the second text of a branch nowhere. Nothing is hidden here.
    assert_eq!(branches.lists(), ["AB", "DE", "BCEF"]);
}

#[test]
fn e7_only_the_first_part_of_a_related_is_inline() {
    let related = |parts| Multi("related", parts);
    assert_eq!(related(vec![Leaf(HTML, 'A'), Leaf(IMAGE, 'B'), Leaf(PLAIN, 'C')]).lists(), ["A", "A", "BC"]);
    let inner =
        related(vec![Multi("alternative", vec![Leaf(PLAIN, 'A'), Leaf(HTML, 'B')]), Leaf(IMAGE, 'C')]);
    assert_eq!(inner.lists(), ["A", "B", "C"]);
    assert_eq!(related(vec![Leaf(IMAGE, 'A'), Leaf(HTML, 'B')]).lists(), ["A", "A", "B"]);
}

#[test]
fn e7_a_text_with_a_name_is_an_attachment_unless_it_is_the_first() {
    let tree = Multi("mixed", vec![Leaf(NAMED_PLAIN, 'A'), Leaf(NAMED_PLAIN, 'B'), Leaf(PLAIN, 'C')]);
    assert_eq!(tree.lists(), ["AC", "AC", "B"]);
    let named_image = "Content-Type: image/png\r\nContent-Disposition: inline; filename=x.png";
    assert_eq!(Multi("mixed", vec![Leaf(PLAIN, 'A'), Leaf(named_image, 'B')]).lists(), ["AB", "AB", ""]);
}

#[test]
fn e7_a_digest_has_messages() {
    let tree = Multi("digest", vec![Leaf("X-A: b", 'A'), Leaf(PLAIN, 'B')]);
    assert_eq!(tree.lists(), ["B", "B", "A"]);
}

#[test]
fn e9_has_attachment_unless_all_are_inline_or_images_that_the_html_shows() {
    let has = |tree: Tree| read(tree.message().as_bytes()).has_attachment;
    assert!(!has(Leaf(PLAIN, 'A')));
    assert!(has(Multi("mixed", vec![Leaf(PLAIN, 'A'), Leaf(PDF, 'B')])));
    let inline_pdf = "Content-Type: application/pdf\r\nContent-Disposition: inline";
    assert!(!has(Multi("mixed", vec![Leaf(PLAIN, 'A'), Leaf(inline_pdf, 'B')])));
    let image = "Content-Type: image/png\r\nContent-Id: <a@b>";
    assert!(has(Multi("related", vec![Leaf(HTML, 'A'), Leaf(image, 'B')])));
    let shown = "Content-Type: text/html\r\n\r\n<img src=\"cid:a%40b\">";
    assert!(!has(Multi("related", vec![Leaf(shown, 'A'), Leaf(image, 'B')])));
    assert!(has(Multi(
        "related",
        vec![Leaf(shown, 'A'), Leaf("Content-Type: image/png\r\nContent-Id: <c@b>", 'B')]
    )));
    assert!(has(Multi(
        "related",
        vec![Leaf(shown, 'A'), Leaf("Content-Type: a/b\r\nContent-Id: <a@b>", 'B')]
    )));
}

#[test]
fn e9_html_of_nothing_but_content_ids_takes_linear_time() {
    let html = "cid:".repeat(1 << 18);
    let raw = format!(
        "Content-Type: multipart/related; boundary=a\r\n\r\n--a\r\nContent-Type: text/html\r\n\r\n{html}\r\n--a\r\n\
         Content-Type: image/png\r\nContent-ID: <x>\r\n\r\n--a--"
    );
    assert!(read(raw.as_bytes()).has_attachment);
}
