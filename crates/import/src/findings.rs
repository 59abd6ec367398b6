/// Findings to report: all are counted, the first are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// The number of findings.
    pub count: u64,
    /// The first of them: where and what.
    pub listed: Vec<String>,
}

impl Findings {
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
        let mut findings = Findings::default();
        for number in 0..15 {
            findings.add(|| number.to_string());
        }
        findings.extend(findings.clone());
        assert_eq!((findings.count, findings.listed.len()), (30, Findings::LISTED_MAX));
        findings.add(|| unreachable!("the list is full"));
        assert_eq!(findings.count, 31);
        assert_eq!(findings.listed[16], "1");
    }
}
