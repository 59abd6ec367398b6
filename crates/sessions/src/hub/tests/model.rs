use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Join(u64),
    Leave(u64),
    Subscribe(u64, Vec<Interest>),
    Unsubscribe(u64, Vec<Interest>),
    Publish(&'static str, String),
    Pause(u64),
    Resume(u64),
    Read(u64),
    End(u64),
}

const CHANNELS: [&str; 2] = ["c", "d"];
const SUBSCRIPTIONS: u64 = 4;

fn topics() -> impl Strategy<Value = TopicMatch> {
    prop_oneof![
        Just(TopicMatch::All),
        "[ab]{0,3}".prop_map(|topic| TopicMatch::Exact(topic.into())),
        "[ab]{0,3}".prop_map(|prefix| TopicMatch::Prefix(prefix.into())),
    ]
}

fn interests() -> impl Strategy<Value = Vec<Interest>> {
    let channel = prop::option::of(prop::sample::select(&CHANNELS[..]));
    prop::collection::vec((channel, topics()).prop_map(|(channel, topics)| interest(channel, topics)), 0..4)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => (0..SUBSCRIPTIONS).prop_map(Step::Join),
        1 => (0..SUBSCRIPTIONS).prop_map(Step::Leave),
        4 => (0..SUBSCRIPTIONS, interests()).prop_map(|(subscription, interests)| Step::Subscribe(subscription, interests)),
        2 => (0..SUBSCRIPTIONS, interests()).prop_map(|(subscription, interests)| Step::Unsubscribe(subscription, interests)),
        8 => (prop::sample::select(&CHANNELS[..]), "[ab]{0,4}")
            .prop_map(|(channel, topic)| Step::Publish(channel, topic)),
        1 => (0..SUBSCRIPTIONS).prop_map(Step::Pause),
        1 => (0..SUBSCRIPTIONS).prop_map(Step::Resume),
        3 => (0..SUBSCRIPTIONS).prop_map(Step::Read),
        1 => (0..SUBSCRIPTIONS).prop_map(Step::End),
    ];
    prop::collection::vec(step, 0..120)
}

/// The model of a subscription.
#[derive(Default)]
struct Model {
    wants: BTreeSet<Interest>,
    waiting: Vec<u64>,
    is_paused: bool,
    is_ended: bool,
}

impl Model {
    fn wants(&self, channel: &str, topic: &str) -> bool {
        self.wants.iter().any(|one| {
            let is_here = one.channel.as_deref().is_none_or(|wanted| wanted == channel);
            let is_meant = match &one.topics {
                TopicMatch::All => true,
                TopicMatch::Exact(wanted) => &**wanted == topic,
                TopicMatch::Prefix(wanted) => topic.starts_with(&**wanted),
            };
            is_here && is_meant
        })
    }
}

/// The hub and the models of its subscriptions.
struct Pair {
    hub: Hub,
    metrics: HubMetrics,
    subscriptions: BTreeMap<u64, (Subscription, Model)>,
    published: u64,
}

impl Pair {
    fn apply(&mut self, step: Step) {
        match step {
            Step::Join(subscription) => {
                let (hub, number) = (self.hub.clone(), self.published << 8 | subscription);
                let join = || hub.join(id(number), config(Overflow::End)).unwrap();
                self.subscriptions.entry(subscription).or_insert_with(|| (join(), Model::default()));
                self.published += 1; // so that no id is used twice
            }
            Step::Leave(subscription) => drop(self.subscriptions.remove(&subscription)),
            Step::Publish(channel, topic) => self.publish(channel, &topic),
            Step::Subscribe(subscription, interests) => self.with(subscription, |subscription, model| {
                subscription.subscribe(&interests).unwrap();
                model.wants.extend(interests);
            }),
            Step::Unsubscribe(subscription, interests) => self.with(subscription, |subscription, model| {
                let gone: BTreeSet<_> = interests.iter().filter(|one| model.wants.remove(one)).collect();
                assert_eq!(subscription.unsubscribe(&interests), gone.len());
            }),
            Step::Pause(subscription) => self.with(subscription, |subscription, model| {
                assert_eq!(subscription.pause(), model.waiting.len());
                model.waiting.clear();
                model.is_paused = true;
            }),
            Step::Resume(subscription) => self.with(subscription, |subscription, model| {
                subscription.resume();
                model.is_paused = false;
            }),
            Step::Read(subscription) => self.with(subscription, |subscription, model| match model.is_ended {
                true => assert_eq!(end_of(subscription), Ended::Operator),
                false => assert_eq!(read(subscription), std::mem::take(&mut model.waiting)),
            }),
            Step::End(subscription) => {
                let hub = self.hub.clone();
                self.with(subscription, |subscription, model| {
                    hub.ended(subscription.id(), Ended::Operator);
                    model.waiting.clear();
                    model.is_ended = true;
                });
            }
        }
    }

    fn with(&mut self, subscription: u64, act: impl FnOnce(&Subscription, &mut Model)) {
        if let Some((subscription, model)) = self.subscriptions.get_mut(&subscription) {
            act(subscription, model);
        }
    }

    fn publish(&mut self, channel: &str, topic: &str) {
        self.published += 1;
        let (mut queued, mut is_wanted) = (0, false);
        for (_, model) in self.subscriptions.values_mut() {
            let wants = model.wants(channel, topic);
            is_wanted |= wants;
            if wants && !model.is_paused && !model.is_ended {
                model.waiting.push(self.published);
                queued += 1;
            }
        }
        assert_eq!(self.hub.has_subscribers(channel, topic), is_wanted);
        let event = event_of(channel, topic, self.published, 10);
        assert_eq!(self.hub.publish(&event), queued);
        assert_eq!(self.hub.publish(&event), 0, "an event is delivered once");
    }

    fn check(&self) {
        let interests: usize = self.subscriptions.values().map(|(_, model)| model.wants.len()).sum();
        assert_eq!(self.metrics.interests.get(), interests as i64);
        assert_eq!(self.metrics.subscriptions.get(), self.subscriptions.len() as i64);
        for (subscription, model) in self.subscriptions.values() {
            assert!(subscription.interests().iter().eq(&model.wants), "in order, each once");
            assert_eq!(subscription.interest_count(), model.wants.len());
            assert_eq!(subscription.waiting(), model.waiting.len());
        }
    }
}

proptest! {
    /// Subscriptions get the events that match, once and in order, as a model of sets and lists does, and nothing is left of them.
    #[test]
    fn the_hub_agrees_with_a_naive_model(steps in steps()) {
        let (hub, metrics) = hub();
        let mut pair = Pair { hub, metrics, subscriptions: BTreeMap::new(), published: 0 };
        for step in steps {
            pair.apply(step);
            pair.check();
        }
        pair.subscriptions.clear();
        let Pair { hub, metrics, .. } = pair;
        prop_assert!(hub.shared.index.read().is_empty());
        prop_assert_eq!((hub.shared.registry.lock().len(), metrics.queued_bytes.get()), (0, 0));
    }
}
