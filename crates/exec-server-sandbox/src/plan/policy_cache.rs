//! Cache of compiled policies of file requests, because a client sends the same policy with every request.
//!
//! A compiled policy depends only on its text and on facts that do not change while the server runs, so an entry is
//! never stale. The disk is inspected again for every request.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::policy::{FilePolicy, Policy, PolicyDigest};

use super::PlanError;

/// A compiled policy of file requests, with precomputed digest and paths.
#[derive(Debug)]
pub struct FilesPolicy {
    policy: Policy,
    digest: PolicyDigest,
    places: Vec<PathBuf>,
}

/// Least-recently-used cache of compiled policies.
#[derive(Debug, Default)]
pub struct PolicyCache {
    /// Most recent first.
    recent: Mutex<VecDeque<Known>>,
}

#[derive(Debug)]
struct Known {
    text: Box<str>,
    policy: Option<Arc<FilesPolicy>>,
}

/// A client uses one or two policies at a time; a longer list would be slow to search.
const MAX_KNOWN: usize = 32;
/// A longer text is compiled each time, which bounds the memory of the cache.
const MAX_TEXT_BYTES: usize = 64 * 1024;

impl FilesPolicy {
    /// Computes the digest and the paths once.
    pub fn new(policy: Policy) -> Self {
        let places = match &policy.files {
            FilePolicy::Restricted(rules) => {
                rules.places().into_iter().map(|(path, _)| path.to_owned()).collect()
            }
            FilePolicy::Unrestricted => Vec::new(),
        };
        Self { digest: policy.digest(), places, policy }
    }

    /// The compiled policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Equal for policies with the same meaning.
    pub fn digest(&self) -> &PolicyDigest {
        &self.digest
    }

    /// Every path in the rules of the policy.
    pub fn places(&self) -> impl Iterator<Item = &Path> {
        self.places.iter().map(PathBuf::as_path)
    }
}

impl PolicyCache {
    /// Returns the cached policy for this text, or compiles it.
    pub fn get(
        &self,
        text: &str,
        compile: impl FnOnce() -> Result<Option<Policy>, PlanError>,
    ) -> Result<Option<Arc<FilesPolicy>>, PlanError> {
        if let Some(policy) = self.find(text) {
            return Ok(policy);
        }
        let policy = compile()?.map(|policy| Arc::new(FilesPolicy::new(policy)));
        if text.len() <= MAX_TEXT_BYTES {
            let mut recent = self.recent.lock().expect("no holder panics");
            recent.push_front(Known { text: text.into(), policy: policy.clone() });
            recent.truncate(MAX_KNOWN);
        }
        Ok(policy)
    }

    fn find(&self, text: &str) -> Option<Option<Arc<FilesPolicy>>> {
        let mut recent = self.recent.lock().expect("no holder panics");
        let index = recent.iter().position(|known| *known.text == *text)?;
        if index > 0 {
            let known = recent.remove(index).expect("it was just found");
            recent.push_front(known);
        }
        Some(recent[0].policy.clone())
    }
}

#[cfg(test)]
mod tests {
    use exec_server_protocol::sandbox::Network;

    use super::*;

    fn unrestricted() -> Result<Option<Policy>, PlanError> {
        let files = FilePolicy::Unrestricted;
        Ok(Some(Policy { network: Network::Restricted, files }))
    }

    #[test]
    fn a_text_is_compiled_once_until_it_is_evicted() {
        let known = PolicyCache::default();
        let never = || unreachable!("it is known");
        let first = known.get("first", unrestricted).unwrap().unwrap();
        for number in 0..MAX_KNOWN * 2 {
            known.get(&format!("{number}"), unrestricted).unwrap();
            let again = known.get("first", never).unwrap().unwrap();
            assert!(Arc::ptr_eq(&first, &again));
        }
        assert_eq!(known.recent.lock().unwrap().len(), MAX_KNOWN);
        let again = known.get("0", unrestricted).unwrap().unwrap();
        assert!(!Arc::ptr_eq(&first, &again));
        assert!(known.get("none", || Ok(None)).unwrap().is_none());
        assert!(known.get("none", never).unwrap().is_none());
    }

    #[test]
    fn an_error_and_a_long_text_are_not_kept() {
        let known = PolicyCache::default();
        known.get("bad", || Err(PlanError::TooCostly)).unwrap_err();
        known.get(&"x".repeat(MAX_TEXT_BYTES + 1), unrestricted).unwrap();
        assert!(known.recent.lock().unwrap().is_empty());
    }
}
