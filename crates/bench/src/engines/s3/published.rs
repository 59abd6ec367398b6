//! The published figures of downloads: for four sizes of objects and 8 to 16 threads.

/// The percentiles of a row, after its average; 0 is the minimum and 100 the maximum.
pub(super) const PERCENTILES: [f64; 7] = [0.0, 25.0, 50.0, 75.0, 90.0, 99.0, 100.0];

/// A published row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Published {
    pub(super) threads: usize,
    pub(super) mb_per_second: f64,
    pub(super) first_byte: Spread,
    pub(super) last_byte: Spread,
}

/// Milliseconds: the average, then those of [`PERCENTILES`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    pub(super) average: f64,
    pub(super) percentiles: [f64; 7],
}

/// A size of objects with its rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) name: &'static str,
    pub(super) bytes: usize,
    pub(super) rows: [Published; 9],
}

pub(super) const SIZES: [Size; 4] = [
    Size { name: "4 KB", bytes: 4 << 10, rows: KB_4 },
    Size { name: "128 KB", bytes: 128 << 10, rows: KB_128 },
    Size { name: "1 MB", bytes: 1 << 20, rows: MB_1 },
    Size { name: "8 MB", bytes: 8 << 20, rows: MB_8 },
];

const KB_4: [Published; 9] = [
    published(8, 0.6, [36, 10, 17, 22, 36, 57, 233, 249], [37, 10, 17, 22, 36, 57, 233, 249]),
    published(9, 0.6, [30, 10, 15, 21, 33, 45, 82, 234], [30, 10, 15, 21, 33, 45, 83, 235]),
    published(10, 0.2, [55, 11, 18, 22, 28, 52, 248, 1075], [55, 11, 18, 22, 28, 52, 249, 1075]),
    published(11, 0.3, [66, 11, 18, 23, 45, 233, 293, 683], [67, 11, 19, 23, 45, 233, 293, 683]),
    published(12, 0.6, [35, 12, 19, 22, 43, 55, 67, 235], [35, 12, 19, 22, 43, 56, 67, 235]),
    published(13, 0.2, [68, 11, 19, 26, 58, 79, 279, 1037], [68, 11, 19, 26, 58, 80, 279, 1037]),
    published(14, 0.6, [43, 17, 20, 24, 52, 56, 230, 236], [43, 17, 20, 25, 52, 56, 230, 236]),
    published(15, 0.2, [69, 11, 16, 23, 50, 66, 274, 1299], [69, 11, 16, 24, 50, 66, 274, 1299]),
    published(16, 0.5, [52, 9, 19, 31, 81, 95, 228, 237], [53, 9, 19, 31, 81, 95, 229, 237]),
];

const KB_128: [Published; 9] = [
    published(8, 3.3, [71, 16, 22, 28, 39, 66, 232, 1768], [73, 16, 23, 29, 43, 67, 233, 1769]),
    published(9, 3.6, [74, 9, 19, 23, 34, 58, 239, 1646], [75, 10, 20, 24, 37, 59, 240, 1647]),
    published(10, 2.9, [97, 16, 21, 24, 48, 89, 656, 2034], [99, 17, 21, 26, 49, 92, 657, 2035]),
    published(11, 3.0, [100, 10, 21, 26, 39, 64, 1049, 2029], [101, 11, 21, 27, 40, 65, 1050, 2030]),
    published(12, 3.0, [76, 12, 19, 24, 44, 56, 256, 2012], [77, 13, 20, 25, 48, 69, 258, 2013]),
    published(13, 6.1, [73, 10, 13, 20, 43, 223, 505, 1026], [74, 10, 15, 21, 43, 224, 506, 1027]),
    published(14, 5.5, [81, 11, 15, 23, 51, 240, 666, 1060], [82, 12, 16, 23, 54, 241, 667, 1060]),
    published(15, 2.7, [80, 10, 19, 28, 43, 59, 234, 2222], [84, 11, 25, 34, 47, 60, 236, 2224]),
    published(16, 18.6, [58, 10, 19, 26, 61, 224, 248, 266], [61, 10, 22, 29, 65, 224, 249, 267]),
];

