//! One statement for several requests: what arrives while a statement runs is asked together by the next one.
//!
//! A request that arrives alone is asked at once. Under load, round trips, transactions and syncs of the disk are shared.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::oneshot;

use super::pools::{Pools, STATEMENT_TIMEOUT};
use crate::store::{StoreError, StoreTimes};

/// Statements of one kind that run at the same time; one more than is being synced to disk.
const MOST_RUNNING: usize = 2;

/// Requests of one statement; bounds how long the first waits for the others.
const MOST_TOGETHER: usize = 256;

/// A statement that answers several requests.
pub trait Gathered: Send + Sync + 'static {
    /// What is asked.
    type Request: Send + Sync + 'static;
    /// The answer to one request.
    type Answer: Send + 'static;

    /// Name in metrics.
    const NAME: &'static str;

    /// Requests with the same key are asked by different statements, one after the other.
    fn key(_request: &Self::Request) -> Option<&str> {
        None
    }

    /// Asks all of them; the answers have the order of the requests.
    fn ask(
        pools: &Pools,
        requests: &[Self::Request],
    ) -> impl Future<Output = Result<Vec<Self::Answer>, StoreError>> + Send;
}

/// Gathers requests of one kind.
pub struct Gather<G: Gathered>(Arc<Shared<G>>);

struct Shared<G: Gathered> {
    pools: Arc<Pools>,
    times: StoreTimes,
    state: Mutex<State<G>>,
}

struct State<G: Gathered> {
    /// Bounded by the connections: each has one request at a time.
    waiting: VecDeque<Waiting<G>>,
    running: usize,
}

struct Waiting<G: Gathered> {
    request: G::Request,
    reply: oneshot::Sender<Result<G::Answer, StoreError>>,
}

impl<G: Gathered> Gather<G> {
    /// Starts without requests.
    pub fn new(pools: &Arc<Pools>, times: &StoreTimes) -> Self {
        let state = Mutex::new(State { waiting: VecDeque::new(), running: 0 });
        Self(Arc::new(Shared { pools: pools.clone(), times: times.clone(), state }))
    }

    /// Asks, together with others if the database is busy with earlier ones.
    pub async fn ask(&self, request: G::Request) -> Result<G::Answer, StoreError> {
        let asked = async {
            let (reply, answer) = oneshot::channel();
            if self.0.enter(Waiting { request, reply }) {
                tokio::spawn(run(self.0.clone()));
            }
            let patience = tokio::time::timeout(STATEMENT_TIMEOUT, answer).await;
            let answer = patience.map_err(|_| self.0.pools.silent(STATEMENT_TIMEOUT))?;
            answer.unwrap_or(Err(StoreError::NotAsked))
        };
        self.0.times.of(G::NAME, asked).await
    }
}

impl<G: Gathered> Shared<G> {
    fn state(&self) -> MutexGuard<'_, State<G>> {
        self.state.lock().expect("no holder panics")
    }

    /// Adds a request; returns whether the caller must start a runner.
    fn enter(&self, waiting: Waiting<G>) -> bool {
        let mut state = self.state();
        state.waiting.push_back(waiting);
        let is_free = state.running < MOST_RUNNING;
        state.running += usize::from(is_free);
        is_free
    }

    /// Requests for the next statement; none ends the runner, under the lock by which a new request would see it.
    fn next(&self) -> Option<Batch<G>> {
        let mut state = self.state();
        let (mut requests, mut replies) = (Vec::new(), Vec::new());
        let mut keys = BTreeSet::new();
        let mut held_back = VecDeque::new();
        while requests.len() < MOST_TOGETHER
            && let Some(waiting) = state.waiting.pop_front()
        {
            // The caller has stopped waiting, and nothing was asked yet.
            if waiting.reply.is_closed() {
                continue;
            }
            let key = G::key(&waiting.request).map(str::to_owned);
            if key.is_none_or(|key| keys.insert(key)) {
                requests.push(waiting.request);
                replies.push(waiting.reply);
            } else {
                held_back.push_back(waiting);
            }
        }
        held_back.append(&mut state.waiting);
        state.waiting = held_back;
        if requests.is_empty() {
            state.running -= 1;
            return None;
        }
        Some((requests, replies))
    }
}

type Batch<G> = (
    Vec<<G as Gathered>::Request>,
    Vec<oneshot::Sender<Result<<G as Gathered>::Answer, StoreError>>>,
);

/// Counts as a running statement, also if it panics.
struct Runner<G: Gathered> {
    shared: Arc<Shared<G>>,
    is_counted: bool,
}

impl<G: Gathered> Drop for Runner<G> {
    fn drop(&mut self) {
        if self.is_counted {
            self.shared.state().running -= 1;
        }
    }
}

