//! Any bytes as a message: its parts are inside of it, and its row matches it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use restante_mail::{
    html,
    message::{self, PARTS_MAX, PREVIEW_CHARS_MAX, Shorthand, THREAD_KEYS_MAX},
    row::Row,
};

fuzz_target!(|raw: &[u8]| {
    let message = message::read(raw);
    let structure = &message.structure;
    assert_eq!(*structure, message::structure(raw));
    assert!((1..=PARTS_MAX).contains(&structure.parts.len()), "a message has a part");
    assert!(message.preview.chars().count() <= PREVIEW_CHARS_MAX);
    assert!(message.thread_keys.len() <= THREAD_KEYS_MAX);
    for part in &structure.parts {
        let is_in_order = part.header.start <= part.header.end && part.header.end <= part.body.start;
        assert!(is_in_order && part.body.start <= part.body.end && part.body.end as usize <= raw.len());
        if let Some(parent) = structure.part(part.parent) {
            assert!(parent.body.start <= part.header.start && part.body.end <= parent.body.end);
        }
        assert_eq!(message::decoded(raw, part).len(), part.size as usize);
        let value = message::body_value(raw, part, 64);
        assert!(value.value.len() <= 64);
        html::text(&value.value);
    }

    let row = Row::read(message.row()).expect("a row that was just written");
    if let Some(of_row) = row.structure().expect("parts that were just written") {
        assert_eq!(of_row, *structure);
    }
    for shorthand in [Shorthand::MessageId, Shorthand::From, Shorthand::Subject, Shorthand::SentAt, Shorthand::Preview] {
        if let Some(json) = row.json(shorthand) {
            assert_eq!(json, message.json(shorthand));
        }
    }

    let repaired = message::repaired(raw);
    assert_eq!(message::repaired(&repaired), repaired, "what is repaired stays");
    message::find(raw, &[2, 1]);
    message::search_text(raw, structure, 256);
});
