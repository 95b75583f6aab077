//! The tools about files and the machine.

use std::time::Duration;

use exec_server_client::ExecServerError;
use exec_server_protocol::fs::{
    CaseMode, ChangeKind, FsEditParams, FsFindParams, FsReadFileParams, FsReadFileResponse,
    FsSearchFilter, FsSearchLimits, FsSearchParams, FsTextEdit, FsWriteFileParams, SandboxText,
};
use exec_server_protocol::methods::Method;
use serde_json::{Value, json};

use crate::Shared;
use crate::arguments::{
    EditFile, FileInfo, ListDirectory, Nothing, ReadFile, SearchFiles, WaitForChange, WriteFile,
};
use crate::call::{Answer, Arguments, ToolError};
use crate::lines::{Lines, Read};
use crate::paths::shown;

/// Lines of a file in one answer.
const DEFAULT_LINES: usize = 2000;
/// Larger files are read only as far as is asked for, and their lines are not counted.
const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;
/// Results of one search.
const DEFAULT_RESULTS: u64 = 200;
const MAX_RESULTS: u64 = 2000;
/// How long a search may take: clients give up after a minute.
const SEARCH_MS: u64 = 45_000;
const MAX_WAIT_MS: u64 = 50_000;

impl Shared {
    fn sandbox_text(&self) -> Option<SandboxText> {
        self.sandbox.as_ref().map(SandboxText::new)
    }

    pub async fn read_file(&self, arguments: Arguments<ReadFile>) -> Result<Answer, ToolError> {
        let arguments = arguments?;
        let path = self.paths.resolve(&arguments.path)?;
        let found = self.files.metadata(&path).await.map_err(about(&path))?;
        let start = arguments.start_line.unwrap_or(1).max(1);
        let most = arguments.max_lines.unwrap_or(DEFAULT_LINES);
        let mut lines = Lines::new(start, most, self.max_output);
        let (version, total) = if found.size > MAX_FILE_BYTES {
            let reading = self.read_large(&path, &mut lines);
            tokio::time::timeout(Duration::from_millis(SEARCH_MS), reading).await.map_err(|_| {
                ToolError(format!(
                    "{path} has {} bytes, and line {start} was not reached in {} s; use run_command with sed -n or tail",
                    found.size,
                    SEARCH_MS / 1000
                ))
            })??;
            (found.details.map(|details| details.version_tag), None)
        } else {
            let answer = self.read_whole(&path).await?;
            lines.push(&answer.data_base64.0);
            let text = std::str::from_utf8(&answer.data_base64.0).map_err(|_| not_text(&path))?;
            (answer.version_tag, Some(text.split_inclusive('\n').count()))
        };
        let Some(Read { text, end, is_cut, has_more }) = lines.finish() else {
            return Err(not_text(&path));
        };
        let data = json!({
            "path": path, "content": text, "start_line": start, "end_line": end,
            "total_lines": total, "version": version,
        });
        let note = match total {
            _ if is_cut => format!(
                "\n[line {start} does not fit into an answer: these are its first {} bytes; use run_command with cut -c for more]",
                text.len()
            ),
            Some(total) if has_more => {
                format!("\n[lines {start} to {end} of {total}; start_line {} shows more]", end + 1)
            }
            None if has_more => {
                format!("\n[lines {start} to {end}; start_line {} shows more]", end + 1)
            }
            _ => String::new(),
        };
        Ok(Answer::new(text + &note, &data))
    }

    async fn read_whole(&self, path: &str) -> Result<FsReadFileResponse, ToolError> {
        let params = FsReadFileParams {
            path: self.files.resolve(path).await?,
            follow_symlinks: None,
            sandbox: self.sandbox_text(),
            user: None,
            detailed: Some(true),
        };
        let answer = self.client.remote().call(Method::FsReadFile.name(), &params).await;
        answer.map_err(about(path))
    }

    /// Reads from the beginning until the lines are complete; the rest of the file is not read.
    async fn read_large(&self, path: &str, lines: &mut Lines) -> Result<(), ToolError> {
        let mut content = self.files.read_file_stream(path).await.map_err(about(path))?;
        while !lines.is_full()
            && let Some(block) = content.next_block().await.map_err(about(path))?
        {
            lines.push(&block);
        }
        Ok(())
    }

