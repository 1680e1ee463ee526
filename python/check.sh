#!/usr/bin/env bash
# Builds the package in the dev profile, installs it in a virtual environment under target/, and runs its tests, the tutorial
# and the Python lines of README.md and docs/python.md. Compares them with the program in TRAINWRIGHT, or with one that it builds.
# Needs python3 with venv, and a package index.
set -euo pipefail
cd "$(dirname "$0")"
target="$(cargo metadata --format-version 1 --no-deps | python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')"
venv="$target/python"
python3 -m venv --clear "$venv"
pip="$venv/bin/pip --quiet --disable-pip-version-check"
$pip install 'maturin>=1.8,<2' pytest pandas pyarrow tqdm jsonschema nbclient ipykernel distributed mpi4py mpich
rm -rf "$target/wheels"
"$venv/bin/maturin" build --quiet --profile dev --locked --out "$target/wheels"
if [ -z "${TRAINWRIGHT:-}" ]; then
    # With the package, whose dependencies have more features, so that nothing is compiled twice.
    cargo build --quiet --locked -p trainwright -p trainwright-python --bin trainwright
    export TRAINWRIGHT="$target/debug/trainwright"
fi
$pip install --force-reinstall --no-deps "$target"/wheels/*.whl
export PATH="$venv/bin:$PATH" LD_LIBRARY_PATH="$venv/lib"
"$venv/bin/python" stubs.py --check
"$venv/bin/python" -m pytest -q -p no:cacheprovider tests
"$venv/bin/python" documents.py
