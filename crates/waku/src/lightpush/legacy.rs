use async_trait::async_trait;
use bytes::Bytes;
use libp2p::PeerId;
use prost::Message;
use restante_waku_wire::rpc::{
    self,
    light_push::{LEGACY_ID, PushResponse, PushRpc},
};

use super::{LightPush, NO_REQUEST_ID, Outcome, too_often};
use crate::service::{Answer, Service};

/// Version 2, for go-waku and older clients: the answer is a flag for success and a text.
pub(super) struct LegacyLightPush(pub(super) LightPush);

#[async_trait]
impl Service for LegacyLightPush {
    fn id(&self) -> &'static str {
        LEGACY_ID
    }

    fn name(&self) -> &'static str {
        "lightpush"
    }

    fn request_bytes_max(&self) -> usize {
        self.0.request_bytes_max()
    }

    async fn answer(&self, _peer: PeerId, request: Bytes) -> Answer {
        let Ok(rpc) = PushRpc::decode(request) else {
            return respond(NO_REQUEST_ID.to_owned(), Outcome::refused(400, "the request can't be decoded"));
        };
        let Some(request) = rpc.request else {
            return respond(rpc.request_id, Outcome::refused(400, "the request is missing"));
        };
        let pubsub_topic = Some(&*request.pubsub_topic).filter(|topic| !topic.is_empty());
        let outcome = self.0.push(pubsub_topic, request.message).await;
        respond(rpc.request_id, outcome)
    }

    fn answer_too_often(&self, request: Bytes) -> Answer {
        let request_id = PushRpc::decode(request).map(|rpc| rpc.request_id);
        respond(request_id.unwrap_or_else(|_| NO_REQUEST_ID.to_owned()), too_often())
    }
}

fn respond(request_id: String, outcome: Outcome) -> Answer {
    let response = PushResponse { is_success: outcome.status == 200, info: Some(outcome.text) };
    let rpc = PushRpc { request_id, request: None, response: Some(response) };
    Answer::new(outcome.status, rpc::frame(&rpc))
}
