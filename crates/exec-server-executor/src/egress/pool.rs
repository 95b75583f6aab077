//! Pool of idle HTTP connections.
//!
//! Owner: one client connection; its pool is closed with it. A sweeper task closes connections that the server has
//! closed or that exceed the idle timeout. Requests do not wake the sweeper: `put` registers the sweeper's waker with
//! the returned connection, which expires no earlier than those already in the pool.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::connection::Http1Connection;
use super::origin::Origin;

/// Enough for the servers that one client uses concurrently.
const MAX_IDLE: usize = 64;

/// The key of a pooled connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolKey {
    /// Directly to the origin, or through a tunnel.
    To(Origin),
    /// To a proxy that receives absolute-form requests.
    Proxy(Origin),
}

/// Pool of idle connections; cheap to clone.
#[derive(Clone)]
pub struct Pool {
    idle: Arc<Mutex<Idle>>,
    idle_timeout: Duration,
}

#[derive(Default)]
struct Idle {
    /// In the order of their expiry.
    connections: Vec<IdleConnection>,
    sweeper: Option<Sweeper>,
}

/// How to wake the sweeper; present once it has run for the first time.
struct Sweeper {
    waker: Waker,
    /// Whether the sweeper runs no later than the earliest expiry, by its timer or because it was woken.
    has_timer: bool,
}

struct IdleConnection {
    pool_key: PoolKey,
    connection: Http1Connection,
    until: Instant,
}

impl Pool {
    /// Creates an empty pool with this idle timeout.
    pub fn new(idle_timeout: Duration) -> Self {
        Self { idle: Arc::default(), idle_timeout }
    }

    /// Takes the most recently returned connection for this key.
    pub fn take(&self, pool_key: &PoolKey) -> Option<Http1Connection> {
        let mut idle = self.lock();
        let origin = idle.connections.iter().rposition(|idle| idle.pool_key == *pool_key)?;
        Some(idle.connections.remove(origin).connection)
    }

    /// Returns a connection to the pool if it is reusable.
    pub fn put(&self, pool_key: PoolKey, mut connection: Http1Connection) {
        let mut idle = self.lock();
        // Before its first run the sweeper has no waker; that run checks all connections.
        if let Some(Sweeper { waker, has_timer }) = &mut idle.sweeper {
            if !connection.poll_idle(waker) {
                return;
            }
            if !std::mem::replace(has_timer, true) {
                waker.wake_by_ref();
            }
        }
        let oldest = (idle.connections.len() >= MAX_IDLE).then(|| idle.connections.remove(0));
        idle.connections.push(IdleConnection {
            pool_key,
            connection,
            until: Instant::now() + self.idle_timeout,
        });
        drop(idle);
        drop(oldest);
    }

    /// Closes connections that have expired or that the server has closed; never returns.
    pub async fn run_sweeper(self) {
        let mut next_end = pin!(tokio::time::sleep(self.idle_timeout));
        poll_fn(|cx| {
            loop {
                let Some(until) = self.sweep(cx) else { return Poll::<()>::Pending };
                next_end.as_mut().reset(until.into());
                if next_end.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
            }
        })
        .await;
    }

    /// Drops unusable connections, registers the sweeper's waker with the others, and returns the earliest expiry.
    fn sweep(&self, cx: &mut Context) -> Option<Instant> {
        let now = Instant::now();
        let mut idle = self.lock();
        idle.connections
            .retain_mut(|idle| idle.connection.poll_idle(cx.waker()) && idle.until > now);
        let next_end = idle.connections.first().map(|idle| idle.until);
        idle.sweeper = Some(Sweeper { waker: cx.waker().clone(), has_timer: next_end.is_some() });
        next_end
    }

    fn lock(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().expect("no holder panics")
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(formatter, "Pool({} idle)", self.lock().connections.len())
    }
}

#[cfg(test)]
mod tests {
    use hyper::Request;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use url::Url;

    use super::super::connection::AnswerBody;
    use super::super::upload::RequestBody;
    use super::*;

    fn pool_key() -> PoolKey {
        PoolKey::To(Origin::of(&Url::parse("http://a/").unwrap()).unwrap())
    }

    /// Creates a pool with a sleeping sweeper and one connection, and returns the server end.
    async fn with_one(idle_timeout: Duration) -> (Pool, DuplexStream) {
        let pool = Pool::new(idle_timeout);
        tokio::spawn(pool.clone().run_sweeper());
        tokio::task::yield_now().await;
        let (near, far) = duplex(1024);
        pool.put(pool_key(), Http1Connection::open(Box::new(near)).await.unwrap());
        (pool, far)
    }

    async fn exchange_on_pooled(pool: &Pool, far: &mut DuplexStream) {
        let mut connection = pool.take(&pool_key()).expect("a pooled connection");
        let answer = async {
            assert!(far.read(&mut [0; 1024]).await.unwrap() > 0);
            far.write_all(b"HTTP/1.1 204 No\r\n\r\n").await.unwrap();
        };
        let request = Request::get("/").body(RequestBody::None).unwrap();
        let (answered, ()) = tokio::join!(connection.send(request), answer);
        let body = AnswerBody::new(connection, answered.unwrap().into_body());
        pool.put(pool_key(), body.into_connection());
    }

    /// Waits until the pool closes its end.
    async fn closed(far: &mut DuplexStream) {
        let ended = tokio::time::timeout(Duration::from_secs(60), far.read(&mut [0])).await;
        assert_eq!(ended.expect("closed before the timeout").unwrap(), 0);
    }

    #[tokio::test]
    async fn a_connection_is_closed_after_its_idle_timeout() {
        let idle_timeout = Duration::from_millis(100);
        let (pool, mut far) = with_one(idle_timeout).await;
        let begun = Instant::now();
        closed(&mut far).await;
        assert!(begun.elapsed() >= idle_timeout / 2, "{:?}", begun.elapsed());
        assert!(pool.take(&pool_key()).is_none());
    }

    #[tokio::test]
    async fn a_connection_that_the_server_closes_is_closed_at_once() {
        for uses in 0..3 {
            let (pool, mut far) = with_one(Duration::from_secs(3600)).await;
            for _ in 0..uses {
                exchange_on_pooled(&pool, &mut far).await;
            }
            far.shutdown().await.unwrap();
            closed(&mut far).await;
            assert!(pool.take(&pool_key()).is_none(), "after {uses} uses");
        }
    }
}
