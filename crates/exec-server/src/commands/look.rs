//! Looking at a server: `ls`, `cat`, `info`.

use std::io::{self, Write};

use exec_server_client::RemoteExecServerClient;
use exec_server_protocol::environment::EnvironmentInfo;
use exec_server_protocol::fs::{
    FileKind, FsDirectoryEntry, FsGetMetadataParams, FsGetMetadataResponse, FsReadDirectoryParams,
    FsReadDirectoryResponse,
};
use exec_server_protocol::methods::Method;
use exec_server_protocol::path_uri::PathUri;
use serde_json::json;

use super::failure::Failure;
use super::show::{self, Format};
use super::spot::Spot;
use super::start::remote_path;
use super::target::{TargetOptions, Targeted, Wish};

/// Names that come in one answer.
const PAGE: u64 = 5000;

/// Which directory.
#[derive(Debug, clap::Args)]
pub struct LsArguments {
    /// Mode, owner, size and time as well.
    #[arg(short, long)]
    long: bool,
    /// Also names that begin with a dot.
    #[arg(short, long)]
    all: bool,
    /// How it is printed.
    #[arg(short = 'o', long = "output", value_name = "FORMAT", default_value = "table")]
    format: Format,
    #[command(flatten)]
    options: TargetOptions,
    /// A file or directory of a server, as TARGET:PATH.
    #[arg(value_name = "TARGET:PATH")]
    spot: Spot,
}

/// Which files.
#[derive(Debug, clap::Args)]
pub struct CatArguments {
    #[command(flatten)]
    options: TargetOptions,
    /// Files of servers, as TARGET:PATH.
    #[arg(value_name = "TARGET:PATH", required = true)]
    spots: Vec<Spot>,
}

/// Which server.
#[derive(Debug, clap::Args)]
pub struct InfoArguments {
    /// How it is printed.
    #[arg(short = 'o', long = "output", value_name = "FORMAT", default_value = "table")]
    format: Format,
    #[command(flatten)]
    target: Targeted,
}

/// Lists a directory.
pub async fn ls(arguments: LsArguments) -> Result<u8, Failure> {
    let (client, path) = open(&arguments.options, &arguments.spot).await?;
    let about = |failure: Failure| failure.about(shown(&path));
    let metadata = metadata(&client, &path).await.map_err(about)?;
    let entries = if metadata.is_directory {
        let mut entries = entries(&client, &path).await.map_err(about)?;
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
    if arguments.format == Format::Json {
        show::print_json(&entries)?;
    } else if arguments.long {
        show::print(&show::table(&entries.iter().map(row).collect::<Vec<_>>()))?;
    } else {
        let name = |entry: &FsDirectoryEntry| show::plain(&entry.file_name) + "\n";
        show::print(&entries.iter().map(name).collect::<String>())?;
    }
    Ok(0)
}

/// Prints files.
pub async fn cat(arguments: CatArguments) -> Result<u8, Failure> {
    for spot in &arguments.spots {
        let (client, path) = open(&arguments.options, spot).await?;
        let about = |error| Failure::from(error).about(shown(&path));
        let mut stream = client.fs().read_file_stream(&path).await.map_err(about)?;
        while let Some(block) = stream.next_block().await.map_err(about)? {
            let mut stdout = io::stdout().lock();
            match stdout.write_all(&block).and_then(|()| stdout.flush()) {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(0),
                other => {
                    other.map_err(|source| Failure::here("could not write the output", source))?
                }
            }
        }
    }
    Ok(0)
}

/// Prints what a server and its machine are like.
pub async fn info(arguments: InfoArguments) -> Result<u8, Failure> {
    let info = arguments.target.environment().await?;
    if arguments.format == Format::Json {
        show::print_json(&info)?;
    } else {
        show::print(&show::table(&facts(&info)))?;
    }
    Ok(0)
}

fn facts(info: &EnvironmentInfo) -> Vec<Vec<String>> {
    let path = |uri: &Option<PathUri>| uri.as_ref().map_or("unknown".to_owned(), shown);
    let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "unknown".to_owned());
    let capabilities = json!(info.capabilities);
    let names = capabilities.as_object().into_iter().flatten().map(|(name, _)| name.clone());
    let sandbox = info.sandbox.as_ref().map_or("none", |sandbox| &sandbox.level);
    [
        ("version", text(&info.executor_version)),
        ("system", text(&info.platform_os)),
        ("shell", info.shell.path.clone()),
        ("directory", path(&info.cwd)),
        ("home", path(&info.user_home_dir)),
        ("temporary", path(&info.temp_dir)),
        ("sandbox", sandbox.to_owned()),
        ("capabilities", names.collect::<Vec<_>>().join(" ")),
    ]
    .into_iter()
    .map(|(name, value)| vec![name.to_owned(), show::plain(&value)])
    .collect()
}

