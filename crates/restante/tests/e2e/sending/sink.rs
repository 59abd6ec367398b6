//! A mail server that accepts all messages, records them, and refuses on demand.

use std::{
    io::{self, BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
};

/// A message that the sink has answered with 250, or was about to.
#[derive(Clone, Debug)]
pub(super) struct ReceivedMail {
    pub(super) sender: String,
    pub(super) recipients: Vec<String>,
    /// With LF.
    pub(super) text: String,
    /// Whether the answer to it was sent.
    pub(super) is_answered: bool,
    /// Whether the client went on after the answer. If it has enough connections, it has recorded the answer then.
    pub(super) is_noted: bool,
}

impl ReceivedMail {
    /// The value of a header field.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        let begin = format!("{name}: ");
        self.text.lines().take_while(|line| !line.is_empty()).find_map(|line| line.strip_prefix(&begin))
    }
}

/// Where a message can be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// `DATA` has no reply.
    Data,
    /// The message was received, and has no reply.
    Taken,
    /// A recipient has been refused; the conversation goes on.
    Refused,
}

/// A message to hold, by its recipient.
struct Hold {
    step: Step,
    recipient: String,
    reached: mpsc::SyncSender<String>,
}

/// A mail server. Recipients whose local part begins with `refused` get 550, `later` 451 while it is busy, and a message to `cut`
/// is accepted without an answer.
pub(super) struct Sink {
    pub(super) address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    taken: Mutex<Vec<ReceivedMail>>,
    is_busy: AtomicBool,
    is_silent: AtomicBool,
    hold: Mutex<Option<Hold>>,
}

impl State {
    /// Whether a message to this recipient is held here; if so, this is announced.
    fn holds(&self, step: Step, recipient: &str, client: &str) -> bool {
        let mut hold = self.hold.lock().unwrap();
        let found = hold.take_if(|hold| hold.step == step && hold.recipient == recipient);
        found.is_some_and(|hold| hold.reached.send(client.to_owned()).is_ok())
    }

    /// Stores a message; returns its index.
    fn keep(&self, message: ReceivedMail) -> usize {
        let mut taken = self.taken.lock().unwrap();
        taken.push(message);
        taken.len() - 1
    }
}

impl Sink {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::<State>::default();
        let shared = state.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let shared = shared.clone();
                thread::spawn(move || drop(serve(stream.unwrap(), &shared)));
            }
        });
        Self { address, state }
    }

    /// All messages so far.
    pub(super) fn taken(&self) -> Vec<ReceivedMail> {
        self.state.taken.lock().unwrap().clone()
    }

    /// Whether recipients whose local part begins with `later` are refused for now.
    pub(super) fn set_busy(&self, is_busy: bool) {
        self.state.is_busy.store(is_busy, Ordering::Relaxed);
    }

    /// Whether new connections get no greeting.
    pub(super) fn set_silent(&self, is_silent: bool) {
        self.state.is_silent.store(is_silent, Ordering::Relaxed);
    }

    /// Holds the first message to this recipient at a step; the receiver gets the client, by the name in its `EHLO`, when the
    /// message has got there.
    pub(super) fn hold(&self, step: Step, recipient: &str) -> mpsc::Receiver<String> {
        let (reached, wait) = mpsc::sync_channel(1);
        *self.state.hold.lock().unwrap() = Some(Hold { step, recipient: recipient.to_owned(), reached });
        wait
    }
}

fn serve(stream: TcpStream, state: &State) -> io::Result<()> {
    let mut out = stream.try_clone()?;
    let mut lines = BufReader::new(stream).lines();
    if state.is_silent.load(Ordering::Relaxed) {
        return until_closed(lines);
    }
    let mut message = ReceivedMail {
        sender: String::new(),
        recipients: vec![],
        text: String::new(),
        is_answered: true,
        is_noted: false,
    };
    let (mut last_taken, mut client) = (None, String::new());
    out.write_all(b"220 sink.example ESMTP\r\n")?;
    while let Some(line) = lines.next() {
        let line = line?;
        if let Some(index) = last_taken.take() {
            let index: usize = index;
            state.taken.lock().unwrap()[index].is_noted = true;
        }
        let path =
            || line.split_once('<').and_then(|(_, rest)| rest.split_once('>')).map_or("", |(path, _)| path);
        let upper = line.to_ascii_uppercase();
        let reply: &[u8] = match upper.get(..4).unwrap_or_default() {
            "EHLO" => {
                client = line.get(5..).unwrap_or_default().to_owned();
                b"250-sink.example\r\n250-PIPELINING\r\n250-8BITMIME\r\n250-SMTPUTF8\r\n250 SIZE 50000000\r\n"
            }
            "MAIL" => {
                (message.sender, message.recipients) = (path().to_owned(), vec![]);
                b"250 2.1.0 ok\r\n"
            }
            "RCPT" if path().starts_with("refused") => {
                out.write_all(b"550 5.1.1 nobody here\r\n")?;
                state.holds(Step::Refused, path(), &client);
                continue;
            }
            "RCPT" if path().starts_with("later") && state.is_busy.load(Ordering::Relaxed) => {
                b"451 4.3.0 come later\r\n"
            }
            "RCPT" => {
                message.recipients.push(path().to_owned());
                b"250 2.1.5 ok\r\n"
            }
            "DATA" if message.recipients.is_empty() => b"554 5.5.1 no recipients\r\n",
            "DATA" => {
                if message.recipients.iter().any(|recipient| state.holds(Step::Data, recipient, &client)) {
                    return until_closed(lines);
                }
                out.write_all(b"354 go on\r\n")?;
                message.text.clear();
                for line in lines.by_ref() {
                    let line = line?;
                    if line == "." {
                        break;
                    }
                    message.text += line.strip_prefix('.').unwrap_or(&line);
                    message.text.push('\n');
                }
                let is_cut = message.recipients.iter().any(|recipient| recipient.starts_with("cut"));
                message.is_answered = !is_cut;
                let index = state.keep(message.clone());
                if is_cut {
                    return Ok(());
                }
                if message.recipients.iter().any(|recipient| state.holds(Step::Taken, recipient, &client)) {
                    state.taken.lock().unwrap()[index].is_answered = false;
                    return until_closed(lines);
                }
                last_taken = Some(index);
                b"250 2.0.0 taken\r\n"
            }
            "QUIT" => {
                out.write_all(b"221 2.0.0 bye\r\n")?;
                return Ok(());
            }
            "RSET" | "NOOP" => b"250 2.0.0 ok\r\n",
            _ => b"500 5.5.1 unknown\r\n",
        };
        out.write_all(reply)?;
    }
    Ok(())
}

/// Sends nothing until the client is gone.
fn until_closed(mut lines: impl Iterator<Item = io::Result<String>>) -> io::Result<()> {
    lines.try_for_each(|line| line.map(drop))
}
