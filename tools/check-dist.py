"""Checks image, wheel, npm packages, bill of materials and licences of a release against each other and their formats.

Called by test-dist.sh as: check-dist.py DIST VERSION ROOTFS; unpacks the image for this machine to ROOTFS.
"""

import base64
import configparser
import csv
import email
import glob
import hashlib
import io
import json
import platform
import re
import sys
import tarfile
import zipfile
from pathlib import Path

DIST, VERSION, ROOTFS = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]


def check(condition: object, message: str) -> None:
    if not condition:
        sys.exit(f"check-dist: {message}")


def one(pattern: str) -> Path:
    found = list(DIST.glob(pattern))
    check(len(found) >= 1, f"the release has no {pattern}")
    return found[0]


def check_image() -> bytes:
    """Every blob has its digest and size, every layer its diff id; returns the program."""
    with tarfile.open(one("*-oci.tar")) as layout:
        files = {member.name: layout.extractfile(member).read() for member in layout if member.isfile()}
    check(json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}, "the image is no OCI layout")
    used = set()

    def blob(descriptor: dict) -> bytes:
        name = "blobs/" + descriptor["digest"].replace(":", "/")
        content = files[name]
        check(len(content) == descriptor["size"], f"{name} has another size")
        check(hashlib.sha256(content).hexdigest() == name.rsplit("/")[-1], f"{name} has another digest")
        used.add(name)
        return content

    program = None
    for top in json.loads(files["index.json"])["manifests"]:
        for described in json.loads(blob(top))["manifests"]:
            manifest = json.loads(blob(described))
            config = json.loads(blob(manifest["config"]))
            check(config["architecture"] == described["platform"]["architecture"], "the index names another platform")
            check(config["config"]["Labels"]["org.opencontainers.image.version"] == VERSION, "the image is another version")
            check(config["config"]["User"] not in ("", "0", "root"), "the image runs as root")
            check(len(config["rootfs"]["diff_ids"]) == len(manifest["layers"]), "the image has another number of layers")
            for layer, diff_id in zip(manifest["layers"], config["rootfs"]["diff_ids"]):
                with tarfile.open(fileobj=io.BytesIO(blob(layer)), mode="r:gz") as archive:
                    raw = archive.fileobj
                    raw.seek(0)
                    check(f"sha256:{hashlib.sha256(raw.read()).hexdigest()}" == diff_id, "a layer has another diff id")
                    if config["architecture"] == MACHINE:
                        raw.seek(0)
                        with tarfile.open(fileobj=raw) as tree:
                            tree.extractall(ROOTFS)
                        program = (ROOTFS / config["config"]["Entrypoint"][0].lstrip("/")).read_bytes()
    unused = {name for name in files if name.startswith("blobs/")} - used
    check(not unused, f"the image has blobs without a use: {unused}")
    check(program, "the image has no program for this machine")
    return program


def check_wheel() -> bytes:
    """The record fits, names and metadata are right and the same as in maturin's wheel; returns the program."""
    path = one(f"*{platform.machine()}.whl")
    wheel = zipfile.ZipFile(path)
    info = f"exec_server-{VERSION}.dist-info"
    record = {row[0]: row[1:] for row in csv.reader(io.StringIO(wheel.read(f"{info}/RECORD").decode()))}
    check(set(record) == set(wheel.namelist()), "RECORD does not list the files of the wheel")
    for name, (digest, size) in record.items():
        if not name.endswith("/RECORD"):
            content = wheel.read(name)
            expected = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            check((digest, size) == (f"sha256={expected}", str(len(content))), f"RECORD is wrong about {name}")
    tags = re.findall(r"^Tag: (.*)$", wheel.read(f"{info}/WHEEL").decode(), re.M)
    platforms = path.stem.split("-")[-1].split(".")
    check(tags == [f"py3-none-{it}" for it in platforms], "WHEEL and the file name have other tags")
    script = wheel.getinfo(f"exec_server-{VERSION}.data/scripts/exec-server")
    check(script.external_attr >> 16 & 0o111, "the program in the wheel is not executable")
    check(metadata(wheel)["Version"] == [VERSION], "the wheel is another version")
    other = glob.glob("target/python/wheels/*.whl")
    if other:
        maturin = zipfile.ZipFile(other[0])
        for field in ("Name", "Version", "Summary", "Requires-Python", "Requires-Dist", "Provides-Extra", "Classifier", "License-Expression"):
            ours, theirs = metadata(wheel).get(field), metadata(maturin).get(field)
            check(ours == theirs, f"{field} is {ours}, and {theirs} in the wheel of maturin")
        check(metadata(wheel)["Description"] == metadata(maturin)["Description"], "the wheel has another description than that of maturin")
        check(entry_points(wheel) == entry_points(maturin), "the wheel has other entry points than that of maturin")
        modules = [{it for it in each.namelist() if it.startswith("exec_server/")} for each in (wheel, maturin)]
        check(modules[0] == modules[1], f"other modules than in the wheel of maturin: {modules[0] ^ modules[1]}")
        print("the wheel is the same as that of maturin")
    return wheel.read(script)