    pub async fn write_file(&self, arguments: Arguments<WriteFile>) -> Result<Answer, ToolError> {
        let arguments = arguments?;
        let path = self.paths.resolve(&arguments.path)?;
        if let Some((parent, _)) = path.rsplit_once('/').filter(|(parent, _)| !parent.is_empty()) {
            let parents = exec_server_client::Parents::Create;
            self.files.create_directory(parent, parents).await.map_err(about(parent))?;
        }
        let written = if arguments.append {
            if arguments.if_version.is_some() {
                return Err(ToolError("if_version does not go with append".to_owned()));
            }
            self.files.append(&path, arguments.content).await
        } else {
            let params = FsWriteFileParams {
                path: self.files.resolve(&path).await?,
                data_base64: arguments.content.into_bytes().into(),
                follow_symlinks: None,
                sandbox: self.sandbox_text(),
                user: None,
                durability: None,
                if_absent: None,
                if_match: arguments.if_version,
                detailed: Some(true),
                mode_bits: None,
                new_mode_bits: None,
                modified_at_ms: None,
            };
            self.files.write_file_with(params).await
        };
        let written = written.map_err(about(&path))?;
        let size = written.size.unwrap_or_default();
        let data = json!({"path": path, "size": size, "version": written.version_tag});
        Ok(Answer::new(format!("wrote {path} ({size} bytes)"), &data))
    }

    pub async fn edit_file(&self, arguments: Arguments<EditFile>) -> Result<Answer, ToolError> {
        let arguments = arguments?;
        let path = self.paths.resolve(&arguments.path)?;
        let edits = arguments.edits.into_iter().map(|edit| FsTextEdit {
            old: edit.old_text,
            new: edit.new_text,
            replace_all: edit.replace_all,
        });
        let params = FsEditParams {
            path: self.files.resolve(&path).await?,
            edits: edits.collect(),
            follow_symlinks: None,
            sandbox: self.sandbox_text(),
            user: None,
            durability: None,
            if_match: arguments.if_version,
            dry_run: arguments.dry_run,
        };
        let done = self.files.edit_with(params).await.map_err(|error| {
            let nearest = error.edit_mismatch().and_then(|mismatch| mismatch.nearest.clone());
            let ToolError(mut text) = about(&path)(error);
            if let Some(nearest) = nearest {
                text.push_str(&format!("\nline {} reads:\n{}", nearest.line, nearest.text));
            }
            ToolError(text)
        })?;
        let lines: Vec<u64> = done.edits.iter().map(|edit| edit.line).collect();
        let count: u64 = done.edits.iter().map(|edit| edit.replacements).sum();
        let did = if arguments.dry_run { "would replace" } else { "replaced" };
        let data = json!({
            "path": path, "replacements": count, "lines": lines, "size": done.size,
            "version": done.version_tag,
        });
        Ok(Answer::new(format!("{did} {count} in {path}, first at lines {lines:?}"), &data))
    }

    pub async fn list_directory(
        &self,
        arguments: Arguments<ListDirectory>,
    ) -> Result<Answer, ToolError> {
        let arguments = arguments?;
        let path = self.paths.resolve(arguments.path.as_deref().unwrap_or("."))?;
        let params = FsFindParams {
            path: self.files.resolve(&path).await?,
            patterns: Vec::new(),
            sandbox: None,
            user: None,
            case: CaseMode::Sensitive,
            kinds: Vec::new(),
            detailed: true,
            filter: FsSearchFilter {
                hidden: true,
                ignore: false,
                max_depth: Some(arguments.depth.unwrap_or(1).max(1)),
                ..FsSearchFilter::default()
            },
            limits: limits(MAX_RESULTS),
            search_id: None,
        };
        let (mut entries, mut is_complete) = self.find(params, &path).await?;
        let line = |entry: &Value| {
            let mark = if entry["kind"] == "directory" { "/" } else { "" };
            format!("{}{mark}\n", entry["path"].as_str().unwrap_or_default())
        };
        let (mut text, mut shown) = (String::new(), 0);
        for line in entries.iter().map(line) {
            if text.len() + line.len() > self.max_output {
                is_complete = false;
                break;
            }
            text.push_str(&line);
            shown += 1;
        }
        entries.truncate(shown);
        if !is_complete {
            text.push_str(
                "[there is more; list a directory below, or use search_files with a glob]\n",
            );
        }
        Ok(Answer::new(text, &json!({"path": path, "entries": entries, "complete": is_complete})))
    }

