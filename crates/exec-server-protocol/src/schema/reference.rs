//! The schema as tables: every method, notification, type, capability, error and limit.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde_json::{Map, Value};

use super::definitions::referred;
use crate::methods::{Family, Method};

/// The generated part of `docs/protocol.md`.
pub fn reference() -> String {
    let document = super::document();
    let mut writer = Writer { document: &document, text: String::new() };
    writer.methods();
    writer.notifications();
    writer.types();
    writer.capabilities();
    writer.errors();
    writer.limits();
    writer.text
}

struct Writer<'a> {
    document: &'a Value,
    text: String,
}

impl<'a> Writer<'a> {
    fn line(&mut self, line: impl AsRef<str>) {
        self.text.push_str(line.as_ref());
        self.text.push('\n');
    }

    fn heading(&mut self, level: usize, title: &str) {
        if !self.text.is_empty() {
            self.line("");
        }
        self.line(format!("{} {title}", "#".repeat(level)));
        self.line("");
    }

    fn methods(&mut self) {
        let mut group = "";
        for method in Method::ALL {
            if group_of(*method) != group {
                group = group_of(*method);
                self.heading(2, &format!("Methods: {group}"));
            } else {
                self.line("");
            }
            self.method(method.name());
        }
    }

    fn method(&mut self, name: &str) {
        let entry = &self.document["x-methods"][name];
        self.line(format!("### `{name}`"));
        self.line("");
        let mut facts = vec![sentence(&entry["description"])];
        if let Some(capability) = entry["capability"].as_str() {
            facts.push(format!("Capability: `{capability}`."));
        }
        if entry["takesSandbox"] == true {
            facts.push("Takes a `sandbox`.".to_owned());
        }
        if entry["controlLane"] == true {
            facts.push("Answered at once, outside the limit of concurrent requests.".to_owned());
        }
        self.line(facts.join(" "));
        self.line("");
        self.members(&entry["params"], Direction::Received, "params");
        self.line("");
        self.members(&entry["result"], Direction::Sent, "result");
    }

    fn notifications(&mut self) {
        self.heading(2, "Notifications of the server");
        let table = self.document["x-notifications"].as_object().expect("a table");
        for (place, (name, entry)) in table.iter().enumerate() {
            if place > 0 {
                self.line("");
            }
            self.line(format!("### `{name}`"));
            self.line("");
            self.line(sentence(&entry["description"]));
            self.line("");
            self.members(&entry["params"], Direction::Sent, "params");
        }
    }

    fn types(&mut self) {
        let (of_messages, received) = (self.payloads(), self.received());
        self.heading(2, "Types");
        let definitions = self.document["$defs"].as_object().expect("definitions");
        let mut is_first = true;
        for (name, schema) in definitions {
            if of_messages.contains(name.as_str()) {
                continue;
            }
            if !std::mem::take(&mut is_first) {
                self.line("");
            }
            self.line(format!("### {name}"));
            self.line("");
            self.line(paragraph(&schema["description"]));
            let direction =
                if received.contains(name) { Direction::Received } else { Direction::Sent };
            self.definition(schema, direction);
        }
    }

    /// Definitions that a client sends, directly or as parts.
    fn received(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for entry in self.document["x-methods"].as_object().expect("a table").values() {
            self.collect(&entry["params"], &mut found);
        }
        found
    }

    fn collect(&self, schema: &Value, found: &mut BTreeSet<String>) {
        if let Some(name) = referred(schema)
            && found.insert(name.to_owned())
        {
            self.collect(&self.document["$defs"][name], found);
        }
        match schema {
            Value::Array(items) => items.iter().for_each(|item| self.collect(item, found)),
            Value::Object(members) => members.values().for_each(|value| self.collect(value, found)),
            _ => {}
        }
    }

