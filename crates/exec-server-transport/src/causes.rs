//! Formats an error together with its chain of causes.

use std::error::Error;

/// Joins an error and its causes with `: ` on one line.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // Errors of other crates often include the text of their source.
        if !more.is_empty() && !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
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
    fn causes_follow_in_order_and_repeats_are_dropped() {
        let error = Step("late: gone", Some(Box::new(Step("gone", None))));
        let error = Step("could not", Some(Box::new(Step("", Some(Box::new(error))))));
        assert_eq!(chain(&error), "could not: late: gone");
    }
}
