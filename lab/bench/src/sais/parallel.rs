//! A parallel read (paper 001, section V): each client asks several servers for a strip, waits for
//! all of them, combines them and encrypts the whole.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use chacha20::ChaCha20;
use chacha20::cipher::{KeyIvInit, StreamCipher};
use evenkeel_sais::STRIP_BYTES;
use nix::sched::sched_getcpu;
use serde::{Deserialize, Serialize};

use super::arrivals::Arrivals;
use super::network::{Network, SERVER};
use super::{Begin, Times, Transferred};
use evenkeel_experiment::command::end_with_us;

const PORT: u16 = 9000;
/// No client waits longer for a strip.
const PATIENCE: Duration = Duration::from_secs(10);
/// What a client is told when transfers begin to count. They end with its standard input.
const COUNT: &[u8] = b"count\n";

/// How many clients read how much from how many servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Connections of each client, one to each server.
    pub servers: usize,
    /// Clients.
    pub clients: usize,
    /// Bytes that a client asks for at once, from all servers together.
    pub transfer_bytes: usize,
}

/// One client's part of it, as a process of its own is told: `SERVERS:BYTES`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reader {
    servers: usize,
    transfer_bytes: usize,
}

impl FromStr for Reader {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once(':').and_then(|(servers, bytes)| {
            Some(Self { servers: servers.parse().ok()?, transfer_bytes: bytes.parse().ok()? })
        });
        numbers.ok_or_else(|| "expected servers and bytes, like 8:1048576".to_owned())
    }
}

/// What a client says when it is over.
#[derive(Debug, Serialize, Deserialize)]
struct Said {
    /// What it read while it counted.
    bytes: u64,
    arrivals: Arrivals,
}

/// Reads for so long, each client a process.
///
/// # Errors
/// The network refused, or a client waited in vain.
pub(super) fn read(
    network: &Network,
    load: Load,
    times: Times,
    begin: &mut Begin<'_>,
) -> Result<Transferred> {
    let listener = network
        .server
        .within(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).context("cannot listen"))?;
    let reader = Reader { servers: load.servers, transfer_bytes: load.transfer_bytes };
    let start = |_| Process::start(network, reader);
    let mut clients: Vec<Process> = (0..load.clients).map(start).collect::<Result<_>>()?;
    thread::scope(move |scope| {
        for client in &mut clients {
            client.wait_until_connected()?;
        }
        // All of them wait to be accepted.
        for _ in 0..load.clients * load.servers {
            let (stream, _) = listener.accept().context("cannot accept")?;
            // In the namespace by its socket, whichever the thread is in.
            scope.spawn(move || serve(stream));
        }
        thread::sleep(times.warm_up);
        begin();
        let start = Instant::now();
        clients.iter_mut().try_for_each(Process::count)?;
        thread::sleep(times.measured);
        clients.iter_mut().for_each(Process::stop);
        let mut all = Transferred { time: start.elapsed(), ..Transferred::default() };
        for client in clients {
            let Said { bytes, arrivals } = client.wait()?;
            all.bytes += bytes;
            all.arrivals.add(&arrivals);
        }
        Ok(all)
    })
}

/// A client as the measuring process sees it. Dropping it ends it.
struct Process {
    child: Child,
    tell: Option<ChildStdin>,
    says: BufReader<std::process::ChildStdout>,
}

impl Process {
    fn start(network: &Network, reader: Reader) -> Result<Self> {
        let mut command = Command::new(evenkeel_experiment::executable::own()?);
        let reader = format!("{}:{}", reader.servers, reader.transfer_bytes);
        command.args(["bench", "sais", "--reader", &reader]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        network.client.place(&mut command);
        end_with_us(&mut command);
        let mut child = command.spawn().context("cannot start a client")?;
        let (tell, says) = (child.stdin.take(), child.stdout.take().context("no output")?);
        Ok(Self { child, tell, says: BufReader::new(says) })
    }

    /// Its next line.
    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.says.read_line(&mut line)?;
        if line.is_empty() {
            let mut why = String::new();
            if let Some(errors) = &mut self.child.stderr {
                errors.read_to_string(&mut why)?;
            }
            bail!("a client has failed: {}", why.trim());
        }
        Ok(line)
    }

    fn wait_until_connected(&mut self) -> Result<()> {
        self.line().map(drop)
    }

    fn count(&mut self) -> Result<()> {
        let tell = self.tell.as_mut().context("a client was told twice")?;
        tell.write_all(COUNT).context("a client has failed")
    }

