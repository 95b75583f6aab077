//! Parses the metadata of a skill: the front matter of `SKILL.md`, and `agents/openai.yaml`.

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Value};

use exec_server_protocol::environment::{SkillDependencies, SkillPolicy, ToolDependency};

/// The front matter of a skill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FrontMatter {
    /// `None` means the name of the directory.
    pub(super) name: Option<String>,
    pub(super) description: String,
    pub(super) short_description: Option<String>,
}

/// The reason why a skill is skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum SkillError {
    #[error("it does not start with front matter between lines of `---`")]
    NoFrontMatter,
    #[error("its front matter is not YAML")]
    NotYaml,
    #[error("its `{0}` is not a string")]
    NotText(&'static str),
    #[error("it has no description")]
    NoDescription,
    #[error("its name is longer than {MAX_NAME_CHARS} characters")]
    LongName,
}

/// Names are shown in lists and typed by users.
const MAX_NAME_CHARS: usize = 64;

/// Other texts about a skill are part of a prompt.
const MAX_TEXT_CHARS: usize = 1024;

/// Reads the front matter of a skill's instructions.
pub(super) fn front_matter(instructions: &str) -> Result<FrontMatter, SkillError> {
    let yaml = front_matter_lines(instructions).ok_or(SkillError::NoFrontMatter)?;
    let front =
        parse_yaml(&yaml).or_else(|| parse_yaml(&with_quotes(&yaml))).ok_or(SkillError::NotYaml)?;
    let text = |value: Option<&Value>, key| match value {
        None | Some(Value::Null) => Ok(None),
        Some(value) => scalar(value).map(Some).ok_or(SkillError::NotText(key)),
    };
    let name = text(front.get("name"), "name")?.filter(|name| !name.is_empty());
    if name.as_ref().is_some_and(|name| name.chars().count() > MAX_NAME_CHARS) {
        return Err(SkillError::LongName);
    }
    let description =
        text(front.get("description"), "description")?.filter(|text| !text.is_empty());
    let short = front.get("metadata").and_then(|metadata| metadata.get("short-description"));
    Ok(FrontMatter {
        name,
        description: description.ok_or(SkillError::NoDescription)?,
        short_description: text(short, "short-description")?.filter(|text| !text.is_empty()),
    })
}

/// The usage policy in `agents/openai.yaml`; `None` if it is missing or invalid.
pub(super) fn policy(metadata: &str) -> Option<SkillPolicy> {
    let metadata = parse_yaml(metadata)?;
    let policy = metadata.get("policy")?.as_object()?;
    let allow_implicit_invocation = match policy.get("allow_implicit_invocation") {
        None | Some(Value::Null) => None,
        Some(value) => Some(value.as_bool()?),
    };
    let products = match policy.get("products") {
        None => Vec::new(),
        Some(products) => products.as_array()?.iter().map(product).collect::<Option<_>>()?,
    };
    Some(SkillPolicy { allow_implicit_invocation, products })
}

/// The dependencies in `agents/openai.yaml`; `None` if they are missing or invalid.
pub(super) fn dependencies(metadata: &str) -> Option<SkillDependencies> {
    let metadata = parse_yaml(metadata)?;
    let tools = metadata.get("dependencies")?.get("tools")?.as_array()?;
    let tools: Vec<&Map<String, Value>> =
        tools.iter().map(Value::as_object).collect::<Option<_>>()?;
    let tools: Vec<ToolDependency> = tools.into_iter().filter_map(tool).collect();
    (!tools.is_empty()).then_some(SkillDependencies { tools })
}

/// A client rejects the whole reply if it contains an unknown product.
fn product(value: &Value) -> Option<String> {
    let name = value.as_str()?;
    ["codex", "chatgpt", "atlas"].contains(&name).then(|| name.to_owned())
}

