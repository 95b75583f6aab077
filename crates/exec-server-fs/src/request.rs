//! The operations of the path-based `fs/*` methods: decoded from params, and executed.
//!
//! Each such method is one [`FsRequest`]. This process executes it, or a sandboxed file worker does.
//! [`perform`] may block; [`answer_from_cache`] never blocks and often has no answer.

use std::path::{Path, PathBuf};

use exec_server_protocol::fs::{
    Data64, FsAppendParams, FsCanonicalizeParams, FsCopyParams, FsCreateDirectoryParams,
    FsEditParams, FsGetMetadataParams, FsOpenParams, FsReadDirectoryParams, FsReadFileParams,
    FsReadLinkParams, FsRemoveParams, FsRenameParams, FsSetPermissionsParams, FsSymlinkParams,
    FsTextEdit, FsTruncateParams, FsWalkOptions, FsWalkParams, FsWriteFileParams, OpenMode,
    Sandbox,
};
use exec_server_protocol::limits::MAX_TEXT_EDITS;
use exec_server_protocol::methods::{Method, PathMethod};
use exec_server_protocol::params::{self, Scoped};
use exec_server_protocol::path_uri::{NativePaths, PathUri};
use exec_server_protocol::user::UserName;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::byte_fields::{self, path_from_bytes};
use crate::options::check_mode;

pub use crate::error::{EditRefusal, FsError, Nature, Nearest, ParamsError, TreeOperation};
pub use crate::options::{Blocking, Detail, FileAttributes, Links, Page, WriteOptions};
pub use crate::platform::{
    OpenFile, PathIdentity, StagedFile, answer_from_cache, identity_from_cache, identity_of,
};
pub use crate::reply::{FsReply, Leftovers};

/// One file-system operation. All paths are absolute and normalized.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[expect(missing_docs, reason = "members repeat their names; docs state only extra facts")]
pub enum FsRequest {
    /// Opens a regular file for reading.
    Read {
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        links: Links,
    },
    /// Stages new content for a regular file, which is unchanged until the new content is published.
    Replace {
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        options: WriteOptions,
    },
    /// Replaces the content of a file, or creates it.
    Write {
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        links: Links,
        #[serde(with = "byte_fields::bytes")]
        data: Vec<u8>,
        options: WriteOptions,
    },
    /// Appends bytes to a file.
    Append {
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        links: Links,
        #[serde(with = "byte_fields::bytes")]
        data: Vec<u8>,
        /// Whether a missing file is created.
        create: bool,
        options: WriteOptions,
    },
    /// Changes the length of a file; a longer file is filled with zeros.
    Truncate {
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        links: Links,
        size: u64,
        options: WriteOptions,
    },
    /// Replaces pieces of text in a file.
    Edit {
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        links: Links,
        /// Applied in this order, all of them or none.
        edits: Vec<TextEdit>,
        options: WriteOptions,
        /// Whether the file stays unchanged.
        dry_run: bool,
    },
    /// Creates a directory.
    CreateDirectory {
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        /// Creates missing parents and accepts an existing directory.
        recursive: bool,
        links: Links,
    },
    /// Returns the metadata of a path.
    Metadata {
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        links: Links,
        detail: Detail,
    },
    /// Resolves all symbolic links in a path.
    Canonicalize {
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
    },
    /// Lists a directory.
    List {
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        /// `None` lists all entries, in the order of the file system.
        page: Option<Page>,
        detail: Detail,
    },
    /// Lists a directory tree.
    Walk {
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        options: FsWalkOptions,
    },
    /// Removes a file or a directory tree; a symbolic link is removed itself, not its target.
    Remove {
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        recursive: bool,
        /// Whether a missing path counts as removed.
        force: bool,
        /// Applies to the parent path; the last component is never followed.
        links: Links,
    },
    /// Copies a file or a directory tree.
    Copy {
        #[serde(with = "byte_fields::path")]
        source: PathBuf,
        #[serde(with = "byte_fields::path")]
        destination: PathBuf,
        recursive: bool,
    },
    /// Renames a file or a directory.
    Rename {
        #[serde(with = "byte_fields::path")]
        source: PathBuf,
        #[serde(with = "byte_fields::path")]
        destination: PathBuf,
        /// Whether an existing destination is an error.
        no_replace: bool,
    },
    /// Creates a symbolic link.
    Symlink {
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        /// Text of the link, which need not exist as a path.
        #[serde(with = "byte_fields::bytes")]
        target: Vec<u8>,
        /// Whether an existing link is replaced.
        replace: bool,
    },
    /// Reads a symbolic link.
    ReadLink {
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
    },
    /// Sets the permission bits, and optionally the modification time in Unix milliseconds.
    SetPermissions {
        #[serde(with = "byte_fields::path")]
        path: PathBuf,
        mode: u32,
        modified_at_ms: Option<i64>,
        links: Links,
    },
}