    fn stop(&mut self) {
        self.tell = None;
    }

    fn wait(mut self) -> Result<Said> {
        let line = self.line()?;
        serde_json::from_str(&line).with_context(|| format!("a client says {line:?}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client, in its own process: says a line once it is connected, counts from when it is told until its
/// standard input ends, and says what it has read. Returns the exit code.
///
/// # Errors
/// There is no server, or it was waited for in vain.
pub fn play(reader: Reader) -> Result<i32> {
    let client = Client::connect(reader)?;
    println!("connected");
    let course = Course { is_measured: AtomicBool::new(false), is_over: AtomicBool::new(false) };
    let said = thread::scope(|scope| {
        scope.spawn(|| {
            let mut lines = std::io::stdin().lines();
            while lines.next().is_some_and(|line| line.is_ok()) {
                course.is_measured.store(true, Ordering::Relaxed);
            }
            course.is_over.store(true, Ordering::Relaxed);
        });
        client.read(&course)
    })?;
    println!("{}", serde_json::to_string(&said)?);
    Ok(0)
}

/// What becomes of a read.
struct Course {
    /// From here on transfers count.
    is_measured: AtomicBool,
    is_over: AtomicBool,
}

/// Until the client closes.
fn serve(mut stream: TcpStream) {
    let strip = vec![7; STRIP_BYTES];
    let mut request = [0; 8];
    while stream.read_exact(&mut request).is_ok() {
        let bytes = u64::from_le_bytes(request) as usize;
        if stream.write_all(&strip[..bytes.min(STRIP_BYTES)]).is_err() {
            return;
        }
    }
}

struct Client {
    streams: Vec<TcpStream>,
    /// What a transfer becomes.
    whole: Vec<u8>,
    cipher: ChaCha20,
    /// Where the last packet of each strip was processed.
    arrivals: Arrivals,
}

impl Client {
    fn connect(reader: Reader) -> Result<Self> {
        let connect = |_| -> Result<TcpStream> {
            let address = SocketAddr::from((SERVER, PORT));
            let stream = TcpStream::connect_timeout(&address, PATIENCE).context("no server")?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_nodelay(true)?;
            Ok(stream)
        };
        Ok(Self {
            streams: (0..reader.servers).map(connect).collect::<Result<_>>()?,
            whole: vec![0; reader.transfer_bytes],
            cipher: ChaCha20::new(&[1; 32].into(), &[2; 12].into()),
            arrivals: Arrivals::default(),
        })
    }

    /// Until it is over; returns what was read while it was measured.
    fn read(mut self, course: &Course) -> Result<Said> {
        let mut bytes = 0;
        loop {
            // What is under way when measuring begins counts, and what is when it ends does not.
            let transferred = self.transfer()? as u64;
            if course.is_over.load(Ordering::Relaxed) {
                return Ok(Said { bytes, arrivals: self.arrivals });
            }
            match course.is_measured.load(Ordering::Relaxed) {
                true => bytes += transferred,
                false => self.arrivals = Arrivals::default(),
            }
        }
    }

    /// Strips from all servers in turn until the transfer is whole; then it is encrypted.
    fn transfer(&mut self) -> Result<usize> {
        let Self { streams, whole, cipher, arrivals } = self;
        let round_bytes = streams.len() * STRIP_BYTES;
        for round in whole.chunks_mut(round_bytes) {
            for (stream, place) in streams.iter_mut().zip(round.chunks(STRIP_BYTES)) {
                stream.write_all(&(place.len() as u64).to_le_bytes())?;
            }
            for (stream, place) in streams.iter_mut().zip(round.chunks_mut(STRIP_BYTES)) {
                stream.read_exact(place).context("a strip did not come")?;
                arrivals.look(stream, sched_getcpu()? as u32)?;
            }
        }
        cipher.apply_keystream(whole);
        // Where a transfer has fewer strips than there are servers, the next one asks the others.
        let strips = whole.len().div_ceil(STRIP_BYTES);
        let first = strips % streams.len();
        streams.rotate_left(first);
        Ok(whole.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_told_what_to_read_from_how_many() {
        let reader = "8:1048576".parse::<Reader>().unwrap();
        assert_eq!((reader.servers, reader.transfer_bytes), (8, 1 << 20));
        for wrong in ["8", "8:", ":9", "8:many", "-8:9"] {
            assert!(wrong.parse::<Reader>().unwrap_err().contains("like 8:1048576"), "{wrong}");
        }
    }
}
