/* What tests tell the fake, and what it tells them: scripted statuses, engines, heuristics; the journal of its calls. */
#include "fake_cudnn.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ENGINES = 64, MOST_CONFIGS = 512, MOST_SCRIPTS = 32 };

struct script { char call[32]; int64_t what; int status, times; };

static struct engine engines[MOST_ENGINES];
static struct config configs[MOST_CONFIGS];
static struct script scripts[MOST_SCRIPTS];
static int engine_count, config_count, script_count;
static char *journal;
static size_t journal_size, journal_room;
static int (*gil_held)(void);
static __thread char last_error[512];

void note_call(const char *format, ...) {
    char line[4096];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 2, format, arguments);
    va_end(arguments);
    if (length > (int)sizeof line - 3) length = (int)sizeof line - 3;
    if (journal_size + (size_t)length + 4 > journal_room) journal = realloc(journal, journal_room = 2 * journal_room + 8192);
    journal_size += (size_t)sprintf(journal + journal_size, "%s%.*s\n", !gil_held ? "" : gil_held() ? "+" : "-", length, line);
}

int fail(int status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return status;
}

int scripted(const char *call, int64_t what) {
    for (int place = 0; place < script_count; place++) {
        struct script *script = &scripts[place];
        if (strcmp(script->call, call) || !script->times || (script->what != -1 && script->what != what)) continue;
        if (script->times > 0) script->times--;
        return script->status ? fail(script->status, "scripted: %s %lld", call, (long long)what) : 0;
    }
    return 0;
}

EXPORT void fake_script(const char *call, int64_t what, int status, int times) {
    if (script_count == MOST_SCRIPTS) abort();
    struct script *script = &scripts[script_count++];
    snprintf(script->call, sizeof script->call, "%s", call);
    script->what = what, script->status = status, script->times = times;
}

EXPORT void fake_engine(int index, int behaviour, int n, const int *numerical, int m, const int *behavior) {
    if (engine_count == MOST_ENGINES || n > MOST_NOTES || m > MOST_NOTES) abort();
    struct engine *engine = &engines[engine_count++];
    engine->index = index, engine->behaviour = behaviour, engine->numerical_notes = n, engine->behavior_notes = m;
    memcpy(engine->numerical, numerical, (size_t)n * sizeof *numerical);
    memcpy(engine->behavior, behavior, (size_t)m * sizeof *behavior);
}

EXPORT void fake_config(int mode, int engine, int knobs, const int *type, const int64_t *value, int64_t workspace) {
    if (config_count == MOST_CONFIGS || knobs > MOST_KNOBS) abort();
    struct config *config = &configs[config_count++];
    config->mode = mode, config->engine = engine, config->knobs = knobs, config->workspace = workspace;
    memcpy(config->type, type, (size_t)knobs * sizeof *type);
    memcpy(config->value, value, (size_t)knobs * sizeof *value);
}

EXPORT void fake_forget_engines(void) { engine_count = config_count = 0; }
EXPORT void fake_forget_journal(void) { journal_size = 0; if (journal) *journal = 0; }
EXPORT const char *fake_journal(void) { return journal ? journal : ""; }
EXPORT void fake_watch_gil(int (*check)(void)) { gil_held = check; }

EXPORT __attribute__((constructor)) void fake_reset(void) {
    static const int two_knobs[] = {2, 13}, tensor_core[] = {0}, reduced[] = {2, 4}, compiled[] = {0}, strict[] = {9};
    fake_forget_engines(), fake_forget_journal();
    script_count = 0, gil_held = NULL;
    fake_engine(1, ALRIGHT, 1, tensor_core, 0, NULL);
    fake_engine(5, ALRIGHT, 2, reduced, 1, compiled);
    fake_engine(0, ALRIGHT, 1, strict, 0, NULL);
    fake_config(0, 1, 2, two_knobs, (int64_t[]){1, 0}, 4096);
    fake_config(0, 1, 2, two_knobs, (int64_t[]){2, 1}, 0);
    fake_config(0, 5, 0, NULL, NULL, 1024);
    fake_config(1, 1, 2, two_knobs, (int64_t[]){3, 0}, 64);
    fake_config(2, 0, 0, NULL, NULL, 0);
}

const struct engine *engine_at(int64_t index) {
    for (int place = 0; place < engine_count; place++)
        if (engines[place].index == index) return &engines[place];
    return NULL;
}

const struct config *config_at(int place) { return place < config_count ? &configs[place] : NULL; }

EXPORT void cudnnGetLastErrorString(char *message, size_t room) {
    snprintf(message, room, "%s", last_error);
    *last_error = 0;
}
