use std::{collections::HashMap, net::IpAddr};

use async_trait::async_trait;
use parking_lot::Mutex;

use super::{Answer, MxRecord, Resolver, SrvRecord, plain_name};

/// A resolver with fixed answers, for tests. A name without an answer does not exist.
#[derive(Debug, Default)]
pub struct FixedResolver {
    mx: Mutex<HashMap<String, Answer<MxRecord>>>,
    addresses: Mutex<HashMap<String, Answer<IpAddr>>>,
    txt: Mutex<HashMap<String, Answer<String>>>,
    srv: Mutex<HashMap<String, Answer<SrvRecord>>>,
    ptr: Mutex<HashMap<IpAddr, Answer<String>>>,
}

impl FixedResolver {
    /// A resolver for which no name exists.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the answer to look-ups of `MX` records.
    pub fn set_mx(&self, name: &str, answer: Answer<MxRecord>) {
        self.mx.lock().insert(plain_name(name), answer);
    }

    /// Adds servers to a domain: preference and name.
    pub fn add_mx(&self, name: &str, servers: &[(u16, &str)]) {
        let record =
            |(preference, host): &(u16, &str)| MxRecord { preference: *preference, host: plain_name(host) };
        self.set_mx(name, Answer::Found(servers.iter().map(record).collect()));
    }

    /// Sets the answer to look-ups of addresses.
    pub fn set_addresses(&self, name: &str, answer: Answer<IpAddr>) {
        self.addresses.lock().insert(plain_name(name), answer);
    }

    /// Sets the answer to look-ups of `TXT` records.
    pub fn set_txt(&self, name: &str, answer: Answer<String>) {
        self.txt.lock().insert(plain_name(name), answer);
    }

    /// Sets the answer to look-ups of `SRV` records.
    pub fn set_srv(&self, name: &str, answer: Answer<SrvRecord>) {
        self.srv.lock().insert(plain_name(name), answer);
    }

    /// Sets the answer to look-ups of the names of an address; without it, there are none.
    pub fn set_ptr(&self, address: IpAddr, answer: Answer<String>) {
        self.ptr.lock().insert(address, answer);
    }

    /// The answer that was set for a name. Without one, the name has no records if others were set for it, else it does not exist.
    fn answer<T: Clone>(&self, answers: &Mutex<HashMap<String, Answer<T>>>, name: &str) -> Answer<T> {
        let name = plain_name(name);
        if let Some(answer) = answers.lock().get(&name) {
            return answer.clone();
        }
        let exists = self.mx.lock().contains_key(&name)
            || self.addresses.lock().contains_key(&name)
            || self.txt.lock().contains_key(&name)
            || self.srv.lock().contains_key(&name);
        if exists { Answer::NoRecords } else { Answer::NoSuchName }
    }

    /// The addresses of one family that were set for a name.
    fn addresses_of(&self, is_of_family: fn(&IpAddr) -> bool, name: &str) -> Answer<IpAddr> {
        match self.answer(&self.addresses, name) {
            Answer::Found(addresses) => {
                let addresses: Vec<IpAddr> = addresses.into_iter().filter(is_of_family).collect();
                if addresses.is_empty() { Answer::NoRecords } else { Answer::Found(addresses) }
            }
            other => other,
        }
    }
}

#[async_trait]
impl Resolver for FixedResolver {
    async fn mx(&self, name: &str) -> Answer<MxRecord> {
        self.answer(&self.mx, name)
    }

    async fn addresses(&self, name: &str) -> Answer<IpAddr> {
        self.answer(&self.addresses, name)
    }

    async fn txt(&self, name: &str) -> Answer<String> {
        self.answer(&self.txt, name)
    }

    async fn srv(&self, name: &str) -> Answer<SrvRecord> {
        self.answer(&self.srv, name)
    }

    async fn ipv4_addresses(&self, name: &str) -> Answer<IpAddr> {
        self.addresses_of(IpAddr::is_ipv4, name)
    }

    async fn ipv6_addresses(&self, name: &str) -> Answer<IpAddr> {
        self.addresses_of(IpAddr::is_ipv6, name)
    }

    async fn ptr(&self, address: IpAddr) -> Answer<String> {
        self.ptr.lock().get(&address).cloned().unwrap_or(Answer::NoSuchName)
    }
}
