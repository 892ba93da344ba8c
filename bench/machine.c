/* SPDX-License-Identifier: MIT */
/* See machine.h. Linux tells by files; elsewhere what is not known stays unknown. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "machine.h"

#include "bench.h"

#include <inttypes.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOAD_MAX 0.5
#define LAST_CACHE_DEFAULT ((size_t)32 << 20)

/* The value after "key:" in a file of such lines, or after "key" and blanks. */
static bool find_line(const char *path, const char *key, char *value, size_t cap)
{
    char line[4096];
    FILE *f = fopen(path, "r");
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f)) {
        size_t n = strlen(key);
        if (strncmp(line, key, n) != 0) continue;
        const char *at = line + n + strspn(line + n, " \t:");
        snprintf(value, cap, "%.*s", (int)strcspn(at, "\n"), at);
        found = true;
    }
    if (f) fclose(f);
    return found;
}

static bool first_line(const char *path, char *value, size_t cap)
{
    return find_line(path, "", value, cap) && value[0];
}

/* A number of bytes in the first line of a file; "max" and nothing are no number. */
static bool bytes_in(const char *path, uint64_t *bytes)
{
    char text[64], *end;
    if (!first_line(path, text, sizeof text)) return false;
    *bytes = strtoull(text, &end, 10);
    if (end == text) return false;
    *bytes <<= *end == 'K' ? 10 : *end == 'M' ? 20 : 0;
    return true;
}

/* sysconf() is not asked first: on virtual machines glibc reckons caches that are not there
   (320 MiB for 32, Zen 4 under KVM). */
static size_t read_last_cache(void)
{
    uint64_t bytes, largest = 0;
    for (int i = 0; i < 8; i++) {
        char path[96];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        if (bytes_in(path, &bytes) && bytes > largest) largest = bytes;
    }
#ifdef _SC_LEVEL3_CACHE_SIZE
    long known = largest ? 0 : sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (known > 0) largest = (uint64_t)known;
#endif
    return largest ? (size_t)largest : LAST_CACHE_DEFAULT;
}

static size_t read_memory(void)
{
    char text[64];
    uint64_t bytes = UINT64_MAX, limit, used;
    if (find_line("/proc/meminfo", "MemAvailable:", text, sizeof text))
        bytes = strtoull(text, NULL, 10) << 10;
    /* a container's limit, version 2 and version 1 of control groups */
    if (bytes_in("/sys/fs/cgroup/memory.max", &limit) &&
        bytes_in("/sys/fs/cgroup/memory.current", &used) && limit - used < bytes && used < limit)
        bytes = limit - used;
    if (bytes_in("/sys/fs/cgroup/memory/memory.limit_in_bytes", &limit) &&
        bytes_in("/sys/fs/cgroup/memory/memory.usage_in_bytes", &used) && used < limit &&
        limit - used < bytes)
        bytes = limit - used;
    return bytes > SIZE_MAX ? SIZE_MAX : (size_t)bytes;
}

static int64_t count_cpus(void)
{
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return CPU_COUNT(&set);
#endif
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n;
}

void machine_read(struct machine *m)
{
    char text[4096];
    *m = (struct machine){.cpus = count_cpus(), .load = NAN};
    m->last_cache = read_last_cache();
    m->memory = read_memory();
    if (!find_line("/proc/cpuinfo", "model name", m->cpu, sizeof m->cpu))
        find_line("/proc/cpuinfo", "CPU part", m->cpu, sizeof m->cpu);
    if (find_line("/proc/cpuinfo", "flags", text, sizeof text))
        m->is_virtual = strstr(text, " hypervisor ") != NULL;
    if (first_line("/proc/loadavg", text, sizeof text)) m->load = strtod(text, NULL);
    first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", m->governor,
               sizeof m->governor);
}

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif

bool machine_sanitized(void)
{
#ifdef SANITIZED
    return true;
#else
    return false;
#endif
}

void machine_warn(const struct machine *m, int64_t threads)
{
#ifndef NDEBUG
    complain("warning: built with asserts; times are not those of a release build");
#endif
#ifndef __OPTIMIZE__
    complain("warning: built without optimization");
#endif
    if (machine_sanitized())
        complain("warning: built with a sanitizer; times mean little, memory is not measured");
    if (m->load > LOAD_MAX)
        complain("warning: load average %.2f: others use this machine", m->load);
    if (m->governor[0] && strcmp(m->governor, "performance") != 0)
        complain("warning: CPU governor \"%s\", not \"performance\"", m->governor);
    if (threads > m->cpus)
        complain("warning: %" PRId64 " threads on %" PRId64 " CPUs", threads, m->cpus);
}
