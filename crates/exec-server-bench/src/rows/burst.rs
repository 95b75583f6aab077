//! Concurrent short processes, on one connection and on many.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::retry_on_intr;

use super::{EVERY_ROUND, Group};
use crate::client::{Client, Launch};
use crate::failure::{Failure, Result};
use crate::row::rows;
use crate::scene::{Readings, Scene, USUAL_TIME};

rows! {
    ONE = "burst.one": "200 × `true` at once, one connection", Higher "procs/s", AtLeast(10.0, Peer);
    FIFTY = "burst.fifty": "200 × `true` at once, 50 connections", Higher "procs/s", AtLeast(6.0, Peer);
}

/// 200 times `true`.
pub const GROUP: Group = Group { name: "burst", most_rounds: EVERY_ROUND, rows: ROWS, measure };

fn measure(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    for (row, connections, each) in [(ONE, 1, 200), (FIFTY, 50, 4)] {
        let mut clients = Vec::new();
        for _ in 0..connections {
            clients.push(scene.connect()?);
        }
        // The first process of a server may be slower.
        let warm = clients[0].start(Launch::new(&["/usr/bin/true"]))?.process;
        clients[0].wait_finished(warm)?;
        clients[0].ledger().settle(warm, 0, 0)?;

        let time = run_at_once(&mut clients, each, Launch::new(&["/usr/bin/true"]))?;
        readings.enter(row, f64::from(connections * each) / time.as_secs_f64());
        clients.iter_mut().for_each(|client| readings.enter_order(client));
    }
    Ok(())
}

/// Starts this many on each connection at once, and waits for all exits.
pub fn run_at_once(clients: &mut [Client], each: u32, launch: Launch<'_>) -> Result<Duration> {
    let begun = Instant::now();
    let mut started = Vec::new();
    for (index, client) in clients.iter_mut().enumerate() {
        for _ in 0..each {
            started.push((index, client.queue_start(launch).process));
        }
        client.flush()?;
    }
    while clients.iter_mut().any(|client| client.ledger().unfinished() > 0) {
        if begun.elapsed() > USUAL_TIME {
            return Err(Failure::new("not all processes finished in time"));
        }
        for index in readable(clients)? {
            clients[index].take_in()?;
        }
    }
    let time = begun.elapsed();
    for (index, process) in started {
        clients[index].ledger().settle(process, 0, 0)?;
    }
    Ok(time)
}

/// Waits for clients with data to read.
fn readable(clients: &[Client]) -> Result<Vec<usize>> {
    let watch = |client| PollFd::from_borrowed_fd(Client::as_fd(client), PollFlags::IN);
    let mut sockets: Vec<PollFd<'_>> = clients.iter().map(watch).collect();
    let timeout = Timespec::try_from(Duration::from_millis(100)).expect("a tenth of a second fits");
    retry_on_intr(|| rustix::event::poll(&mut sockets, Some(&timeout)))?;
    let ready = sockets.iter().enumerate().filter(|(_, socket)| !socket.revents().is_empty());
    Ok(ready.map(|(index, _)| index).collect())
}
