//! Decodes the params of `fs/search` and `fs/find`.

use std::path::PathBuf;
use std::time::Duration;

use exec_server_fs::local_path;
use exec_server_fs::search::{ContentQuery, NameQuery, Query, SearchLimits, SearchSpec};
use exec_server_protocol::fs::{FsFindParams, FsSearchFilter, FsSearchLimits, FsSearchParams};
use exec_server_protocol::limits::{
    DEFAULT_PAGE_SIZE, DEFAULT_SEARCH_MS, MAX_CONTEXT_LINES, MAX_PAGE_BYTES, MAX_PAGE_SIZE,
    MAX_PATTERN_BYTES, MAX_SEARCH_GLOBS, MAX_SEARCH_ID_BYTES, MAX_SEARCH_MS,
};
use exec_server_protocol::params::Scoped;

use super::Scope;
use super::request::Decoder;
use super::search::SearchCall;
use crate::errors::RequestError;

impl Decoder<'_> {
    pub(super) fn search(&self, mut params: FsSearchParams) -> Result<SearchCall, RequestError> {
        if params.pattern.len() > MAX_PATTERN_BYTES {
            return wrong(format!("pattern must not exceed {MAX_PATTERN_BYTES} bytes"));
        }
        let lines = |lines: u64| match usize::try_from(lines) {
            Ok(count) if lines <= MAX_CONTEXT_LINES => Ok(count),
            _ => wrong(format!("at most {MAX_CONTEXT_LINES} lines of context are given")),
        };
        let query = ContentQuery {
            pattern: std::mem::take(&mut params.pattern),
            literal: params.literal,
            case: params.case,
            word: params.word,
            before: lines(params.before)?,
            after: lines(params.after)?,
            files_only: params.files_only,
            binary: params.binary,
        };
        let scope = self.scope(params.take_scope())?;
        let root = local_path(&params.path, self.native)?;
        call(Query::Content(query), root, scope, params.filter, &params.limits, params.search_id)
    }

    pub(super) fn find(&self, mut params: FsFindParams) -> Result<SearchCall, RequestError> {
        check_globs(&params.patterns)?;
        let query = Query::Names(NameQuery {
            patterns: std::mem::take(&mut params.patterns),
            case: params.case,
            kinds: std::mem::take(&mut params.kinds),
            detailed: params.detailed,
        });
        let scope = self.scope(params.take_scope())?;
        let root = local_path(&params.path, self.native)?;
        call(query, root, scope, params.filter, &params.limits, params.search_id)
    }
}

fn call(
    query: Query,
    root: PathBuf,
    scope: Scope,
    filter: FsSearchFilter,
    wanted: &FsSearchLimits,
    id: Option<String>,
) -> Result<SearchCall, RequestError> {
    if id.as_ref().is_some_and(|id| id.len() > MAX_SEARCH_ID_BYTES) {
        return wrong(format!("searchId must not exceed {MAX_SEARCH_ID_BYTES} bytes"));
    }
    check_globs(&filter.globs)?;
    check_globs(&filter.types)?;
    let limits = limits(wanted, id.is_some())?;
    Ok(SearchCall { id, spec: SearchSpec { root, query, filter, limits }, scope })
}

fn check_globs(globs: &[String]) -> Result<(), RequestError> {
    let bytes: usize = globs.iter().map(String::len).sum();
    if globs.len() > MAX_SEARCH_GLOBS || bytes > MAX_PATTERN_BYTES {
        return wrong(format!(
            "a search takes up to {MAX_SEARCH_GLOBS} globs of together {MAX_PATTERN_BYTES} bytes"
        ));
    }
    Ok(())
}

/// Without pages, the limits of one page are those of the search.
fn limits(wanted: &FsSearchLimits, has_pages: bool) -> Result<SearchLimits, RequestError> {
    if wanted.page_size == Some(0) {
        return wrong("pageSize must not be zero".to_owned());
    }
    let size = |size: u64| usize::try_from(size).unwrap_or(usize::MAX).min(MAX_PAGE_SIZE);
    let page_size = match (wanted.page_size, wanted.max_matches) {
        (Some(wanted), _) => size(wanted),
        // A client that asks for more than the default without pages wants them at once.
        (None, Some(most)) if !has_pages => size(most),
        (None, _) => DEFAULT_PAGE_SIZE,
    };
    let (mut max_matches, mut max_bytes) = (u64::MAX, u64::MAX);
    if !has_pages {
        (max_matches, max_bytes) = (page_size as u64, MAX_PAGE_BYTES as u64);
    }
    let timeout = wanted.timeout_ms.unwrap_or(DEFAULT_SEARCH_MS).min(MAX_SEARCH_MS);
    Ok(SearchLimits {
        max_matches: max_matches.min(wanted.max_matches.unwrap_or(u64::MAX)),
        max_bytes: max_bytes.min(wanted.max_bytes.unwrap_or(u64::MAX)),
        page_size: page_size.max(1),
        timeout: Duration::from_millis(timeout),
    })
}

fn wrong<T>(reason: String) -> Result<T, RequestError> {
    Err(RequestError::InvalidParams(reason))
}
