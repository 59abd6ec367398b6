//! The task of one subscription.

use std::{convert::Infallible, future::pending, sync::Arc, time::Duration};

use restante_core::{Error, ErrorKind};
use restante_directory::{Login, Scope};
use restante_records::{AccountId, RecordId};
use ring::rand::{SecureRandom, SystemRandom};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};
use tracing::{debug, warn};

use super::{
    Endpoint, Found, PushSender, RETRY, change,
    client::{PushOutcome, PushRequest},
    destroy,
    encryption::{PLAIN_BYTES_MAX, encrypt},
    erase_push_subscriptions,
    pace::Pace,
    stored::find,
};
use crate::{
    core::{IdType, Members, Object},
    http::visible_accounts,
    metrics::RemovalReason,
    push::{Subscription, Types, Visible},
};

/// How often a subscription is checked even when nothing happens.
const LOOK_INTERVAL: Duration = Duration::from_secs(3_600);
/// The topics of the two kinds of pushes (RFC 8030 §5.4).
const STATES_TOPIC: &str = "jmap-states";
const VERIFICATION_TOPIC: &str = "jmap-verification";
/// The urgency of a push (RFC 8030 §5.3), for battery-powered clients: one for new mail, one for all other changes.
const NORMAL: &str = "normal";
const LOW: &str = "low";

/// Sends the pushes of a subscription until it ends.
pub(super) struct Delivery {
    sender: Arc<PushSender>,
    account: AccountId,
    id: RecordId,
    poke: Arc<Notify>,
    pace: Pace,
    following: Option<Following>,
    /// The states that were last sent to the client.
    seen: Visible,
    /// The states before the pushes that the next one may replace: it contains all changes since.
    base: Visible,
    /// When the last push of states was accepted.
    pushed: Option<Instant>,
}

/// The accounts whose states are pushed.
struct Following {
    accounts: Vec<AccountId>,
    subscription: Subscription,
}

/// A subscription as it is now, with the log-in that it depends on.
struct Current {
    found: Found,
    login: Arc<Login>,
}

/// A push that is due.
enum Push {
    Verification,
    States(Types),
}

/// The body of a push of states.
struct Composed {
    body: Vec<u8>,
    /// The states that the client knows after this push.
    covered: Visible,
    topic: Option<&'static str>,
    urgency: &'static str,
}

impl Delivery {
    pub(super) fn new(sender: Arc<PushSender>, account: AccountId, id: RecordId, poke: Arc<Notify>) -> Self {
        let pace = Pace::new(Duration::from_millis(sender.config.retry_ms.get()), Instant::now());
        let (seen, base) = (Visible::default(), Visible::default());
        Self { sender, account, id, poke, pace, following: None, seen, base, pushed: None }
    }