/// One replacement of `fs/edit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextEdit {
    /// The text to replace; not empty.
    pub old: String,
    /// The new text.
    pub new: String,
    /// Whether every occurrence is replaced; otherwise there must be exactly one.
    pub replace_all: bool,
}

impl FsRequest {
    /// Whether the request only reads.
    pub fn is_lookup(&self) -> bool {
        self.changes().is_empty()
    }

    /// The paths that the request changes; empty for a lookup.
    pub fn changes(&self) -> Vec<&Path> {
        match self {
            Self::Rename { source, destination, .. } => vec![source, destination],
            Self::Copy { destination, .. } => vec![destination],
            Self::Replace { path, .. }
            | Self::Write { path, .. }
            | Self::Append { path, .. }
            | Self::Truncate { path, .. }
            | Self::Edit { path, .. }
            | Self::CreateDirectory { path, .. }
            | Self::Remove { path, .. }
            | Self::Symlink { path, .. }
            | Self::SetPermissions { path, .. } => vec![path],
            Self::Read { .. }
            | Self::Metadata { .. }
            | Self::Canonicalize { .. }
            | Self::List { .. }
            | Self::Walk { .. }
            | Self::ReadLink { .. } => Vec::new(),
        }
    }
}

/// A decoded request of a client about a path.
#[derive(Debug)]
pub struct PathRequest {
    /// The operation.
    pub request: FsRequest,
    /// Whether the reply to an opened file has its version tag.
    pub detailed: bool,
    /// The policy that confines the operation.
    pub sandbox: Sandbox,
    /// The user whose rights hold.
    pub user: Option<UserName>,
}

/// Decodes the params of a method about a path.
pub fn decode(
    method: PathMethod,
    raw: &str,
    native: NativePaths,
) -> Result<PathRequest, ParamsError> {
    let decode = match method {
        PathMethod::FsReadFile => decode_params::<FsReadFileParams>,
        PathMethod::FsWriteFile => decode_params::<FsWriteFileParams>,
        PathMethod::FsAppend => decode_params::<FsAppendParams>,
        PathMethod::FsTruncate => decode_params::<FsTruncateParams>,
        PathMethod::FsEdit => decode_params::<FsEditParams>,
        PathMethod::FsCreateDirectory => decode_params::<FsCreateDirectoryParams>,
        PathMethod::FsGetMetadata => decode_params::<FsGetMetadataParams>,
        PathMethod::FsCanonicalize => decode_params::<FsCanonicalizeParams>,
        PathMethod::FsReadDirectory => decode_params::<FsReadDirectoryParams>,
        PathMethod::FsWalk => decode_params::<FsWalkParams>,
        PathMethod::FsRemove => decode_params::<FsRemoveParams>,
        PathMethod::FsCopy => decode_params::<FsCopyParams>,
        PathMethod::FsRename => decode_params::<FsRenameParams>,
        PathMethod::FsSymlink => decode_params::<FsSymlinkParams>,
        PathMethod::FsReadLink => decode_params::<FsReadLinkParams>,
        PathMethod::FsSetPermissions => decode_params::<FsSetPermissionsParams>,
    };
    decode(raw, native)
}

