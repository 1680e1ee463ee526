/* Stands in for the NVIDIA driver while cuDNN makes plans for a GPU that is not there: what it loads is there at once, and
   nothing runs. */

static int something;

#define GIVES(name) int name(void **made) { *made = &something; return 0; }
#define DOES(name) int name(void) { return 0; }
/* CUDA_ERROR_NO_DEVICE */
#define REFUSES(name) int name(void) { return 100; }

GIVES(cuLibraryLoadData)
GIVES(cuLibraryLoadFromFile)
GIVES(cuLibraryGetKernel)
GIVES(cuKernelGetFunction)
GIVES(cuModuleLoadData)
GIVES(cuModuleLoadDataEx)
GIVES(cuModuleGetFunction)
DOES(cuLibraryUnload)
DOES(cuModuleUnload)
DOES(cuKernelSetAttribute)
DOES(cuFuncSetAttribute)
REFUSES(cuInit)
REFUSES(cuGetErrorName)
REFUSES(cuGetErrorString)
REFUSES(cuCtxGetCurrent)
REFUSES(cuCtxGetLimit)
REFUSES(cuCtxPopCurrent)
REFUSES(cuCtxPushCurrent)
REFUSES(cuDeviceGet)
REFUSES(cuDeviceGetCount)
REFUSES(cuLaunchKernel)
REFUSES(cuLaunchKernelEx)
REFUSES(cuLaunchCooperativeKernel)
REFUSES(cuLinkAddData)
REFUSES(cuLinkComplete)
REFUSES(cuLinkCreate)
REFUSES(cuLinkDestroy)
REFUSES(cuOccupancyMaxPotentialClusterSize)
REFUSES(cuStreamGetCtx)
REFUSES(cuTensorMapEncodeIm2col)
REFUSES(cuTensorMapEncodeTiled)

int cuDriverGetVersion(int *version) { *version = 12090; return 0; }
int cuKernelGetAttribute(int *value) { *value = 0; return 0; }
int cuFuncGetAttribute(int *value) { *value = 0; return 0; }
