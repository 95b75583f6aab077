//! Recognises environment variables that hold secrets by their names.
//!
//! A name is split into words at every character that is no letter or digit, and where a capital letter begins a word
//! (`apiToken`, `APIToken`). Digits at the end of a word are ignored. docs/run-commands.md has the list.

/// Words that denote a secret.
const WORDS: [&str; 21] = [
    "APIKEY",
    "APIKEYS",
    "BEARER",
    "COOKIE",
    "COOKIES",
    "CREDENTIAL",
    "CREDENTIALS",
    "CREDS",
    "JWT",
    "KEY",
    "KEYS",
    "PASS",
    "PASSPHRASE",
    "PASSWD",
    "PASSWORD",
    "PASSWORDS",
    "PAT",
    "SECRET",
    "SECRETS",
    "TOKEN",
    "TOKENS",
];

/// Words that also denote a secret as the end of a longer word: `PGPASSWORD`, `AUTHTOKEN`.
const ENDINGS: [&str; 6] = ["APIKEY", "PASSPHRASE", "PASSWD", "PASSWORD", "SECRET", "TOKEN"];

/// Whether the name of a variable denotes a secret.
pub fn is_secret_name(name: &str) -> bool {
    let words = words(name);
    // `PWD` alone is the working directory; `MYSQL_PWD` is a password.
    let has_pwd = words.len() > 1 && words.iter().any(|word| word == "PWD");
    has_pwd
        || words.iter().any(|word| {
            WORDS.contains(&word.as_str()) || ENDINGS.iter().any(|ending| word.ends_with(ending))
        })
}

/// The words of a name in capital letters.
fn words(name: &str) -> Vec<String> {
    let letters: Vec<char> = name.chars().collect();
    let mut words = vec![String::new()];
    for (at, letter) in letters.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| letters[before]);
        let after = letters.get(at + 1);
        let ends_small = before.is_some_and(|before| before.is_lowercase() || before.is_numeric());
        let begins_small = after.is_some_and(|after| after.is_lowercase());
        let follows_capital = before.is_some_and(char::is_uppercase);
        if !letter.is_alphanumeric() {
            words.push(String::new());
            continue;
        }
        if letter.is_uppercase() && (ends_small || (follows_capital && begins_small)) {
            words.push(String::new());
        }
        words.last_mut().expect("the list starts with one word").extend(letter.to_uppercase());
    }
    for word in &mut words {
        word.truncate(word.trim_end_matches(|letter: char| letter.is_numeric()).len());
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_recognised_by_a_whole_word() {
        for name in [
            "DB_PASSWORD",
            "OPENAI_API_KEY",
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "GITHUB_TOKEN",
            "GH_PAT",
            "npm_config_authToken",
            "PGPASSWORD",
            "MYSQL_PWD",
            "SMTP-PASS",
            "apiKey",
            "myAPIKey2",
            "TOKEN2",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "client.secret",
            "DATABASE_PASSWD",
        ] {
            assert!(is_secret_name(name), "{name} {:?}", words(name));
        }
    }

    #[test]
    fn a_word_that_only_contains_a_secret_word_is_no_secret() {
        for name in [
            "KEYBOARD",
            "MONKEY",
            "SECRETARY",
            "TOKENIZERS_PARALLELISM",
            "PWD",
            "OLDPWD",
            "PATH",
            "SSH_AUTH_SOCK",
            "COMPASS_HOME",
            "PASSENGER_APP_ENV",
            "",
            "_",
        ] {
            assert!(!is_secret_name(name), "{name} {:?}", words(name));
        }
    }
}
