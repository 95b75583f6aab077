//! What a cluster does per second: registrations, connects, claims.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use super::Group;
use crate::cluster::BenchCluster;
use crate::contestant::Seat;
use crate::failure::{Failure, Result};
use crate::keep_alive::KeepAlive;
use crate::row::rows;
use crate::scene::{Readings, Scene};
use crate::swarm::{self, Member, Peers};

rows! {
    REGISTERS = "cluster.register": "registrations on PostgreSQL, synced to disk", Higher "/s", AtLeast(3000.0, Unit);
    CONNECTS = "cluster.connect": "connect requests on PostgreSQL", Higher "/s", AtLeast(3000.0, Unit);
    CLAIMS = "cluster.claims": "10,000 executors claimed again after the table was lost: time of the statements",
        Lower "ms", AtMost(200.0, Unit);
}

/// Requests to one node, and its claims.
pub const GROUP: Group = Group { name: "cluster", most_rounds: 3, rows: ROWS, measure };

/// Connections with one request in flight each.
const CONNECTIONS: usize = 64;

/// Claims are checked every ten seconds.
const CLAIM_TIME: Duration = Duration::from_secs(30);

const CLAIM_SUM: &str = "exec_server_store_duration_seconds_sum{operation=\"claim_again\"}";
const CLAIM_COUNT: &str = "exec_server_store_duration_seconds_count{operation=\"claim_again\"}";

fn measure(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    // Other contestants have no rendezvous.
    if scene.contestant.seat != Seat::Ours {
        return Ok(());
    }
    let cluster = BenchCluster::start(scene)?;
    let node = cluster.node("a")?;
    let members = cluster.members(scene.effort.pick(10_000, 1000));
    let time = scene.effort.pick(Duration::from_secs(8), Duration::from_secs(3));
    let (body, token) = (swarm::register_body(), |it: &Member| it.executor.clone());
    readings.enter(REGISTERS, rate(node.address, &members, "register", token, &body, time)?);

    let pairs = swarm::open(node.address, &members, Peers::Executors)?;
    let (body, token) = (swarm::connect_body(), |it: &Member| it.harness.clone());
    readings.enter(CONNECTS, rate(node.address, &members, "connect", token, &body, time)?);

    let (sum, count) = (cluster.metric(&node, CLAIM_SUM)?, cluster.metric(&node, CLAIM_COUNT)?);
    cluster.run_sql("TRUNCATE presence");
    let deadline = Instant::now() + CLAIM_TIME;
    let statements = pairs.len().div_ceil(1000) as f64;
    while cluster.metric(&node, CLAIM_COUNT)? < count + statements {
        if Instant::now() >= deadline {
            return Err(Failure::new("the executors are not claimed again"));
        }
        thread::sleep(Duration::from_millis(100));
    }
    readings.enter(CLAIMS, (cluster.metric(&node, CLAIM_SUM)? - sum) * 1e3);
    Ok(())
}

/// Requests per second over all connections, each for other members in turn.
fn rate(
    address: SocketAddr,
    members: &[Member],
    request: &str,
    token: impl Fn(&Member) -> String,
    body: &str,
    time: Duration,
) -> Result<f64> {
    let slice = members.len().div_ceil(CONNECTIONS);
    let asked = |member: &Member| {
        (format!("/cloud/environment/{}/{request}", member.environment), token(member))
    };
    let parts: Vec<Vec<(String, String)>> =
        members.chunks(slice).map(|part| part.iter().map(asked).collect()).collect();
    let begun = Instant::now();
    let deadline = begun + time;
    let total: Result<Vec<u64>> = thread::scope(|scope| {
        let run = |part: Vec<(String, String)>| {
            let mut http = KeepAlive::connect(address)?;
            let mut count = 0;
            for (path, token) in part.iter().cycle() {
                if Instant::now() >= deadline {
                    break;
                }
                let (status, answer) = http.post(path, token, body)?;
                if status != 200 {
                    let answer = String::from_utf8_lossy(answer);
                    return Err(Failure::new(format!("{request} failed ({status}): {answer}")));
                }
                count += 1;
            }
            Ok(count)
        };
        let threads: Vec<_> =
            parts.into_iter().map(|part| scope.spawn(move || run(part))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    Ok(total?.into_iter().sum::<u64>() as f64 / begun.elapsed().as_secs_f64())
}
