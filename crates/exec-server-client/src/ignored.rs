//! Reports request members that a server ignored, such as a server that is older than this client.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex};

use serde::Deserialize;

use crate::call::Reply;

/// A callback for the members of a method's params that a server ignored.
#[derive(Clone)]
pub struct IgnoredListener(Arc<Callback>);

type Callback = dyn Fn(&str, &[String]) + Send + Sync;

impl IgnoredListener {
    /// Calls `callback(method, members)` once for each method and list of members of a connection.
    pub fn new(callback: impl Fn(&str, &[String]) + Send + Sync + 'static) -> Self {
        Self(Arc::new(callback))
    }
}

impl fmt::Debug for IgnoredListener {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("IgnoredListener")
    }
}

/// The reports of one connection, so that each is made once.
#[derive(Default)]
pub(crate) struct IgnoredMembers {
    listener: Option<IgnoredListener>,
    told: Mutex<HashSet<(&'static str, Vec<String>)>>,
}

impl IgnoredMembers {
    pub(crate) fn new(listener: Option<IgnoredListener>) -> Self {
        Self { listener, told: Mutex::default() }
    }

    /// Reports the ignored members that a reply lists, once per method and list.
    pub(crate) fn check(&self, method: &'static str, reply: &Reply) {
        let Some(members) = ignored(reply.text()) else { return };
        let is_new = {
            let mut told = self.told.lock().expect("no holder panics");
            told.len() < MAX_REPORTED && told.insert((method, members.clone()))
        };
        if !is_new {
            return;
        }
        tracing::warn!(method, ?members, "the server ignored members that it does not know");
        if let Some(IgnoredListener(callback)) = &self.listener {
            callback(method, &members);
        }
    }
}

/// Bounds the memory for reports, because a server could send another list with each reply.
const MAX_REPORTED: usize = 256;

/// Larger results are parsed only if the list can be their last member, where servers put it.
const SMALL_BYTES: usize = 64 * 1024;

fn ignored(result: &str) -> Option<Vec<String>> {
    #[derive(Deserialize)]
    struct Ignored {
        ignored: Vec<String>,
    }
    let may_have = result.len() <= SMALL_BYTES || result.ends_with("]}");
    if !may_have || !result.contains("\"ignored\":[") {
        return None;
    }
    let members = serde_json::from_str::<Ignored>(result).ok()?.ignored;
    (!members.is_empty()).then_some(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_list_of_the_result_itself_counts() {
        let found = |text: &str| ignored(text).unwrap_or_default();
        assert_eq!(found(r#"{"ignored":["a","b.c"]}"#), ["a", "b.c"]);
        assert_eq!(found(r#"{"processId":"p","ignored":["a"]}"#), ["a"]);
        for none in [
            "{}",
            "null",
            r#"{"ignored":[]}"#,
            r#"{"entries":[{"ignored":["a"]}]}"#,
            r#"{"text":"\"ignored\":[","x":[1]}"#,
        ] {
            assert!(found(none).is_empty(), "{none}");
        }
    }
}
