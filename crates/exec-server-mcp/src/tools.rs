//! The table of tools: names, descriptions, schemas and hints.

use std::sync::Arc;

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

use crate::{McpError, McpOptions};

/// What a tool does to the machine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// It only looks.
    Reads,
    /// It changes what it names, and can destroy it.
    Changes,
    /// It runs a program, which can do anything.
    Runs,
}

/// The tools that the options leave, in the order of the table.
pub fn selected(options: &McpOptions) -> Result<Vec<Tool>, McpError> {
    let all = table();
    if let Some(allowed) = &options.allow {
        let names: Vec<&str> = all.iter().map(|(tool, _)| &*tool.name).collect();
        if let Some(unknown) = allowed.iter().find(|name| !names.contains(&name.as_str())) {
            return Err(McpError::UnknownTool(unknown.clone(), names.join(", ")));
        }
    }
    let is_selected = |tool: &Tool, effect: Effect| {
        let is_allowed =
            options.allow.as_ref().is_none_or(|it| it.iter().any(|name| *name == tool.name));
        let is_harmless = effect == Effect::Reads || !options.read_only;
        is_allowed && is_harmless
    };
    Ok(all
        .into_iter()
        .filter(|(tool, effect)| is_selected(tool, *effect))
        .map(|(tool, _)| tool)
        .collect())
}

