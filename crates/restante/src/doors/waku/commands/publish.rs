//! `restante publish`

use std::{
    fs,
    io::{self, Read, Write},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::Context;
use clap::{Args, ValueHint};
use restante_waku_wire::message_hash;

use crate::{
    client::{RestClient, escape},
    clock,
    doors::waku::transfer::json::{JsonMessage, encode},
    exit::UsageError,
};

#[derive(Args, Debug)]
pub(crate) struct PublishFlags {
    /// The server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8645")]
    rest: String,
    /// Publish on this pubsub topic, such as /waku/2/rs/1/0 [default: the server chooses the shard]
    #[arg(long, value_name = "TOPIC")]
    pubsub_topic: Option<String>,
    /// The content topic of the message, such as /toy/1/chat/proto
    #[arg(long, value_name = "TOPIC")]
    content_topic: String,
    /// The payload of the message, as text
    #[arg(long, value_name = "TEXT", conflicts_with = "payload_file")]
    payload: Option<String>,
    /// Send this file's content [default: stdin]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    payload_file: Option<PathBuf>,
}

/// The longest payload that is read: the server's limit is lower and is checked there.
const PAYLOAD_BYTES_MAX: u64 = 16 << 20;

pub(crate) async fn run(flags: &PublishFlags) -> anyhow::Result<ExitCode> {
    let client = RestClient::new(&flags.rest)?;
    let payload = read_payload(flags)?;
    let timestamp = clock::system().now().nanos();
    let message = JsonMessage {
        payload: encode(&payload),
        content_topic: flags.content_topic.clone(),
        version: Some(0),
        timestamp: Some(timestamp),
        ..JsonMessage::default()
    };
    let path = match &flags.pubsub_topic {
        Some(topic) => format!("/relay/v1/messages/{}", escape(topic)),
        None => "/relay/v1/auto/messages".to_owned(),
    };
    client.post(&path, serde_json::to_vec(&message)?).await?;
    // Only with the pubsub topic the hash of the message is known.
    if let Some(topic) = &flags.pubsub_topic {
        let hash = message_hash(topic, &payload, &flags.content_topic, b"", timestamp);
        writeln!(io::stdout(), "{hash}")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn read_payload(flags: &PublishFlags) -> anyhow::Result<Vec<u8>> {
    if let Some(text) = &flags.payload {
        return Ok(text.clone().into_bytes());
    }
    let mut payload = Vec::new();
    match &flags.payload_file {
        Some(path) => {
            let file = fs::File::open(path).with_context(|| format!("can't open {}", path.display()))?;
            file.take(PAYLOAD_BYTES_MAX + 1).read_to_end(&mut payload)
        }
        None => io::stdin().take(PAYLOAD_BYTES_MAX + 1).read_to_end(&mut payload),
    }
    .context("can't read the payload")?;
    if payload.len() as u64 > PAYLOAD_BYTES_MAX {
        return Err(UsageError(format!("the payload is longer than {PAYLOAD_BYTES_MAX} bytes")).into());
    }
    Ok(payload)
}
