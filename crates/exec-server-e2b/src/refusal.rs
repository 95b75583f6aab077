//! Errors in the two forms that the SDKs read: Connect codes and HTTP statuses.

use exec_server_client::ExecServerError;
use exec_server_transport::causes::chain;
use http::StatusCode;
use serde_json::{Value, json};

/// Why a request fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub code: Code,
    pub message: String,
}

/// The codes of the Connect protocol that occur here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    InvalidArgument,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    Unauthenticated,
    DeadlineExceeded,
    ResourceExhausted,
    NoSpace,
    DataLoss,
    Unimplemented,
    Unavailable,
    /// The sandbox of the request has ended.
    NoSandbox,
    Internal,
}

impl Code {
    /// The name in a Connect error.
    pub fn name(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid_argument",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::PermissionDenied => "permission_denied",
            Self::Unauthenticated => "unauthenticated",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::ResourceExhausted | Self::NoSpace => "resource_exhausted",
            Self::DataLoss => "data_loss",
            Self::Unimplemented => "unimplemented",
            Self::Unavailable | Self::NoSandbox => "unavailable",
            Self::Internal => "internal",
        }
    }

    /// The status of an HTTP reply.
    pub fn status(self) -> StatusCode {
        match self {
            Self::InvalidArgument => StatusCode::BAD_REQUEST,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::AlreadyExists => StatusCode::CONFLICT,
            Self::PermissionDenied => StatusCode::FORBIDDEN,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Self::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Self::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
            Self::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Self::Unavailable | Self::NoSandbox => StatusCode::BAD_GATEWAY,
            Self::DataLoss | Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl Refusal {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    pub fn unimplemented(message: impl Into<String>) -> Self {
        Self::new(Code::Unimplemented, message)
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Code::Unavailable, message)
    }

    /// The words by which the SDKs recognise a sandbox that has ended.
    pub fn no_sandbox(id: &str) -> Self {
        Self::new(Code::NoSandbox, format!("the sandbox {id} was not found"))
    }

    /// The error of a Connect call.
    pub fn to_connect(&self) -> Value {
        json!({"code": self.code.name(), "message": self.message})
    }

    /// The error of a plain HTTP request.
    pub fn to_http(&self) -> Value {
        json!({"code": self.code.status().as_u16(), "message": self.message})
    }
}

impl From<ExecServerError> for Refusal {
    fn from(error: ExecServerError) -> Self {
        let code = match &error {
            ExecServerError::Server { data, .. } => {
                let kind = data.as_ref().map(|data| data.kind.as_str());
                let errno = data.as_ref().and_then(|data| data.errno.as_deref());
                server_code(kind, errno, error.is_not_found())
            }
            ExecServerError::Unsupported(_) => Code::Unimplemented,
            ExecServerError::StdinClosed(_) | ExecServerError::Invalid(_) => Code::InvalidArgument,
            ExecServerError::UnknownProcess(_) => Code::NotFound,
            ExecServerError::TooManyCalls { .. } => Code::ResourceExhausted,
            ExecServerError::TimedOut { .. } => Code::DeadlineExceeded,
            ExecServerError::OutputLost { .. } => Code::DataLoss,
            ExecServerError::Protocol(_) => Code::Internal,
            _ => Code::Unavailable,
        };
        Self::new(code, chain(&error))
    }
}

fn server_code(kind: Option<&str>, errno: Option<&str>, is_not_found: bool) -> Code {
    match (kind, errno) {
        (
            Some("cwd_not_found" | "cwd_unusable" | "program_not_found" | "program_not_executable"),
            _,
        ) => Code::InvalidArgument,
        (Some("unknown_user" | "user_unavailable"), _) => Code::Unauthenticated,
        (Some("is_a_directory" | "not_a_file" | "unwatchable"), _) => Code::InvalidArgument,
        (Some("too_many_watches" | "watch_limit" | "too_many_processes"), _) => {
            Code::ResourceExhausted
        }
        (_, Some("EACCES" | "EPERM" | "EROFS")) | (Some("permission_denied"), _) => {
            Code::PermissionDenied
        }
        (_, Some("EEXIST")) => Code::AlreadyExists,
        (_, Some("ENOSPC" | "EDQUOT")) => Code::NoSpace,
        (
            _,
            Some(
                "ENOTDIR" | "EISDIR" | "EINVAL" | "ENAMETOOLONG" | "ELOOP" | "ENOTEMPTY" | "EXDEV",
            ),
        ) => Code::InvalidArgument,
        _ if is_not_found => Code::NotFound,
        _ => Code::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_server_become_the_codes_that_sdks_map() {
        let check = |kind, errno, is_not_found| server_code(kind, errno, is_not_found).name();
        assert_eq!(check(Some("not_found"), Some("ENOENT"), true), "not_found");
        assert_eq!(check(Some("cwd_not_found"), Some("ENOENT"), true), "invalid_argument");
        assert_eq!(check(Some("permission_denied"), Some("EACCES"), false), "permission_denied");
        assert_eq!(check(None, Some("EEXIST"), false), "already_exists");
        assert_eq!(check(None, None, false), "internal");
        assert_eq!(server_code(None, Some("ENOSPC"), false).status().as_u16(), 507);
    }
}
