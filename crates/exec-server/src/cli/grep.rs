//! `grep`: searches the content of files of servers.

use clap_complete::engine::ArgValueCompleter;
use exec_server_client::SearchPages;
use exec_server_protocol::fs::{
    BinaryFiles, CaseMode, FsSearchMatch, FsSearchPage, FsSearchParams,
};

use super::cp_path::CpPath;
use super::failure::Failure;
use super::format;
use super::ls::{Clients, go_on_after, shown};
use super::search_options::{SearchOptions, report};
use super::target::TargetOptions;
use super::user_option::UserOption;
use crate::cli::completion;

/// Arguments of `grep`.
#[derive(Debug, clap::Args)]
pub struct GrepArguments {
    /// The pattern is plain text.
    #[arg(short = 'F', long)]
    fixed_strings: bool,
    /// Ignore case.
    #[arg(short, long)]
    ignore_case: bool,
    /// Ignore case unless the pattern has an upper-case letter.
    #[arg(short = 'S', long, conflicts_with = "ignore_case")]
    smart_case: bool,
    /// Match whole words.
    #[arg(short, long)]
    word_regexp: bool,
    /// Print only the names of files with a match.
    #[arg(short = 'l', long)]
    files_with_matches: bool,
    /// Lines of context around each match.
    #[arg(short = 'C', long, value_name = "LINES", default_value_t = 0)]
    context: u64,
    /// Lines of context before each match.
    #[arg(short = 'B', long, value_name = "LINES")]
    before_context: Option<u64>,
    /// Lines of context after each match.
    #[arg(short = 'A', long, value_name = "LINES")]
    after_context: Option<u64>,
    /// Search binary files as text.
    #[arg(short = 'a', long)]
    text: bool,
    /// Print one JSON object per match.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    search: SearchOptions,
    #[command(flatten)]
    user: UserOption,
    #[command(flatten)]
    options: TargetOptions,
    /// A regular expression; put -- before one that begins with a hyphen.
    pattern: String,
    /// Files and directories of servers, as TARGET:PATH.
    #[arg(value_name = "TARGET:PATH", required = true, add = ArgValueCompleter::new(completion::cp_paths))]
    operands: Vec<CpPath>,
}

impl GrepArguments {
    /// Connection options, for shell completion.
    pub fn options(&self) -> &TargetOptions {
        &self.options
    }

    fn case(&self) -> CaseMode {
        match (self.ignore_case, self.smart_case) {
            (true, _) => CaseMode::Insensitive,
            (_, true) => CaseMode::Smart,
            _ => CaseMode::Sensitive,
        }
    }
}

/// Nothing matches, as in grep.
const NO_MATCH: u8 = 1;
/// Something could not be searched, as in grep.
const TROUBLE: u8 = 2;

/// Searches and prints; 0 if something matches, 1 if nothing does, 2 if something could not be searched.
pub async fn run(arguments: GrepArguments) -> Result<u8, Failure> {
    let mut clients = Clients::default();
    let (mut has_match, mut has_trouble) = (false, false);
    for operand in &arguments.operands {
        match search(&mut clients, &arguments, operand).await {
            Ok(found) => {
                has_match |= found.has_match;
                has_trouble |= found.has_trouble;
            }
            Err(failure) => has_trouble |= go_on_after(failure)? != 0,
        }
    }
    Ok(match (has_trouble, has_match) {
        (true, _) => TROUBLE,
        (false, true) => 0,
        (false, false) => NO_MATCH,
    })
}

#[derive(Default)]
struct Found {
    has_match: bool,
    has_trouble: bool,
}

async fn search(
    clients: &mut Clients,
    arguments: &GrepArguments,
    operand: &CpPath,
) -> Result<Found, Failure> {
    let (client, path) = clients.open(&arguments.options, operand).await?;
    let name = shown(&path);
    let about = |error| Failure::from(error).about(name.clone());
    let params = FsSearchParams {
        path,
        pattern: arguments.pattern.clone(),
        sandbox: None,
        user: arguments.user.name(&client).await?,
        literal: arguments.fixed_strings,
        case: arguments.case(),
        word: arguments.word_regexp,
        before: arguments.before_context.unwrap_or(arguments.context),
        after: arguments.after_context.unwrap_or(arguments.context),
        files_only: arguments.files_with_matches,
        binary: if arguments.text { BinaryFiles::Text } else { BinaryFiles::Report },
        filter: arguments.search.filter(),
        limits: arguments.search.limits(),
        search_id: None,
    };
    let mut pages: SearchPages<FsSearchPage> = client.fs().search(params).await.map_err(about)?;
    let mut found = Found::default();
    while let Some(page) = pages.next_page().await.map_err(about)? {
        let count = page.matches.len() + page.files.len() + page.binary_matches.len();
        found.has_match |= count > 0;
        format::print(&render(arguments, &page))?;
        found.has_trouble |= report(&page.state);
    }
    Ok(found)
}

fn render(arguments: &GrepArguments, page: &FsSearchPage) -> String {
    let mut text = String::new();
    if arguments.json {
        for found in &page.matches {
            text.push_str(&serde_json::to_string(found).expect("plain data can be written"));
            text.push('\n');
        }
        for path in page.files.iter().chain(&page.binary_matches) {
            text.push_str(&serde_json::json!({ "path": path }).to_string());
            text.push('\n');
        }
        return text;
    }
    let has_context = page.matches.iter().any(|it| !(it.before.is_empty() && it.after.is_empty()));
    for (place, found) in page.matches.iter().enumerate() {
        if has_context && place > 0 {
            text.push_str("--\n");
        }
        push_match(&mut text, found);
    }
    for path in &page.files {
        text.push_str(&(shown(path) + "\n"));
    }
    for path in &page.binary_matches {
        text.push_str(&format!("{}: binary file matches\n", shown(path)));
    }
    text
}

fn push_match(text: &mut String, found: &FsSearchMatch) {
    let path = shown(&found.path);
    let mut push = |mark: char, number: u64, line: &str| {
        text.push_str(&format!("{path}{mark}{number}{mark}{}\n", harmless(line)));
    };
    let first = found.line.saturating_sub(found.before.len() as u64);
    for (number, line) in (first..).zip(&found.before) {
        push('-', number, line);
    }
    let shortened;
    let line = match (found.cut_before, found.cut_after) {
        (None, None) => &found.text,
        (before, after) => {
            let mark = |cut: Option<u64>| if cut.is_some() { "…" } else { "" };
            shortened = format!("{}{}{}", mark(before), found.text, mark(after));
            &shortened
        }
    };
    push(':', found.line, line);
    for (number, line) in (found.line + 1..).zip(&found.after) {
        push('-', number, line);
    }
}

/// A line without what acts on a terminal, except for tabs.
fn harmless(line: &str) -> String {
    line.split('\t').map(format::plain).collect::<Vec<_>>().join("\t")
}
