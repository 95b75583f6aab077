use super::*;

/// Every member of every object below a schema, with the path to it.
fn members<'a>(schema: &'a Value, place: &str, found: &mut Vec<(String, &'a Value)>) {
    match schema {
        Value::Array(items) => items.iter().for_each(|item| members(item, place, found)),
        Value::Object(object) => {
            if let Some(Value::Object(properties)) = object.get("properties") {
                // A variant with one member is described as a whole.
                let is_variant = object.get("additionalProperties") == Some(&Value::Bool(false))
                    && properties.len() == 1
                    && object.contains_key("description");
                for (name, member) in properties.iter().filter(|_| !is_variant) {
                    found.push((format!("{place}.{name}"), member));
                }
            }
            for (name, value) in object {
                if name != "x-methods" {
                    let place = if place == "$defs" { name } else { place };
                    let place = if name == "$defs" { name } else { place };
                    members(value, place, found);
                }
            }
        }
        _ => {}
    }
}

#[test]
fn every_member_has_a_description() {
    let document = document();
    let mut found = Vec::new();
    members(&document, "", &mut found);
    assert!(found.len() > 300, "{}", found.len());
    let messages = ["Client", "Server"];
    let missing: Vec<&str> = found
        .iter()
        .filter(|(place, member)| {
            let text = member.to_string();
            let is_message = messages.iter().any(|start| place.starts_with(start))
                && !place.starts_with("ClientCapabilities");
            !is_message
                && !member.is_boolean()
                && !text.contains("description")
                && !text.contains("$ref")
        })
        .map(|(place, _)| place.as_str())
        .collect();
    assert!(missing.is_empty(), "without a description: {missing:?}");
}

#[test]
fn every_reference_leads_to_a_definition_and_every_definition_is_used() {
    fn references(value: &Value, found: &mut std::collections::BTreeSet<String>) {
        if let Some(name) = definitions::referred(value) {
            found.insert(name.to_owned());
        }
        match value {
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            Value::Object(members) => members.values().for_each(|value| references(value, found)),
            _ => {}
        }
    }
    let document = document();
    let mut used = std::collections::BTreeSet::new();
    references(&document, &mut used);
    let defined = document["$defs"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(used, defined);
}

#[test]
fn requests_have_the_members_of_a_decoder_and_replies_those_of_an_encoder() {
    let document = document();
    let params = &document["$defs"]["ProcessReadParams"];
    assert_eq!(params["required"], json!(["processId"]));
    assert_eq!(params["properties"]["waitMs"]["type"], json!(["integer", "null"]));
    let result = &document["$defs"]["ProcessReadResponse"];
    assert_eq!(result["properties"]["exitCode"]["type"], json!(["integer", "null"]));
    assert_eq!(result["properties"]["durationMs"]["type"], "integer", "it is left out, never null");
    let required = result["required"].as_array().unwrap();
    assert!(required.contains(&json!("exitCode")) && !required.contains(&json!("durationMs")));
}
