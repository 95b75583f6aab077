//! `ls`: lists files and directories of servers; also path resolution that `cat` and `cp` share.

use std::path::Path;

use clap_complete::engine::ArgValueCompleter;
use exec_server_client::RemoteExecServerClient;
use exec_server_protocol::fs::{
    FileKind, FsDirectoryEntry, FsGetMetadataParams, FsGetMetadataResponse, FsReadDirectoryParams,
};
use exec_server_protocol::methods::Method;
use exec_server_protocol::path_uri::{NativePaths, PathUri};
use exec_server_protocol::user::UserName;
use serde_json::json;
use tokio::task::JoinSet;

use super::cp_path::CpPath;
use super::exec_options::remote_path;
use super::failure::Failure;
use super::format::{self, FormatOptions};
use super::target::{ResumeOptions, TargetOptions};
use super::user_option::UserOption;
use crate::cli::completion;

/// Entries per reply.
const PAGE: u64 = 5000;

/// Arguments of `ls`.
#[derive(Debug, clap::Args)]
pub struct LsArguments {
    /// Show mode, owner, size and time as well.
    #[arg(short, long)]
    long: bool,
    /// Include names that begin with a dot.
    #[arg(short, long)]
    all: bool,
    #[command(flatten)]
    format: FormatOptions,
    #[command(flatten)]
    user: UserOption,
    #[command(flatten)]
    options: TargetOptions,
    /// Files and directories of servers, as TARGET:PATH.
    #[arg(value_name = "TARGET:PATH", required = true, add = ArgValueCompleter::new(completion::cp_paths))]
    operands: Vec<CpPath>,
}

impl LsArguments {
    /// Connection options, for shell completion.
    pub fn options(&self) -> &TargetOptions {
        &self.options
    }
}

/// Lists files and directories; continues after one that cannot be listed.
pub async fn run(arguments: LsArguments) -> Result<u8, Failure> {
    let mut clients = Clients::default();
    let mut listings = Vec::new();
    let mut code = 0;
    for operand in &arguments.operands {
        match list(&mut clients, &arguments, operand).await {
            Ok(listing) => listings.push(listing),
            Err(failure) => code = go_on_after(failure)?,
        }
    }
    let is_alone = arguments.operands.len() == 1;
    if arguments.format.is_json() {
        match listings.as_slice() {
            [listing] if is_alone => format::print_json(&listing.entries)?,
            [] if is_alone => {}
            all => {
                let named =
                    |listing: &Listing| json!({"path": listing.path, "entries": listing.entries});
                format::print_json(&all.iter().map(named).collect::<Vec<_>>())?;
            }
        }
        return Ok(code);
    }
    let (directories, files): (Vec<_>, Vec<_>) =
        listings.into_iter().partition(|listing| listing.is_directory);
    let files: Vec<_> = files.into_iter().flat_map(|listing| listing.entries).collect();
    let mut text = render(&arguments, &files);
    for directory in directories {
        if !text.is_empty() {
            text.push('\n');
        }
        if !is_alone {
            text.push_str(&format!("{}:\n", directory.path));
        }
        text.push_str(&render(&arguments, &directory.entries));
    }
    format::print(&text)?;
    Ok(code)
}

/// The entries of one operand.
struct Listing {
    path: String,
    is_directory: bool,
    entries: Vec<FsDirectoryEntry>,
}

