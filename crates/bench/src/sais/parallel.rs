//! A parallel read (paper 001, section V): each client asks several servers for a strip, waits for
//! all of them, combines them and encrypts the whole.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use chacha20::ChaCha20;
use chacha20::cipher::{KeyIvInit, StreamCipher};
use evenkeel_sais::STRIP_BYTES;
use nix::sched::sched_getcpu;

use super::arrivals::Arrivals;
use super::network::{Network, SERVER};
use super::{Begin, Times, Transferred};

const PORT: u16 = 9000;
/// Nobody waits longer for a strip.
const PATIENCE: Duration = Duration::from_secs(10);

/// Who reads how much from how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Connections of each client, one to each server.
    pub servers: usize,
    /// Clients.
    pub clients: usize,
    /// Bytes that a client asks for at once, from all servers together.
    pub transfer_bytes: usize,
}

/// What becomes of a read.
struct Course {
    /// From here on transfers count.
    is_measured: AtomicBool,
    is_over: AtomicBool,
}

/// Reads for so long.
///
/// # Errors
/// The network refused, or somebody waited in vain.
pub fn read(
    network: &Network,
    load: Load,
    times: Times,
    begin: &mut Begin<'_>,
) -> Result<Transferred> {
    let listener = network
        .server
        .within(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).context("cannot listen"))?;
    let course = Course { is_measured: AtomicBool::new(false), is_over: AtomicBool::new(false) };
    let connections = load.clients * load.servers;
    thread::scope(|scope| {
        let (listener, course) = (&listener, &course);
        let server = scope.spawn(move || -> Result<()> {
            for _ in 0..connections {
                let (stream, _) = listener.accept().context("cannot accept")?;
                // In the namespace by its socket, whichever the thread is in.
                scope.spawn(move || serve(stream));
            }
            Ok(())
        });
        let client = move || -> Result<(u64, Arrivals)> {
            network.client.enter()?;
            Client::connect(load)?.read(course)
        };
        let clients: Vec<_> = (0..load.clients).map(|_| scope.spawn(client)).collect();
        let joined = server.join();
        // From here on all are connected.
        thread::sleep(times.warm_up);
        begin();
        let start = Instant::now();
        course.is_measured.store(true, Ordering::Relaxed);
        thread::sleep(times.measured);
        course.is_over.store(true, Ordering::Relaxed);
        let mut all = Transferred { time: start.elapsed(), ..Transferred::default() };
        let failed = |_| anyhow!("a thread of the benchmark has failed");
        for client in clients {
            let (bytes, arrivals) = client.join().map_err(failed)??;
            all.bytes += bytes;
            all.arrivals.add(&arrivals);
        }
        joined.map_err(failed)??;
        Ok(all)
    })
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
    fn connect(load: Load) -> Result<Self> {
        let connect = |_| -> Result<TcpStream> {
            let address = SocketAddr::from((SERVER, PORT));
            let stream = TcpStream::connect_timeout(&address, PATIENCE).context("no server")?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_nodelay(true)?;
            Ok(stream)
        };
        Ok(Self {
            streams: (0..load.servers).map(connect).collect::<Result<_>>()?,
            whole: vec![0; load.transfer_bytes],
            cipher: ChaCha20::new(&[1; 32].into(), &[2; 12].into()),
            arrivals: Arrivals::default(),
        })
    }

    /// Until it is over; returns what was read while it was measured.
    fn read(mut self, course: &Course) -> Result<(u64, Arrivals)> {
        let mut bytes = 0;
        loop {
            // What is under way when measuring begins counts, and what is when it ends does not.
            let transferred = self.transfer()? as u64;
            if course.is_over.load(Ordering::Relaxed) {
                return Ok((bytes, self.arrivals));
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
