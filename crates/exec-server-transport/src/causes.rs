//! Formats an error together with its chain of causes.

use std::error::Error;

/// Joins an error and its causes with `: ` on one line; each error prints itself, not its source.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Step(&'static str, #[source] Option<Box<Step>>);

    #[test]
    fn causes_follow_in_order() {
        let error = Step("no route", Some(Box::new(Step("host is down", None))));
        let error = Step("could not connect", Some(Box::new(error)));
        assert_eq!(chain(&error), "could not connect: no route: host is down");
    }
}
