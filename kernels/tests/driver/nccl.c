/* Stands in for NCCL: collectives do nothing, and errors are what the test says. */
#include "counts.h"

static int asynchronous_error;
static char communicator;

/* What went wrong on all communicators behind their calls. */
void stand_in_error(int error) { asynchronous_error = error; }

#define DOES(name) int name(void) { count(#name); return 0; }

DOES(ncclCommDestroy)
DOES(ncclCommAbort)
DOES(ncclGroupStart)
DOES(ncclGroupEnd)
DOES(ncclAllReduce)
DOES(ncclReduceScatter)
DOES(ncclAllGather)
DOES(ncclSend)
DOES(ncclRecv)

int ncclGetVersion(int *version) { *version = 22703; return 0; }
int ncclGetUniqueId(char *id) { memset(id, 5, 128); return 0; }
const char *ncclGetErrorString(int error) { return error == 6 ? "remote process exited" : "another error"; }
const char *ncclGetLastError(void *of) { (void)of; return "socketProgress:\n connection closed by 10.0.0.2"; }
int ncclCommInitRank(void **made) { count("ncclCommInitRank"); *made = &communicator; return 0; }
int ncclCommGetAsyncError(void *of, int *error) { (void)of; *error = asynchronous_error; return 0; }