/// Runs statements until nothing waits.
async fn run<G: Gathered>(shared: Arc<Shared<G>>) {
    let mut runner = Runner { shared, is_counted: true };
    let shared = runner.shared.clone();
    while let Some((requests, replies)) = shared.next() {
        shared.times.note_together(G::NAME, requests.len());
        match G::ask(&shared.pools, &requests).await {
            Ok(answers) => {
                for (reply, answer) in replies.into_iter().zip(answers) {
                    // The caller may have stopped waiting.
                    let _ = reply.send(Ok(answer));
                }
            }
            // One of them may be the cause; the others must not suffer.
            Err(StoreError::Unwritten(_)) if requests.len() > 1 => {
                for (request, reply) in requests.into_iter().zip(replies) {
                    if !reply.is_closed() {
                        let _ = reply.send(ask_alone::<G>(&shared.pools, request).await);
                    }
                }
            }
            Err(error) => {
                for reply in replies {
                    let _ = reply.send(Err(error.repeat()));
                }
            }
        }
    }
    runner.is_counted = false;
}

async fn ask_alone<G: Gathered>(
    pools: &Pools,
    request: G::Request,
) -> Result<G::Answer, StoreError> {
    G::ask(pools, &[request]).await?.pop().ok_or(StoreError::NotAsked)
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::*;

    /// Answers with the length of a name, once a permit is there; a statement with the name `bad` fails.
    struct Lengths;

    struct Name {
        text: &'static str,
        asked: Arc<Mutex<Vec<Vec<&'static str>>>>,
        permits: Arc<Semaphore>,
    }

    impl Gathered for Lengths {
        type Request = Name;
        type Answer = usize;

        const NAME: &'static str = "lengths";

        fn key(request: &Name) -> Option<&str> {
            Some(request.text)
        }

        async fn ask(_: &Pools, requests: &[Name]) -> Result<Vec<usize>, StoreError> {
            let names: Vec<&str> = requests.iter().map(|it| it.text).collect();
            requests[0].asked.lock().unwrap().push(names.clone());
            requests[0].permits.acquire().await.unwrap().forget();
            match names.contains(&"bad") {
                true => Err(StoreError::Unwritten("bad".into())),
                false => Ok(names.iter().map(|name| name.len()).collect()),
            }
        }
    }

    struct Fixture {
        gather: Gather<Lengths>,
        asked: Arc<Mutex<Vec<Vec<&'static str>>>>,
        permits: Arc<Semaphore>,
    }

    impl Fixture {
        /// With as many running statements as there may be.
        async fn busy() -> Self {
            let pools = Arc::new(Pools::new("postgres://user@localhost/none").unwrap());
            let gather = Gather::new(&pools, &StoreTimes::default());
            let permits = Arc::new(Semaphore::new(0));
            let fixture = Self { gather, asked: Arc::default(), permits };
            for (count, text) in ["first", "second"].into_iter().enumerate() {
                fixture.spawn(text);
                while fixture.asked().len() <= count {
                    tokio::task::yield_now().await;
                }
            }
            fixture
        }

        fn asked(&self) -> Vec<Vec<&'static str>> {
            self.asked.lock().unwrap().clone()
        }

        fn spawn(&self, text: &'static str) -> tokio::task::JoinHandle<Result<usize, StoreError>> {
            let (asked, permits) = (self.asked.clone(), self.permits.clone());
            let gather = Gather(self.gather.0.clone());
            tokio::spawn(async move { gather.ask(Name { text, asked, permits }).await })
        }

        async fn wait_for_waiting(&self, count: usize) {
            while self.gather.0.state().waiting.len() != count {
                tokio::task::yield_now().await;
            }
        }
    }

    #[tokio::test]
    async fn what_arrives_while_statements_run_is_asked_together_by_the_next() {
        let fixture = Fixture::busy().await;
        let mut answers = Vec::new();
        for (count, text) in ["a", "bb", "a", "ccc"].into_iter().enumerate() {
            answers.push(fixture.spawn(text));
            fixture.wait_for_waiting(count + 1).await;
        }
        fixture.permits.add_permits(10);
        let mut lengths = Vec::new();
        for answer in answers {
            lengths.push(answer.await.unwrap().unwrap());
        }
        assert_eq!(lengths, [1, 2, 1, 3]);
        // Requests with the same key are in different statements.
        assert_eq!(fixture.asked()[2..], [vec!["a", "bb", "ccc"], vec!["a"]]);
    }

    #[tokio::test]
    async fn a_request_that_fails_does_not_harm_the_others() {
        let fixture = Fixture::busy().await;
        let mut answers = Vec::new();
        for (count, text) in ["a", "bad", "ccc"].into_iter().enumerate() {
            answers.push(fixture.spawn(text));
            fixture.wait_for_waiting(count + 1).await;
        }
        fixture.permits.add_permits(10);
        let mut all = Vec::new();
        for answer in answers {
            all.push(answer.await.unwrap().ok());
        }
        assert_eq!(all, [Some(1), None, Some(3)]);
    }

    #[tokio::test]
    async fn a_request_that_its_caller_gives_up_is_not_asked() {
        let fixture = Fixture::busy().await;
        let given_up = fixture.spawn("given up");
        fixture.wait_for_waiting(1).await;
        given_up.abort();
        assert!(given_up.await.unwrap_err().is_cancelled());
        let answer = fixture.spawn("kept");
        fixture.wait_for_waiting(2).await;
        fixture.permits.add_permits(10);
        assert_eq!(answer.await.unwrap().unwrap(), 4);
        assert_eq!(fixture.asked()[2..], [vec!["kept"]]);
    }
}
