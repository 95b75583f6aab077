//! The container image: an OCI layout in a tar archive, made without a daemon.
//!
//! The image has the program, a user, and the directories that it needs; there is no shell and no C library in it.

use anyhow::Result;
use serde_json::{Value, json};

use super::Artefact;
use super::program::{Arch, Linkage, Program};
use super::release::{Release, SUMMARY, VERSION};
use super::sums::sha256;
use super::tree::{Directories, Tree, gzip};

const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// An id that owns nothing on usual machines.
const USER: &str = "65532:65532";

const PASSWD: &str = "root:x:0:0:root:/root:/sbin/nologin\n\
    exec-server:x:65532:65532:exec-server:/home/exec-server:/sbin/nologin\n";

/// One image for all platforms.
pub fn image(release: &Release, programs: &[Program], licences: &str) -> Result<Artefact> {
    let mut blobs = Blobs::default();
    let mut manifests = Vec::new();
    for program in programs {
        if program.linkage == Linkage::Dynamic {
            eprintln!("dist: the image does not run: its program needs a C library of the machine");
        }
        manifests.push(platform_image(release, program, licences, &mut blobs)?);
    }
    let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": manifests });
    let mut described = blobs.add(INDEX, &serde_json::to_vec(&index)?);
    described["annotations"] = json!({
        "org.opencontainers.image.ref.name": VERSION,
        "io.containerd.image.name": format!("exec-server:{VERSION}"),
    });
    let top = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [described] });
    let mut layout = blobs.tree;
    layout.add("index.json", serde_json::to_vec(&top)?);
    layout.add("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#);
    let tar = layout.tar("", Directories::Listed, release.epoch)?;
    Ok(Artefact::new(format!("exec-server-{VERSION}-oci.tar"), tar))
}

fn platform_image(
    release: &Release,
    program: &Program,
    licences: &str,
    blobs: &mut Blobs,
) -> Result<Value> {
    let layer = rootfs(release, program, licences)?.tar("", Directories::Listed, release.epoch)?;
    let created = release.time()?;
    let arch = program.arch.debian();
    let config = json!({
        "created": created,
        "architecture": arch,
        "os": "linux",
        "config": {
            "User": USER,
            "Entrypoint": ["/usr/bin/exec-server"],
            "Env": ["PATH=/usr/bin", "HOME=/home/exec-server"],
            "WorkingDir": "/home/exec-server",
            "Labels": {
                "org.opencontainers.image.title": "exec-server",
                "org.opencontainers.image.description": SUMMARY,
                "org.opencontainers.image.version": VERSION,
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", sha256(&layer))] },
        "history": [{ "created": created, "created_by": "cargo xtask dist" }],
    });
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": blobs.add(CONFIG, &serde_json::to_vec(&config)?),
        "layers": [blobs.add(LAYER, &gzip(&layer, release.effort)?)],
    });
    let mut described = blobs.add(MANIFEST, &serde_json::to_vec(&manifest)?);
    described["platform"] = match program.arch {
        Arch::X86_64 => json!({ "architecture": arch, "os": "linux" }),
        Arch::Aarch64 => json!({ "architecture": arch, "os": "linux", "variant": "v8" }),
    };
    Ok(described)
}

fn rootfs(release: &Release, program: &Program, licences: &str) -> Result<Tree> {
    let mut tree = Tree::default();
    tree.add_program("usr/bin/exec-server", program.bytes.clone());
    tree.add("etc/passwd", PASSWD);
    tree.add("etc/group", "root:x:0:\nexec-server:x:65532:\n");
    tree.add_directory("home/exec-server", 0o1777);
    tree.add_directory("tmp", 0o1777);
    tree.add_directory("proc", 0o755);
    tree.add("usr/share/doc/exec-server/LICENSE", release.read("LICENSE")?);
    tree.add("usr/share/doc/exec-server/THIRD-PARTY-LICENSES.txt", licences);
    Ok(tree)
}

/// Files that are named by their digest.
#[derive(Default)]
struct Blobs {
    tree: Tree,
}

impl Blobs {
    /// Stores a blob and returns its descriptor.
    fn add(&mut self, media_type: &str, bytes: &[u8]) -> Value {
        let digest = sha256(bytes);
        self.tree.add(format!("blobs/sha256/{digest}"), bytes);
        json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": bytes.len() })
    }
}
