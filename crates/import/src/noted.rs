/// Findings to report: all are counted, the first are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Noted {
    /// The number of findings.
    pub count: u64,
    /// The first of them: where and what.
    pub listed: Vec<String>,
}

impl Noted {
    /// The most findings that are listed.
    pub const LISTED_MAX: usize = 20;

    /// Adds a finding. `text` is called only if it will be listed.
    pub fn add(&mut self, text: impl FnOnce() -> String) {
        self.count += 1;
        if self.listed.len() < Self::LISTED_MAX {
            self.listed.push(text());
        }
    }

    /// Adds the findings of another list.
    pub fn extend(&mut self, other: Self) {
        self.count += other.count;
        let room = Self::LISTED_MAX.saturating_sub(self.listed.len());
        self.listed.extend(other.listed.into_iter().take(room));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_counted_and_the_first_listed() {
        let mut noted = Noted::default();
        for number in 0..15 {
            noted.add(|| number.to_string());
        }
        noted.extend(noted.clone());
        assert_eq!((noted.count, noted.listed.len()), (30, Noted::LISTED_MAX));
        noted.add(|| unreachable!("the list is full"));
        assert_eq!(noted.count, 31);
        assert_eq!(noted.listed[16], "1");
    }
}
