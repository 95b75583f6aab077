//! Headers for the collector, which are usually credentials: they are never shown.

use std::fmt;
use std::path::{Path, PathBuf};

use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;

use crate::settings::OtlpError;

const VARIABLE: &str = "OTEL_EXPORTER_OTLP_HEADERS";
/// Far more than credentials need.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// The headers of each request.
#[derive(Clone, Default)]
pub(crate) struct Headers {
    fixed: HeaderMap,
    /// Read for each request, so that a credential can be replaced.
    file: Option<PathBuf>,
}

impl Headers {
    pub(crate) fn new(
        file: Option<PathBuf>,
        variable: &impl Fn(&str) -> Option<String>,
    ) -> Result<Self, OtlpError> {
        let wrong = |reason: String| OtlpError::Variable { name: VARIABLE, reason };
        let mut fixed = HeaderMap::new();
        for (place, pair) in variable(VARIABLE).iter().flat_map(|list| list.split(',')).enumerate()
        {
            let place = place + 1;
            let (name, value) = pair
                .split_once('=')
                .ok_or_else(|| wrong(format!("entry {place} is not NAME=VALUE")))?;
            let value = percent_decode_str(value.trim()).decode_utf8_lossy();
            let (name, value) = header(name, &value)
                .ok_or_else(|| wrong(format!("entry {place} is not a valid header")))?;
            fixed.insert(name, value);
        }
        if let Some(path) = &file {
            read(path).map_err(|reason| OtlpError::HeadersFile { path: path.clone(), reason })?;
        }
        Ok(Self { fixed, file })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.fixed.is_empty() && self.file.is_none()
    }

    /// The headers now; those of the file replace those of the variable.
    pub(crate) fn current(&self) -> Result<HeaderMap, String> {
        let mut headers = self.fixed.clone();
        if let Some(path) = &self.file {
            let of_file = read(path).map_err(|reason| format!("{}: {reason}", path.display()))?;
            headers.extend(of_file);
        }
        Ok(headers)
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.debug_struct("Headers").field("file", &self.file).finish_non_exhaustive()
    }
}

fn read(path: &Path) -> Result<HeaderMap, String> {
    let length = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if length > MAX_FILE_BYTES {
        return Err(format!("it is longer than {MAX_FILE_BYTES} bytes"));
    }
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let mut headers = HeaderMap::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let header = line.split_once(':').and_then(|(name, value)| header(name, value));
        let number = number + 1;
        let (name, value) =
            header.ok_or_else(|| format!("line {number} is not a header like `Name: value`"))?;
        headers.insert(name, value);
    }
    Ok(headers)
}

fn header(name: &str, value: &str) -> Option<(HeaderName, HeaderValue)> {
    let name = HeaderName::try_from(name.trim()).ok()?;
    let mut value = HeaderValue::try_from(value.trim()).ok()?;
    value.set_sensitive(true);
    Some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_a_variable_are_decoded_and_never_shown() {
        let variable = |_: &str| Some("authorization=Bearer%20hush,x-tenant = a".to_owned());
        let headers = Headers::new(None, &variable).unwrap();
        let current = headers.current().unwrap();
        assert_eq!(current["authorization"], "Bearer hush");
        assert_eq!(current["x-tenant"], "a");
        assert!(!format!("{headers:?} {current:?}").contains("hush"));
        for wrong in ["hush", "a=b,hush", "na me=hush", "a=hu%0ash"] {
            let error = Headers::new(None, &|_: &str| Some(wrong.to_owned())).unwrap_err();
            assert!(!error.to_string().contains("hush"), "{error}");
        }
    }
}
