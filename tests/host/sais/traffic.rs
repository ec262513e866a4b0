//! A server that sends as many bytes as a client asks for, and a client that consumes them and reads on
//! which CPU its packets were processed: by the kernel's own word (SO_INCOMING_CPU), not by ours.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::net::{Namespace, run_on};
use crate::support::{PATIENCE, just};

const PORT: u16 = 9000;
const CHUNK: usize = 64 * 1024;

/// Answers requests of 8 bytes, the number of bytes wanted, on one CPU until it is dropped.
pub struct Server {
    is_ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start(namespace: &Namespace, cpu: u32) -> Self {
        let listener = namespace.within(|| TcpListener::bind(("::", PORT)).unwrap());
        listener.set_nonblocking(true).unwrap();
        let is_ending = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_ending);
        let serve = move || {
            run_on(&just(cpu));
            let mut connections = Vec::new();
            while !seen.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => connections.push(std::thread::spawn(|| answer(stream))),
                    Err(why) if why.kind() == ErrorKind::WouldBlock => {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    Err(why) => panic!("{why}"),
                }
            }
            connections.into_iter().for_each(|thread| thread.join().unwrap());
        };
        Self { is_ending, thread: Some(std::thread::spawn(serve)) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Answers requests until the client closes.
fn answer(mut stream: TcpStream) {
    stream.set_nonblocking(false).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let chunk = [7; CHUNK];
    let mut request = [0; 8];
    while stream.read_exact(&mut request).is_ok() {
        let mut left = u64::from_le_bytes(request) as usize;
        while left > 0 {
            let bytes = left.min(CHUNK);
            if stream.write_all(&chunk[..bytes]).is_err() {
                return;
            }
            left -= bytes;
        }
    }
}

/// How often the packet that arrived last was on the CPU of the consumer.
#[derive(Debug, Default)]
pub struct Sight {
    pub right: u64,
    pub wrong: u64,
}

impl Sight {
    pub fn share(&self) -> f64 {
        self.right as f64 / (self.right + self.wrong) as f64
    }
}

/// A connection of the thread that made it.
pub struct Client {
    stream: TcpStream,
}

impl Client {
    /// In the network namespace of the calling thread.
    pub fn connect(server: IpAddr) -> Self {
        let address = SocketAddr::from((server, PORT));
        let stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let client = Self { stream };
        // Room for many times what may be under way ([`Client::stream`]). A socket without room drops
        // segments, and the next ones are out of order though nothing overtook them. The kernel
        // estimates how much a sender may send from the room that earlier segments took, and segments
        // take twice as much once generic XDP makes each one piece of memory.
        client.set_room(32 << 20);
        client
    }

    /// How many bytes the socket holds until they are read, whatever the kernel would choose.
    pub fn set_room(&self, bytes: libc::c_int) {
        // SAFETY: `bytes` is as long as it is said to be.
        let result = unsafe {
            libc::setsockopt(
                self.stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVBUFFORCE,
                (&raw const bytes).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }

    pub fn ask(&mut self, bytes: usize) {
        self.stream.write_all(&(bytes as u64).to_le_bytes()).unwrap();
    }

    /// Receives so much, and is told of each piece.
    pub fn receive(&mut self, bytes: usize, mut seen: impl FnMut(&Self)) {
        let mut chunk = [0; CHUNK];
        let mut left = bytes;
        while left > 0 {
            let got = self.stream.read(&mut chunk[..left.min(CHUNK)]).unwrap();
            assert!(got > 0, "the server has closed the connection");
            assert!(chunk[..got].iter().all(|byte| *byte == 7), "other bytes than were sent");
            left -= got;
            seen(self);
        }
    }

    /// Asks for so much and receives it, as one stream of which two pieces at most are under way.
    pub fn stream(&mut self, bytes: usize, mut seen: impl FnMut(&Self)) {
        const PIECE: usize = 1 << 20;
        let pieces: Vec<usize> =
            (0..bytes).step_by(PIECE).map(|at| PIECE.min(bytes - at)).collect();
        pieces.iter().take(2).for_each(|piece| self.ask(*piece));
        let mut next = pieces.iter().skip(2);
        for piece in &pieces {
            self.receive(*piece, &mut seen);
            if let Some(piece) = next.next() {
                self.ask(*piece);
            }
        }
    }

    /// Asks for so much, receives it, and counts where it arrived.
    pub fn fetch(&mut self, bytes: usize, cpu: u32) -> Sight {
        let mut sight = Sight::default();
        self.stream(bytes, |client| {
            if client.incoming_cpu() == cpu { sight.right += 1 } else { sight.wrong += 1 }
        });
        sight
    }

    /// Where its last packet arrived.
    pub fn incoming_cpu(&self) -> u32 {
        incoming_cpu(&self.stream)
    }
}

/// Where the last packet of a socket arrived, as the kernel has it.
pub fn incoming_cpu(socket: &impl AsRawFd) -> u32 {
    let mut cpu: libc::c_int = -1;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `cpu` has room for `length` bytes.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_INCOMING_CPU,
            (&raw mut cpu).cast(),
            &mut length,
        )
    };
    assert_eq!(result, 0);
    cpu as u32
}

/// Consumes for a while on changing CPUs. Packets that arrive in the first 10 ms after a move are
/// not counted.
pub fn wander(client: &mut Client, cpus: [u32; 2], moves: usize, stay: Duration) -> Sight {
    const SETTLED: Duration = Duration::from_millis(10);
    let mut sight = Sight::default();
    for step in 0..moves {
        let cpu = cpus[step % 2];
        run_on(&just(cpu));
        let start = Instant::now();
        while start.elapsed() < stay {
            let is_settled = start.elapsed() > SETTLED;
            let seen = client.fetch(256 * 1024, cpu);
            if is_settled {
                sight.right += seen.right;
                sight.wrong += seen.wrong;
            }
        }
    }
    sight
}

/// Checks that the server still answers (within [`PATIENCE`]).
pub fn goes_on(client: &mut Client) {
    client.ask(CHUNK);
    client.receive(CHUNK, |_| {});
}