const MB_1: [Published; 9] = [
    published(8, 56.4, [41, 12, 26, 34, 43, 57, 94, 235], [136, 30, 69, 100, 161, 284, 345, 396]),
    published(9, 55.2, [53, 19, 32, 39, 50, 69, 238, 247], [149, 26, 84, 117, 164, 245, 324, 655]),
    published(10, 33.9, [74, 17, 27, 37, 50, 77, 456, 1060], [177, 29, 97, 134, 205, 273, 484, 1076]),
    published(11, 57.3, [56, 26, 35, 44, 57, 71, 251, 298], [185, 40, 93, 129, 216, 329, 546, 871]),
    published(12, 37.7, [66, 21, 33, 43, 58, 73, 102, 1024], [202, 24, 81, 125, 205, 427, 839, 1222]),
    published(13, 57.6, [59, 24, 35, 40, 58, 71, 275, 289], [215, 40, 94, 181, 288, 393, 500, 674]),
    published(14, 47.1, [73, 18, 46, 56, 66, 75, 475, 519], [229, 30, 116, 221, 272, 441, 603, 686]),
    published(15, 58.2, [65, 11, 40, 51, 63, 75, 260, 294], [243, 29, 132, 174, 265, 485, 831, 849]),
    published(16, 23.1, [96, 14, 46, 55, 62, 80, 124, 2022], [278, 31, 124, 187, 249, 634, 827, 2028]),
];

const MB_8: [Published; 9] = [
    published(8, 58.4, [88, 35, 65, 79, 88, 96, 288, 307], [1063, 458, 564, 759, 928, 1151, 4967, 6841]),
    published(9, 50.4, [137, 32, 52, 69, 145, 286, 509, 1404], [1212, 160, 471, 581, 1720, 2873, 3744, 4871]),
    published(10, 58.2, [77, 46, 54, 66, 77, 98, 275, 285], [1319, 377, 432, 962, 1264, 3232, 4266, 6151]),
    published(11, 58.4, [97, 32, 63, 72, 80, 91, 323, 707], [1429, 325, 593, 722, 1648, 3020, 6172, 6370]),
    published(12, 58.5, [108, 26, 65, 81, 91, 261, 301, 519], [1569, 472, 696, 1101, 1915, 3175, 4066, 5110]),
    published(
        13,
        56.1,
        [115, 35, 69, 83, 93, 125, 329, 1092],
        [1712, 458, 801, 1165, 2354, 3559, 3865, 5945],
    ),
    published(14, 58.6, [103, 26, 70, 78, 88, 112, 309, 656], [1807, 789, 999, 1269, 1998, 3258, 5201, 6651]),
    published(
        15,
        58.3,
        [113, 31, 55, 67, 79, 134, 276, 1490],
        [1947, 497, 1081, 1756, 2730, 3557, 3799, 3974],
    ),
    published(16, 58.0, [99, 35, 67, 79, 96, 146, 282, 513], [2091, 531, 882, 1136, 2161, 6034, 6686, 6702]),
];

const fn published(threads: usize, mb_per_second: f64, first: [u16; 8], last: [u16; 8]) -> Published {
    Published { threads, mb_per_second, first_byte: spread(first), last_byte: spread(last) }
}

const fn spread([average, min, p25, p50, p75, p90, p99, max]: [u16; 8]) -> Spread {
    Spread {
        average: average as f64,
        percentiles: [min as f64, p25 as f64, p50 as f64, p75 as f64, p90 as f64, p99 as f64, max as f64],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_those_of_8_to_16_threads_and_their_percentiles_rise() {
        for size in SIZES {
            let threads: Vec<usize> = size.rows.iter().map(|row| row.threads).collect();
            assert_eq!(threads, (8..=16).collect::<Vec<_>>(), "{}", size.name);
            for row in size.rows {
                for spread in [row.first_byte, row.last_byte] {
                    assert!(spread.percentiles.is_sorted(), "{} by {}", size.name, row.threads);
                }
                assert!(row.last_byte.average >= row.first_byte.average, "{} by {}", size.name, row.threads);
            }
        }
    }
}
