"""Checks the artefacts of a release, for every processor, against each other and their formats.

Called by test-dist.sh as: check-dist.py DIST VERSION ROOTFS; unpacks the image for this machine to ROOTFS.
"""

import base64
import configparser
import csv
import email
import glob
import gzip
import hashlib
import io
import json
import platform
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

DIST, VERSION, ROOTFS = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])


@dataclass
class Processor:
    """Its names, and its number in ELF files."""

    name: str
    debian: str
    node: str
    machine: int


PROCESSORS = [Processor("x86_64", "amd64", "x64", 62), Processor("aarch64", "arm64", "arm64", 183)]


def check(condition: object, message: str) -> None:
    if not condition:
        sys.exit(f"check-dist: {message}")


def one(pattern: str) -> Path:
    found = list(DIST.glob(pattern))
    check(len(found) >= 1, f"the release has no {pattern}")
    return found[0]


def check_image() -> dict[str, bytes]:
    """Every blob has its digest and size, every layer its diff id; returns the program of each platform."""
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

    programs = {}
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
                    raw.seek(0)
                    with tarfile.open(fileobj=raw) as tree:
                        name = config["config"]["Entrypoint"][0].lstrip("/")
                        programs[config["architecture"]] = tree.extractfile(name).read()
                        if config["architecture"] == HERE.debian:
                            tree.extractall(ROOTFS)
    unused = {name for name in files if name.startswith("blobs/")} - used
    check(not unused, f"the image has blobs without a use: {unused}")
    return programs


def check_wheel(processor: Processor) -> bytes:
    """The record fits, names and metadata are right and the same as in maturin's wheel; returns the program."""
    path = one(f"exec_server-{VERSION}-py3-none-*{processor.name}.whl")
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
        print(f"the wheel for {processor.name} is the same as that of maturin")
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


def archive(path: Path, mode: str = "r:gz", content: bytes | None = None) -> dict[str, bytes]:
    """The files of a tar archive."""
    source = {"fileobj": io.BytesIO(content)} if content is not None else {"name": path}
    with tarfile.open(mode=mode, **source) as tree:
        return {member.name: tree.extractfile(member).read() for member in tree if member.isfile()}


def check_archives(processor: Processor, libc: str) -> bytes:
    """Both archives have the same files; returns the program."""
    name = f"exec-server-{VERSION}-{processor.name}-unknown-linux-{libc}"
    files = archive(DIST / f"{name}.tar.gz")
    check(one(f"{name}.tar.zst").read_bytes()[:4] == b"\x28\xb5\x2f\xfd", f"{name}.tar.zst is no zstd file")
    if shutil.which("zstd"):
        unpacked = subprocess.run(["zstd", "-dcq", DIST / f"{name}.tar.zst"], stdout=subprocess.PIPE, check=True).stdout
        check(archive(DIST, "r:", unpacked) == files, f"{name}: the archives have other files")
    check(all(file.startswith(f"{name}/") for file in files), f"{name} has files beside its directory")
    return files[f"{name}/exec-server"]


