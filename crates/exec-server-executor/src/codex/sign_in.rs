//! Reads the sign-in state that the Codex CLI keeps in `auth.json`.

use std::io;
use std::path::Path;

use exec_server_protocol::base64;
use serde::Deserialize;

use crate::remote::{Credential, CredentialError};

#[derive(Deserialize)]
struct SignIn {
    #[serde(rename = "OPENAI_API_KEY")]
    key: Option<String>,
    tokens: Option<Tokens>,
}

#[derive(Deserialize)]
struct Tokens {
    access_token: String,
    account_id: Option<String>,
    id_token: Option<String>,
}

/// The claims of an identity token that a registry needs.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct AccountClaims {
    chatgpt_account_is_fedramp: bool,
}

/// Reads the credential of the signed-in user.
pub fn read(path: &Path) -> Result<Credential, CredentialError> {
    let failed = |source| CredentialError::File { path: path.to_owned(), source };
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(CredentialError::Missing);
        }
        Err(source) => return Err(failed(source)),
    };
    let state: SignIn = serde_json::from_slice(&text).map_err(|error| {
        // The parser's message is left out, because it could quote secrets from the file.
        let what = format!("unexpected format at line {}", error.line());
        failed(io::Error::new(io::ErrorKind::InvalidData, what))
    })?;
    match state {
        SignIn { key: Some(key), .. } => Credential::bearer(&key),
        SignIn { tokens: Some(tokens), .. } => {
            let claims = tokens.id_token.as_deref().map(claims).unwrap_or_default();
            Credential::account(
                &tokens.access_token,
                tokens.account_id.as_deref(),
                claims.chatgpt_account_is_fedramp,
            )
        }
        SignIn { .. } => Err(CredentialError::Missing),
    }
}

/// Reads the account claims of a token. They grant nothing here, so the signature is not verified.
fn claims(token: &str) -> AccountClaims {
    #[derive(Deserialize)]
    struct Claims {
        #[serde(rename = "https://api.openai.com/auth", default)]
        auth: AccountClaims,
    }
    let payload = token.split('.').nth(1).and_then(base64::decode_url);
    let claims = payload.and_then(|text| serde_json::from_slice::<Claims>(&text).ok());
    claims.map(|claims| claims.auth).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn headers(state: &str) -> Vec<(String, String)> {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("auth.json");
        std::fs::write(&path, state).unwrap();
        let headers = read(&path).unwrap().headers().await.unwrap();
        let text = |value: hyper::header::HeaderValue| value.to_str().unwrap().to_owned();
        headers.into_iter().map(|(name, value)| (name.to_string(), text(value))).collect()
    }

    fn expected(headers: &[(&str, &str)]) -> Vec<(String, String)> {
        headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[tokio::test]
    async fn a_sign_in_gives_the_account_headers() {
        let bearer = ("authorization", "Bearer t");
        let account = ("chatgpt-account-id", "a");
        let fedramp = ("x-openai-fedramp", "true");
        let state = r#"{"OPENAI_API_KEY":null,"tokens":{"access_token":"t","account_id":"a"}}"#;
        assert_eq!(headers(state).await, expected(&[bearer, account]));
        let with = |claims: &str| {
            let token = format!("e30.{}.sig", base64::encode_url(claims.as_bytes()));
            format!(r#"{{"tokens":{{"access_token":"t","account_id":"a","id_token":"{token}"}}}}"#)
        };
        let of = |flag| {
            with(&format!(
                r#"{{"https://api.openai.com/auth":{{"chatgpt_account_is_fedramp":{flag}}}}}"#
            ))
        };
        assert_eq!(headers(&of("true")).await, expected(&[bearer, account, fedramp]));
        for state in [of("false"), of("\"true\""), with("{}"), with("[]"), with("")] {
            assert_eq!(headers(&state).await, expected(&[bearer, account]), "{state}");
        }
        let key = r#"{"OPENAI_API_KEY":"k","tokens":{"access_token":"t","account_id":"a"}}"#;
        assert_eq!(headers(key).await, expected(&[("authorization", "Bearer k")]));
    }

    #[test]
    fn the_error_about_an_invalid_sign_in_does_not_quote_it() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("auth.json");
        for state in [r#"{"tokens":"hush"}"#, r#"{"OPENAI_API_KEY":["hush"]}"#, "hush"] {
            std::fs::write(&path, state).unwrap();
            let error = crate::logging::chain(&read(&path).unwrap_err());
            assert!(error.ends_with("unexpected format at line 1"), "{error}");
        }
    }
}
