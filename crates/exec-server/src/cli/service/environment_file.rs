//! Writes the file of variables (`EnvironmentFile=`) of a service.

use crate::cli::Failure;

/// Lines of an environment file; a value may not need an escape.
pub fn lines(variables: &[(&str, String)]) -> Result<String, Failure> {
    let mut text = String::new();
    for (name, value) in variables {
        if value.contains(['"', '\\', '\n', '\r']) {
            return Err(refused(name, value));
        }
        text.push_str(&format!("{name}=\"{value}\"\n"));
    }
    Ok(text)
}

/// Words that systemd splits again where a unit has the variable as a word of its own.
pub fn words(words: &[String]) -> Result<String, Failure> {
    let mut text = String::new();
    for word in words {
        if word.contains(['\'', '"', '\\', '\n', '\r']) {
            return Err(refused("the option", word));
        }
        if !text.is_empty() {
            text.push(' ');
        }
        let is_plain = |letter: char| letter.is_alphanumeric() || "-_./:=@,+%*[]".contains(letter);
        if !word.is_empty() && word.chars().all(is_plain) {
            text.push_str(word);
        } else {
            text.push_str(&format!("'{word}'"));
        }
    }
    Ok(text)
}

fn refused(what: &str, value: &str) -> Failure {
    Failure::Usage(format!(
        "{what} cannot be {value:?} in a unit: quotes, backslashes and line breaks are not possible there; put the setting \
         into a configuration file (docs/configuration.md)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_with_spaces_are_quoted_and_others_stay() {
        let of = |list: &[&str]| words(&list.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&["--max-sessions", "5"]).unwrap(), "--max-sessions 5");
        assert_eq!(of(&["--name", "rack 4", ""]).unwrap(), "--name 'rack 4' ''");
        assert!(of(&["it's"]).is_err() && of(&["a\\b"]).is_err());
        assert_eq!(lines(&[("A", "b 'c'".to_owned())]).unwrap(), "A=\"b 'c'\"\n");
        assert!(lines(&[("A", "b\"".to_owned())]).is_err());
    }
}
