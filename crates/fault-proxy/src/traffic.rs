//! How many bytes have passed in one direction, and after which one a fault starts.

use parking_lot::Mutex;

#[derive(Default)]
pub(crate) struct Traffic(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    passed: u64,
    /// The count of bytes after which a fault starts.
    fault_at: Option<(u64, Interruption)>,
}

/// What happens after the last byte that passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interruption {
    Cut,
    Silence,
}

/// What happens to some bytes.
pub(crate) struct Passage {
    /// This many of them pass.
    pub(crate) bytes: usize,
    /// Then this happens.
    pub(crate) fault: Option<Interruption>,
}

impl Traffic {
    pub(crate) fn arm(&self, bytes: u64, fault: Interruption) {
        let mut counts = self.0.lock();
        counts.fault_at = Some((counts.passed + bytes, fault));
    }

    pub(crate) fn disarm(&self) {
        self.0.lock().fault_at = None;
    }

    pub(crate) fn is_armed(&self) -> bool {
        self.0.lock().fault_at.is_some()
    }

    pub(crate) fn passed(&self) -> u64 {
        self.0.lock().passed
    }

    /// Counts bytes that are about to pass.
    pub(crate) fn pass(&self, bytes: usize) -> Passage {
        let mut counts = self.0.lock();
        let wanted = counts.passed + bytes as u64;
        match counts.fault_at {
            Some((fault_at, fault)) if wanted > fault_at => {
                let allowed = (fault_at - counts.passed) as usize;
                counts.passed = fault_at;
                counts.fault_at = None;
                Passage { bytes: allowed, fault: Some(fault) }
            }
            _ => {
                counts.passed = wanted;
                Passage { bytes, fault: None }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_begins_once_with_the_byte_after_the_limit() {
        let traffic = Traffic::default();
        assert_eq!(traffic.pass(10).fault, None);
        traffic.arm(5, Interruption::Cut);
        let passage = traffic.pass(5);
        assert_eq!((passage.bytes, passage.fault, traffic.is_armed()), (5, None, true));
        let passage = traffic.pass(7);
        assert_eq!((passage.bytes, passage.fault, traffic.is_armed()), (0, Some(Interruption::Cut), false));
        let passage = traffic.pass(7);
        assert_eq!((passage.bytes, passage.fault, traffic.passed()), (7, None, 22));
        traffic.arm(3, Interruption::Silence);
        let passage = traffic.pass(7);
        assert_eq!((passage.bytes, passage.fault), (3, Some(Interruption::Silence)));
        traffic.arm(0, Interruption::Cut);
        traffic.disarm();
        assert_eq!(traffic.pass(1).fault, None);
    }
}
