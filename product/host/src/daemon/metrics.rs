//! The metrics endpoint (HTTP): on loopback only, and only with `--metrics`.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use tiny_http::{Header, Response, Server};

use super::statistics::Statistics;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The metrics cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// Other machines could read them at this address.
    #[error("{0} is not a loopback address: metrics are for 127.0.0.1 or [::1] only")]
    NotLoopback(SocketAddr),
    /// The server cannot listen at this address.
    #[error("cannot serve metrics at {address}: {why}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        why: String,
    },
}

/// The running server; dropping it ends it.
pub(crate) struct Metrics {
    server: Arc<Server>,
    latest: Arc<Mutex<Statistics>>,
    thread: Option<JoinHandle<()>>,
}

impl Metrics {
    pub fn serve(address: SocketAddr) -> Result<Self, MetricsError> {
        if !address.ip().is_loopback() {
            return Err(MetricsError::NotLoopback(address));
        }
        let listen = |why: String| MetricsError::Listen { address, why };
        let server = Arc::new(Server::http(address).map_err(|why| listen(why.to_string()))?);
        let latest = Arc::new(Mutex::new(Statistics::default()));
        let (serving, shown) = (Arc::clone(&server), Arc::clone(&latest));
        let thread = std::thread::Builder::new()
            .name("evenkeel-http".to_owned())
            .spawn(move || answer_all(&serving, &shown))
            .map_err(|why| listen(why.to_string()))?;
        Ok(Self { server, latest, thread: Some(thread) })
    }

    pub fn update(&self, statistics: Statistics) {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = statistics;
    }

    /// The address that it listens at.
    #[cfg(test)]
    pub fn address(&self) -> Option<SocketAddr> {
        self.server.server_addr().to_ip()
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        self.server.unblock();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer_all(server: &Server, latest: &Mutex<Statistics>) {
    for request in server.incoming_requests() {
        let response = if request.url() == "/metrics" {
            let text = latest.lock().unwrap_or_else(PoisonError::into_inner).to_openmetrics();
            let response = Response::from_string(text);
            match Header::from_bytes("Content-Type", OPENMETRICS) {
                Ok(header) => response.with_header(header),
                Err(()) => response,
            }
        } else {
            Response::from_string("see /metrics\n").with_status_code(404)
        };
        // The client may be gone.
        let _ = request.respond(response);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn the_endpoint_serves_the_latest_figures_and_nothing_else() {
        let metrics = Metrics::serve("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = metrics.address().unwrap();
        metrics.update(Statistics { programs: 7, ..Statistics::default() });
        let text = get(address, "/metrics");
        assert!(
            text.contains("evenkeel_programs 7") && text.contains("openmetrics-text"),
            "{text}"
        );
        assert!(get(address, "/").contains("404"));
        assert!(get(address, "/metrics").contains("# EOF"));
    }

    #[test]
    fn other_addresses_than_loopback_are_refused() {
        let refused = Metrics::serve("0.0.0.0:0".parse().unwrap()).map(drop).unwrap_err();
        assert!(refused.to_string().contains("not a loopback address"));
    }
}