    /// Definitions that are params or results of a message, which have their tables there.
    fn payloads(&self) -> BTreeSet<&'a str> {
        let messages = self.document["anyOf"].as_array().expect("the kinds of messages");
        let mut names: BTreeSet<&str> = messages.iter().filter_map(referred).collect();
        for table in ["x-methods", "x-notifications"] {
            for entry in self.document[table].as_object().expect("a table").values() {
                let payloads = ["params", "result"].map(|member| &entry[member]);
                names.extend(payloads.into_iter().filter_map(referred));
            }
        }
        // These are also parts of other results.
        names.remove("FsGetMetadataResponse");
        names.insert("Capabilities");
        names.remove("EnvironmentInfo");
        names.remove("FsSearchPage");
        names.remove("FsFindPage");
        names
    }

    fn definition(&mut self, schema: &Value, direction: Direction) {
        if schema.get("properties").is_some() {
            self.line("");
            self.table(schema, direction, "member");
        } else if let Some(forms) = schema["oneOf"].as_array() {
            self.line("");
            self.forms(forms);
        } else if let Some(names) = schema["enum"].as_array() {
            self.line("");
            self.line(format!("One of {}.", names.iter().map(code).collect::<Vec<_>>().join(", ")));
        }
    }

    fn forms(&mut self, forms: &[Value]) {
        self.line("| value | meaning |");
        self.line("|---|---|");
        for form in forms {
            for (value, meaning) in self.form(form) {
                self.line(format!("| {value} | {meaning} |"));
            }
        }
    }

    fn form(&self, form: &Value) -> Vec<(String, String)> {
        let meaning = cell(&form["description"]);
        if let Some(names) = form["enum"].as_array() {
            return names.iter().map(|name| (code(name), String::new())).collect();
        }
        if form.get("const").is_some() {
            return vec![(code(&form["const"]), meaning)];
        }
        let mut members: Vec<String> = Vec::new();
        for (name, member) in properties(form) {
            let marks = if is_required(form, name) { "" } else { "?" };
            members.push(match member.get("const") {
                Some(value) => format!("`\"{name}\": {value}`"),
                None => format!("`{name}`{marks}: {}", self.type_of(member)),
            });
        }
        // The tag first: it selects the form.
        members.sort_by_key(|member| !member.starts_with("`\""));
        if let Some(name) = referred(form) {
            members.push(format!("and the members of {}", link(name)));
        }
        vec![(members.join(", "), meaning)]
    }

    /// The table of a payload, which is a reference or one of several.
    fn members(&mut self, payload: &Value, direction: Direction, title: &str) {
        let Some(name) = referred(payload) else {
            return self.line(format!("The {title}: any JSON."));
        };
        let schema = &self.document["$defs"][name];
        if let Some(forms) = schema["anyOf"].as_array() {
            let links: Vec<String> = forms.iter().filter_map(referred).map(link).collect();
            return self.line(format!("The {title} is {}.", links.join(" or ")));
        }
        if properties(schema).next().is_none() {
            let none =
                if direction == Direction::Received { "No params." } else { "The result is `{}`." };
            return self.line(if title == "params" && direction == Direction::Sent {
                "The params are `{}`."
            } else {
                none
            });
        }
        self.table(schema, direction, title);
    }

    fn table(&mut self, schema: &Value, direction: Direction, title: &str) {
        let (third, present) = match direction {
            Direction::Received => ("default", "**required**"),
            Direction::Sent => ("present", "always"),
        };
        self.line(format!("| {title} | type | {third} | meaning |"));
        self.line("|---|---|---|---|");
        let mut names: Vec<(&String, &Value)> = properties(schema).collect();
        names.sort_by_key(|(name, _)| !is_required(schema, name));
        for (name, member) in names {
            let third = match (is_required(schema, name), direction) {
                (true, _) => present.to_owned(),
                (false, Direction::Sent) => "if it applies".to_owned(),
                (false, _) => default_of(member),
            };
            let row = format!(
                "| `{name}` | {} | {third} | {} |",
                self.type_of(member),
                self.meaning(member)
            );
            self.line(row);
        }
    }

    fn meaning(&self, member: &Value) -> String {
        if member.get("description").is_some() {
            return cell(&member["description"]);
        }
        let forms = member["anyOf"].as_array().into_iter().flatten();
        let items = member.get("items");
        let name = std::iter::once(member).chain(forms).chain(items).find_map(referred);
        name.map(|name| cell(&self.document["$defs"][name]["description"])).unwrap_or_default()
    }

    fn type_of(&self, schema: &Value) -> String {
        if let Some(name) = referred(schema) {
            return link(name);
        }
        if let Some(forms) = schema["anyOf"].as_array() {
            let names: Vec<String> = forms.iter().map(|form| self.type_of(form)).collect();
            return names.join(" or ");
        }
        match &schema["type"] {
            Value::String(name) => self.named_type(name, schema),
            Value::Array(names) => {
                let names = names.iter().filter_map(Value::as_str);
                names.map(|name| self.named_type(name, schema)).collect::<Vec<_>>().join(" or ")
            }
            _ => "any".to_owned(),
        }
    }

    fn named_type(&self, name: &str, schema: &Value) -> String {
        match name {
            "array" if schema.get("prefixItems").is_some() => {
                let items = schema["prefixItems"].as_array().into_iter().flatten();
                format!("[{}]", items.map(|item| self.type_of(item)).collect::<Vec<_>>().join(", "))
            }
            "array" => format!("list of {}", self.type_of(&schema["items"])),
            "object" if schema.get("additionalProperties").is_some() => {
                format!("map of {}", self.type_of(&schema["additionalProperties"]))
            }
            name => name.to_owned(),
        }
    }

    fn capabilities(&mut self) {
        self.heading(2, "Capabilities");
        self.line("Members of `environmentInfo.capabilities`; a missing one is false.");
        self.line("");
        self.pairs("x-capabilities", "capability", "announces");
    }

    fn errors(&mut self) {
        self.heading(2, "Error codes");
        self.pairs("x-error-codes", "code", "meaning");
        self.heading(2, "Error kinds");
        self.line("`error.data.kind`:");
        self.line("");
        self.pairs("x-error-kinds", "kind", "meaning");
    }

    fn limits(&mut self) {
        self.heading(2, "Limits");
        self.line("| limit | value | what it bounds |");
        self.line("|---|---|---|");
        for (name, limit) in self.document["x-limits"].as_object().expect("a table") {
            let value = grouped(limit["value"].as_u64().expect("a number"));
            self.line(format!("| `{name}` | {value} | {} |", cell(&limit["description"])));
        }
    }

    fn pairs(&mut self, table: &str, name: &str, meaning: &str) {
        self.line(format!("| {name} | {meaning} |"));
        self.line("|---|---|");
        for (name, text) in self.document[table].as_object().expect("a table") {
            self.line(format!("| `{name}` | {} |", cell(text)));
        }
    }
}