def metadata(wheel: zipfile.ZipFile) -> dict:
    text = next(it for it in wheel.namelist() if it.endswith(".dist-info/METADATA"))
    message = email.message_from_bytes(wheel.read(text))
    fields = {}
    for key, value in message.items():
        fields.setdefault(key, []).append(re.sub(r"[\s'\"]", "", value) if key == "Requires-Dist" else value)
    fields = {key: sorted(values) for key, values in fields.items()}
    return fields | {"Description": message.get_payload().strip()}


def entry_points(wheel: zipfile.ZipFile) -> dict:
    name = next(it for it in wheel.namelist() if it.endswith("entry_points.txt"))
    parser = configparser.ConfigParser(delimiters="=")
    parser.read_string(wheel.read(name).decode())
    return {section: dict(parser[section]) for section in parser.sections()}


def check_npm() -> None:
    manifests = {}
    for path in DIST.glob("*.tgz"):
        with tarfile.open(path) as package:
            manifest = json.load(package.extractfile("package/package.json"))
            check(manifest["version"] == VERSION, f"{path.name} is another version")
            check(all(member.name.startswith("package/") for member in package), f"{path.name} has files outside of package/")
            manifests[manifest["name"]] = manifest
    platforms = manifests["exec-server"]["optionalDependencies"]
    check(platforms == {name: VERSION for name in manifests if name != "exec-server"}, "exec-server does not depend on its platforms")


def check_sbom() -> None:
    """References resolve, every crate has a licence and its digest of Cargo.lock, and the report names all of them."""
    one("*.cdx.json")
    for path in DIST.glob("*.cdx.json"):
        check_bill(json.loads(path.read_text()))


def check_bill(document: dict) -> None:
    check((document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5"), "the bill of materials is no CycloneDX 1.5")
    check(re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", document["serialNumber"]), "the serial number is none")
    components = document["components"]
    refs = [it["bom-ref"] for it in components] + [document["metadata"]["component"]["bom-ref"]]
    check(len(refs) == len(set(refs)), "the bill of materials lists a crate twice")
    for entry in document["dependencies"]:
        check(set(entry["dependsOn"]) | {entry["ref"]} <= set(refs), f"{entry['ref']} uses a crate that is not listed")
    check(len(components) > 100, "the bill of materials is too short")
    names = {it["name"] for it in components}
    check({"tokio", "rustls", "libsqlite3-sys"} <= names, "the bill of materials lacks known crates")
    check(not {"proptest", "exec-server-testkit", "cc"} & names, "the bill of materials lists what is not in the program")
    lock = Path("Cargo.lock").read_text()
    report = one("THIRD-PARTY-LICENSES.txt").read_text()
    allowed = set(re.findall(r'"([^"]+)"', re.search(r"^allow = \[(.*?)\]", Path("deny.toml").read_text(), re.M | re.S)[1]))
    for it in components:
        expression = it["licenses"][0]["expression"]
        check(is_allowed(expression, allowed), f"deny.toml does not allow {expression} of {it['name']}")
        for digest in it.get("hashes", []):
            check(f'checksum = "{digest["content"]}"' in lock, f"{it['name']} has another digest in Cargo.lock")
            line = f"{it['name']} {it['version']}: {it['licenses'][0]['expression']}"
            check(line in report, f"THIRD-PARTY-LICENSES.txt lacks {line}")


def is_allowed(expression: str, allowed: set) -> bool:
    """Whether an SPDX expression can be met with these licences; AND binds closer than OR."""
    words = re.findall(r"[()]|[^\s()]+(?: WITH [^\s()]+)?", expression)

    def either() -> bool:
        met = both()
        while words and words[0] == "OR":
            words.pop(0)
            met = both() or met
        return met

    def both() -> bool:
        met = single()
        while words and words[0] == "AND":
            words.pop(0)
            met = single() and met
        return met

    def single() -> bool:
        word = words.pop(0)
        if word != "(":
            return word in allowed
        met = either()
        check(words and words.pop(0) == ")", f"{expression} is no licence expression")
        return met

    met = either()
    check(not words, f"{expression} is no licence expression")
    return met


def check_rpm() -> None:
    content = one("*.rpm").read_bytes()
    check(content[:4] == b"\xed\xab\xee\xdb", "the rpm has no lead")
    check(f"exec-server\0{VERSION}\0".encode() in content, "the rpm is another version")


program = check_image()
check(program == check_wheel(), "image and wheel have different programs")
check_npm()
check_sbom()
check_rpm()
print("image, wheel, npm packages, rpm and bill of materials fit their formats and each other")
