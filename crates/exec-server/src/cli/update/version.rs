//! Versions in the order of releases (semantic versioning).

use std::cmp::Ordering;
use std::fmt;

/// `MAJOR.MINOR.PATCH`, or a pre-release of it such as `1.0.0-rc.1`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    numbers: [u64; 3],
    /// Empty for a release.
    before: Vec<Part>,
}

/// A part of a pre-release; numbers come before words.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Number(u64),
    Word(String),
}

impl Version {
    /// Reads a version; build metadata after `+` does not count.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().split('+').next()?;
        let (numbers, before) = match text.split_once('-') {
            Some((numbers, before)) => {
                (numbers, before.split('.').map(part).collect::<Option<_>>()?)
            }
            None => (text, Vec::new()),
        };
        let numbers: Vec<u64> = numbers.split('.').map(number).collect::<Option<_>>()?;
        Some(Self { numbers: numbers.try_into().ok()?, before })
    }
}

fn number(text: &str) -> Option<u64> {
    text.bytes().all(|digit| digit.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn part(text: &str) -> Option<Part> {
    let is_word =
        !text.is_empty() && text.bytes().all(|it| it.is_ascii_alphanumeric() || it == b'-');
    number(text).map(Part::Number).or_else(|| is_word.then(|| Part::Word(text.to_owned())))
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        // A release comes after its pre-releases.
        let rank = |version: &Self| (version.numbers, version.before.is_empty());
        rank(self).cmp(&rank(other)).then_with(|| self.before.cmp(&other.before))
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        let [major, minor, patch] = self.numbers;
        write!(formatter, "{major}.{minor}.{patch}")?;
        for (index, part) in self.before.iter().enumerate() {
            let mark = if index == 0 { '-' } else { '.' };
            match part {
                Part::Number(number) => write!(formatter, "{mark}{number}")?,
                Part::Word(word) => write!(formatter, "{mark}{word}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_the_order_of_semantic_versioning() {
        let in_order = [
            "0.2.0-alpha",
            "0.2.0-alpha.1",
            "0.2.0-alpha.beta",
            "0.2.0-beta",
            "0.2.0-beta.2",
            "0.2.0-beta.11",
            "0.2.0-rc.1",
            "0.2.0",
            "0.2.1",
            "0.10.0",
            "1.0.0",
        ];
        let parsed: Vec<Version> = in_order.map(|text| Version::parse(text).unwrap()).to_vec();
        assert!(parsed.windows(2).all(|pair| pair[0] < pair[1]), "{parsed:?}");
        assert_eq!(parsed.iter().map(Version::to_string).collect::<Vec<_>>(), in_order);
        assert_eq!(Version::parse(" 1.0.0+build.5\n"), Version::parse("1.0.0"));
        for bad in [
            "",
            "1",
            "1.2",
            "1.2.3.4",
            "1.2.x",
            "+1.2.3",
            "1.2.-3",
            "1.2.3-",
            "1.2.3-a..b",
            "1.2.3-ä",
        ] {
            assert_eq!(Version::parse(bad), None, "{bad}");
        }
    }
}
