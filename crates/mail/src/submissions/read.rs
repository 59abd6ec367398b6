//! Reads submissions.

use restante_core::Error;
use restante_records::{AccountId, Get, QUERY_ROWS_MAX, Query, RecordId, Revision};

use super::{Submission, SubmissionHead};
use crate::{Mail, schema::submission};

/// Whole records that are read at once.
const WHOLE_PAGE: usize = 64;

impl Mail {
    /// Submissions with these ids, in the order of the ids, each `None` when there is none.
    ///
    /// # Errors
    /// Those of the records.
    pub async fn submissions(
        &self,
        account: AccountId,
        ids: &[RecordId],
    ) -> Result<Vec<Option<Submission>>, Error> {
        let mut found = Vec::with_capacity(ids.len());
        for ids in ids.chunks(WHOLE_PAGE) {
            let get = Get::whole(submission::KIND, ids.to_vec());
            for record in self.records().get(account, &get).await? {
                found.push(record.as_ref().map(Submission::of).transpose()?);
            }
        }
        Ok(found)
    }

    /// The properties that queries use of all submissions of an account, in the order of `send_at`, at most a few more than
    /// [`super::SUBMISSIONS_MAX`], and their state before they were read.
    ///
    /// # Errors
    /// Those of the records.
    pub async fn submission_heads(
        &self,
        account: AccountId,
    ) -> Result<(Vec<SubmissionHead>, Revision), Error> {
        let mut query = Query::new(submission::KIND, submission::BY_SEND_AT).limit(QUERY_ROWS_MAX);
        let mut heads = Vec::new();
        let mut state = None;
        loop {
            let page = self.records().query(account, &query).await?;
            let state = *state.get_or_insert(page.state);
            let records = self.records().get(account, &Get::small(submission::KIND, page.ids)).await?;
            for record in records.into_iter().flatten() {
                heads.push(SubmissionHead::of(&record)?);
            }
            match page.next {
                None => return Ok((heads, state)),
                next => query.after = next,
            }
            tokio::task::yield_now().await; // other tasks run between the pages of a long list
        }
    }
}
