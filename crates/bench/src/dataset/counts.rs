//! Messages of each topic and each day.

/// Messages of the whole data set.
pub const MESSAGES_FULL: u64 = 1_467_846;
/// Messages of the last seven days.
const WEEK_MESSAGES_FULL: u64 = 316_479;
/// Distinct topics.
pub const TOPICS: usize = 9_606;
/// Days in the data set.
pub const DAYS: usize = 30;
/// Days in the week that queries cover: the last ones.
pub const WEEK_DAYS: usize = 7;
/// Messages of the four published topics, most frequent first.
const HEADS: [u64; 4] = [1_043_120, 351_359, 7_892, 4_441];

/// Messages per topic at full size, most frequent first.
///
/// Four topics are published. The others share the rest by the law of Zipf and Mandelbrot, 1 / (i + 3),
/// with at least one message each.
fn full_counts() -> Vec<u64> {
    let tail_topics = TOPICS - HEADS.len();
    let tail_messages = MESSAGES_FULL - HEADS.iter().sum::<u64>();
    let weights: Vec<u64> = (0..tail_topics as u64).map(|i| (1 << 53) / (i + 3)).collect();
    let spread = apportion(tail_messages - tail_topics as u64, &weights);
    let mut counts = HEADS.to_vec();
    for count in spread {
        counts.push(1 + count);
    }
    counts
}

/// Messages per topic in a data set of `messages`, most frequent first; every topic has the same share at each size.
pub(crate) fn topic_counts(messages: u64) -> Vec<u64> {
    apportion(messages, &full_counts())
}

/// Messages per day in a data set of `messages`: the last week is slightly busier than the days before.
pub(crate) fn day_counts(messages: u64) -> Vec<u64> {
    let spans = apportion(messages, &[MESSAGES_FULL - WEEK_MESSAGES_FULL, WEEK_MESSAGES_FULL]);
    let mut days = Vec::with_capacity(DAYS);
    for (total, length) in spans.into_iter().zip([DAYS - WEEK_DAYS, WEEK_DAYS]) {
        days.extend(apportion(total, &vec![1; length]));
    }
    days
}

/// Divides `total` in proportion to the weights by the method of the largest remainder; the parts sum to `total`.
/// Equal remainders go to the earlier part.
fn apportion(total: u64, weights: &[u64]) -> Vec<u64> {
    let sum: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    let mut parts = Vec::with_capacity(weights.len());
    let mut remainders = Vec::with_capacity(weights.len());
    for (number, weight) in weights.iter().enumerate() {
        let product = u128::from(total) * u128::from(*weight);
        parts.push((product / sum) as u64);
        remainders.push((std::cmp::Reverse(product % sum), number));
    }
    let left = total - parts.iter().sum::<u64>();
    remainders.sort_unstable();
    for (_, number) in remainders.iter().take(left as usize) {
        if let Some(part) = parts.get_mut(*number) {
            *part += 1;
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_size_has_the_published_counts() {
        let counts = topic_counts(MESSAGES_FULL);
        assert_eq!(counts.len(), 9_606);
        assert_eq!(counts[..4], [1_043_120, 351_359, 7_892, 4_441]);
        assert_eq!(counts[4..9], [2_080, 1_560, 1_248, 1_040, 892]);
        assert_eq!(counts[4..].iter().sum::<u64>(), 61_034);
        assert!(counts.iter().all(|count| *count >= 1));
        assert!(counts[4..].is_sorted_by(|a, b| a >= b));
        assert_eq!(counts.iter().sum::<u64>(), 1_467_846);
    }

    #[test]
    fn full_size_has_the_published_week() {
        let days = day_counts(MESSAGES_FULL);
        assert_eq!(days.len(), 30);
        assert_eq!(days[23..].iter().sum::<u64>(), 316_479);
        assert_eq!(days.iter().sum::<u64>(), 1_467_846);
    }

    #[test]
    fn other_sizes_sum_exactly_and_have_the_same_shares() {
        for messages in [1, 7, 5_000, 150_000, 1_500_000, 15_000_000] {
            let counts = topic_counts(messages);
            assert_eq!(counts.iter().sum::<u64>(), messages);
            assert_eq!(day_counts(messages).iter().sum::<u64>(), messages);
            let share = counts[0] as f64 / messages as f64;
            assert!(messages < 5_000 || (share - 0.710_65).abs() < 0.001, "{messages}: {share}");
        }
    }
}
