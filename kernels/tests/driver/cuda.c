/* Stands in for the NVIDIA driver with one GPU: memory is the host's, copies are done at once, kernels do nothing. */
#include "counts.h"
#include <stdlib.h>

typedef unsigned long long address;

static char thing[4096];
static int things;
static int is_busy;
/* Of the streams in the order in which they were made. */
static int priorities[32], streams;

/* Whether work on streams never ends. */
void stand_in_busy(int busy) { is_busy = busy; }
int stand_in_priority(int stream) { return stream < streams ? priorities[stream] : 99; }

static void *new_thing(void) { return &thing[things++ % sizeof thing]; }

#define DOES(name) int name(void) { count(#name); return 0; }
#define GIVES(name) int name(void **made) { count(#name); *made = new_thing(); return 0; }

DOES(cuInit)
DOES(cuCtxSetCurrent)
DOES(cuStreamDestroy_v2)
DOES(cuStreamWaitEvent)
DOES(cuEventRecord)
DOES(cuEventDestroy_v2)
DOES(cuModuleUnload)
DOES(cuFuncLoad)
DOES(cuFuncSetAttribute)
DOES(cuLaunchKernel)
DOES(cuMemsetD8Async)
DOES(cuStreamBeginCapture_v2)
DOES(cuGraphLaunch)
DOES(cuGraphDestroy)
DOES(cuGraphExecDestroy)
GIVES(cuDevicePrimaryCtxRetain)
GIVES(cuEventCreate)
GIVES(cuModuleLoadData)
GIVES(cuModuleGetFunction)
GIVES(cuGraphInstantiateWithFlags)

/* CUDA_ERROR_NOT_READY */
int cuStreamQuery(void) { return is_busy ? 600 : 0; }
int cuEventQuery(void) { count("cuEventQuery"); return is_busy ? 600 : 0; }
int cuDriverGetVersion(int *version) { *version = 12090; return 0; }
int cuDeviceGetCount(int *found) { *found = 1; return 0; }
int cuDeviceGet(int *device) { *device = 0; return 0; }
int cuDeviceGetUuid(char *uuid) { memset(uuid, 7, 16); return 0; }
/* 9 for the major compute capability, which is number 75; 0 for the minor one. */
int cuDeviceGetAttribute(int *value, int attribute) { *value = attribute == 75 ? 9 : 0; return 0; }
int cuDeviceGetName(char *name, int size) { strncpy(name, "stand-in", size); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes) { *bytes = 1ull << 34; return 0; }
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) { *free_bytes = *total = 1ull << 34; return 0; }
int cuCtxGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return 0; }
int cuStreamCreateWithPriority(void **made, unsigned flags, int priority) {
    *made = new_thing();
    /* CU_STREAM_NON_BLOCKING */
    priorities[streams++] = flags == 1 ? priority : 98;
    return 0;
}
int cuStreamEndCapture(void *stream, void **graph) { (void)stream; *graph = new_thing(); return 0; }
int cuEventElapsedTime_v2(float *milliseconds) { *milliseconds = 1.5f; return 0; }
int cuMemAlloc_v2(address *made, size_t bytes) {
    void *memory = 0;
    int failed = posix_memalign(&memory, 256, bytes);
    *made = (address)memory;
    return failed ? 2 : 0;
}
int cuMemFree_v2(address memory) { free((void *)memory); return 0; }
int cuMemHostAlloc(void **made, size_t bytes) { *made = malloc(bytes); return 0; }
int cuMemFreeHost(void *memory) { free(memory); return 0; }
int cuMemcpyHtoDAsync_v2(address to, const void *from, size_t bytes) { memcpy((void *)to, from, bytes); return 0; }
int cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes) { memcpy(to, (void *)from, bytes); return 0; }
int cuModuleGetFunctionCount(unsigned *found) { *found = 0; return 0; }
int cuModuleEnumerateFunctions(void) { return 0; }
int cuGetErrorString(int error, const char **text) { (void)error; *text = "a stand-in's error"; return 0; }
