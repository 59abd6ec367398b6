//! A Redis server that belongs to one test, for conditions that other test programs, which run at the same
//! time, must not notice.

use std::{
    net::{Ipv4Addr, TcpListener},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use restante_sessions::{Config, EngineUrl};

use crate::{common::engines::TestTable, raw::Raw};

/// The tests that start a server. The program is available where `dev/services` has started one.
pub(crate) const TESTS: [&str; 1] = ["a_redis_without_memory_renews_leases_and_removes_what_has_ended"];
/// How long the server may take until it answers.
const STARTING: Duration = Duration::from_secs(30);

pub(crate) struct OwnRedis {
    server: Child,
    port: u16,
}

impl OwnRedis {
    pub(crate) fn start() -> Self {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let server = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let own = Self { server, port };
        let deadline = Instant::now() + STARTING;
        while let Err(error) = redis::Client::open(own.url()).unwrap().get_connection() {
            assert!(Instant::now() < deadline, "the server does not start: {error}");
            sleep(Duration::from_millis(10));
        }
        own
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// The configuration of a node of a table in this server.
    pub(crate) fn config(&self, table: &TestTable) -> Config {
        Config { url: EngineUrl::Redis(self.url()), ..table.config() }
    }

    /// Direct access to the keys of the table.
    pub(crate) fn raw(&self, table: &TestTable) -> Raw {
        Raw::new(&self.url(), &table.config().redis.prefix)
    }
}

impl Drop for OwnRedis {
    fn drop(&mut self) {
        let _ = self.server.kill(); // it has ended if this fails
        let _ = self.server.wait();
    }
}
