use super::*;

#[test]
fn eq2_text_of_html_has_no_markup_scripts_or_styles_but_alt_and_title() {
    let html = "<html><head><title>News</title><style>p > a { color: red }</style></head><body>\
        <p title='Greeting'>Hello <b>w</b>orld</p><script>if (a < b) alert('x')</script>\
        <img src=cid:1 alt=\"A &amp; B\">after<!-- not <b>this</b> --></body></html>";
    assert_eq!(text(html), "News\nGreeting Hello world\nA & B after");
}

#[test]
fn eq2_white_space_is_collapsed_and_blocks_begin_on_a_new_line() {
    assert_eq!(text("  a \r\n\t b<br>c<div><div>d</div></div><td>e</td>f&nbsp;&nbsp;g "), "a b\nc\nd\ne f g");
}

#[test]
fn eq2_references_are_decoded() {
    assert_eq!(
        text("&lt;&eacute;&#233;&#xE9;&#150;&#0;&#x110000;&unknown;&;& &amp"),
        "<éé\u{e9}–\u{fffd}&#x110000;&unknown;&;& &amp"
    );
}

#[test]
fn broken_html_is_read_as_far_as_possible() {
    assert_eq!(text("1 < 2 <3 and <>"), "1 < 2 <3 and <>");
    assert_eq!(text("a<a href=\"x>y"), "a");
    assert_eq!(text("a<b title='q>q' alt=\"r\">c"), "a q>q r c");
    assert_eq!(text("a<!-- never closed"), "a");
    assert_eq!(text("a<STYLE>b</styled>c</STYLE >d"), "ad");
    assert_eq!(text("a<script>b"), "a");
    assert_eq!(text("a<p title>b</p title='c'>d"), "a\nb\nd");
    assert_eq!(text("<img alt=plain/><img alt = 'q'x alt=\"\">"), "plain/ q");
    assert_eq!(text("<p\u{e9} alt=x>y"), "x y");
    assert_eq!(text("don't <a href=it's>say</a>"), "don't say");
}

#[test]
fn what_is_visible_has_no_title_and_ends_early() {
    assert_eq!(visible("<title>T</title><p title=x>One two", 100), "One two");
    assert_eq!(visible(&"word ".repeat(1_000), 10), "word word w");
    assert_eq!(visible(&"<p>word".repeat(1_000), 10), "word\nword\nw");
}

#[test]
fn e8_html_is_not_cut_inside_of_a_tag_or_a_character() {
    assert_eq!(cut("ab<i>cd</i>", 11), "ab<i>cd</i>");
    assert_eq!(cut("ab<i>cd</i>", 10), "ab<i>cd");
    assert_eq!(cut("ab<i>cd</i>", 7), "ab<i>cd");
    assert_eq!(cut("ab<i>cd</i>", 4), "ab");
    assert_eq!(cut("ab<i title='>'>cd", 14), "ab");
    assert_eq!(cut("1 < 2 and 3", 8), "1 < 2 an");
    assert_eq!(cut("1 < 2 and 3", 3), "1 <");
    assert_eq!(cut("ab<i>cd</i>", 3), "ab");
    assert_eq!(cut("ab<i>cd</i>", 8), "ab<i>cd");
    assert_eq!(cut("ab<i>cd</i>", 9), "ab<i>cd");
    assert_eq!(cut("ab<!-- c --> d", 3), "ab");
    assert_eq!(cut("ab<i>cd</ 1", 9), "ab<i>cd</");
    assert_eq!(cut("a\u{e9}", 2), "a");
}

#[test]
fn hostile_html_takes_linear_time() {
    for piece in [
        "<",
        "<!--",
        "<a ",
        "<a title=\"",
        "</",
        "<script>",
        "</script",
        "&",
        "&#",
        "<a b=c ",
        "<p>",
        "<style></",
    ] {
        let html = piece.repeat((1 << 20) / piece.len());
        assert!(text(&html).len() <= html.len());
        assert!(cut(&html, 1 << 20).len() <= html.len());
    }
}
