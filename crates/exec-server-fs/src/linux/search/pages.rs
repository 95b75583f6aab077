//! Divides what a search finds into pages, within the limits of the request.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use exec_server_protocol::fs::{FsFindPage, FsSearchPage, FsSearchState, Incomplete};
use exec_server_protocol::limits::MAX_PAGE_BYTES;

use super::queue::{Item, Popped, Shared};
use crate::search::{PageText, Query, SearchLimits, SearchSpec};

/// A page that has something is not held back longer, so that a slow search shows results.
const PATIENCE: Duration = Duration::from_millis(500);

/// The reader's side of a search.
#[derive(Debug)]
pub struct Pager {
    limits: SearchLimits,
    is_content: bool,
    waiting: VecDeque<Item>,
    matches: u64,
    bytes: u64,
}

impl Pager {
    pub fn new(spec: &SearchSpec) -> Self {
        Self {
            limits: spec.limits.clone(),
            is_content: matches!(spec.query, Query::Content(_)),
            waiting: VecDeque::new(),
            matches: 0,
            bytes: 0,
        }
    }

    /// Collects a page, and waits for more while it is not full.
    pub fn next_page(&mut self, shared: &Shared) -> PageText {
        let patience = Instant::now() + PATIENCE;
        let (mut items, mut page_bytes) = (Vec::new(), 0);
        let end = loop {
            let Some(next) = self.waiting.pop_front() else {
                let until = if items.is_empty() { shared.deadline } else { patience };
                match shared.pop(until) {
                    Popped::Items(items) => self.waiting.extend(items),
                    Popped::Finished if shared.is_over() => break self.when_over(shared),
                    Popped::Finished => break End::Complete,
                    Popped::Late if shared.is_over() => break self.when_over(shared),
                    Popped::Late => break End::More,
                }
                continue;
            };
            if items.len() >= self.limits.page_size || page_bytes >= MAX_PAGE_BYTES {
                self.waiting.push_front(next);
                break End::More;
            }
            if self.matches >= self.limits.max_matches {
                break End::Incomplete(Incomplete::MaxMatches);
            }
            let weight = next.weight();
            if self.bytes + weight as u64 > self.limits.max_bytes {
                break End::Incomplete(Incomplete::MaxBytes);
            }
            self.matches += 1;
            self.bytes += weight as u64;
            page_bytes += weight;
            items.push(next);
            // A client that wants no more than this need not wait for the rest of the tree.
            if self.matches >= self.limits.max_matches {
                let is_all = self.waiting.is_empty() && shared.is_finished() && !shared.is_over();
                break if is_all { End::Complete } else { End::Incomplete(Incomplete::MaxMatches) };
            }
        };
        if !matches!(end, End::More) {
            shared.cancel();
        }
        self.write(items, end, shared)
    }

    /// The threads have stopped before the end of the tree, unless they had just reached it.
    fn when_over(&self, shared: &Shared) -> End {
        if shared.is_finished() && Instant::now() < shared.deadline {
            return End::Complete;
        }
        End::Incomplete(Incomplete::Timeout)
    }

    fn write(&self, items: Vec<Item>, end: End, shared: &Shared) -> PageText {
        let (errors, error_count) = shared.take_errors();
        let state = FsSearchState {
            done: !matches!(end, End::More),
            incomplete: if let End::Incomplete(why) = end { Some(why) } else { None },
            visited: shared.visited.load(Ordering::Relaxed),
            binary_files: shared.binary.load(Ordering::Relaxed),
            errors,
            error_count,
        };
        let done = state.done;
        let text = if self.is_content {
            let mut page = FsSearchPage { state, ..FsSearchPage::default() };
            for item in items {
                match item {
                    Item::Match(found) => page.matches.push(*found),
                    Item::File(path) => page.files.push(path),
                    Item::Binary(path) => page.binary_matches.push(path),
                    Item::Entry(_) => unreachable!("a search of content finds no entries"),
                }
            }
            serde_json::to_string(&page)
        } else {
            let entry = |item| match item {
                Item::Entry(entry) => entry,
                _ => unreachable!("a search of names finds only entries"),
            };
            let entries = items.into_iter().map(entry).collect();
            serde_json::to_string(&FsFindPage { entries, state })
        };
        PageText { text: text.expect("plain data can be written"), done }
    }
}

/// How a page ends.
enum End {
    More,
    Complete,
    Incomplete(Incomplete),
}
