//! The bill of materials, in the JSON form of CycloneDX 1.5.

use anyhow::Result;
use serde_json::{Value, json};

use super::Artefact;
use super::dependencies::Dependency;
use super::release::{Release, SUMMARY, VERSION};
use super::sums::sha256;

/// Lists the crates of the program with licences, digests and who uses whom.
pub fn sbom(release: &Release, target: &str, dependencies: &[Dependency]) -> Result<Artefact> {
    let components: Vec<_> =
        dependencies.iter().filter(|it| it.name != "exec-server").map(component).collect();
    let uses: Vec<_> = dependencies
        .iter()
        .map(|it| {
            let used: Vec<_> = it.uses.iter().map(|(name, version)| purl(name, version)).collect();
            json!({ "ref": purl(&it.name, &it.version), "dependsOn": used })
        })
        .collect();
    let content = serde_json::to_vec(&(&components, &uses))?;
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": serial_number(&sha256(&content)),
        "version": 1,
        "metadata": {
            "timestamp": release.time()?,
            "tools": { "components": [{ "type": "application", "name": "xtask", "version": VERSION }] },
            "component": {
                "type": "application",
                "bom-ref": purl("exec-server", VERSION),
                "name": "exec-server",
                "version": VERSION,
                "description": SUMMARY,
                "licenses": [{ "expression": "Apache-2.0" }],
                "purl": purl("exec-server", VERSION),
            },
            "properties": [{ "name": "exec-server:target", "value": target }],
        },
        "components": components,
        "dependencies": uses,
    });
    let text = serde_json::to_string_pretty(&document)? + "\n";
    Ok(Artefact::new(format!("{}.cdx.json", release.name(target)), text.into_bytes()))
}

fn component(dependency: &Dependency) -> Value {
    let reference = purl(&dependency.name, &dependency.version);
    let mut component = json!({
        "type": "library",
        "bom-ref": reference,
        "name": dependency.name,
        "version": dependency.version,
        "scope": "required",
        "licenses": [{ "expression": dependency.license }],
        "purl": reference,
    });
    if let Some(text) = &dependency.description {
        component["description"] = json!(text);
    }
    if let Some(checksum) = &dependency.checksum {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    if let Some(url) = &dependency.repository {
        component["externalReferences"] = json!([{ "type": "vcs", "url": url }]);
    }
    component
}

fn purl(name: &str, version: &str) -> String {
    format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"))
}

/// The same content has the same number.
fn serial_number(digest: &str) -> String {
    let (a, b, c, d, e) =
        (&digest[..8], &digest[8..12], &digest[13..16], &digest[17..20], &digest[20..32]);
    format!("urn:uuid:{a}-{b}-8{c}-8{d}-{e}")
}