async fn list(
    clients: &mut Clients,
    arguments: &LsArguments,
    operand: &CpPath,
) -> Result<Listing, Failure> {
    let (client, path) = clients.open(&arguments.options, operand).await?;
    let about = |failure: Failure| failure.about(shown(&path));
    let user = arguments.user.name(&client).await?;
    let metadata = metadata(&client, &path, &user).await.map_err(about)?;
    let is_directory = metadata.is_directory;
    let entries = if metadata.is_directory {
        let entries = entries(&client, &path, &user).await.map_err(about)?;
        let mut entries: Vec<_> = entries.into_iter().map(|(_, entry)| entry).collect();
        if arguments.long || arguments.format.is_json() {
            entries = with_metadata(&client, &path, &user, entries).await.map_err(about)?;
        }
        entries.retain(|entry| arguments.all || !entry.file_name.starts_with('.'));
        entries.sort_by(|a, b| a.file_name.cmp(&b.file_name));
        entries
    } else {
        vec![FsDirectoryEntry {
            file_name: shown(&path),
            is_directory: false,
            is_file: metadata.is_file,
            is_symlink: metadata.is_symlink,
            uri: Some(path.clone()),
            metadata: Some(Box::new(metadata)),
        }]
    };
    Ok(Listing { path: shown(&path), is_directory, entries })
}

fn render(arguments: &LsArguments, entries: &[FsDirectoryEntry]) -> String {
    if arguments.long {
        return format::table(&entries.iter().map(row).collect::<Vec<_>>());
    }
    entries.iter().map(|entry| format::plain(&entry.file_name) + "\n").collect()
}

/// Prints the failure of one operand and returns exit code 1; a lost connection fails the whole command.
pub fn go_on_after(failure: Failure) -> Result<u8, Failure> {
    match failure.exit_code(false) {
        1 => {
            failure.print();
            Ok(1)
        }
        _ => Err(failure),
    }
}

/// Connections by target, so that several operands of one server share a connection.
#[derive(Default)]
pub struct Clients(Vec<(Option<String>, RemoteExecServerClient)>);

impl Clients {
    /// The client of an operand, and its absolute path.
    pub async fn open(
        &mut self,
        options: &TargetOptions,
        operand: &CpPath,
    ) -> Result<(RemoteExecServerClient, PathUri), Failure> {
        let target = match operand {
            CpPath::Remote { target, .. } => target.clone(),
            CpPath::Local(_) => None,
        };
        if let Some((_, client)) = self.0.iter().find(|(known, _)| *known == target) {
            return Ok((client.clone(), whole_path(client, operand).await?));
        }
        let (client, path) = open(options, operand).await?;
        self.0.push((target, client.clone()));
        Ok((client, path))
    }
}

/// Connects to the server of an operand and resolves its path.
async fn open(
    options: &TargetOptions,
    operand: &CpPath,
) -> Result<(RemoteExecServerClient, PathUri), Failure> {
    let target = match operand {
        CpPath::Remote { target, .. } => target.as_deref(),
        CpPath::Local(path) => return Err(not_there(path)),
    };
    let client = options.connect(target, &ResumeOptions::default()).await?;
    let path = whole_path(&client, operand).await?;
    Ok((client, path))
}

fn not_there(path: &Path) -> Failure {
    let shown = path.display();
    Failure::Usage(format!("`{shown}` is a path of this machine; a server's is TARGET:{shown}"))
}

async fn whole_path(client: &RemoteExecServerClient, operand: &CpPath) -> Result<PathUri, Failure> {
    let path = match operand {
        CpPath::Remote { path, .. } => path,
        CpPath::Local(path) => return Err(not_there(path)),
    };
    let info = client.known_environment().await?;
    let (cwd, home) = match &info {
        Some(info) => (info.cwd.as_ref(), info.user_home_dir.as_ref()),
        None => (None, None),
    };
    remote_path(path.as_bytes(), cwd, home)
}

async fn metadata(
    client: &RemoteExecServerClient,
    path: &PathUri,
    user: &Option<UserName>,
) -> Result<FsGetMetadataResponse, Failure> {
    let params = FsGetMetadataParams {
        path: path.clone(),
        follow_symlinks: None,
        sandbox: None,
        user: user.clone(),
        detailed: Some(true),
    };
    Ok(client.call(Method::FsGetMetadata.name(), &params).await?)
}

