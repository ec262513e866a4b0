//! The metrics endpoint (HTTP): on loopback only, and only with `--metrics`. Any process of this
//! machine may connect, so it is served in the daemon's own loop, and everything is bounded: one
//! request a connection, the length of its header, how long it may take, how many connections there
//! are, and how many come in a second. It never waits for a client, and no client can keep another one
//! out: where there are too many, the oldest connection is closed.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};

use super::statistics::Statistics;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// Connections at a time.
const MAX_CLIENTS: usize = 16;
/// The longest header of a request, in bytes.
const MAX_HEADER_BYTES: usize = 8 * 1024;
/// What is read and ignored behind a request, so that its answer is not lost by an early close.
const MAX_IGNORED_BYTES: usize = 64 * 1024;
/// A connection is closed after this time, whatever became of it.
const LIFETIME: Duration = Duration::from_secs(5);
/// The time for each connection in the long run: at most a hundred a second ...
const PRICE: Duration = Duration::from_millis(10);
/// ... and so many at once.
const RESERVE: Duration = Duration::from_millis(320);

/// The metrics cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// Other machines could read them at this address.
    #[error("{0} is not a loopback address: metrics are for 127.0.0.1 or [::1] only")]
    NotLoopback(SocketAddr),
    /// The server cannot listen at this address.
    #[error("cannot serve metrics at {address}: {source}; choose another port")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
}

/// The listening socket and its connections.
#[derive(Debug)]
pub(crate) struct Metrics {
    listener: TcpListener,
    /// The oldest first.
    clients: Vec<Client>,
    /// The page as it is served.
    page: String,
    /// When all connections so far have paid for their time.
    paid_at: Instant,
}

#[derive(Debug)]
struct Client {
    stream: TcpStream,
    since: Instant,
    received: Vec<u8>,
    /// What is not sent yet; `None`: the request is not whole.
    answer: Option<Vec<u8>>,
    ignored_bytes: usize,
}

impl Metrics {
    pub fn listen(address: SocketAddr) -> Result<Self, MetricsError> {
        if !address.ip().is_loopback() {
            return Err(MetricsError::NotLoopback(address));
        }
        let listen = |source| MetricsError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        let page = Statistics::default().to_openmetrics();
        Ok(Self { listener, clients: Vec::new(), page, paid_at: Instant::now() })
    }

    /// Sets the figures that are served from now on.
    pub fn update(&mut self, statistics: &Statistics) {
        self.page = statistics.to_openmetrics();
    }

    /// The descriptors to poll: call [`Metrics::serve`] when any of them is ready.
    pub fn poll_fds(&self) -> Vec<PollFd<'_>> {
        let clients = self.clients.iter().map(|client| {
            let mut flags = PollFlags::POLLIN;
            flags.set(PollFlags::POLLOUT, client.has_unsent());
            PollFd::new(client.stream.as_fd(), flags)
        });
        let may_accept = self.wait_to_accept(Instant::now()).is_zero();
        let listener = may_accept.then(|| PollFd::new(self.listener.as_fd(), PollFlags::POLLIN));
        clients.chain(listener).collect()
    }

    /// How long to wait for these descriptors at most: until the next connection may be accepted, or
    /// is to be closed.
    pub fn patience(&self) -> Option<Duration> {
        let now = Instant::now();
        let oldest = self.clients.first();
        let closes = oldest.map(|client| (client.since + LIFETIME).saturating_duration_since(now));
        let accepts = Some(self.wait_to_accept(now)).filter(|wait| !wait.is_zero());
        closes.into_iter().chain(accepts).min()
    }

    fn wait_to_accept(&self, now: Instant) -> Duration {
        self.paid_at.saturating_duration_since(now + RESERVE)
    }

    /// Accepts connections, reads, answers and closes. Never blocks.
    pub fn serve(&mut self) {
        let now = Instant::now();
        self.accept(now);
        let Self { clients, page, .. } = self;
        clients.retain_mut(|client| {
            now < client.since + LIFETIME && client.serve(page).is_ok_and(|is_done| !is_done)
        });
    }

    fn accept(&mut self, now: Instant) {
        while self.wait_to_accept(now).is_zero() {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return,
            };
            self.paid_at = self.paid_at.max(now) + PRICE;
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.clients.len() >= MAX_CLIENTS {
                self.clients.remove(0);
            }
            let (received, answer) = (Vec::new(), None);
            self.clients.push(Client { stream, since: now, received, answer, ignored_bytes: 0 });
        }
    }

    /// The address that it listens at.
    #[cfg(test)]
    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }
}