fn tool(tool: &Map<String, Value>) -> Option<ToolDependency> {
    let text = |key: &str, limit: usize| {
        let text = scalar(tool.get(key)?)?;
        (!text.is_empty() && text.chars().count() <= limit).then_some(text)
    };
    Some(ToolDependency {
        kind: text("type", MAX_NAME_CHARS)?,
        value: text("value", MAX_TEXT_CHARS)?,
        description: text("description", MAX_TEXT_CHARS),
        transport: text("transport", MAX_NAME_CHARS),
        command: text("command", MAX_TEXT_CHARS),
        url: text("url", MAX_TEXT_CHARS),
        oauth_callback_port: None,
    })
}

fn front_matter_lines(instructions: &str) -> Option<String> {
    let mut lines = instructions.lines();
    if lines.next()?.trim_end() != "---" {
        return None;
    }
    let mut yaml = String::new();
    for line in lines {
        if line.trim_end() == "---" {
            return Some(yaml);
        }
        yaml.push_str(line);
        yaml.push('\n');
    }
    None
}

/// Quotes values such as `description: use this: it is good`, which YAML would parse as a nested mapping.
fn with_quotes(yaml: &str) -> String {
    let mut quoted = String::new();
    for line in yaml.lines() {
        match line.split_once(": ") {
            Some((key, value))
                if is_bare_key(key) && !value.trim_start().starts_with(['"', '\'', '|', '>']) =>
            {
                let value = value.split(" #").next().unwrap_or(value).trim().replace('\'', "''");
                quoted.push_str(&format!("{key}: '{value}'\n"));
            }
            _ => quoted.push_str(&format!("{line}\n")),
        }
    }
    quoted
}

fn is_bare_key(key: &str) -> bool {
    let key = key.trim_start_matches([' ', '-']);
    !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}

/// The text of a string or boolean, with each run of whitespace replaced by one space.
fn scalar(value: &Value) -> Option<String> {
    let text = match value {
        Value::String(text) => text.as_str(),
        Value::Bool(true) => "true",
        Value::Bool(false) => "false",
        _ => return None,
    };
    Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Deeper than real metadata needs, and shallow enough for recursive code.
const MAX_YAML_DEPTH: usize = 64;

/// Parses the first document. Numbers stay strings, and an alias is null, so that aliases cannot expand exponentially.
fn parse_yaml(text: &str) -> Option<Value> {
    let mut open: Vec<Node> = Vec::new();
    for event in Parser::new_from_str(text) {
        let (event, _) = event.ok()?;
        let value = match event {
            Event::SequenceStart(..) if open.len() < MAX_YAML_DEPTH => {
                open.push(Node::List(Vec::new()));
                continue;
            }
            Event::MappingStart(..) if open.len() < MAX_YAML_DEPTH => {
                open.push(Node::Map(Map::new(), None));
                continue;
            }
            Event::SequenceStart(..) | Event::MappingStart(..) => return None,
            Event::SequenceEnd | Event::MappingEnd => open.pop()?.into_value(),
            Event::Scalar(text, style, ..) => scalar_value(&text, style),
            Event::Alias(_) => Value::Null,
            Event::DocumentEnd | Event::StreamEnd => return Some(Value::Null),
            Event::Nothing | Event::StreamStart | Event::DocumentStart(_) => continue,
        };
        match open.last_mut() {
            Some(parent) => parent.push(value),
            None => return Some(value),
        }
    }
    None
}

fn scalar_value(text: &str, style: ScalarStyle) -> Value {
    match (style, text) {
        (ScalarStyle::Plain, "" | "~" | "null") => Value::Null,
        (ScalarStyle::Plain, "true") => Value::Bool(true),
        (ScalarStyle::Plain, "false") => Value::Bool(false),
        _ => Value::String(text.to_owned()),
    }
}

/// A list or a mapping that is not complete yet.
enum Node {
    List(Vec<Value>),
    /// With the key whose value comes next.
    Map(Map<String, Value>, Option<String>),
}

impl Node {
    fn push(&mut self, value: Value) {
        match self {
            Self::List(list) => list.push(value),
            Self::Map(map, key) => match key.take() {
                Some(key) => drop(map.entry(key).or_insert(value)),
                None => *key = Some(scalar(&value).unwrap_or_default()),
            },
        }
    }

    fn into_value(self) -> Value {
        match self {
            Self::List(list) => Value::Array(list),
            Self::Map(map, _) => Value::Object(map),
        }
    }
}