/// A client, and the whole path.
async fn open(
    options: &TargetOptions,
    spot: &Spot,
) -> Result<(RemoteExecServerClient, PathUri), Failure> {
    let (target, path) = match spot {
        Spot::There { target, path } => (target.as_deref(), path),
        Spot::Here(path) => {
            let text = format!(
                "`{0}` is a path of this machine; a server's is TARGET:{0}",
                path.display()
            );
            return Err(Failure::Usage(text));
        }
    };
    let client = options.connect(target, &Wish::default()).await?;
    let info = client.known_environment().await?;
    let (cwd, home) = match &info {
        Some(info) => (info.cwd.as_ref(), info.user_home_dir.as_ref()),
        None => (None, None),
    };
    let path = remote_path(path.as_bytes(), cwd, home)?;
    Ok((client, path))
}

async fn metadata(
    client: &RemoteExecServerClient,
    path: &PathUri,
) -> Result<FsGetMetadataResponse, Failure> {
    let params = FsGetMetadataParams {
        path: path.clone(),
        follow_symlinks: None,
        sandbox: None,
        detailed: Some(true),
    };
    Ok(client.call(Method::FsGetMetadata.name(), &params).await?)
}

/// Every entry of a directory with everything that is known about it.
pub async fn entries(
    client: &RemoteExecServerClient,
    path: &PathUri,
) -> Result<Vec<FsDirectoryEntry>, Failure> {
    let mut entries = Vec::new();
    let mut cursor = None;
    loop {
        let params = FsReadDirectoryParams {
            path: path.clone(),
            sandbox: None,
            limit: Some(PAGE),
            cursor,
            detailed: Some(true),
        };
        let page: FsReadDirectoryResponse =
            client.call(Method::FsReadDirectory.name(), &params).await?;
        entries.extend(page.entries);
        match page.next_cursor {
            Some(next) => cursor = Some(next),
            None => return Ok(entries),
        }
    }
}

fn row(entry: &FsDirectoryEntry) -> Vec<String> {
    let metadata = entry.metadata.as_deref().cloned().unwrap_or_default();
    let details = metadata.details.as_ref();
    let kind = match details.map(|details| details.kind) {
        _ if entry.is_symlink => 'l',
        Some(FileKind::Directory) => 'd',
        Some(FileKind::Symlink) => 'l',
        Some(FileKind::Fifo) => 'p',
        Some(FileKind::Socket) => 's',
        Some(FileKind::CharacterDevice) => 'c',
        Some(FileKind::BlockDevice) => 'b',
        Some(FileKind::File | FileKind::Unknown) | None => '-',
    };
    let mode = details.map_or(0, |details| details.mode);
    let bit =
        |(index, letter): (usize, char)| if mode >> (8 - index) & 1 == 1 { letter } else { '-' };
    let rights: String = "rwxrwxrwx".chars().enumerate().map(bit).collect();
    let owner =
        details.map_or("?".to_owned(), |details| format!("{}:{}", details.uid, details.gid));
    let target = details.and_then(|details| details.link_target.as_ref());
    let name = match target {
        Some(target) => format!("{} -> {target}", entry.file_name),
        None => entry.file_name.clone(),
    };
    vec![
        format!("{kind}{rights}"),
        owner,
        metadata.size.to_string(),
        show::time(metadata.modified_at_ms),
        show::plain(&name),
    ]
}

/// A path of a server as people write it.
pub fn shown(path: &PathUri) -> String {
    use exec_server_protocol::path_uri::NativePaths;
    match path.to_posix(NativePaths::Accept) {
        Ok(bytes) => show::plain(&String::from_utf8_lossy(&bytes)),
        Err(_) => path.as_str().to_owned(),
    }
}
