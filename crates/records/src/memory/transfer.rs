//! The reference model as a whole, to be copied and compared.

use async_trait::async_trait;

use crate::{
    AccountHead, AccountId, Error, Position, Row, RowKey, Transfer, TransferState,
    memory::{Model, account::Account},
    transfer::{RowPage, damaged},
    validate,
};

#[async_trait]
impl Transfer for Model {
    async fn state(&self) -> Result<TransferState, Error> {
        let state = self.state.lock();
        Ok(TransferState { identity: self.identity, restores: 0, is_incomplete: state.is_incomplete })
    }

    async fn heads(&self, after: Option<AccountId>, limit: usize) -> Result<Vec<AccountHead>, Error> {
        validate::check_heads(limit)?;
        let state = self.state.lock();
        let behind = state.accounts.iter().filter(|(account, _)| after.is_none_or(|after| **account > after));
        Ok(behind.take(limit).map(|(account, known)| known.head(*account)).collect())
    }

    async fn rows(&self, account: AccountId, after: Option<RowKey>, limit: usize) -> Result<Vec<Row>, Error> {
        validate::check_rows(limit)?;
        let state = self.state.lock();
        let mut page = RowPage::new(limit);
        for row in state.account(account).rows() {
            if page.is_full() {
                break;
            }
            if after.is_none_or(|after| row.key() > after) {
                page.push(row);
            }
        }
        Ok(page.into_rows())
    }

    async fn begin(&self, restores: u64) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.check_open()?;
        if restores > 0 {
            return Err(Error::invalid(
                "the memory engine can't hold records that were restored from a backup",
            ));
        }
        state.is_incomplete = true;
        Ok(())
    }

    async fn clear(&self, account: AccountId) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.check_open()?;
        state.accounts.remove(&account);
        state.unfinished.remove(&account);
        Ok(())
    }

    async fn put(&self, account: AccountId, rows: Vec<Row>, head: Option<AccountHead>) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.check_open()?;
        for row in &rows {
            if let Row::Damaged(key, damage) = row {
                return Err(damaged(account, *key, damage));
            }
        }
        let first_body = state.bodies + 1;
        state.bodies += rows.len() as u64;
        let known = state.unfinished.entry(account).or_insert_with(Account::new);
        for (row, body) in rows.into_iter().zip(first_body..) {
            known.put(row, body);
        }
        let Some(head) = head else { return Ok(()) };
        known.end(&head);
        let known = state.unfinished.remove(&account).unwrap_or_else(Account::new);
        state.position = Position(state.position.0.max(head.position.0));
        state.accounts.insert(account, known);
        Ok(())
    }

    async fn finish(&self) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.check_open()?;
        state.is_incomplete = false;
        Ok(())
    }
}
