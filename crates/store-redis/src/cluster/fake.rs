//! A node of a cluster that says of the cluster what a test has it say.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::config::ClusterConfig;
use super::map::Place;

/// What a node says.
#[derive(Clone, Debug, Default)]
pub(crate) struct Says {
    /// Slots from and to, and the port of their primary.
    pub(crate) slots: Vec<(u16, u16, u16)>,
    pub(crate) epoch: u64,
    /// How commands begin, and the answers to them one after the other, of which the last stays.
    answers: Vec<(&'static str, Vec<String>)>,
    /// Commands that were answered so.
    heard: Vec<String>,
}

/// A node; it ends when it is dropped.
pub(crate) struct Fake {
    pub(crate) port: u16,
    pub(crate) says: Arc<Mutex<Says>>,
    /// Connections that it was asked for.
    pub(crate) dials: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl Fake {
    pub(crate) async fn start() -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (says, dials) = (Arc::new(Mutex::new(Says::default())), Arc::new(AtomicUsize::new(0)));
        let (told, dialled) = (says.clone(), dials.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut clients = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                dialled.fetch_add(1, Ordering::Relaxed);
                clients.spawn(serve(stream, told.clone()));
            }
        });
        Fake { port, says, dials, _tasks: tasks }
    }

    /// What it says from now on.
    pub(crate) fn says(&self, epoch: u64, slots: &[(u16, u16, &Fake)]) {
        let slots = slots.iter().map(|(first, last, owner)| (*first, *last, owner.port)).collect();
        let mut says = self.says.lock();
        (says.slots, says.epoch) = (slots, epoch);
    }

    /// What it answers to commands that begin so, one after the other, and then the last for good: lines of the protocol, without their ends.
    pub(crate) fn answers(&self, command: &'static str, answers: &[&str]) {
        // The next one is taken off the end.
        let answers = answers.iter().rev().map(|answer| format!("{answer}\r\n")).collect();
        let mut says = self.says.lock();
        says.answers.retain(|(known, _)| *known != command);
        says.answers.push((command, answers));
    }

    /// The commands that it was told to answer, as they came.
    pub(crate) fn heard(&self) -> Vec<String> {
        self.says.lock().heard.clone()
    }

    pub(crate) fn place(&self) -> Place {
        Place { host: "127.0.0.1".to_owned(), port: self.port }
    }

    pub(crate) fn dials(&self) -> usize {
        self.dials.load(Ordering::Relaxed)
    }
}

/// A configuration that names some of them.
pub(crate) fn config(seeds: &[&Fake]) -> ClusterConfig {
    let hosts: Vec<String> = seeds.iter().map(|fake| format!("127.0.0.1:{}", fake.port)).collect();
    let options = "timeout_ms=2000&connect_timeout_ms=2000";
    ClusterConfig::from_url(&format!("redis-cluster://{}?{options}", hosts.join(","))).unwrap()
}

async fn serve(stream: TcpStream, says: Arc<Mutex<Says>>) {
    let mut stream = BufReader::new(stream);
    while let Some(command) = command(&mut stream).await {
        let answer = answer(&command, &mut says.lock());
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// The next command, in capital letters.
async fn command(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let words = number(stream).await?;
    let mut command = Vec::new();
    for _ in 0..words {
        let mut word = vec![0; number(stream).await? + 2];
        stream.read_exact(&mut word).await.ok()?;
        word.truncate(word.len() - 2);
        command.push(String::from_utf8_lossy(&word).to_ascii_uppercase());
    }
    Some(command.join(" "))
}

/// What stands behind the first byte of a line.
async fn number(stream: &mut BufReader<TcpStream>) -> Option<usize> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    line.get(1..)?.trim_end().parse().ok()
}

fn answer(command: &str, says: &mut Says) -> String {
    if let Some((_, answers)) = says.answers.iter_mut().find(|(known, _)| command.starts_with(known)) {
        says.heard.push(command.to_owned());
        return if answers.len() > 1 { answers.pop().unwrap() } else { answers[0].clone() };
    }
    let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    match command {
        "CLUSTER INFO" => bulk(&format!("cluster_state:ok\r\ncluster_current_epoch:{}\r\n", says.epoch)),
        "CLUSTER SLOTS" => {
            let range = |(first, last, port): &(u16, u16, u16)| {
                format!("*3\r\n:{first}\r\n:{last}\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n")
            };
            format!("*{}\r\n{}", says.slots.len(), says.slots.iter().map(range).collect::<String>())
        }
        "INFO" => bulk("redis_version:7.0.15\r\nredis_mode:cluster\r\ncluster_enabled:1\r\nrole:master\r\n"),
        _ if command.starts_with("HELLO") => format!("%1\r\n{}:3\r\n", bulk("proto")),
        _ => "+OK\r\n".to_owned(),
    }
}