    /// Entries below a path, sorted.
    async fn find(
        &self,
        params: FsFindParams,
        path: &str,
    ) -> Result<(Vec<Value>, bool), ToolError> {
        let mut pages = self.files.find(params).await.map_err(about(path))?;
        let (mut entries, mut is_complete) = (Vec::new(), true);
        while let Some(page) = pages.next_page().await.map_err(about(path))? {
            is_complete &= page.state.incomplete.is_none();
            entries.extend(page.entries);
        }
        entries.sort_by(|a, b| a.path.as_str().cmp(b.path.as_str()));
        let entry = |entry: &exec_server_protocol::fs::FsFoundEntry| {
            json!({
                "path": shown(&entry.path), "kind": entry.kind, "size": entry.size,
                "modified_at_ms": entry.modified_at_ms,
            })
        };
        Ok((entries.iter().map(entry).collect(), is_complete))
    }

    pub async fn search_files(
        &self,
        arguments: Arguments<SearchFiles>,
    ) -> Result<Answer, ToolError> {
        let arguments = arguments?;
        let path = self.paths.resolve(arguments.path.as_deref().unwrap_or("."))?;
        let most = arguments.max_results.unwrap_or(DEFAULT_RESULTS).clamp(1, MAX_RESULTS);
        let case = if arguments.ignore_case { CaseMode::Insensitive } else { CaseMode::Sensitive };
        let mut filter =
            FsSearchFilter { hidden: arguments.include_hidden, ..FsSearchFilter::default() };
        let Some(pattern) = arguments.pattern else {
            let Some(glob) = arguments.glob else {
                return Err(ToolError(
                    "give `pattern` to search in files, or `glob` to search for names".to_owned(),
                ));
            };
            let params = FsFindParams {
                path: self.files.resolve(&path).await?,
                patterns: vec![glob],
                sandbox: None,
                user: None,
                case,
                kinds: Vec::new(),
                detailed: true,
                filter,
                limits: limits(most),
                search_id: None,
            };
            let (files, is_complete) = self.find(params, &path).await?;
            let line = |file: &Value| format!("{}\n", file["path"].as_str().unwrap_or_default());
            let text: String = files.iter().map(line).collect();
            let data = json!({"matches": [], "files": files, "complete": is_complete});
            return Ok(Answer::new(found(text, is_complete), &data));
        };
        filter.globs = arguments.glob.into_iter().collect();
        let params = FsSearchParams {
            path: self.files.resolve(&path).await?,
            pattern,
            sandbox: None,
            user: None,
            literal: arguments.literal,
            case,
            word: false,
            before: arguments.context_lines,
            after: arguments.context_lines,
            files_only: false,
            binary: exec_server_protocol::fs::BinaryFiles::Skip,
            filter,
            limits: limits(most),
            search_id: None,
        };
        let mut pages = self.files.search(params).await.map_err(about(&path))?;
        let (mut matches, mut is_complete) = (Vec::new(), true);
        while let Some(page) = pages.next_page().await.map_err(about(&path))? {
            is_complete &= page.state.incomplete.is_none();
            matches.extend(page.matches);
        }
        matches.sort_by(|a, b| (a.path.as_str(), a.line).cmp(&(b.path.as_str(), b.line)));
        let (mut text, mut data) = (String::new(), Vec::new());
        for found in &matches {
            if text.len() > self.max_output {
                is_complete = false;
                break;
            }
            let path = shown(&found.path);
            for (number, line) in
                (found.line.saturating_sub(found.before.len() as u64)..).zip(&found.before)
            {
                text.push_str(&format!("{path}-{number}-{line}\n"));
            }
            text.push_str(&format!("{path}:{}:{}\n", found.line, found.text));
            for (number, line) in (found.line + 1..).zip(&found.after) {
                text.push_str(&format!("{path}-{number}-{line}\n"));
            }
            data.push(json!({"path": path, "line": found.line, "text": found.text}));
        }
        let data = json!({"matches": data, "files": [], "complete": is_complete});
        Ok(Answer::new(found(text, is_complete), &data))
    }

