//! A client that sends many requests before it reads the first reply.

use std::time::{Duration, Instant};

use super::Group;
use crate::client::Event;
use crate::failure::{Failure, Result};
use crate::row::rows;
use crate::scene::{Readings, Scene};
use crate::stats::ms;

rows! {
    ANSWERED = "backlog.answered": "2000 requests before the first read: answered", Higher "requests",
        AtLeast(REQUESTS as f64, Unit);
    TIME = "backlog.time": "… until the last answer", Lower "ms";
}

const REQUESTS: u32 = 2000;

/// A server whose queues form a cycle deadlocks here.
pub const GROUP: Group = Group { name: "backlog", most_rounds: 1, rows: ROWS, measure };

fn measure(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    let mut client = scene.connect()?;
    client.set_time(scene.effort.pick(Duration::from_secs(20), Duration::from_secs(5)));
    for _ in 0..REQUESTS {
        client.queue("environment/status", "{}");
    }
    let begun = Instant::now();
    let mut answered = 0;
    let outcome = client.flush().and_then(|()| {
        while answered < REQUESTS {
            answered += u32::from(matches!(client.next_event()?, Event::Reply(_)));
        }
        Ok(())
    });
    readings.enter(ANSWERED, f64::from(answered));
    outcome.map_err(|failure| {
        Failure::new(format!("locked up after {answered} answers: {failure}"))
    })?;
    readings.enter(TIME, ms(begun.elapsed()));
    Ok(())
}