fn table() -> Vec<(Tool, Effect)> {
    let process =
        json!({"type": "string", "description": "The process_id that run_command returned."});
    let path =
        json!({"type": "string", "description": "Absolute, or relative to the working directory."});
    let version = json!({"type": "string", "description": "Fails if the file no longer has this version, as read_file returned it."});
    let report = json!({
        "process_id": {"type": "string"}, "running": {"type": "boolean"}, "exit_code": {"type": "integer"},
        "signal": {"type": "string"}, "failure": {"type": "string"}, "output": {"type": "string"},
        "total_bytes": {"type": "integer"}, "omitted_bytes": {"type": "integer"}, "next_offset": {"type": "integer"},
        "all_available": {"type": "boolean"},
    });
    let report_needs = ["process_id", "running", "output", "total_bytes"];
    let optional = |kind: &str| json!({"type": [kind, "null"]});
    let entries = json!({"type": "array", "items": {"type": "object"}});
    vec![
        tool(
            "run_command",
            "Run a shell command. Returns its output (stdout and stderr together) and exit code if it ends within yield_ms; \
             otherwise it goes on in the background, and read_output, write_input and stop_process take its process_id.",
            Effect::Runs,
            json!({
                "command": {"type": "string", "description": "A command line for the shell."},
                "cwd": {"type": "string", "description": "The working directory."},
                "env": {"type": "object", "additionalProperties": {"type": "string"}, "description": "Further environment variables."},
                "stdin": {"type": "boolean", "description": "Keep stdin open for write_input; without it the command reads end of input."},
                "tty": {"type": "boolean", "description": "Run in a terminal of 24 by 80."},
                "yield_ms": {"type": "integer", "minimum": 0, "maximum": 50000, "description": "How long to wait for the end; default 10000."},
                "timeout_ms": {"type": "integer", "minimum": 1, "description": "End the command and all that it started after this time."},
            }),
            &["command"],
            &report,
            &report_needs,
        ),
        tool(
            "read_output",
            "Read the output of a command that runs or has ended, from any byte offset; a negative offset counts from the end.",
            Effect::Reads,
            json!({
                "process_id": process,
                "offset": {"type": "integer", "description": "Byte offset; without it the beginning and the end are shown."},
                "max_bytes": {"type": "integer", "minimum": 1},
                "wait_ms": {"type": "integer", "minimum": 0, "maximum": 50000, "description": "Wait this long for the end, or for output after offset."},
            }),
            &["process_id"],
            &report,
            &report_needs,
        ),
        tool(
            "write_input",
            "Write text to the stdin of a command that was started with stdin or tty, and return the output that follows.",
            Effect::Runs,
            json!({
                "process_id": process,
                "text": {"type": "string", "description": "Written as it is; end a line with \\n."},
                "close": {"type": "boolean", "description": "Close stdin afterwards."},
                "yield_ms": {"type": "integer", "minimum": 0, "maximum": 50000, "description": "How long to wait for output; default 1000."},
            }),
            &["process_id"],
            &report,
            &report_needs,
        ),
        tool(
            "stop_process",
            "End a command and everything that it started, or interrupt it as Ctrl-C does.",
            Effect::Runs,
            json!({
                "process_id": process,
                "signal": {"type": "string", "enum": ["interrupt", "terminate", "kill"], "description": "Default terminate: SIGTERM, then SIGKILL."},
            }),
            &["process_id"],
            &report,
            &report_needs,
        ),
        tool(
            "list_processes",
            "List the commands that run_command has started, also those that have ended.",
            Effect::Reads,
            json!({}),
            &[],
            &json!({"processes": entries}),
            &["processes"],
        ),
        tool(
            "read_file",
            "Read lines of a text file. The version in the answer can be given to write_file and edit_file.",
            Effect::Reads,
            json!({
                "path": path,
                "start_line": {"type": "integer", "minimum": 1, "description": "The first line, from 1."},
                "max_lines": {"type": "integer", "minimum": 1, "description": "Default 2000."},
            }),
            &["path"],
            &json!({
                "path": {"type": "string"}, "content": {"type": "string"}, "start_line": {"type": "integer"},
                "end_line": {"type": "integer"}, "total_lines": optional("integer"), "version": optional("string"),
            }),
            &["path", "content", "total_lines"],
        ),
        tool(
            "write_file",
            "Write a whole text file, or append to one; missing directories are made. The content appears at once or not at all.",
            Effect::Changes,
            json!({
                "path": path,
                "content": {"type": "string"},
                "append": {"type": "boolean", "description": "Add to the end instead of replacing."},
                "if_version": version,
            }),
            &["path", "content"],
            &json!({"path": {"type": "string"}, "size": {"type": "integer"}, "version": optional("string")}),
            &["path", "size"],
        ),
        tool(
            "edit_file",
            "Replace pieces of text in a file, all or none. Each old_text must be exact and occur once, unless replace_all is set; \
             otherwise nothing is changed, and the error says how often it occurs or where the most similar text is.",
            Effect::Changes,
            json!({
                "path": path,
                "edits": {"type": "array", "minItems": 1, "items": {
                    "type": "object", "additionalProperties": false, "required": ["old_text", "new_text"],
                    "properties": {
                        "old_text": {"type": "string", "minLength": 1}, "new_text": {"type": "string"},
                        "replace_all": {"type": "boolean"},
                    },
                }},
                "if_version": version,
                "dry_run": {"type": "boolean", "description": "Only try the edits."},
            }),
            &["path", "edits"],
            &json!({
                "path": {"type": "string"}, "replacements": {"type": "integer"}, "size": {"type": "integer"},
                "lines": {"type": "array", "items": {"type": "integer"}}, "version": optional("string"),
            }),
            &["path", "replacements"],
        ),
        tool(
            "list_directory",
            "List files and directories with their sizes, also hidden and ignored ones.",
            Effect::Reads,
            json!({
                "path": {"type": "string", "description": "Default: the working directory."},
                "depth": {"type": "integer", "minimum": 1, "description": "Levels; default 1."},
            }),
            &[],
            &json!({"path": {"type": "string"}, "entries": entries, "complete": {"type": "boolean"}}),
            &["path", "entries", "complete"],
        ),
        tool(
            "search_files",
            "Search in files by a regular expression (pattern), or for names by a glob. Leaves out what .gitignore names.",
            Effect::Reads,
            json!({
                "path": {"type": "string", "description": "A directory or a file; default: the working directory."},
                "pattern": {"type": "string", "description": "A regular expression, matched within lines."},
                "glob": {"type": "string", "description": "With pattern: only these files. Alone: names such as *.rs or src/**/*.md."},
                "literal": {"type": "boolean", "description": "The pattern is plain text."},
                "ignore_case": {"type": "boolean"},
                "context_lines": {"type": "integer", "minimum": 0, "maximum": 100},
                "include_hidden": {"type": "boolean"},
                "max_results": {"type": "integer", "minimum": 1, "maximum": 2000, "description": "Default 200."},
            }),
            &[],
            &json!({"matches": entries, "files": entries, "complete": {"type": "boolean"}}),
            &["matches", "files", "complete"],
        ),
        tool(
            "file_info",
            "Show the kind, size, mode, owner, times and version of a path.",
            Effect::Reads,
            json!({"path": path}),
            &["path"],
            &json!({
                "path": {"type": "string"}, "kind": {"type": "string"}, "size": {"type": "integer"},
                "is_symlink": {"type": "boolean"}, "modified_at_ms": {"type": "integer"}, "mode": optional("string"),
                "owner": optional("string"), "version": optional("string"),
            }),
            &["path", "kind", "size"],
        ),
        tool(
            "wait_for_change",
            "Wait until a file or directory changes, and return the changes.",
            Effect::Reads,
            json!({
                "path": path,
                "recursive": {"type": "boolean", "description": "Also everything below a directory."},
                "wait_ms": {"type": "integer", "minimum": 0, "maximum": 50000, "description": "Default 10000."},
            }),
            &["path"],
            &json!({"changes": entries}),
            &["changes"],
        ),
        tool(
            "machine_info",
            "Show the machine that the other tools work on: system, user, processors, memory, shell, working directory.",
            Effect::Reads,
            json!({}),
            &[],
            &json!({
                "name": optional("string"), "system": optional("string"), "kernel": optional("string"),
                "architecture": optional("string"), "user": optional("string"), "cpus": optional("integer"),
                "memory_bytes": optional("integer"), "shell": {"type": "string"},
                "working_directory": {"type": "string"}, "home": optional("string"),
            }),
            &["shell", "working_directory"],
        ),
    ]
}

