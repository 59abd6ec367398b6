//! The functions that the fuzz targets run.

use serde_json::{Map, Value};

use super::{Answers, Patch, reference, request::Request};
use crate::JmapConfig;

/// After this many bytes of responses no further call is run, as in the door.
const RESPONSE_BYTES_MAX: usize = 1 << 20;

/// Reads a request, and resolves the references of each call in the responses of the calls before it; each response is the call's
/// arguments.
///
/// # Panics
/// When something panics.
pub(crate) fn request(bytes: &[u8]) {
    let Ok(request) = Request::read(bytes, &JmapConfig::default()) else { return };
    let (mut answers, mut readable) = (Answers::default(), reference::Readable::default());
    for call in request.calls {
        if answers.bytes() > RESPONSE_BYTES_MAX {
            break;
        }
        answers.begin_call("Core/echo", call.id);
        match reference::resolve(call.arguments, &answers, &mut readable) {
            Ok(arguments) => {
                let args = super::Args::new(arguments);
                answers.begin().extend(&args.into_map());
            }
            Err(error) => answers.fail_call(&error),
        }
    }
    let written = answers.into_bytes();
    let written = [b"[".as_slice(), &written, b"]"].concat();
    assert!(serde_json::from_slice::<Value>(&written).is_ok(), "responses are JSON");
}

/// Applies a patch to an object, both from one JSON array. A patch that was applied has no effect when it is applied again.
///
/// # Panics
/// When something panics, or a patch has another effect the second time.
pub(crate) fn patch(bytes: &[u8]) {
    let Ok((mut object, patch)) = serde_json::from_slice::<(Map<String, Value>, Map<String, Value>)>(bytes)
    else {
        return;
    };
    let Ok(patch) = Patch::read(patch) else { return };
    if patch.clone().apply(&mut object).is_err() {
        return;
    }
    let once = object.clone();
    assert!(patch.apply(&mut object).is_ok(), "a patch that was applied can be applied again");
    assert_eq!(once, object, "a patch sets values");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn q1_no_bytes_make_reading_a_request_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            text in r#"(\{|\}|\[|\]|,|:|"using"|"methodCalls"|"a"|"\\ud800"|-1|1e9|null|true){0,30}"#,
        ) {
            super::request(&bytes);
            super::request(text.as_bytes());
        }

        #[test]
        fn r1_no_reference_makes_a_request_panic(
            names in prop::collection::vec("#?[ab]", 0..4),
            path in "(/(\\*|[ab01~]{0,2})){0,5}|[/~*a]{0,4}",
            value in "(1|null|\"x\"|\\[1,\\{\"a\":2\\}\\]|\\{\"b\":\\[\\[\\],\\[3\\]\\]\\})",
        ) {
            let reference = format!(r#"{{"resultOf":"c","name":"Core/echo","path":"{path}"}}"#);
            let members: Vec<String> = names.iter().map(|name| format!("\"{name}\":{reference}")).collect();
            let members = members.join(",");
            let first = format!(r#"["x",{{"a":{value},"b":[{value},{value}]}},"c"]"#);
            let request = format!(r#"{{"using":[],"methodCalls":[{first},["y",{{{members}}},"d"]]}}"#);
            super::request(request.as_bytes());
        }

        #[test]
        fn t6_no_patch_panics_and_each_is_the_same_applied_twice(
            paths in prop::collection::vec(("[ab/~01]{0,5}", "(null|1|\\{\"a\":\\{\\}\\}|\\[1\\])"), 0..4),
        ) {
            let members: Vec<String> = paths.iter().map(|(path, value)| format!("\"{path}\":{value}")).collect();
            let patch = format!(r#"[{{"a":{{"b":{{"a":1}}}},"b":[1]}},{{{}}}]"#, members.join(","));
            super::patch(patch.as_bytes());
        }
    }
}
