#!/usr/bin/env python3
"""Compiles every kernel file by NVRTC to machine code and prints what each kernel takes of a multiprocessor.

usage: cuda_compile.py PATH-OF-LIBNVRTC [ARCHITECTURE ...]   (default sm_80 and sm_90); needs no GPU.
Fails when a file does not compile, or when a kernel spills registers to memory that is not a simple version, the first step
of a ladder.
"""

import ctypes
import pathlib
import re
import sys

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "kernels" / "cuda"


def compile_file(library, path, architecture):
    """The compiler's log; raises if it fails."""
    parts = [FOLDER / "prelude.cuh", FOLDER / "mma.cuh", path]
    source = "".join(f'#line 1 "{part.name}"\n{part.read_text()}' for part in parts)
    program = ctypes.c_void_p()
    check(library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), path.name.encode(), 0, None, None))
    options = [f"--gpu-architecture={architecture}", "--std=c++17", "--ptxas-options=-v", "-default-device"]
    options = [option.encode() for option in options]
    code = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    check(library.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
    log = ctypes.create_string_buffer(size.value)
    check(library.nvrtcGetProgramLog(program, log))
    if code != 0:
        raise RuntimeError(log.value.decode())
    check(library.nvrtcGetCUBINSize(program, ctypes.byref(size)))
    if size.value == 0:
        raise RuntimeError("no machine code was made")
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return log.value.decode()


def check(code):
    if code != 0:
        raise RuntimeError(f"NVRTC error {code}")


def kernels(log):
    """Name, registers, shared memory and bytes spilled of each kernel."""
    name, spilled = None, 0
    for line in log.splitlines():
        if found := re.search(r"Compiling entry function '(\w+)'", line):
            name, spilled = found[1], 0
        elif found := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores", line):
            spilled = int(found[1]) + int(found[2])
        elif name and (found := re.search(r"Used (\d+) registers", line)):
            shared = re.search(r"(\d+) bytes smem", line)
            yield name, int(found[1]), int(shared[1]) if shared else 0, spilled


def main():
    library = ctypes.CDLL(sys.argv[1])
    failed = 0
    for architecture in sys.argv[2:] or ["sm_80", "sm_90"]:
        print(f"{architecture}: kernel, registers per thread, bytes of static shared memory, bytes spilled")
        for path in sorted(FOLDER.glob("*.cu")):
            try:
                log = compile_file(library, path, architecture)
            except RuntimeError as error:
                print(f"FAILED {path.name}: {error}")
                failed += 1
                continue
            for name, registers, shared, spilled in kernels(log):
                print(f"  {path.stem:14} {name:36} {registers:4} {shared:6} {spilled:6}{'  SPILLS' if spilled else ''}")
                failed += spilled > 0 and "simple" not in name
    sys.exit(1 if failed else 0)


main()
