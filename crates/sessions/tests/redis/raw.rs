//! Direct access to Redis, for tests that inspect or change the keys of a table.

use redis::{Commands, FromRedisValue, ToRedisArgs};
use restante_sessions::NodeId;

pub(crate) struct Raw {
    connection: redis::Connection,
    prefix: String,
}

impl Raw {
    pub(crate) fn new(url: &str, prefix: &str) -> Self {
        let connection = redis::Client::open(url).unwrap().get_connection().unwrap();
        Self { connection, prefix: prefix.to_owned() }
    }

    pub(crate) fn key(&self, rest: &str) -> String {
        format!("{}:{rest}", self.prefix)
    }

    pub(crate) fn lease(&self, node: NodeId) -> String {
        self.key(&format!("lease:{node}"))
    }

    pub(crate) fn index(&self, node: NodeId) -> String {
        self.key(&format!("n:{node}"))
    }

    pub(crate) fn ask<T: FromRedisValue>(&mut self, command: &str, arguments: impl ToRedisArgs) -> T {
        redis::cmd(command).arg(arguments).query(&mut self.connection).unwrap()
    }

    pub(crate) fn run(&mut self, command: &redis::Cmd) {
        command.exec(&mut self.connection).unwrap();
    }

    pub(crate) fn has(&mut self, key: &str) -> bool {
        self.connection.exists(key).unwrap()
    }

    /// All keys of the table.
    pub(crate) fn keys(&mut self) -> Vec<String> {
        let mut keys: Vec<String> = self.connection.keys(self.key("*")).unwrap();
        keys.sort();
        keys
    }

    /// Removes all keys of the table.
    pub(crate) fn forget_all(&mut self) {
        let keys = self.keys();
        let _: u64 = self.connection.del(keys).unwrap();
    }

    /// Lowers Redis' memory limit below its use, until the result is dropped.
    pub(crate) fn without_memory(mut self) -> WithoutMemory {
        let (_, bytes_max): (String, u64) = self.ask("CONFIG", ("GET", "maxmemory"));
        let _: String = self.ask("CONFIG", ("SET", "maxmemory", 1));
        WithoutMemory { raw: self, bytes_max }
    }

    /// Bytes of keys and their values.
    pub(crate) fn bytes(&mut self, keys: &[String]) -> u64 {
        let mut ask = redis::pipe();
        for key in keys {
            ask.cmd("MEMORY").arg("USAGE").arg(key).arg("SAMPLES").arg(0);
        }
        let bytes: Vec<u64> = ask.query(&mut self.connection).unwrap();
        bytes.iter().sum()
    }
}

/// Restores the memory limit when it is dropped.
pub(crate) struct WithoutMemory {
    raw: Raw,
    bytes_max: u64,
}

impl Drop for WithoutMemory {
    fn drop(&mut self) {
        let _: String = self.raw.ask("CONFIG", ("SET", "maxmemory", self.bytes_max));
    }
}