def check_deb(processor: Processor) -> bytes:
    """The package names its processor and version, and its sums fit; returns the program."""
    version = VERSION.replace("-", "~", 1)
    content = one(f"exec-server_{version}_{processor.debian}.deb").read_bytes()
    check(content[:8] == b"!<arch>\n", "the .deb is no archive")
    members, at = {}, 8
    while at < len(content):
        name, size = content[at : at + 16].decode().strip(), int(content[at + 48 : at + 58])
        members[name] = content[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
    check(list(members) == ["debian-binary", "control.tar.gz", "data.tar.gz"], f"the .deb has other members: {list(members)}")
    control, data = (archive(DIST, content=members[f"{part}.tar.gz"]) for part in ("control", "data"))
    control, data = ({name.removeprefix("./"): file for name, file in files.items()} for files in (control, data))
    fields = email.message_from_bytes(control["control"])
    check((fields["Version"], fields["Architecture"]) == (version, processor.debian), "the .deb is for another version or processor")
    check(re.fullmatch(r"[^<>]+ <[^<>@ ]+@[^<>@ ]+>", fields["Maintainer"]), f"the .deb has no valid maintainer: {fields['Maintainer']}")
    sums = dict(reversed(line.split("  ", 1)) for line in control["md5sums"].decode().splitlines())
    check(sums == {name: hashlib.md5(file).hexdigest() for name, file in data.items()}, "the sums of the .deb do not fit")
    return data["usr/bin/exec-server"]


def check_rpm(processor: Processor) -> bytes:
    """The package names its processor and version; returns the program."""
    version = VERSION.replace("-", "~", 1)
    content = one(f"exec-server-{version}-1.{processor.name}.rpm").read_bytes()
    check(content[:4] == b"\xed\xab\xee\xdb", "the rpm has no lead")

    def header(at: int) -> tuple[dict[int, str], int]:
        check(content[at : at + 3] == b"\x8e\xad\xe8", "the rpm has no header")
        count, size = struct.unpack(">II", content[at + 8 : at + 16])
        store = at + 16 + 16 * count
        texts = {}
        for tag, kind, offset, _ in struct.iter_unpack(">IIII", content[at + 16 : store]):
            # 6 is a string, 9 a translated one.
            if kind in (6, 9):
                texts[tag] = content[store + offset : content.index(b"\0", store + offset)].decode()
        return texts, store + size

    _, end = header(96)
    texts, end = header(end + -end % 8)
    found = [texts.get(tag) for tag in (1000, 1001, 1022)]
    check(found == ["exec-server", version, processor.name], f"the rpm is of {found}")
    payload = gzip.decompress(content[end:])
    program, at = None, 0
    while at < len(payload):
        check(payload[at : at + 6] == b"070701", "the payload of the rpm is no cpio archive")
        size, length = int(payload[at + 54 : at + 62], 16), int(payload[at + 94 : at + 102], 16)
        name = payload[at + 110 : at + 110 + length - 1].decode()
        start = at + 110 + length + -(110 + length) % 4
        if name.endswith("/usr/bin/exec-server"):
            program = payload[start : start + size]
        if name == "TRAILER!!!":
            break
        at = start + size + -size % 4
    check(program, "the rpm has no program")
    return program


def check_program(program: bytes, processor: Processor, libc: str) -> None:
    """The program is for the processor, and needs libraries only where its archive is named so."""
    check(program[:6] == b"\x7fELF\x02\x01", "the program is no 64-bit ELF file")
    kind, machine = struct.unpack("<HH", program[16:20])
    check(machine == processor.machine and kind in (2, 3), f"the program for {processor.name} is for ELF machine {machine}")
    table, size, count = *struct.unpack("<Q", program[32:40]), *struct.unpack("<HH", program[54:58])
    segments = {struct.unpack("<I", program[table + size * i :][:4])[0] for i in range(count)}
    is_static = 3 not in segments
    check(is_static == (libc == "musl"), f"the program for {processor.name} is {'' if is_static else 'not '}static, and named {libc}")


def check_facts() -> None:
    """release.json lists every file and names the compiler of every program."""
    facts = json.loads((DIST / "release.json").read_text())
    check((facts["name"], facts["version"]) == ("exec-server", VERSION), "release.json is of another release")
    listed = {it["name"]: (it["size"], it["sha256"]) for it in facts["files"]}
    files = [it for it in DIST.iterdir() if not it.name.startswith("SHA256SUMS") and it.name != "release.json"]
    actual = {it.name: (it.stat().st_size, hashlib.sha256(it.read_bytes()).hexdigest()) for it in files}
    check(listed == actual, f"release.json is wrong about {sorted(dict(listed.items() ^ actual.items()))}")
    for target, tools in facts["toolchains"].items():
        check(any(re.match(r"rustc version 1\.\d", it) for it in tools), f"release.json does not say what compiled {target}: {tools}")


HERE = next(it for it in PROCESSORS if it.name == platform.machine())
check_facts()
images = check_image()
targets = {}
for path in DIST.glob(f"exec-server-{VERSION}-*.tar.gz"):
    processor, libc = re.fullmatch(r"exec-server-.*-(\w+)-unknown-linux-(\w+)\.tar\.gz", path.name).groups()
    targets[processor] = libc
check(HERE.name in targets, f"the release has nothing for {HERE.name}")
check(set(targets) <= {it.name for it in PROCESSORS}, f"the release is for unknown processors: {targets}")
for processor in PROCESSORS:
    if processor.name not in targets:
        continue
    libc = targets[processor.name]
    program = check_archives(processor, libc)
    check_program(program, processor, libc)
    npm = archive(one(f"exec-server-linux-{processor.node}-{VERSION}.tgz"))
    check(json.loads(npm["package/package.json"])["cpu"] == [processor.node], "an npm package is for another processor")
    others = {
        "image": images.pop(processor.debian, None),
        "wheel": check_wheel(processor),
        "npm package": npm["package/bin/exec-server"],
        ".deb": check_deb(processor),
        ".rpm": check_rpm(processor),
    }
    for name, other in others.items():
        check(other == program, f"the {name} for {processor.name} has another program than the archive")
    print(f"archives, image, wheel, npm package, .deb and .rpm for {processor.name} have the same program")
check(not images, f"the image is also for {sorted(images)}")
check_npm()
check_sbom()
print("all artefacts fit their formats and each other")
