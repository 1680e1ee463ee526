"""Makes a small database as Nsight Systems exports it: two steps of one rank, with the tables and columns that are read.

    python tests/tools/make_nsight_export.py traces/formats/tests/data/two-steps.sqlite

Nothing was run: times are made up, so that a test can add them up in its head. Tables and columns are those of
`nsys export --type sqlite` 2024.6 as far as they have to do with kernels, and PyTorch's ranges look as emit_nvtx
with record_shapes writes them.
"""

import os
import sqlite3
import sys

PROCESS = 4711 << 24
THREAD = PROCESS | 4712
SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
    category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER,
    domainId INTEGER, uint64Value INTEGER, int64Value INTEGER, doubleValue REAL, uint32Value INTEGER,
    int32Value INTEGER, floatValue REAL, jsonTextId INTEGER, jsonText TEXT, binaryData TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
    globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL,
    callchainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
    globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER,
    launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL,
    gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL,
    blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL,
    localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL,
    sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
    globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, deprecatedSrcId INTEGER, srcKind INTEGER,
    dstKind INTEGER, srcDeviceId INTEGER, srcContextId INTEGER, dstDeviceId INTEGER, dstContextId INTEGER,
    migrationCause INTEGER, graphNodeId INTEGER, virtualAddress INTEGER, copyCount INTEGER);
"""

# The range, and the kernels that were launched in it with their microseconds.
STEP = [
    (
        "aten::mm, seq = 3, op_id = 7, sizes = [[4096, 1024], [1024, 4096]]",
        [("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NNT", 100)],
    ),
    (
        "aten::addmm, seq = 4, op_id = 8, sizes = [[512], [4096, 1024], [1024, 512], [], []]",
        [
            ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16>(T1::Params)", 60),
            ("void splitKreduce_kernel<32, 16, int, float>(T5)", 4),
        ],
    ),
    (None, [("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>(Flash_fwd_params)", 40)]),
    (
        "aten::add, op_id = 9, sizes = [[4096, 1024], [4096, 1024], []]",
        [("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>(int)", 6)],
    ),
    (None, [("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 250)]),
]
LENGTH = 1_000_000


def main():
    path = sys.argv[1]
    if os.path.exists(path):
        os.remove(path)
    base = sqlite3.connect(path)
    base.execute("PRAGMA page_size = 1024")
    base.executescript(SCHEMA)
    strings = {}

    def string(text):
        if text not in strings:
            strings[text] = len(strings)
            base.execute("INSERT INTO StringIds VALUES (?, ?)", (strings[text], text))
        return strings[text]

    def insert(table, **values):
        names = ", ".join(values)
        base.execute(f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(values))})", list(values.values()))

    ones = "registersPerThread gridX gridY gridZ blockX blockY blockZ staticSharedMemory dynamicSharedMemory " \
        "localMemoryPerThread localMemoryTotal gridId"
    insert("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value="3.20.0")
    launch, correlation = string("cudaLaunchKernel_v7000"), 100
    for step in range(2):
        begin = step * LENGTH
        # A range's text stands in its row or with the other strings.
        insert("NVTX_EVENTS", start=begin, end=begin + LENGTH, eventType=59, text=f"step {step + 3}", globalTid=THREAD)
        host, device = begin + 1000, begin + 50_000
        for text, kernels in STEP:
            if text:
                insert("NVTX_EVENTS", start=host, end=host + 900, eventType=59, textId=string(text), globalTid=THREAD)
                insert("NVTX_EVENTS", start=host + 10, end=host + 20, eventType=59, text="inside", globalTid=THREAD)
            for place, (name, microseconds) in enumerate(kernels):
                called, took = host + 100 + 100 * place, 1000 * microseconds
                insert("CUPTI_ACTIVITY_KIND_RUNTIME", start=called, end=called + 90, eventClass=1, globalTid=THREAD,
                       correlationId=correlation, nameId=launch, returnValue=0)
                insert("CUPTI_ACTIVITY_KIND_KERNEL", start=device, end=device + took, deviceId=0, contextId=1, streamId=7,
                       correlationId=correlation, globalPid=PROCESS, demangledName=string(name),
                       shortName=string(name.split("<")[0]), **dict.fromkeys(ones.split(), 1))
                device, correlation = device + took + 500, correlation + 1
            host += 1000
        insert("CUPTI_ACTIVITY_KIND_MEMCPY", start=device, end=device + 20_000, deviceId=0, contextId=1, streamId=7,
               correlationId=correlation, globalPid=PROCESS, bytes=1 << 20, copyKind=1)
    base.commit()
    base.execute("VACUUM")
    base.close()


if __name__ == "__main__":
    main()
