#!/usr/bin/env python3
"""Prints a software bill of materials (CycloneDX 1.5, JSON) of the program: every crate that a build links or runs,
with version, licence and the checksum of Cargo.lock. Needs cargo and Python 3.11 or later.

    tests/tools/sbom.py --features cuda > sbom.json
"""

import argparse
import json
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def metadata(features: str, target: str) -> dict:
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target]
    if features:
        command += ["--features", features]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)


def needed(features: str, target: str) -> set[tuple[str, str]]:
    """Names and versions of the crates that a build links or runs; `cargo metadata` has also those that no feature asks for."""
    command = ["cargo", "tree", "--locked", "-p", "trainwright", "--edges", "normal,build", "--prefix", "none"]
    command += ["--target", target, "--features", features]
    lines = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    words = [line.split() for line in lines if line]
    return {(name, version.removeprefix("v")) for name, version, *_ in words}


def component(package: dict, checksums: dict) -> dict:
    name, version = package["name"], package["version"]
    entry = {
        "type": "library",
        "bom-ref": f"pkg:cargo/{name}@{version}",
        "name": name,
        "version": version,
        "purl": f"pkg:cargo/{name}@{version}",
    }
    if package["license"]:
        # Older manifests separate alternatives by a slash.
        entry["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if checksum := checksums.get((name, version)):
        entry["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return entry


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--features", default="", help="features of the build, as `cuda,parquet`")
    parser.add_argument("--target", default="x86_64-unknown-linux-gnu", help="the platform of the build")
    arguments = parser.parse_args()
    data = metadata(arguments.features, arguments.target)
    packages = {package["id"]: package for package in data["packages"]}
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    checksums = {(package["name"], package["version"]): package.get("checksum") for package in lock["package"]}
    known = needed(arguments.features, arguments.target)
    ids = sorted(identity for identity, package in packages.items() if (package["name"], package["version"]) in known)
    ref = {identity: component(packages[identity], checksums)["bom-ref"] for identity in ids}
    root = data["resolve"]["root"]
    nodes = {node["id"]: node for node in data["resolve"]["nodes"]}
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(packages[root], checksums) | {"type": "application"}},
        "components": [component(packages[identity], checksums) for identity in ids if identity != root],
        "dependencies": [
            {
                "ref": ref[identity],
                "dependsOn": sorted(ref[other["pkg"]] for other in nodes[identity]["deps"] if other["pkg"] in ref),
            }
            for identity in ids
        ],
    }
    print(json.dumps(bill, indent=2))


if __name__ == "__main__":
    main()