fn decode_params<P: PathParams>(
    raw: &str,
    native: NativePaths,
) -> Result<PathRequest, ParamsError> {
    P::read(raw).map_err(ParamsError::Invalid)?.decode(native)
}

/// The local path of a URI.
pub fn local_path(uri: &PathUri, native: NativePaths) -> Result<PathBuf, ParamsError> {
    Ok(path_from_bytes(uri.to_posix(native)?))
}

/// Params of a method about a path.
pub trait PathParams: Scoped + DeserializeOwned {
    /// Decodes raw params.
    fn read(raw: &str) -> Result<Self, String> {
        params::decode(raw)
    }

    /// Whether the reply to an opened file has its version tag.
    fn is_detailed(&self) -> bool {
        false
    }

    /// The operation that the params ask for.
    fn request(self, native: NativePaths) -> Result<FsRequest, ParamsError>;

    /// The operation with what confines it.
    fn decode(mut self, native: NativePaths) -> Result<PathRequest, ParamsError> {
        let detailed = self.is_detailed();
        let (sandbox, user) = self.take_scope();
        Ok(PathRequest { request: self.request(native)?, detailed, sandbox, user })
    }
}

impl PathParams for FsReadFileParams {
    fn is_detailed(&self) -> bool {
        self.detailed == Some(true)
    }

    fn request(self, native: NativePaths) -> Result<FsRequest, ParamsError> {
        let path = local_path(&self.path, native)?;
        Ok(FsRequest::Read { path, links: Links::from_param(self.follow_symlinks) })
    }
}

impl PathParams for FsOpenParams {
    fn is_detailed(&self) -> bool {
        self.detailed == Some(true)
    }

    fn request(self, native: NativePaths) -> Result<FsRequest, ParamsError> {
        let detailed = self.is_detailed();
        let path = local_path(&self.path, native)?;
        Ok(match self.mode {
            OpenMode::Read => FsRequest::Read { path, links: Links::Follow },
            OpenMode::Replace => FsRequest::Replace {
                path,
                options: WriteOptions {
                    if_absent: self.if_absent == Some(true),
                    attributes: FileAttributes::new(
                        self.mode_bits,
                        self.new_mode_bits,
                        self.modified_at_ms,
                    )?,
                    ..WriteOptions::new(self.durability, self.if_match, detailed)
                },
            },
        })
    }
}

impl PathParams for FsWriteFileParams {
    fn read(raw: &str) -> Result<Self, String> {
        Self::decode(raw)
    }

    fn request(self, native: NativePaths) -> Result<FsRequest, ParamsError> {
        Ok(FsRequest::Write {
            path: local_path(&self.path, native)?,
            links: Links::from_param(self.follow_symlinks),
            options: WriteOptions {
                if_absent: self.if_absent == Some(true),
                attributes: FileAttributes::new(
                    self.mode_bits,
                    self.new_mode_bits,
                    self.modified_at_ms,
                )?,
                ..WriteOptions::new(self.durability, self.if_match, self.detailed == Some(true))
            },
            data: content(Method::FsWriteFile, self.data_base64)?,
        })
    }
}

impl PathParams for FsAppendParams {
    fn request(self, native: NativePaths) -> Result<FsRequest, ParamsError> {
        Ok(FsRequest::Append {
            path: local_path(&self.path, native)?,
            links: Links::from_param(self.follow_symlinks),
            data: content(Method::FsAppend, self.data_base64)?,
            create: self.create.unwrap_or(true),
            options: WriteOptions::new(self.durability, self.if_match, true),
        })
    }
}

impl PathParams for FsTruncateParams {
    fn request(self, native: NativePaths) -> Result<FsRequest, ParamsError> {
        Ok(FsRequest::Truncate {
            path: local_path(&self.path, native)?,
            links: Links::from_param(self.follow_symlinks),
            size: self.size,
            options: WriteOptions::new(self.durability, self.if_match, true),
        })
    }
}