    /// Runs until the subscription is destroyed; destroys it when it ends by itself.
    pub(super) async fn run(mut self) {
        loop {
            match self.step().await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    // The next scan for subscriptions starts the task again, unless the subscription's own record is damaged.
                    warn!(account = self.account.0, id = self.id.0, %error, "a push subscription can't be served");
                    return;
                }
                Err(error) => {
                    debug!(%error, "a push subscription can't be read or changed, and is again");
                    sleep(RETRY).await;
                }
            }
        }
    }

    /// Sends what is due, or waits; false when the subscription has ended.
    async fn step(&mut self) -> Result<bool, Error> {
        let Some(current) = self.read().await? else { return Ok(false) };
        let Some(push) = self.due(&current).await? else {
            self.wait(&current, None).await;
            return Ok(true);
        };
        let not_before = self.pace.not_before();
        if Instant::now() < not_before {
            let _waiting = self.sender.parts.metrics.pushes.wait();
            self.wait(&current, Some(not_before)).await;
            return Ok(true);
        }
        self.send(&current, push).await
    }

    /// Reads the subscription; `None` when it does not exist. One that has expired, or whose log-in was revoked, is destroyed.
    async fn read(&self) -> Result<Option<Current>, Error> {
        let parts = &self.sender.parts;
        let Some(found) = find(&parts.mail, self.account, self.id).await? else { return Ok(None) };
        if found.ends <= parts.mail.clock().now().seconds() {
            self.remove(RemovalReason::Expired).await?;
            return Ok(None);
        }
        let login = parts.directory.login_by_credential(self.account, found.stored.credential).await?;
        if let Some(login) = login.filter(|login| login.allows(Scope::Mail)) {
            return Ok(Some(Current { found, login }));
        }
        self.remove(RemovalReason::Revoked).await?;
        if parts.directory.address_of(self.account).await?.is_none() {
            erase_push_subscriptions(&parts.mail, self.account).await?;
        }
        Ok(None)
    }

    async fn remove(&self, reason: RemovalReason) -> Result<(), Error> {
        if destroy(&self.sender.parts.mail, self.account, self.id).await? {
            self.sender.parts.metrics.pushes.removed(reason);
        }
        Ok(())
    }

    /// The push that is due. Until the client has sent the code back, nothing but the code is sent to the URL.
    async fn due(&mut self, current: &Current) -> Result<Option<Push>, Error> {
        let stored = &current.found.stored;
        if !stored.is_verified {
            return Ok((!stored.is_code_sent).then_some(Push::Verification));
        }
        let types = match &stored.types {
            None => Types::ALL,
            Some(names) => Types::of(names.iter().map(String::as_str)),
        };
        let newest = self.follow(visible_accounts(&current.login)).await?;
        Ok(newest.differs(&self.seen, types).then_some(Push::States(types)))
    }

    /// The newest states of the accounts that the user may use now.
    async fn follow(&mut self, accounts: Vec<AccountId>) -> Result<Visible, Error> {
        let following = match self.following.take() {
            Some(following) if following.accounts == accounts => following,
            _ => {
                let subscription = self.sender.pusher.subscribe(&accounts).await?;
                Following { accounts, subscription }
            }
        };
        Ok(self.following.insert(following).subscription.newest())
    }

    /// Waits until the subscription or its log-in has changed or ends, and at most until `until`; without `until` also until a state
    /// has changed.
    async fn wait(&mut self, current: &Current, until: Option<Instant>) {
        let now = self.sender.parts.mail.clock().now().seconds();
        let left = u64::try_from(current.found.ends.saturating_sub(now)).unwrap_or_default();
        let look = Instant::now() + LOOK_INTERVAL.min(Duration::from_secs(left));
        let changed = async {
            match (&mut self.following, until) {
                (Some(following), None) => following.subscription.changed().await,
                _ => pending().await,
            }
        };
        tokio::select! {
            () = self.poke.notified() => {}
            () = changed => {}
            () = sleep_until(until.map_or(look, |until| until.min(look))) => {}
        }
    }

    /// Sends a push, and stores the outcome. False when the subscription has ended.
    async fn send(&mut self, current: &Current, push: Push) -> Result<bool, Error> {
        let sender = self.sender.clone();
        let waiting = sender.parts.metrics.pushes.wait();
        let Ok(_permit) = sender.sends.acquire().await else { return Ok(false) };
        drop(waiting);
        let stored = &current.found.stored;
        let composed = match push {
            Push::Verification => Composed {
                body: verification(self.id, &stored.code),
                covered: Visible::default(),
                topic: Some(VERIFICATION_TOPIC),
                urgency: NORMAL,
            },
            Push::States(types) => {
                // Changes that were made while others were sent are included.
                let Some(following) = &mut self.following else { return Ok(true) };
                let newest = following.subscription.newest();
                self.compose(newest, types)
            }
        };
        let covered = composed.covered.clone();
        let outcome = self.post(current, composed).await?;
        sender.parts.metrics.pushes.sent(outcome == PushOutcome::Sent);
        match outcome {
            PushOutcome::Sent => {
                self.pace.succeed(Instant::now());
                if matches!(push, Push::States(_)) {
                    self.note_states(&covered);
                }
                self.note_sent(current, matches!(push, Push::Verification)).await
            }
            PushOutcome::Gone => {
                self.remove(RemovalReason::Gone).await?;
                Ok(false)
            }
            PushOutcome::Failed { retry_after, is_too_often, why } => {
                debug!(account = self.account.0, id = self.id.0, why, "a push was not taken");
                let mut spread = [0];
                let _ = SystemRandom::new().fill(&mut spread); // on failure, 0 is good enough
                self.pace.fail(Instant::now(), retry_after, is_too_often, spread[0]);
                self.note_failed(current).await
            }
        }
    }

    /// The states to send. A push has a topic, so a client that was away only gets the last one, which contains the changes of earlier
    /// ones.
    fn compose(&mut self, newest: Visible, types: Types) -> Composed {
        let ttl = Duration::from_secs(self.sender.config.ttl_seconds.get());
        if self.pushed.is_some_and(|pushed| pushed.elapsed() > ttl) {
            self.base = self.seen.clone(); // no earlier push is pending any more
        }
        let is_first = self.pushed.is_none();
        let urgency = if newest.has_delivered_since(&self.seen, types) { NORMAL } else { LOW };
        let nothing = Visible::default();
        let base = if is_first { &nothing } else { &self.base };
        let count = newest.0.len();
        let mut covered = newest.changed_first(&self.seen, types);
        loop {
            let mut body = Vec::new();
            covered.write_change(base, types, &mut Object::open(&mut body));
            // The accounts that do not fit are sent with the next push, which then must not replace this one.
            if body.len() <= PLAIN_BYTES_MAX || covered.0.len() <= 1 {
                let is_whole = covered.0.len() == count;
                let topic = (is_whole && !is_first).then_some(STATES_TOPIC);
                return Composed { body, covered, topic, urgency };
            }
            covered.0.truncate(covered.0.len() / 2);
        }
    }

    async fn post(&self, current: &Current, composed: Composed) -> Result<PushOutcome, Error> {
        let (sender, stored) = (&self.sender, &current.found.stored);
        let endpoint = match Endpoint::read(&stored.url, sender.config.allow_private) {
            Ok(endpoint) => endpoint,
            // The setting was different when it was created.
            Err(why) => {
                let why = format!("the URL {why}");
                return Ok(PushOutcome::Failed { retry_after: None, is_too_often: false, why });
            }
        };
        let now = sender.parts.mail.clock().now().seconds();
        let authorization = sender.vapid().await?.authorization(&endpoint.origin(), sender.contact(), now)?;
        let (body, is_encrypted) = match &stored.keys {
            Some(keys) => (encrypt(keys, &composed.body)?, true),
            None => (composed.body, false),
        };
        let left = u64::try_from(current.found.ends.saturating_sub(now)).unwrap_or_default();
        let request = PushRequest {
            body,
            is_encrypted,
            authorization,
            ttl_seconds: sender.config.ttl_seconds.get().min(left),
            urgency: composed.urgency,
            topic: composed.topic,
        };
        Ok(sender.client.send(&endpoint, request).await)
    }

    fn note_states(&mut self, covered: &Visible) {
        self.seen.merge(covered);
        if self.pushed.replace(Instant::now()).is_none() {
            self.base = self.seen.clone();
        }
    }

    async fn note_sent(&self, current: &Current, is_verification: bool) -> Result<bool, Error> {
        if !is_verification && current.found.stored.failing_since.is_none() {
            return Ok(true);
        }
        let noted = change(&self.sender.parts.mail, self.account, self.id, |found| {
            found.stored.is_code_sent |= is_verification;
            found.stored.failing_since = None;
            Ok::<_, Infallible>(())
        });
        Ok(noted.await?.is_some())
    }

    /// A subscription whose pushes fail for days is destroyed.
    async fn note_failed(&self, current: &Current) -> Result<bool, Error> {
        let now = self.sender.parts.mail.clock().now().seconds();
        let Some(since) = current.found.stored.failing_since else {
            let noted = change(&self.sender.parts.mail, self.account, self.id, |found| {
                found.stored.failing_since = Some(now);
                Ok::<_, Infallible>(())
            });
            return Ok(noted.await?.is_some());
        };
        let failing = u64::try_from(now.saturating_sub(since)).unwrap_or_default();
        if failing < self.sender.config.failing_seconds_max.get() {
            return Ok(true);
        }
        warn!(
            account = self.account.0,
            id = self.id.0,
            "removed a push subscription that has failed for too long"
        );
        self.remove(RemovalReason::Failed).await?;
        Ok(false)
    }
}

impl PushSender {
    /// How push services reach the operator of the server.
    fn contact(&self) -> Option<&str> {
        let set = Some(self.config.contact.as_str()).filter(|contact| !contact.is_empty());
        set.or(self.parts.public_url.as_deref().filter(|url| url.starts_with("https://")))
    }
}

/// A PushVerification (RFC 8620 §7.2.2).
fn verification(id: RecordId, code: &str) -> Vec<u8> {
    let mut body = Vec::new();
    let mut object = Object::open(&mut body);
    object.field("@type", "PushVerification");
    object.field("pushSubscriptionId", &IdType::PushSubscription.id(id));
    object.field("verificationCode", code);
    drop(object);
    body
}