/// All entries of a directory with their exact names and the metadata that the server sends.
///
/// Fails if a name is not a single component or occurs twice.
pub async fn entries(
    client: &RemoteExecServerClient,
    path: &PathUri,
    user: &Option<UserName>,
) -> Result<Vec<(Vec<u8>, FsDirectoryEntry)>, Failure> {
    let params = FsReadDirectoryParams {
        path: path.clone(),
        sandbox: None,
        user: user.clone(),
        limit: Some(PAGE),
        cursor: None,
        detailed: Some(true),
    };
    Ok(client.fs().read_whole_directory(params).await?)
}

/// Concurrent metadata requests to a server whose listings contain only names.
const MAX_METADATA_REQUESTS: usize = 64;

/// Requests metadata that a listing lacks; entries whose request fails stay without.
async fn with_metadata(
    client: &RemoteExecServerClient,
    directory: &PathUri,
    user: &Option<UserName>,
    mut entries: Vec<FsDirectoryEntry>,
) -> Result<Vec<FsDirectoryEntry>, Failure> {
    let missing: Vec<usize> =
        (0..entries.len()).filter(|index| entries[*index].metadata.is_none()).collect();
    for indexes in missing.chunks(MAX_METADATA_REQUESTS) {
        let mut looks = JoinSet::new();
        for index in indexes.iter().copied() {
            let (client, user) = (client.clone(), user.clone());
            let path = directory.child(entries[index].file_name.as_bytes());
            looks.spawn(async move { (index, metadata(&client, &path, &user).await) });
        }
        while let Some(looked) = looks.join_next().await {
            match looked {
                Ok((index, Ok(metadata))) => {
                    entries[index].is_symlink |= metadata.is_symlink;
                    entries[index].metadata = Some(Box::new(metadata));
                }
                Ok((_, Err(failure))) if failure.exit_code(false) == 1 => {}
                Ok((_, Err(failure))) => return Err(failure),
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            }
        }
    }
    Ok(entries)
}

/// One line of `ls -l`; unknown values are question marks.
fn row(entry: &FsDirectoryEntry) -> Vec<String> {
    let metadata = entry.metadata.as_deref();
    let details = metadata.and_then(|metadata| metadata.details.as_ref());
    let kind = match details.map(|details| details.kind) {
        _ if entry.is_symlink => 'l',
        Some(FileKind::Directory) => 'd',
        Some(FileKind::Symlink) => 'l',
        Some(FileKind::Fifo) => 'p',
        Some(FileKind::Socket) => 's',
        Some(FileKind::CharacterDevice) => 'c',
        Some(FileKind::BlockDevice) => 'b',
        None if entry.is_directory => 'd',
        None if !entry.is_file => '?',
        Some(FileKind::File | FileKind::Unknown) | None => '-',
    };
    let mode = details.map(|details| details.mode);
    let bit = |(index, letter): (usize, char)| match mode {
        None => '?',
        Some(mode) if mode >> (8 - index) & 1 == 1 => letter,
        Some(_) => '-',
    };
    let rights: String = "rwxrwxrwx".chars().enumerate().map(bit).collect();
    let owner = details.map_or("?".to_owned(), |details| {
        let name = |name: &Option<String>, id: u32| name.clone().unwrap_or_else(|| id.to_string());
        let owner = name(&details.owner_name, details.uid);
        format::plain(&format!("{owner}:{}", name(&details.group_name, details.gid)))
    });
    let target = details.and_then(|details| details.link_target.as_ref());
    let name = match target {
        Some(target) => format!("{} -> {target}", entry.file_name),
        None => entry.file_name.clone(),
    };
    vec![
        format!("{kind}{rights}"),
        owner,
        metadata.map_or("?".to_owned(), |metadata| metadata.size.to_string()),
        metadata.map_or("?".to_owned(), |metadata| format::time(metadata.modified_at_ms)),
        format::plain(&name),
    ]
}

/// A remote path for display.
pub fn shown(path: &PathUri) -> String {
    match path.to_posix(NativePaths::Accept) {
        Ok(bytes) => format::plain(&String::from_utf8_lossy(&bytes)),
        Err(_) => path.as_str().to_owned(),
    }
}