fn tool(
    name: &'static str,
    description: &'static str,
    effect: Effect,
    input: Value,
    input_needs: &[&str],
    output: &Value,
    output_needs: &[&str],
) -> (Tool, Effect) {
    let input = object(json!({
        "type": "object", "properties": input, "required": input_needs, "additionalProperties": false,
    }));
    let output = object(json!({"type": "object", "properties": output, "required": output_needs}));
    let annotations = ToolAnnotations::new()
        .read_only(effect == Effect::Reads)
        .destructive(effect != Effect::Reads)
        .idempotent(effect == Effect::Reads)
        .open_world(effect == Effect::Runs);
    let tool = Tool::new(name, description, Arc::new(input))
        .with_raw_output_schema(Arc::new(output))
        .with_annotations(annotations);
    (tool, effect)
}

fn object(value: Value) -> JsonObject {
    match value {
        Value::Object(object) => object,
        _ => unreachable!("schemas are objects"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(options: &McpOptions) -> Vec<String> {
        selected(options).unwrap().iter().map(|tool| tool.name.to_string()).collect()
    }

    #[test]
    fn options_leave_tools_out() {
        assert_eq!(names(&McpOptions::default()).len(), 13);
        let read_only = McpOptions { read_only: true, ..McpOptions::default() };
        let harmless = names(&read_only);
        assert!(harmless.contains(&"read_file".to_owned()));
        for name in ["run_command", "write_input", "stop_process", "write_file", "edit_file"] {
            assert!(!harmless.contains(&name.to_owned()), "{name}");
        }
        let allow = |names: &[&str]| McpOptions {
            allow: Some(names.iter().map(|name| (*name).to_owned()).collect()),
            ..McpOptions::default()
        };
        assert_eq!(names(&allow(&["read_file", "run_command"])), ["run_command", "read_file"]);
        assert!(matches!(selected(&allow(&["no"])), Err(McpError::UnknownTool(..))));
    }
}
