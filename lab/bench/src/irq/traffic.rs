//! Connections that bring data by the queues of the card, each with a consumer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use evenkeel_experiment::host::run_on;
use evenkeel_sais::STRIP_BYTES;
use nix::sched::sched_getcpu;

use super::stage::{SERVER, Stage, choose_queue};
use crate::sais::arrivals::Arrivals;
use crate::sais::runner::{Begin, Times, Transferred};

const PORT: u16 = 9002;
/// No consumer waits longer for data.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flow {
    /// The queue by which its data comes.
    pub queue: u32,
    /// The CPU on which it is consumed; `None`: its consumer runs anywhere.
    pub cpu: Option<u32>,
}

/// What becomes of the connections.
#[derive(Debug, Default)]
pub(super) struct Course {
    is_measured: AtomicBool,
    is_over: AtomicBool,
    /// What was received while it was measured.
    bytes: AtomicU64,
}

impl Course {
    /// Counts what is received while this works. Says how long that was.
    ///
    /// # Errors
    /// Those of the work.
    pub(super) fn measured<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(T, Duration)> {
        let start = Instant::now();
        self.is_measured.store(true, Ordering::Relaxed);
        let done = work();
        self.is_measured.store(false, Ordering::Relaxed);
        Ok((done?, start.elapsed()))
    }

    /// What was received while it was measured.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Transfers as fast as it goes, and looks where packets are processed.
///
/// # Errors
/// The network refused, or a consumer waited in vain.
pub(super) fn transfer(
    stage: &Stage,
    flows: &[Flow],
    times: Times,
    begin: &mut Begin<'_>,
) -> Result<Transferred> {
    let (time, bytes, arrivals) = {
        let course = Course::default();
        let (time, arrivals) = in_traffic(stage, flows, None, &course, || {
            thread::sleep(times.warm_up);
            begin();
            let ((), time) = course.measured(|| {
                thread::sleep(times.measured);
                Ok(())
            })?;
            Ok(time)
        })?;
        (time, course.bytes(), arrivals)
    };
    Ok(Transferred { bytes, time, arrivals })
}

/// Works while connections bring data, with this pause after each strip. Says where packets were
/// processed, of those that were measured.
///
/// # Errors
/// Those of the work, the network refused, or a consumer waited in vain.
pub(super) fn in_traffic<T>(
    stage: &Stage,
    flows: &[Flow],
    pause: Option<Duration>,
    course: &Course,
    work: impl FnOnce() -> Result<T>,
) -> Result<(T, Arrivals)> {
    let listen = || TcpListener::bind((SERVER, PORT)).context("cannot listen");
    let listener = stage.server.within(listen)?;
    let connect = |flow: &Flow| -> Result<(Flow, TcpStream, TcpStream)> {
        let address = SocketAddr::from((SERVER, PORT));
        let client = stage.client.within(|| {
            let stream = TcpStream::connect_timeout(&address, PATIENCE).context("no server")?;
            stream.set_read_timeout(Some(PATIENCE))?;
            Ok(stream)
        })?;
        let (server, _) = listener.accept().context("cannot accept")?;
        choose_queue(&server, flow.queue)?;
        Ok((*flow, client, server))
    };
    let connections = flows.iter().map(connect).collect::<Result<Vec<_>>>()?;
    thread::scope(|scope| {
        // However the work ends, and before the scope waits for its threads.
        let over = Over(&course.is_over);
        let mut consumers = Vec::new();
        for (flow, client, server) in connections {
            scope.spawn(move || send(server, pause, course));
            consumers.push(scope.spawn(move || consume(client, flow.cpu, course)));
        }
        let done = work();
        drop(over);
        let mut arrivals = Arrivals::default();
        for consumer in consumers {
            let consumed = consumer.join();
            arrivals.add(&consumed.map_err(|_| anyhow!("a thread of the benchmark has failed"))??);
        }
        Ok((done?, arrivals))
    })
}

/// Sets this when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Until the consumer closes.
fn send(mut stream: TcpStream, pause: Option<Duration>, course: &Course) {
    let strip = vec![7; STRIP_BYTES];
    while !course.is_over.load(Ordering::Relaxed) && stream.write_all(&strip).is_ok() {
        if let Some(pause) = pause {
            thread::sleep(pause);
        }
    }
}

/// Receives until it is over.
fn consume(mut stream: TcpStream, cpu: Option<u32>, course: &Course) -> Result<Arrivals> {
    if let Some(cpu) = cpu {
        run_on(cpu)?;
    }
    let (mut room, mut arrivals) = (vec![0; STRIP_BYTES], Arrivals::default());
    while !course.is_over.load(Ordering::Relaxed) {
        let bytes = stream.read(&mut room).context("nothing came")?;
        if course.is_measured.load(Ordering::Relaxed) {
            course.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            arrivals.look(&stream, cpu.map_or_else(here, Ok)?)?;
        }
        if bytes == 0 && !course.is_over.load(Ordering::Relaxed) {
            bail!("the server has closed the connection");
        }
    }
    Ok(arrivals)
}

/// The CPU of the calling thread.
fn here() -> Result<u32> {
    Ok(sched_getcpu()? as u32)
}