impl PathParams for FsEditParams {
    fn request(self, native: NativePaths) -> Result<FsRequest, ParamsError> {
        let wrong = |reason: &str| Err(ParamsError::Invalid(reason.to_owned()));
        if self.edits.is_empty() || self.edits.len() > MAX_TEXT_EDITS {
            return wrong(&format!("fs/edit takes 1 to {MAX_TEXT_EDITS} edits"));
        }
        if self.edits.iter().any(|edit| edit.old.is_empty()) {
            return wrong("`old` must not be empty; use fs/writeFile for a new file");
        }
        let edit = |FsTextEdit { old, new, replace_all }| TextEdit { old, new, replace_all };
        Ok(FsRequest::Edit {
            path: local_path(&self.path, native)?,
            links: Links::from_param(self.follow_symlinks),
            edits: self.edits.into_iter().map(edit).collect(),
            options: WriteOptions::new(self.durability, self.if_match, true),
            dry_run: self.dry_run,
        })
    }
}

impl PathParams for FsCreateDirectoryParams {
    fn request(self, native: NativePaths) -> Result<FsRequest, ParamsError> {
        Ok(FsRequest::CreateDirectory {
            path: local_path(&self.path, native)?,
            recursive: self.recursive.unwrap_or(true),
            links: Links::from_param(self.follow_symlinks),
        })
    }
}

impl PathParams for FsGetMetadataParams {
    fn request(self, native: NativePaths) -> Result<FsRequest, ParamsError> {
        Ok(FsRequest::Metadata {
            path: local_path(&self.path, native)?,
            links: Links::from_param(self.follow_symlinks),
            detail: Detail::from_param(self.detailed),
        })
    }
}

impl PathParams for FsCanonicalizeParams {
    fn request(self, native: NativePaths) -> Result<FsRequest, ParamsError> {
        Ok(FsRequest::Canonicalize { path: local_path(&self.path, native)? })
    }
}

impl PathParams for FsReadDirectoryParams {
    fn request(self, native: NativePaths) -> Result<FsRequest, ParamsError> {
        let detail = Detail::from_param(self.detailed);
        let page = Page::from_params(self.limit, self.cursor.as_deref(), detail)?;
        Ok(FsRequest::List { path: local_path(&self.path, native)?, page, detail })
    }
}

impl PathParams for FsWalkParams {
    fn request(self, native: NativePaths) -> Result<FsRequest, ParamsError> {
        Ok(FsRequest::Walk { path: local_path(&self.path, native)?, options: self.options })
    }
}

impl PathParams for FsRemoveParams {
    fn request(self, native: NativePaths) -> Result<FsRequest, ParamsError> {
        Ok(FsRequest::Remove {
            path: local_path(&self.path, native)?,
            recursive: self.recursive.unwrap_or(true),
            force: self.force.unwrap_or(true),
            links: Links::from_param(self.follow_symlinks),
        })
    }
}

impl PathParams for FsCopyParams {
    fn request(self, native: NativePaths) -> Result<FsRequest, ParamsError> {
        Ok(FsRequest::Copy {
            source: local_path(&self.source_path, native)?,
            destination: local_path(&self.destination_path, native)?,
            recursive: self.recursive,
        })
    }
}

impl PathParams for FsRenameParams {
    fn request(self, native: NativePaths) -> Result<FsRequest, ParamsError> {
        Ok(FsRequest::Rename {
            source: local_path(&self.source_path, native)?,
            destination: local_path(&self.destination_path, native)?,
            no_replace: self.no_replace == Some(true),
        })
    }
}

