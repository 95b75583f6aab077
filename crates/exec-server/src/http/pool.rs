//! Connections that wait for their next request.
//!
//! Owner: one connection of a client; what it opened is closed with it. A sweeper looks after those that are idle, and
//! closes them when the other side has or when they have waited long enough. It sleeps while requests come and go: a
//! connection that is put back is left with its waker, and waits at least as long as any that is there already.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::link::Link;
use super::place::Place;

/// Enough for every server that a client talks to at once.
const MAX_IDLE: usize = 64;

/// What a connection leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// To the place itself, perhaps through a tunnel.
    To(Place),
    /// To a proxy that is told with every request where it goes.
    Proxy(Place),
}

/// Connections that wait for their next request; cheap to clone.
#[derive(Clone)]
pub struct Pool {
    idle: Arc<Mutex<Idle>>,
    patience: Duration,
}

#[derive(Default)]
struct Idle {
    /// Oldest first.
    links: Vec<IdleLink>,
    sweeper: Option<Sweeper>,
}

/// The sweeper while it sleeps.
struct Sweeper {
    waker: Waker,
    /// Whether it will wake by itself, before the next connection has waited long enough.
    has_timer: bool,
}

struct IdleLink {
    route: Route,
    link: Link,
    until: Instant,
}

impl Pool {
    /// An empty pool whose connections wait this long.
    pub fn new(patience: Duration) -> Self {
        Self { idle: Arc::default(), patience }
    }

    /// The connection that was used last for this route.
    pub fn take(&self, route: &Route) -> Option<Link> {
        let mut idle = self.lock();
        let place = idle.links.iter().rposition(|idle| idle.route == *route)?;
        Some(idle.links.remove(place).link)
    }

    /// Keeps a connection for its next request, if it would take one.
    pub fn put(&self, route: Route, mut link: Link) {
        let mut idle = self.lock();
        // Without one, the sweeper has yet to begin, and will look at everything.
        if let Some(Sweeper { waker, has_timer }) = &mut idle.sweeper {
            if !link.poll_idle(waker) {
                return;
            }
            if !std::mem::replace(has_timer, true) {
                waker.wake_by_ref();
            }
        }
        let oldest = (idle.links.len() >= MAX_IDLE).then(|| idle.links.remove(0));
        idle.links.push(IdleLink { route, link, until: Instant::now() + self.patience });
        drop(idle);
        drop(oldest);
    }

    /// Closes what has waited too long or has been closed; runs as long as the pool is used.
    pub async fn run_sweeper(self) {
        let mut next_end = pin!(tokio::time::sleep(self.patience));
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

    /// Looks at every connection, and says when the next has waited long enough.
    fn sweep(&self, cx: &mut Context) -> Option<Instant> {
        let now = Instant::now();
        let mut idle = self.lock();
        idle.links.retain_mut(|idle| idle.link.poll_idle(cx.waker()) && idle.until > now);
        let next_end = idle.links.first().map(|idle| idle.until);
        idle.sweeper = Some(Sweeper { waker: cx.waker().clone(), has_timer: next_end.is_some() });
        next_end
    }

    fn lock(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().expect("no holder panics")
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(formatter, "Pool({} idle)", self.lock().links.len())
    }
}

#[cfg(test)]
mod tests {
    use hyper::Request;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use url::Url;

    use super::super::link::AnswerBody;
    use super::super::upload::RequestBody;
    use super::*;

    fn route() -> Route {
        Route::To(Place::of(&Url::parse("http://a/").unwrap()).unwrap())
    }

    /// A pool with its sweeper asleep, and in it a connection with its other end.
    async fn with_one(patience: Duration) -> (Pool, DuplexStream) {
        let pool = Pool::new(patience);
        tokio::spawn(pool.clone().run_sweeper());
        tokio::task::yield_now().await;
        let (near, far) = duplex(1024);
        pool.put(route(), Link::open(Box::new(near)).await.unwrap());
        (pool, far)
    }

    async fn use_it(pool: &Pool, far: &mut DuplexStream) {
        let mut link = pool.take(&route()).expect("it waits");
        let answer = async {
            assert!(far.read(&mut [0; 1024]).await.unwrap() > 0);
            far.write_all(b"HTTP/1.1 204 No\r\n\r\n").await.unwrap();
        };
        let request = Request::get("/").body(RequestBody::None).unwrap();
        let (answered, ()) = tokio::join!(link.send(request), answer);
        let body = AnswerBody::new(link, answered.unwrap().into_body());
        pool.put(route(), body.into_link());
    }

    /// Waits until our end is closed.
    async fn closed(far: &mut DuplexStream) {
        let ended = tokio::time::timeout(Duration::from_secs(60), far.read(&mut [0])).await;
        assert_eq!(ended.expect("it is closed in time").unwrap(), 0);
    }

    #[tokio::test]
    async fn a_connection_that_has_waited_long_enough_is_closed() {
        let patience = Duration::from_millis(100);
        let (pool, mut far) = with_one(patience).await;
        let begun = Instant::now();
        closed(&mut far).await;
        assert!(begun.elapsed() >= patience / 2, "{:?}", begun.elapsed());
        assert!(pool.take(&route()).is_none());
    }

    #[tokio::test]
    async fn a_connection_that_the_other_side_closes_is_closed_at_once() {
        for uses in 0..3 {
            let (pool, mut far) = with_one(Duration::from_secs(3600)).await;
            for _ in 0..uses {
                use_it(&pool, &mut far).await;
            }
            far.shutdown().await.unwrap();
            closed(&mut far).await;
            assert!(pool.take(&route()).is_none(), "after {uses} uses");
        }
    }
}
