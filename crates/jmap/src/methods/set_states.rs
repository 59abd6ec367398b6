//! The states of a /set: the one that the caller expects, and what may be returned as the old state (RFC 8620 §5.3).

use restante_mail::Transition;
use restante_records::{AccountId, Kind, Revision};

use crate::core::{Context, MethodError, SetAnswer, State};

/// The state that `ifInState` names.
///
/// # Errors
/// `stateMismatch` for a text that can't be the current state.
pub(crate) fn expected(if_in_state: Option<&str>) -> Result<Option<Revision>, MethodError> {
    let Some(text) = if_in_state else { return Ok(None) };
    let state: State = text.parse().map_err(|()| MethodError::StateMismatch)?;
    state.whole().map(Some).ok_or(MethodError::StateMismatch)
}

/// The current state of a kind.
///
/// # Errors
/// `stateMismatch` when it is not the expected one.
pub(crate) async fn present(
    context: &Context,
    account: AccountId,
    kind: Kind,
    expected: Option<Revision>,
) -> Result<Revision, MethodError> {
    let state = context.records().states(account).await?.of(kind);
    match expected {
        Some(expected) if expected != state => Err(MethodError::StateMismatch),
        _ => Ok(state),
    }
}

/// The states before and after several edits of one call.
#[derive(Debug, Default)]
pub(crate) struct Transitions {
    joined: Option<Transition>,
    /// The last edit that changed something.
    last: Option<Transition>,
}

impl Transitions {
    /// Adds an edit that came after all others. Edits that share a commit have the same states.
    pub(crate) fn add(&mut self, next: Transition) {
        let Some(joined) = &mut self.joined else {
            (self.joined, self.last) = (Some(next), Some(next));
            return;
        };
        if next.old == next.new {
            return; // it has changed nothing
        }
        let is_of_last_commit = self.last.is_some_and(|last| (last.old, last.new) == (next.old, next.new));
        // Otherwise a commit of another request came between the two.
        let is_next = is_of_last_commit || next.old == joined.new;
        joined.new = next.new;
        joined.is_shared |= next.is_shared || !is_next;
        self.last = Some(next);
    }

    /// Whether nothing was added.
    pub(crate) fn is_empty(&self) -> bool {
        self.joined.is_none()
    }

    /// The old state, `None` when others changed the kind, too: a client that moves from the old state to the new one with only its own
    /// changes would miss theirs.
    fn old(&self) -> Option<State> {
        self.joined.filter(|joined| !joined.is_shared).map(|joined| joined.old.into())
    }

    /// The new state.
    fn new_state(&self) -> Option<State> {
        self.joined.map(|joined| joined.new.into())
    }

    /// The old state and the new one; both are `unchanged` when there was no edit.
    pub(crate) fn states(&self, unchanged: State) -> (Option<State>, State) {
        match self.new_state() {
            Some(new) => (self.old(), new),
            None => (Some(unchanged), unchanged),
        }
    }

    /// Stores both states in a response.
    pub(crate) fn put(&self, answer: &mut SetAnswer) {
        if let Some(new) = self.new_state() {
            answer.old_state = self.old().map(|state| state.to_string());
            answer.new_state = new.to_string();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(old: u64, new: u64, is_shared: bool) -> Transition {
        Transition { old: Revision(old), new: Revision(new), is_shared }
    }

    fn joined(steps: &[Transition]) -> (Option<u64>, Option<u64>) {
        let mut transitions = Transitions::default();
        steps.iter().for_each(|step| transitions.add(*step));
        let number = |state: Option<State>| state.map(|state| state.revision.0);
        (number(transitions.old()), number(transitions.new_state()))
    }

    #[test]
    fn t2_the_old_state_is_unknown_when_others_changed_something_between() {
        assert_eq!(joined(&[]), (None, None));
        assert_eq!(joined(&[step(3, 5, false), step(5, 6, false)]), (Some(3), Some(6)));
        assert_eq!(joined(&[step(3, 5, false), step(6, 7, false)]), (None, Some(7)));
        assert_eq!(joined(&[step(3, 5, true), step(5, 5, false)]), (None, Some(5)));
        assert_eq!(joined(&[step(3, 3, false), step(4, 5, false)]), (None, Some(5)));
    }

    #[test]
    fn t2_edits_that_share_a_commit_and_those_without_effect_don_t_hide_the_old_state() {
        let steps =
            [step(3, 5, false), step(3, 5, false), step(3, 3, false), step(5, 6, false), step(9, 9, false)];
        assert_eq!(joined(&steps), (Some(3), Some(6)));
        assert_eq!(joined(&[step(3, 3, false), step(3, 4, false)]), (Some(3), Some(4)));
    }

    #[test]
    fn t1_a_text_that_is_no_whole_state_never_matches() {
        assert_eq!(expected(None), Ok(None));
        assert_eq!(expected(Some("12")), Ok(Some(Revision(12))));
        for text in ["", "x", "12-3", "012"] {
            assert_eq!(expected(Some(text)), Err(MethodError::StateMismatch), "{text}");
        }
    }
}