impl Client {
    fn has_unsent(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| !answer.is_empty())
    }

    /// Reads and sends what can be read and sent now. True: it is done.
    fn serve(&mut self, page: &str) -> io::Result<bool> {
        let has_ended = self.receive()?;
        if self.answer.is_none() {
            self.answer = answer_metrics_request(&self.received, has_ended, page);
        }
        self.send()?;
        // The client closes when it has read the answer, unless it goes on sending.
        let is_sent = self.answer.is_some() && !self.has_unsent();
        Ok(is_sent && (has_ended || self.ignored_bytes > MAX_IGNORED_BYTES))
    }

    /// True: the client sends no more.
    fn receive(&mut self) -> io::Result<bool> {
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Ok(true),
                Ok(length) if self.answer.is_none() => {
                    self.received.extend_from_slice(&buffer[..length]);
                }
                Ok(length) => self.ignored_bytes += length,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
            let is_enough = self.received.len() > MAX_HEADER_BYTES;
            if is_enough || self.ignored_bytes > MAX_IGNORED_BYTES {
                return Ok(false);
            }
        }
    }

    fn send(&mut self) -> io::Result<()> {
        let Some(answer) = self.answer.as_mut().filter(|answer| !answer.is_empty()) else {
            return Ok(());
        };
        while !answer.is_empty() {
            match self.stream.write(answer) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(length) => drop(answer.drain(..length)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.stream.shutdown(Shutdown::Write)
    }
}

/// The answer to what a connection sent; `None`: the request is not whole yet, and more may come. `page`
/// is what a request of the figures gets.
pub fn answer_metrics_request(received: &[u8], has_ended: bool, page: &str) -> Option<Vec<u8>> {
    let head = &received[..received.len().min(MAX_HEADER_BYTES)];
    let is_whole =
        head.windows(4).any(|end| end == b"\r\n\r\n") || head.windows(2).any(|end| end == b"\n\n");
    if !is_whole && received.len() > MAX_HEADER_BYTES {
        let why = format!("the header of a request has at most {MAX_HEADER_BYTES} bytes\n");
        return Some(response("431 Request Header Fields Too Large", PLAIN, &why, true));
    }
    if !is_whole {
        return has_ended.then(|| response("400 Bad Request", PLAIN, "no whole request\n", true));
    }
    let line = received.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split_ascii_whitespace();
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let has_body = method != "HEAD";
    Some(match (method, target) {
        ("GET" | "HEAD", "/metrics") => response("200 OK", OPENMETRICS, page, has_body),
        ("GET" | "HEAD", _) => response("404 Not Found", PLAIN, "see /metrics\n", has_body),
        _ => response("405 Method Not Allowed", PLAIN, "only GET is answered\n", true),
    })
}

fn response(status: &str, kind: &str, body: &str, has_body: bool) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    );
    [head.as_bytes(), if has_body { body.as_bytes() } else { b"" }].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen() -> Metrics {
        Metrics::listen("127.0.0.1:0".parse().unwrap()).unwrap()
    }

    fn connect(metrics: &Metrics) -> TcpStream {
        TcpStream::connect(metrics.address()).unwrap()
    }

    /// What a client reads of an endpoint that is served until that is all.
    fn read(metrics: &mut Metrics, mut stream: TcpStream) -> String {
        let reading = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // A connection that is closed early may be reset.
            let _ = stream.read_to_end(&mut bytes);
            String::from_utf8(bytes).unwrap()
        });
        while !reading.is_finished() {
            metrics.serve();
            std::thread::yield_now();
        }
        reading.join().unwrap()
    }

    fn ask(metrics: &mut Metrics, request: &str) -> String {
        let mut stream = connect(metrics);
        stream.write_all(request.as_bytes()).unwrap();
        read(metrics, stream)
    }

    #[test]
    fn the_endpoint_serves_the_latest_figures_and_nothing_else() {
        let mut metrics = listen();
        metrics.update(&Statistics { programs: 7, ..Statistics::default() });
        let text = ask(&mut metrics, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        assert!(
            text.contains("evenkeel_programs 7") && text.contains("openmetrics-text"),
            "{text}"
        );
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
        assert!(body.ends_with("# EOF\n"), "{body}");
        assert!(!ask(&mut metrics, "HEAD /metrics HTTP/1.0\r\n\r\n").contains("EOF"));
        assert!(ask(&mut metrics, "GET / HTTP/1.0\r\n\r\n").contains("404"));
        assert!(ask(&mut metrics, "POST /metrics HTTP/1.0\r\n\r\n").contains("405"));
        assert!(ask(&mut metrics, "\0\r\n\r\n").contains("405"));
        let broken_off = connect(&metrics);
        broken_off.shutdown(Shutdown::Write).unwrap();
        assert!(read(&mut metrics, broken_off).contains("400"));
    }

    #[test]
    fn a_header_without_end_is_refused() {
        let mut metrics = listen();
        let endless = format!("GET /metrics HTTP/1.1\r\n{}", "X: y\r\n".repeat(10_000));
        let text = ask(&mut metrics, &endless);
        assert!(text.contains("431") || text.is_empty(), "{text}");
        for _ in 0..100 {
            metrics.serve();
        }
        assert!(metrics.clients.iter().all(|client| client.received.len() < 16 * 1024));
    }

    #[test]
    fn a_connection_has_one_request() {
        let mut metrics = listen();
        let text = ask(&mut metrics, &"GET / HTTP/1.1\r\n\r\n".repeat(500));
        assert_eq!(text.matches("HTTP/1.1 404").count(), 1, "{text}");
        metrics.serve();
        assert!(metrics.clients.is_empty(), "{metrics:?}");
    }

    #[test]
    fn idle_connections_keep_no_other_one_out_and_are_closed() {
        let mut metrics = listen();
        let mut idle = Vec::new();
        for _ in 0..3 * MAX_CLIENTS {
            idle.push(connect(&metrics));
            // As if time had passed.
            metrics.paid_at = Instant::now();
            metrics.serve();
        }
        assert_eq!(metrics.clients.len(), MAX_CLIENTS);
        metrics.paid_at = Instant::now();
        assert!(ask(&mut metrics, "GET /metrics HTTP/1.0\r\n\r\n").contains("200 OK"));
        assert!(metrics.patience().is_some_and(|patience| patience <= LIFETIME));
        for client in &mut metrics.clients {
            client.since -= LIFETIME;
        }
        metrics.serve();
        assert!(metrics.clients.is_empty());
    }

    #[test]
    fn connections_come_at_a_bounded_rate() {
        let mut metrics = listen();
        let flood: Vec<TcpStream> = (0..100).map(|_| connect(&metrics)).collect();
        let mut accepted = 0;
        let start = Instant::now();
        for _ in 0..1000 {
            metrics.serve();
            accepted += metrics.clients.drain(..).count();
        }
        let most = 34 + start.elapsed().as_millis() as usize / 10;
        assert!(accepted <= most, "{accepted} of {most}");
        // The loop does not spin meanwhile.
        metrics.paid_at = Instant::now() + Duration::from_secs(60);
        assert!(
            metrics.poll_fds().is_empty() && metrics.patience() > Some(Duration::from_secs(50))
        );
        drop(flood);
    }

    #[test]
    fn other_addresses_than_loopback_are_refused() {
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:80"] {
            let refused = Metrics::listen(address.parse().unwrap()).map(drop).unwrap_err();
            assert!(refused.to_string().contains("not a loopback address"));
        }
    }
}
