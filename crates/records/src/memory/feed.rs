//! The feed and the checkpoints of the reference model.

use async_trait::async_trait;

use crate::{
    AccountId, Changes, Checkpoint, Error, Feed, FeedRequest, Position, Revision, Touched, memory::Model,
    validate,
};

#[async_trait]
impl Feed for Model {
    async fn touched(&self, after: Position, limit: usize) -> Result<Vec<Touched>, Error> {
        validate::check_touched(limit)?;
        let state = self.state.lock();
        let mut touched = Vec::new();
        for (account, known) in &state.accounts {
            if known.position > after {
                touched.push(Touched {
                    position: known.position,
                    account: *account,
                    revision: known.revision,
                    committed_at: known.committed_at,
                });
            }
        }
        touched.sort_by_key(|touched| touched.position);
        touched.truncate(limit);
        Ok(touched)
    }

    async fn follow(&self, account: AccountId, request: &FeedRequest) -> Result<Changes, Error> {
        validate::check_follow(request)?;
        let state = self.state.lock();
        state.account(account).follow(account, request)
    }

    async fn checkpoint(&self, follower: &str, accounts: &[AccountId]) -> Result<Checkpoint, Error> {
        validate::check_checkpoint(follower, accounts.len())?;
        let state = self.state.lock();
        let saved = state.followers.get(follower);
        let revision_of = |account: &AccountId| -> Revision {
            let revision = saved.and_then(|follower| follower.accounts.get(account));
            revision.copied().unwrap_or_default()
        };
        Ok(Checkpoint {
            position: saved.map(|follower| follower.position).unwrap_or_default(),
            accounts: accounts.iter().map(|account| (*account, revision_of(account))).collect(),
        })
    }

    async fn save(&self, follower: &str, checkpoint: &Checkpoint) -> Result<(), Error> {
        validate::check_checkpoint(follower, checkpoint.accounts.len())?;
        let mut state = self.state.lock();
        state.check_open()?;
        let saved = state.followers.entry(follower.to_owned()).or_default();
        saved.position = checkpoint.position;
        saved.accounts.extend(checkpoint.accounts.iter().copied());
        Ok(())
    }

    async fn forget(&self, follower: &str) -> Result<(), Error> {
        validate::check_follower_name(follower)?;
        let mut state = self.state.lock();
        state.check_open()?;
        state.followers.remove(follower);
        Ok(())
    }

    async fn followers(&self) -> Result<Vec<(String, Position)>, Error> {
        let state = self.state.lock();
        let followers = state.followers.iter();
        Ok(followers.map(|(name, follower)| (name.clone(), follower.position)).collect())
    }
}