impl PathParams for FsSymlinkParams {
    fn request(self, native: NativePaths) -> Result<FsRequest, ParamsError> {
        let target = match (self.target, self.target_base64) {
            (Some(text), None) => text.into_bytes(),
            (None, Some(bytes)) => bytes.0,
            _ => {
                let reason = "either `target` or `targetBase64` must be given";
                return Err(ParamsError::Invalid(reason.to_owned()));
            }
        };
        let path = local_path(&self.path, native)?;
        Ok(FsRequest::Symlink { path, target, replace: self.replace == Some(true) })
    }
}

impl PathParams for FsReadLinkParams {
    fn request(self, native: NativePaths) -> Result<FsRequest, ParamsError> {
        Ok(FsRequest::ReadLink { path: local_path(&self.path, native)? })
    }
}

impl PathParams for FsSetPermissionsParams {
    fn request(self, native: NativePaths) -> Result<FsRequest, ParamsError> {
        check_mode(self.mode)?;
        Ok(FsRequest::SetPermissions {
            path: local_path(&self.path, native)?,
            mode: self.mode,
            modified_at_ms: self.modified_at_ms,
            links: Links::from_param(self.follow_symlinks),
        })
    }
}

fn content(method: Method, data: Data64) -> Result<Vec<u8>, ParamsError> {
    data.0.map_err(|cause| ParamsError::Content { method, cause })
}

#[cfg(not(all(target_os = "linux", not(exec_server_unsupported))))]
pub use crate::unsupported::perform;

/// Executes a request; may block on a disk or a network.
#[cfg(all(target_os = "linux", not(exec_server_unsupported)))]
pub fn perform(request: FsRequest) -> Result<FsReply, FsError> {
    use crate::linux::{content, copy, edit, listing, metadata, names, open, remove, stage, walk};

    Ok(match request {
        FsRequest::Read { path, links } => FsReply::Opened(open::open(&path, links)?),
        FsRequest::Replace { path, options } => {
            FsReply::Staged(stage::begin(&path, Links::Follow, options)?)
        }
        FsRequest::Write { path, links, data, options } => {
            let (response, leftovers) = stage::write(&path, links, &data, options)?;
            FsReply::Written(response, Leftovers { _data: data, ..leftovers })
        }
        FsRequest::Append { path, links, data, create, options } => {
            let response = content::append(&path, links, &data, create, &options)?;
            FsReply::Written(response, Leftovers::default())
        }
        FsRequest::Truncate { path, links, size, options } => {
            let response = content::truncate(&path, links, size, &options)?;
            FsReply::Written(response, Leftovers::default())
        }
        FsRequest::Edit { path, links, edits, options, dry_run } => {
            let (response, leftovers) = edit::edit(&path, links, &edits, &options, dry_run)?;
            FsReply::Edited(response, leftovers)
        }
        FsRequest::CreateDirectory { path, recursive, links } => {
            names::create_directory(&path, recursive, links)?.into()
        }
        FsRequest::Metadata { path, links, detail } => {
            FsReply::Metadata(metadata::metadata(&path, links, detail)?)
        }
        FsRequest::Canonicalize { path } => FsReply::Canonical(names::canonicalize(&path)?),
        FsRequest::List { path, page, detail } => {
            FsReply::Listing(listing::list(&path, page.as_ref(), detail)?)
        }
        FsRequest::Walk { path, options } => FsReply::Walked(walk::walk(&path, &options)?),
        FsRequest::Remove { path, recursive, force, links } => {
            remove::remove(&path, recursive, force, links)?.into()
        }
        FsRequest::Copy { source, destination, recursive } => {
            copy::copy(&source, &destination, recursive)?.into()
        }
        FsRequest::Rename { source, destination, no_replace } => {
            names::rename(&source, &destination, no_replace)?.into()
        }
        FsRequest::Symlink { path, target, replace } => {
            names::symlink(&path, &target, replace)?.into()
        }
        FsRequest::ReadLink { path } => FsReply::Link(metadata::read_link(&path)?),
        FsRequest::SetPermissions { path, mode, modified_at_ms, links } => {
            names::set_permissions(&path, mode, modified_at_ms, links)?.into()
        }
    })
}
