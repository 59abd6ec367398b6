//! Announcements: an exchange that passes each message to a queue of each server. That queue is bounded, and ends with the connection.

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use lapin::{
    BasicProperties, Channel, Connection, ExchangeKind,
    options::{
        BasicConsumeOptions, BasicPublishOptions, ExchangeDeclareOptions, QueueBindOptions,
        QueueDeclareOptions,
    },
    types::{AMQPValue, FieldTable},
};
use restante_core::Identity;

use super::address::{Address, unavailable};
use crate::{
    Error,
    bus::{Carrier, Connected, Outlet},
};

/// The most messages that wait for a server; the oldest are dropped.
const MESSAGES_MAX: i32 = 1_000;
const CLOSED: u16 = 200;

pub(super) struct Fanout {
    pub(super) address: Address,
    pub(super) exchange: String,
}

#[async_trait]
impl Carrier for Fanout {
    async fn connect(&self) -> Result<Connected, Error> {
        let connection = self.address.connect("restante announces commits").await?;
        let subscribing = self.address.in_time(self.subscribe(&connection)).await;
        let (channel, consumer) = match subscribing {
            Ok(subscribed) => subscribed,
            Err(error) => {
                let _ = self.address.in_time(close(&connection)).await;
                return Err(error);
            }
        };
        // An error of the delivery ends the stream, too.
        let messages =
            consumer.take_while(|delivery| std::future::ready(delivery.is_ok())).filter_map(|delivery| {
                std::future::ready(delivery.ok().map(|delivery| Bytes::from(delivery.data)))
            });
        let address = self.address.clone();
        let outlet = FanoutOutlet { address, exchange: self.exchange.clone(), channel, connection };
        Ok(Connected { outlet: Box::new(outlet), messages: messages.boxed() })
    }
}

impl Fanout {
    async fn subscribe(&self, connection: &Connection) -> Result<(Channel, lapin::Consumer), Error> {
        let failed = |error| unavailable("RabbitMQ refused a request", error);
        let channel = connection.create_channel().await.map_err(failed)?;
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let (exchange, none) = (self.exchange.as_str(), FieldTable::default);
        channel
            .exchange_declare(exchange.into(), ExchangeKind::Fanout, options, none())
            .await
            .map_err(failed)?;
        let own = format!("{exchange}-{}", Identity::random());
        let mut arguments = FieldTable::default();
        arguments.insert("x-max-length".into(), AMQPValue::LongInt(MESSAGES_MAX));
        let options =
            QueueDeclareOptions { exclusive: true, auto_delete: true, ..QueueDeclareOptions::default() };
        let queue = channel.queue_declare(own.into(), options, arguments).await.map_err(failed)?;
        let binding = channel.queue_bind(
            queue.name().clone(),
            exchange.into(),
            "".into(),
            QueueBindOptions::default(),
            none(),
        );
        binding.await.map_err(failed)?;
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let consumer = channel.basic_consume(queue.name().clone(), "".into(), options, none()).await;
        Ok((channel, consumer.map_err(failed)?))
    }
}

async fn close(connection: &Connection) -> Result<(), Error> {
    let _ = connection.close(CLOSED, "done".into()).await;
    Ok(())
}

struct FanoutOutlet {
    address: Address,
    exchange: String,
    channel: Channel,
    connection: Connection,
}

#[async_trait]
impl Outlet for FanoutOutlet {
    async fn send(&mut self, message: Vec<u8>) -> Result<(), Error> {
        let sending = async {
            let (exchange, options) = (self.exchange.as_str().into(), BasicPublishOptions::default());
            let sent = self.channel.basic_publish(
                exchange,
                "".into(),
                options,
                &message,
                BasicProperties::default(),
            );
            sent.await.map(drop).map_err(|error| unavailable("RabbitMQ takes no announcements", error))
        };
        self.address.in_time(sending).await
    }

    async fn close(&mut self) {
        let _ = self.address.in_time(close(&self.connection)).await;
    }
}