    pub async fn file_info(&self, arguments: Arguments<FileInfo>) -> Result<Answer, ToolError> {
        let path = self.paths.resolve(&arguments?.path)?;
        let found = self.files.metadata(&path).await.map_err(about(&path))?;
        let kind = match (found.is_directory, found.is_file) {
            (true, _) => "directory",
            (_, true) => "file",
            _ => "other",
        };
        let details = found.details.as_ref();
        let data = json!({
            "path": path, "kind": kind, "size": found.size, "is_symlink": found.is_symlink,
            "modified_at_ms": found.modified_at_ms,
            "mode": details.map(|details| format!("{:o}", details.mode)),
            "owner": details.and_then(|details| details.owner_name.clone()),
            "version": details.map(|details| details.version_tag.clone()),
        });
        Ok(Answer::new(format!("{path}: {kind}, {} bytes", found.size), &data))
    }

    pub async fn wait_for_change(
        &self,
        arguments: Arguments<WaitForChange>,
    ) -> Result<Answer, ToolError> {
        let arguments = arguments?;
        let path = self.paths.resolve(&arguments.path)?;
        let mut watch = self.files.watch(&path, arguments.recursive).await.map_err(about(&path))?;
        let wait = Duration::from_millis(arguments.wait_ms.unwrap_or(10_000).min(MAX_WAIT_MS));
        let changes = match tokio::time::timeout(wait, watch.next()).await {
            Ok(changes) => changes.map_err(about(&path))?.unwrap_or_default(),
            Err(_) => Vec::new(),
        };
        let change = |change: &exec_server_protocol::fs::FsChange| {
            let from = change.from.as_ref().map(shown);
            json!({"kind": change.kind, "path": shown(&change.path), "from": from})
        };
        let line = |change: &exec_server_protocol::fs::FsChange| match change.kind {
            ChangeKind::Rescan => format!("look again at {}\n", shown(&change.path)),
            kind => format!("{kind:?} {}\n", shown(&change.path)),
        };
        let text: String = changes.iter().map(line).collect();
        let text = if text.is_empty() { "nothing has changed".to_owned() } else { text };
        let changes: Vec<Value> = changes.iter().map(change).collect();
        Ok(Answer::new(text, &json!({ "changes": changes })))
    }

    pub fn machine_info(&self, arguments: Arguments<Nothing>) -> Result<Answer, ToolError> {
        let Nothing {} = arguments?;
        let info = self.info.as_ref();
        let host = info.and_then(|info| info.host.clone()).unwrap_or_default();
        let data = json!({
            "name": host.name, "system": info.and_then(|info| info.platform_os.clone()),
            "kernel": host.kernel, "architecture": host.architecture, "user": host.user,
            "cpus": host.cpus, "memory_bytes": host.memory_bytes, "shell": self.shell,
            "working_directory": self.paths.base(),
            "home": info.and_then(|info| info.user_home_dir.as_ref()).map(shown),
        });
        Ok(Answer::new(serde_json::to_string_pretty(&data).expect("plain data"), &data))
    }
}

fn not_text(path: &str) -> ToolError {
    ToolError(format!(
        "{path} is not UTF-8 text; use run_command with file, xxd or a program for its format"
    ))
}

fn limits(max_matches: u64) -> FsSearchLimits {
    FsSearchLimits {
        max_matches: Some(max_matches),
        max_bytes: None,
        timeout_ms: Some(SEARCH_MS),
        page_size: None,
    }
}

fn found(text: String, is_complete: bool) -> String {
    match (text.is_empty(), is_complete) {
        (true, true) => "nothing was found".to_owned(),
        (_, true) => text,
        (_, false) => text + "[there is more; narrow the search, or raise max_results]\n",
    }
}

/// Adds the path to an error of the server, and what to do next.
fn about(path: &str) -> impl Fn(ExecServerError) -> ToolError {
    let path = path.to_owned();
    move |error| {
        let hint = match error.kind() {
            Some("not_found") => "; list_directory shows what is there",
            Some("version_mismatch") => {
                "; it has changed since it was read: read it again, then retry"
            }
            _ => "",
        };
        ToolError(format!("{path}: {error}{hint}"))
    }
}
