//! Expands `{a,b}` into several patterns.

use super::GlobProblem;

/// Far above real patterns, and low enough to bound nested braces.
const MAX_ALTERNATIVES: usize = 256;

/// Bounds nested braces, which produce few patterns but cost a step each.
const MAX_STEPS: usize = 4 * MAX_ALTERNATIVES;

/// Expands all braces; an unclosed brace is an ordinary character.
pub(super) fn expand(pattern: &str) -> Result<Vec<String>, GlobProblem> {
    let mut done = Vec::new();
    // Pairs of an expanded prefix and the text that is still to be expanded.
    let mut open = vec![(String::new(), pattern.to_owned())];
    let mut steps = 0;
    while let Some((mut head, rest)) = open.pop() {
        steps += 1;
        if done.len() + open.len() >= MAX_ALTERNATIVES || steps > MAX_STEPS {
            return Err(GlobProblem::TooManyAlternatives);
        }
        match first_group(&rest) {
            None => done.push(head + &rest),
            Some(group) => {
                head.push_str(&rest[..group.start]);
                let tail = &rest[group.end + 1..];
                for choice in group.choices(&rest).into_iter().rev() {
                    // An alternative may contain braces, so it is expanded again.
                    open.push((head.clone(), format!("{choice}{tail}")));
                }
            }
        }
    }
    Ok(done)
}

/// The first closed group: its braces and the commas between its alternatives.
struct Group {
    start: usize,
    commas: Vec<usize>,
    end: usize,
}

impl Group {
    fn choices<'a>(&self, text: &'a str) -> Vec<&'a str> {
        let starts = std::iter::once(self.start).chain(self.commas.iter().copied());
        let ends = self.commas.iter().copied().chain([self.end]);
        starts.zip(ends).map(|(start, end)| &text[start + 1..end]).collect()
    }
}

fn first_group(text: &str) -> Option<Group> {
    let mut skip_until = 0;
    // Once a class is found unclosed, no later one closes before this index.
    let mut no_class_until = 0;
    // Open braces with their commas so far.
    let mut open: Vec<(usize, Vec<usize>)> = Vec::new();
    let mut closed: Option<Group> = None;
    for (at, char) in text.char_indices() {
        if at < skip_until {
            continue;
        }
        match char {
            '\\' => skip_until = at + 1 + text[at + 1..].chars().next().map_or(0, char::len_utf8),
            '[' if at >= no_class_until => match class_end(text, at) {
                Some(end) => skip_until = end,
                None => no_class_until = text[at..].find('/').map_or(text.len(), |end| at + end),
            },
            '{' => open.push((at, Vec::new())),
            ',' => {
                if let Some((_, commas)) = open.last_mut() {
                    commas.push(at);
                }
            }
            '}' => {
                let Some((start, commas)) = open.pop() else { continue };
                // An outer group that closes later starts earlier, and replaces the inner one.
                if closed.as_ref().is_none_or(|group| start < group.start) {
                    closed = Some(Group { start, commas, end: at });
                }
            }
            _ => {}
        }
    }
    closed
}

/// The index after a closed class that starts here; braces inside a class are literal.
fn class_end(text: &str, start: usize) -> Option<usize> {
    let inner = &text[start + 1..];
    let body = inner.strip_prefix(['!', '^']).unwrap_or(inner);
    let mut is_escaped = false;
    let mut is_first = true;
    for (at, char) in body.char_indices() {
        match char {
            '/' => return None,
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            ']' if !is_first => return Some(text.len() - body.len() + at + 1),
            _ => {}
        }
        is_first = false;
    }
    None
}
