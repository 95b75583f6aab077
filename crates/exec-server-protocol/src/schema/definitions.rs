//! The `$defs` of the schema: what clients send and what servers send, in one namespace.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

/// The prefix of every reference in the document.
pub const PREFIX: &str = "#/$defs/";

/// A reference to a definition.
pub fn reference_to(name: &str) -> Value {
    json!({"$ref": format!("{PREFIX}{name}")})
}

/// The name of the definition that a schema refers to.
pub fn referred(schema: &Value) -> Option<&str> {
    schema.get("$ref")?.as_str()?.strip_prefix(PREFIX)
}

/// Definitions by name.
pub struct Definitions {
    all: Map<String, Value>,
    /// Types whose encoding and decoding have different schemas; a server sends them as `NameSent`.
    different: BTreeSet<String>,
}

impl Definitions {
    /// Joins the definitions of both directions.
    pub fn merge(received: Map<String, Value>, sent: Map<String, Value>) -> Self {
        let mut different: BTreeSet<String> = sent
            .iter()
            .filter(|(name, schema)| received.get(*name).is_some_and(|other| other != *schema))
            .map(|(name, _)| name.clone())
            .collect();
        loop {
            let before = different.len();
            for (name, schema) in &sent {
                if received.contains_key(name) && refers_to_one_of(schema, &different) {
                    different.insert(name.clone());
                }
            }
            if different.len() == before {
                break;
            }
        }
        let mut definitions = Self { all: received, different };
        for (name, mut schema) in sent {
            definitions.rename_sent(&mut schema);
            let name = definitions.sent_name(&name);
            definitions.all.insert(name, schema);
        }
        definitions
    }

    /// Adds a definition.
    pub fn insert(&mut self, name: &str, description: &str, mut schema: Value) {
        schema["description"] = description.into();
        let earlier = self.all.insert(name.to_owned(), schema);
        assert!(earlier.is_none(), "{name} is the name of a type");
    }

    /// Gives the references in what a server sends their final names.
    pub fn rename_sent(&self, schema: &mut Value) {
        match schema {
            Value::Array(items) => items.iter_mut().for_each(|item| self.rename_sent(item)),
            Value::Object(members) => {
                for (member, value) in members {
                    match (member.as_str(), &value) {
                        ("$ref", Value::String(path)) => {
                            let name = path.strip_prefix(PREFIX).expect("a definition");
                            *value = format!("{PREFIX}{}", self.sent_name(name)).into();
                        }
                        _ => self.rename_sent(value),
                    }
                }
            }
            _ => {}
        }
    }

    /// The value of `$defs`.
    pub fn into_value(self) -> Value {
        self.all.into()
    }

    fn sent_name(&self, name: &str) -> String {
        if self.different.contains(name) { format!("{name}Sent") } else { name.to_owned() }
    }
}

fn refers_to_one_of(schema: &Value, names: &BTreeSet<String>) -> bool {
    if referred(schema).is_some_and(|name| names.contains(name)) {
        return true;
    }
    match schema {
        Value::Array(items) => items.iter().any(|item| refers_to_one_of(item, names)),
        Value::Object(members) => members.values().any(|value| refers_to_one_of(value, names)),
        _ => false,
    }
}
