/* Stands in for cuDNN's backend, as strict as its words allow: a descriptor must be there as long as any that was made of it. */
#include "counts.h"
#include <stdint.h>
#include <stdlib.h>

enum { BACKEND_DESCRIPTOR = 15, ENGINEHEUR_RESULTS = 202, ENGINECFG_ENGINE = 300, WORKSPACE_SIZE = 402, NUMERICAL_NOTE = 1303 };

struct descriptor {
    int is_alive;
    /* Those that it was made of. */
    struct descriptor *needs[64];
    int needs_count;
};

static struct descriptor *all[4096];
static int made, violations, refuses;

/* Whether plans refuse to run. */
void stand_in_refuse(int refuse) { refuses = refuse; }
int stand_in_violations(void) { return violations; }
int stand_in_made(void) { return made; }
int stand_in_alive(void) {
    int alive = 0;
    for (int at = 0; at < made; at++) alive += all[at]->is_alive;
    return alive;
}

static void needs(struct descriptor *own, struct descriptor *other) {
    if (!other->is_alive) violations++;
    own->needs[own->needs_count++] = other;
}

/* Everything that it was made of, and so on. */
static int is_whole(struct descriptor *own) {
    if (!own->is_alive) return 0;
    for (int at = 0; at < own->needs_count; at++)
        if (!is_whole(own->needs[at])) return 0;
    return 1;
}

size_t cudnnGetVersion(void) { return 91002; }
size_t cudnnGetCudartVersion(void) { return 12090; }
int cudnnCreate(void **handle) { *handle = (void *)1; return 0; }
int cudnnDestroy(void) { count("cudnnDestroy"); return 0; }
int cudnnSetStream(void) { return 0; }
void cudnnGetLastErrorString(char *text, size_t size) { strncpy(text, "a stand-in's words", size); }

int cudnnBackendCreateDescriptor(int kind, void **to) {
    (void)kind;
    struct descriptor *own = calloc(1, sizeof *own);
    own->is_alive = 1;
    *to = all[made++] = own;
    return 0;
}

int cudnnBackendDestroyDescriptor(struct descriptor *own) {
    for (int at = 0; at < made; at++)
        for (int needed = 0; all[at]->is_alive && needed < all[at]->needs_count; needed++)
            if (all[at]->needs[needed] == own) violations++;
    if (!own->is_alive) violations++;
    own->is_alive = 0;
    return 0;
}

int cudnnBackendFinalize(struct descriptor *own) { return is_whole(own) ? 0 : 2000; }

int cudnnBackendSetAttribute(struct descriptor *own, int name, int kind, int64_t count, struct descriptor **values) {
    (void)name;
    for (int at = 0; kind == BACKEND_DESCRIPTOR && at < count; at++) needs(own, values[at]);
    return 0;
}

int cudnnBackendGetAttribute(struct descriptor *own, int name, int kind, int64_t room, int64_t *count, void *to) {
    (void)kind;
    *count = name == NUMERICAL_NOTE ? 0 : name == ENGINEHEUR_RESULTS ? 2 : 1;
    if (name == WORKSPACE_SIZE) *(int64_t *)to = 4096;
    if (name == ENGINEHEUR_RESULTS || name == ENGINECFG_ENGINE)
        for (int at = 0; at < *count && at < room; at++) needs(((struct descriptor **)to)[at], own);
    return 0;
}

/* CUDNN_STATUS_BAD_PARAM, CUDNN_STATUS_EXECUTION_FAILED */
int cudnnBackendExecute(void *handle, struct descriptor *plan, struct descriptor *pack) {
    (void)handle;
    count("cudnnBackendExecute");
    if (refuses) return 5000;
    return is_whole(plan) && is_whole(pack) ? 0 : 2000;
}
