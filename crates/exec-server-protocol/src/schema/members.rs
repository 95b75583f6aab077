//! Finishes the members of generated schemas: common descriptions, and what an encoder really sends.

use serde_json::{Map, Value};

/// Descriptions of members that mean the same in every type.
const COMMON: &[(&str, &str)] = &[
    ("argv", "The program and its arguments."),
    ("chunk", "The bytes."),
    ("contents", "The text of the file."),
    ("dataBase64", "The content."),
    ("deltaBase64", "The bytes."),
    ("bodyBase64", "The body."),
    ("cwd", "The working directory."),
    ("destinationPath", "The new name or place."),
    ("done", "Whether this is the last part."),
    ("exitCode", "0 to 255, or 128 plus the number of a signal; null while the process runs."),
    ("gid", "The number of the group."),
    ("handleId", "The client's key of the handle."),
    ("id", "The client's key, repeated."),
    ("isDirectory", "Whether it is a directory."),
    ("isFile", "Whether it is a regular file."),
    ("message", "The text of the error."),
    ("path", "The file or directory."),
    ("processId", "The client's key of the process."),
    ("requestId", "The client's key of the exchange."),
    ("rows", "Lines of the terminal."),
    ("cols", "Columns of the terminal."),
    ("sandbox", "The policy that confines the request; default: none."),
    ("searchId", "The client's key of the search."),
    ("seq", "Sequence number among the events of the process, from 1."),
    ("sourcePath", "What is copied or renamed."),
    ("sessionId", "The id of the session."),
    ("tty", "Whether the process has a terminal."),
    ("uid", "The number of the owner."),
    ("watchId", "The client's key of the watch."),
    ("kind", "Selects the form of the object."),
    ("type", "Selects the form of the object."),
];

/// Adds the common descriptions to members without one, and turns links of rustdoc into names.
pub fn describe(definitions: &mut Map<String, Value>) {
    for_each_object(definitions, &mut |object| {
        if let Some(Value::String(text)) = object.get_mut("description") {
            *text = text.replace("[`", "`").replace("`]", "`");
        }
        let Some(Value::Object(properties)) = object.get_mut("properties") else { return };
        for (name, member) in properties {
            let Value::Object(member) = member else { continue };
            let common = COMMON.iter().find(|(common, _)| common == name);
            if let Some((_, text)) = common
                && !member.contains_key("description")
                && !refers_to_a_type(member)
            {
                member.insert("description".to_owned(), (*text).into());
            }
        }
    });
}

/// Names of types whose description is the same for every member.
const PLAIN: [&str; 2] = ["PathUri", "Base64"];

fn refers_to_a_type(member: &Map<String, Value>) -> bool {
    let name = member.get("$ref").and_then(Value::as_str).and_then(|path| path.rsplit('/').next());
    name.is_some_and(|name| !PLAIN.contains(&name))
}

/// A decoder's default that is written nowhere else: false, zero or nothing.
pub fn as_decoded(definitions: &mut Map<String, Value>) {
    for_each_object(definitions, &mut |object| {
        let required = object.get("required").cloned().unwrap_or_default();
        let Some(Value::Object(properties)) = object.get_mut("properties") else { return };
        for (name, member) in properties {
            let Value::Object(member) = member else { continue };
            let default = match member.get("type").and_then(Value::as_str) {
                Some("boolean") => Value::Bool(false),
                Some("integer") => Value::from(0),
                Some("array") => Value::Array(Vec::new()),
                _ => continue,
            };
            if !contains(&required, name) {
                member.entry("default").or_insert(default);
            }
        }
    });
}

/// An encoder leaves an optional member out instead of sending null, and has no defaults.
pub fn as_encoded(definitions: &mut Map<String, Value>) {
    for_each_object(definitions, &mut |object| {
        let required = object.get("required").cloned().unwrap_or_default();
        let Some(Value::Object(properties)) = object.get_mut("properties") else { return };
        for (name, member) in properties {
            let Value::Object(member) = member else { continue };
            member.remove("default");
            if !contains(&required, name) {
                remove_null(member);
            }
        }
    });
}

fn contains(names: &Value, name: &str) -> bool {
    names.as_array().is_some_and(|names| names.iter().any(|it| it == name))
}

fn remove_null(member: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = member.get_mut("type") {
        types.retain(|kind| kind != "null");
        if let [only] = &types[..] {
            let only = only.clone();
            member.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(forms)) = member.get_mut("anyOf") {
        forms.retain(|form| form["type"] != "null");
        if let [Value::Object(only)] = &forms[..] {
            let only = only.clone();
            member.remove("anyOf");
            member.extend(only);
        }
    }
}

fn for_each_object(
    members: &mut Map<String, Value>,
    change: &mut impl FnMut(&mut Map<String, Value>),
) {
    for value in members.values_mut() {
        visit(value, change);
    }
}

fn visit(value: &mut Value, change: &mut impl FnMut(&mut Map<String, Value>)) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| visit(item, change)),
        Value::Object(members) => {
            change(members);
            members.values_mut().for_each(|member| visit(member, change));
        }
        _ => {}
    }
}
