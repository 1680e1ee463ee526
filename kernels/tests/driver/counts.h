/* Calls by name, for the test to read. */
#include <string.h>

static const char *count_names[64];
static int counts[64];

static void count(const char *name) {
    int at = 0;
    while (count_names[at] && strcmp(count_names[at], name)) at++;
    count_names[at] = name;
    counts[at]++;
}

int stand_in_count(const char *name) {
    for (int at = 0; at < 64 && count_names[at]; at++)
        if (!strcmp(count_names[at], name)) return counts[at];
    return 0;
}
