//! A mail server that takes what it is sent, notes it, and refuses on demand.

use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
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
    /// Whether the answer to it was given.
    pub(super) is_answered: bool,
}

impl ReceivedMail {
    /// The value of a header field.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        let begin = format!("{name}: ");
        self.text.lines().take_while(|line| !line.is_empty()).find_map(|line| line.strip_prefix(&begin))
    }
}

/// A mail server. Recipients whose local part begins with `refused` get 550, `later` 451 while it is busy, and a message to `cut` is
/// taken without an answer.
pub(super) struct Sink {
    pub(super) address: SocketAddr,
    taken: Arc<Mutex<Vec<ReceivedMail>>>,
    is_busy: Arc<AtomicBool>,
}

impl Sink {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (taken, is_busy) = (Arc::<Mutex<Vec<ReceivedMail>>>::default(), Arc::new(AtomicBool::new(false)));
        let (notes, busy) = (taken.clone(), is_busy.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (notes, busy) = (notes.clone(), busy.clone());
                thread::spawn(move || drop(serve(stream.unwrap(), &notes, &busy)));
            }
        });
        Self { address, taken, is_busy }
    }

    /// All messages so far.
    pub(super) fn taken(&self) -> Vec<ReceivedMail> {
        self.taken.lock().unwrap().clone()
    }

    /// Whether recipients whose local part begins with `later` are refused for now.
    pub(super) fn set_busy(&self, is_busy: bool) {
        self.is_busy.store(is_busy, Ordering::Relaxed);
    }
}

fn serve(stream: TcpStream, taken: &Mutex<Vec<ReceivedMail>>, is_busy: &AtomicBool) -> std::io::Result<()> {
    let mut out = stream.try_clone()?;
    let mut lines = BufReader::new(stream).lines();
    let mut message =
        ReceivedMail { sender: String::new(), recipients: vec![], text: String::new(), is_answered: true };
    out.write_all(b"220 sink.example ESMTP\r\n")?;
    while let Some(line) = lines.next() {
        let line = line?;
        let path =
            || line.split_once('<').and_then(|(_, rest)| rest.split_once('>')).map_or("", |(path, _)| path);
        let upper = line.to_ascii_uppercase();
        let reply: &[u8] = match upper.get(..4).unwrap_or_default() {
            "EHLO" => {
                b"250-sink.example\r\n250-PIPELINING\r\n250-8BITMIME\r\n250-SMTPUTF8\r\n250 SIZE 50000000\r\n"
            }
            "MAIL" => {
                (message.sender, message.recipients) = (path().to_owned(), vec![]);
                b"250 2.1.0 ok\r\n"
            }
            "RCPT" if path().starts_with("refused") => b"550 5.1.1 nobody here\r\n",
            "RCPT" if path().starts_with("later") && is_busy.load(Ordering::Relaxed) => {
                b"451 4.3.0 come later\r\n"
            }
            "RCPT" => {
                message.recipients.push(path().to_owned());
                b"250 2.1.5 ok\r\n"
            }
            "DATA" if message.recipients.is_empty() => b"554 5.5.1 no recipients\r\n",
            "DATA" => {
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
                message.is_answered =
                    !message.recipients.iter().any(|recipient| recipient.starts_with("cut"));
                taken.lock().unwrap().push(message.clone());
                if !message.is_answered {
                    return Ok(());
                }
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
