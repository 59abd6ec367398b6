//! The figures of MongooseIM's authors when they replaced lists by maps: medians in nanoseconds (its pull request
//! 3018, Erlang 23).

use super::Order;

/// Keys besides the one that is searched, its position, and the medians of keyfind, maps and proplists.
const MEDIANS: [(u16, Order, [f64; 3]); 12] = [
    (3, Order::First, [15.0, 18.0, 21.0]),
    (3, Order::Last, [18.0, 19.0, 64.0]),
    (3, Order::Random, [16.0, 18.0, 38.0]),
    (10, Order::First, [16.0, 18.0, 24.0]),
    (10, Order::Last, [29.0, 18.0, 139.0]),
    (10, Order::Random, [25.0, 18.0, 109.0]),
    (100, Order::First, [16.0, 38.0, 21.0]),
    (100, Order::Last, [144.0, 37.0, 1_028.0]),
    (100, Order::Random, [82.0, 37.0, 623.0]),
    (1_000, Order::First, [16.0, 40.0, 21.0]),
    (1_000, Order::Last, [3_400.0, 34.0, 10_030.0]),
    (1_000, Order::Random, [701.0, 34.0, 2_821.0]),
];

/// The columns of [`medians`].
pub(in super::super) const NAMES: [&str; 3] = ["keyfind", "maps", "proplists"];

/// The published medians.
pub(in super::super) fn medians(keys: u16, order: Order) -> Option<[f64; 3]> {
    MEDIANS
        .iter()
        .find(|(size, position, _)| (*size, *position) == (keys, order))
        .map(|(_, _, medians)| *medians)
}

/// Their profile of the server under load, in microseconds a call, with lists and with maps: reading the sessions of a user,
/// writing a session (both of its writes), and merging the info of two.
pub(in super::super) const PROFILE: [(&str, f64, f64); 3] = [
    ("look-up (get_sessions)", 8_089.379e3 / 25_135.0, 5_920.781e3 / 20_824.0),
    ("open (2 writes)", 1_195.291e3 / 1_000.0, 967.430e3 / 1_000.0),
    ("merge_info", 178.977e3 / 1_000.0, 19.326e3 / 1_000.0),
];
