//! An error with everything that led to it, for those who are only told a text.

use std::error::Error;

/// An error and its causes on one line.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // Some errors repeat their cause.
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
    fn causes_follow_in_their_order_and_none_is_said_twice() {
        let error = Step("late: gone", Some(Box::new(Step("gone", None))));
        let error = Step("could not", Some(Box::new(Step("", Some(Box::new(error))))));
        assert_eq!(chain(&error), "could not: late: gone");
    }
}
