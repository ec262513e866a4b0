//! The metrics endpoint (HTTP), only with `--metrics`: on loopback, unless its administrator lets other
//! machines read it. Any process of this machine may connect, so it is served in the daemon's own loop,
//! and everything is bounded: one request a connection, the length of its header, how long it may take,
//! how many connections there are, and how many come in a second. It never waits for a client. Idle
//! connections keep no other one out: where there are too many, the oldest is closed. A flood of
//! connections can delay a scrape or a probe, never the daemon.
//!
//! | path | answer |
//! |---|---|
//! | `/metrics` | the figures, in OpenMetrics |
//! | `/livez` | 200: the daemon's loop runs, since it is that which answers |
//! | `/readyz` | 200: programs that join are balanced; 503: they are not, and why |

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};

use schemars::JsonSchema;
use serde::Deserialize;

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

/// What lets other machines read the metrics, before the address.
const PUBLIC: &str = "public:";

/// Where the metrics are served: at a loopback address, which no other machine can reach, or behind
/// `public:` at any one. The port is from 1 to 65535.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
pub struct MetricsAddress(SocketAddr);

impl MetricsAddress {
    /// The address to listen at.
    pub fn address(&self) -> SocketAddr {
        self.0
    }
}

impl std::str::FromStr for MetricsAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (is_public, address) = match text.strip_prefix(PUBLIC) {
            Some(address) => (true, address),
            None => (false, text),
        };
        let address: SocketAddr =
            address.parse().map_err(|_| "expected an address like 127.0.0.1:9469".to_owned())?;
        if !is_public && !address.ip().is_loopback() {
            return Err(format!(
                "{address} is not a loopback address: metrics are for 127.0.0.1 or [::1] only, unless \
                 other machines may read them: {PUBLIC}{address}"
            ));
        }
        if address.port() == 0 {
            return Err(format!("{address}: choose a port from 1 to 65535"));
        }
        Ok(Self(address))
    }
}

impl TryFrom<String> for MetricsAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse().map_err(|why| format!("metrics \"{text}\": {why}"))
    }
}

/// The metrics cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// The server cannot listen at this address.
    #[error("cannot serve metrics at {address}: {source}; choose another port")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
}

/// What is served.
#[derive(Debug, Clone, Default)]
pub struct Pages {
    /// The figures, in OpenMetrics.
    pub metrics: String,
    /// Why programs that join are not balanced; `None`: they are.
    pub not_ready: Option<String>,
}

/// The listening socket and its connections.
#[derive(Debug)]
pub(crate) struct Metrics {
    listener: TcpListener,
    /// The oldest first.
    clients: Vec<Client>,
    pages: Pages,
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
    pub fn listen(address: MetricsAddress) -> Result<Self, MetricsError> {
        let address = address.address();
        let listen = |source| MetricsError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        let pages = Pages::default();
        Ok(Self { listener, clients: Vec::new(), pages, paid_at: Instant::now() })
    }

    /// Sets what is served from now on: the figures, and why programs are not balanced, if they are not.
    pub fn update(&mut self, statistics: &Statistics, not_ready: Option<String>) {
        self.pages = Pages { metrics: statistics.to_openmetrics(), not_ready };
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
        let Self { clients, pages, .. } = self;
        clients.retain_mut(|client| {
            now < client.since + LIFETIME && client.serve(pages).is_ok_and(|is_done| !is_done)
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
    fn serve(&mut self, pages: &Pages) -> io::Result<bool> {
        let has_ended = self.receive()?;
        if self.answer.is_none() {
            self.answer = answer_metrics_request(&self.received, has_ended, pages);
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

/// The answer to what a connection sent; `None`: the request is not whole yet, and more may come.
pub fn answer_metrics_request(received: &[u8], has_ended: bool, pages: &Pages) -> Option<Vec<u8>> {
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
        ("GET" | "HEAD", "/metrics") => response("200 OK", OPENMETRICS, &pages.metrics, has_body),
        ("GET" | "HEAD", "/livez") => response("200 OK", PLAIN, "alive\n", has_body),
        ("GET" | "HEAD", "/readyz") => match &pages.not_ready {
            None => response("200 OK", PLAIN, "ready\n", has_body),
            Some(why) => {
                let why = format!("not ready: {why}\n");
                response("503 Service Unavailable", PLAIN, &why, has_body)
            }
        },
        ("GET" | "HEAD", _) => {
            response("404 Not Found", PLAIN, "see /metrics, /livez and /readyz\n", has_body)
        }
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
        // Any free port: one that a user can choose is not 0.
        Metrics::listen(MetricsAddress("127.0.0.1:0".parse().unwrap())).unwrap()
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
        metrics.update(&Statistics { programs: 7, ..Statistics::default() }, None);
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
    fn probes_are_told_whether_programs_are_balanced() {
        let mut metrics = listen();
        let of = |metrics: &mut Metrics, path: &str| {
            let text = ask(metrics, &format!("GET {path} HTTP/1.1\r\nHost: node\r\n\r\n"));
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            (head.lines().next().unwrap().to_owned(), body.to_owned())
        };
        assert_eq!(of(&mut metrics, "/livez"), ("HTTP/1.1 200 OK".into(), "alive\n".into()));
        assert_eq!(of(&mut metrics, "/readyz"), ("HTTP/1.1 200 OK".into(), "ready\n".into()));
        metrics.update(&Statistics::default(), Some("no journal".to_owned()));
        let (status, why) = of(&mut metrics, "/readyz");
        assert_eq!(status, "HTTP/1.1 503 Service Unavailable");
        assert_eq!(why, "not ready: no journal\n");
        // A restart would not help: only a loop that does not answer is dead.
        assert_eq!(of(&mut metrics, "/livez").0, "HTTP/1.1 200 OK");
    }

    #[test]
    fn other_addresses_than_loopback_are_refused_unless_they_are_asked_for() {
        let parse = |text: &str| text.parse::<MetricsAddress>();
        for address in ["0.0.0.0:9469", "[::]:9469", "192.0.2.1:80"] {
            let refused = parse(address).unwrap_err();
            assert!(refused.contains("not a loopback address"), "{refused}");
            let public = format!("public:{address}");
            assert!(refused.ends_with(&public), "{refused}");
            assert_eq!(parse(&public).unwrap().address().to_string(), address);
        }
        assert!(parse("127.0.0.1:9469").is_ok() && parse("[::1]:9469").is_ok());
        for address in ["", "9469", "public:", "public:9469", "127.0.0.1:0", "public:0.0.0.0:0"] {
            assert!(parse(address).is_err(), "{address}");
        }
        let refused = MetricsAddress::try_from("node:80".to_owned()).unwrap_err();
        assert!(refused.starts_with("metrics \"node:80\": expected an address"), "{refused}");
    }
}