/// Who receives a payload: the server, or the client.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Received,
    Sent,
}

fn group_of(method: Method) -> &'static str {
    match method.family() {
        Family::Lifecycle => "connection",
        Family::EnvironmentInfo | Family::EnvironmentStatus => "environment",
        Family::EnvironmentConfig | Family::CapabilityDiscovery => "settings, plugins and skills",
        Family::Exec => "processes",
        Family::Session => "sessions",
        Family::FileSystem => "files",
        Family::Http => "HTTP",
    }
}

fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema["properties"].as_object().into_iter().flat_map(Map::iter)
}

fn is_required(schema: &Value, name: &str) -> bool {
    schema["required"].as_array().is_some_and(|names| names.iter().any(|it| it == name))
}

fn default_of(member: &Value) -> String {
    match member.get("default") {
        None | Some(Value::Null) => "–".to_owned(),
        Some(value) if value.is_object() => "–".to_owned(),
        Some(value) => format!("`{value}`"),
    }
}

fn link(name: &str) -> String {
    format!("[{name}](#{})", name.to_lowercase())
}

fn code(value: &Value) -> String {
    format!("`{value}`")
}

/// A description as one line.
fn sentence(description: &Value) -> String {
    let text = description.as_str().expect("every entry has a description");
    text.split('\n').filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

fn paragraph(description: &Value) -> String {
    description.as_str().map(|_| sentence(description)).unwrap_or_default()
}

fn cell(description: &Value) -> String {
    paragraph(description).replace('|', "\\|")
}

/// A number with commas.
fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        write!(text, "{digit}").expect("a string takes any text");
    }
    text
}
