//! New emails of one call: they don't depend on each other, so they share commits.

use futures_util::future::join_all;
use restante_mail::{CreatedEmail, Mail, MailError, NewEmail};
use restante_records::{AccountId, Revision};

use crate::{
    core::{MethodError, SetError},
    methods::{
        mail_errors::{of_edit, of_step},
        set_states::Transitions,
    },
};

/// The most emails that wait for their commits at once. Their messages are in the store, their rows in memory.
const AT_ONCE: usize = 64;

/// The emails that a call makes, by their creation ids.
pub(super) struct NewEmails<'c> {
    /// The handle of the call.
    mail: &'c Mail,
    account: AccountId,
    /// The state that emails must have.
    expected: Option<Revision>,
    waiting: Vec<(String, NewEmail)>,
    made: MadeEmails,
}

/// The outcome of the emails of a call.
#[derive(Debug, Default)]
pub(super) struct MadeEmails {
    pub(super) transitions: Transitions,
    /// With the size of each email.
    pub(super) created: Vec<(String, CreatedEmail, u64)>,
    pub(super) not_created: Vec<(String, SetError)>,
}

impl<'c> NewEmails<'c> {
    pub(super) fn new(mail: &'c Mail, account: AccountId, expected: Option<Revision>) -> Self {
        Self { mail, account, expected, waiting: Vec::new(), made: MadeEmails::default() }
    }

    /// Adds an email, or the reason why there is none: the inner error concerns this email only, the outer one fails the call as long
    /// as the call has changed nothing.
    pub(super) async fn add(
        &mut self,
        key: String,
        read: Result<Result<NewEmail, SetError>, MethodError>,
    ) -> Result<(), MethodError> {
        match of_step(read, self.has_changed())? {
            Ok(email) => self.waiting.push((key, email)),
            Err(error) => self.made.not_created.push((key, error)),
        }
        if self.waiting.len() >= AT_ONCE {
            self.make_waiting().await?;
        }
        Ok(())
    }

    /// Creates the remaining emails; returns the outcome of all.
    pub(super) async fn finish(mut self) -> Result<MadeEmails, MethodError> {
        self.make_waiting().await?;
        Ok(self.made)
    }

    fn has_changed(&self) -> bool {
        !self.made.transitions.is_empty()
    }

    async fn make_waiting(&mut self) -> Result<(), MethodError> {
        let mut waiting = std::mem::take(&mut self.waiting).into_iter();
        // The first one that succeeds has verified the expected state.
        while let Some(expected) = self.expected.filter(|_| !self.has_changed())
            && let Some((key, email)) = waiting.next()
        {
            let size = email.message.size;
            let email = NewEmail { if_in_state: Some(expected), ..email };
            let done = self.mail.create_email(self.account, email).await;
            self.report(key, size, done)?;
        }
        let (mut keys, mut makes) = (Vec::new(), Vec::new());
        for (key, email) in waiting {
            keys.push((key, email.message.size));
            makes.push(self.mail.create_email(self.account, email));
        }
        let done = join_all(makes).await;
        // The call fails only if none of them has changed anything.
        let (made, failed): (Vec<_>, Vec<_>) = keys.into_iter().zip(done).partition(|(_, done)| done.is_ok());
        for ((key, size), done) in made.into_iter().chain(failed) {
            self.report(key, size, done)?;
        }
        Ok(())
    }

    fn report(
        &mut self,
        key: String,
        size: u64,
        done: Result<CreatedEmail, MailError>,
    ) -> Result<(), MethodError> {
        match done {
            Ok(created) => {
                self.made.transitions.add(created.states);
                self.made.created.push((key, created, size));
            }
            Err(error) => {
                let error = of_edit(error, self.has_changed())?;
                self.made.not_created.push((key, error));
            }
        }
        Ok(())
    }
}
