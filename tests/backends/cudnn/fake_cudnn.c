/* A libcudnn without a GPU, for tests: the backend API as `algosearch/backends/cudnn` uses it.
 *
 * It knows every attribute's type, number and descriptor from cudnn_graph.h (cuDNN 9.28.0), refuses what the library would
 * refuse, writes down every call, and keeps account of every object. Engines and heuristics are scripted; what is executed
 * is really computed, in host memory (fake_convolution.c, fake_norm.c).
 *
 * Compiled with -DSHIM=version, it is a libcudnn.so.9 of that version, which has parts and checks that they are its own.
 */
#include "fake_cudnn.h"
#include "fake_rules.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef SHIM
#define SHIM 92800
#endif
#ifndef CUDART
#define CUDART 12090
#endif


static int live;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* What callers hold: stays in memory when destroyed, so that a second use is noticed and not undefined. */
struct box { uint32_t magic; struct descriptor *held; };
struct handle { uint32_t magic; void *stream; };
enum { GOOD_BOX = 0xb0c5, GOOD_HANDLE = 0x4a4d1e };

EXPORT int fake_live(void) { return live; }

void count_live(int change) {
    pthread_mutex_lock(&lock);
    live += change;
    pthread_mutex_unlock(&lock);
}

/* -- objects ----------------------------------------------------------------------------------------------------- */

static void release(struct descriptor *descriptor) {
    if (!descriptor || --descriptor->references) return;
    for (int place = 0; place < descriptor->attributes; place++) {
        struct attribute *attribute = descriptor->attribute[place];
        if (attribute->type == DESCRIPTOR)
            for (int64_t element = 0; element < attribute->count; element++) release(attribute->value.descriptor[element]);
        free(attribute);
    }
    free(descriptor);
    live--;
}

static struct descriptor *create(int kind) {
    struct descriptor *descriptor = calloc(1, sizeof *descriptor);
    descriptor->kind = kind, descriptor->references = 1;
    live++;
    return descriptor;
}

struct attribute *attribute_of(const struct descriptor *descriptor, int name) {
    for (int place = 0; place < descriptor->attributes; place++)
        if (descriptor->attribute[place]->name == name) return descriptor->attribute[place];
    return NULL;
}

static struct attribute *assign(struct descriptor *descriptor, int name, int type, int64_t count) {
    struct attribute *attribute = attribute_of(descriptor, name);
    if (!attribute) attribute = descriptor->attribute[descriptor->attributes++] = calloc(1, sizeof *attribute);
    attribute->name = name, attribute->type = type, attribute->count = count;
    return attribute;
}

static void refer(struct descriptor *from, int name, struct descriptor *to) {
    struct attribute *attribute = attribute_of(from, name);
    if (attribute) release(attribute->value.descriptor[0]);
    assign(from, name, DESCRIPTOR, 1)->value.descriptor[0] = to;
    to->references++;
}

static int64_t integer_of(const struct descriptor *descriptor, int name) {
    return attribute_of(descriptor, name)->value.integer[0];
}

static const struct engine *engine_of(const struct descriptor *engine) { return engine_at(integer_of(engine, 1301)); }

static const struct config *config_of(const struct descriptor *config) {
    struct attribute *choices = attribute_of(config, 302);
    int64_t engine = integer_of(attribute_of(config, 300)->value.descriptor[0], 1301), count = choices ? choices->count : 0;
    const struct config *listed;
    for (int place = 0; (listed = config_at(place)); place++) {
        int equal = listed->engine == engine && listed->knobs == count;
        for (int64_t knob = 0; equal && knob < count; knob++) {
            int found = 0;
            for (int other = 0; other < listed->knobs; other++)
                found |= integer_of(choices->value.descriptor[knob], 600) == listed->type[other] &&
                         integer_of(choices->value.descriptor[knob], 601) == listed->value[other];
            equal = found;
        }
        if (equal) return listed;
    }
    return NULL;
}

/* -- setting ----------------------------------------------------------------------------------------------------- */

static struct descriptor *held(void *box) { return box && ((struct box *)box)->magic == GOOD_BOX ? ((struct box *)box)->held : NULL; }

static int set_element(struct attribute *to, int64_t place, int type, const void *array, char *text, size_t room) {
    struct handle *handle;
    struct descriptor *descriptor;
    switch (type) {
        case INT64: to->value.integer[place] = ((const int64_t *)array)[place]; break;
        case BOOLEAN: to->value.integer[place] = ((const unsigned char *)array)[place]; break;
        case FLOAT_TYPE: to->value.number[place] = ((const float *)array)[place]; break;
        case DOUBLE_TYPE: to->value.number[place] = ((const double *)array)[place]; break;
        case POINTER: to->value.address[place] = ((void *const *)array)[place]; break;
        case HANDLE_TYPE:
            handle = ((struct handle *const *)array)[place];
            if (!handle || handle->magic != GOOD_HANDLE) return fail(2002, "no handle");
            to->value.address[place] = handle;
            break;
        case DESCRIPTOR:
            descriptor = held(((void *const *)array)[place]);
            if (!descriptor) return fail(2002, "no descriptor, or a destroyed one");
            if (!descriptor->finalized) return fail(2004, "descriptor %d is not finalized", descriptor->kind);
            to->value.descriptor[place] = descriptor;
            descriptor->references++;
            snprintf(text, room, " #%d", descriptor->kind);
            return 0;
        default: to->value.integer[place] = ((const int *)array)[place];
    }
    if (type == HANDLE_TYPE) snprintf(text, room, " handle");
    else if (type == POINTER) snprintf(text, room, " %p", to->value.address[place]);
    else if (type == FLOAT_TYPE || type == DOUBLE_TYPE) snprintf(text, room, " %g", to->value.number[place]);
    else snprintf(text, room, " %lld", (long long)to->value.integer[place]);
    return 0;
}

static int set(void *box, int name, int type, int64_t count, const void *array) {
    struct descriptor *descriptor = held(box);
    if (!descriptor) return fail(2002, "no descriptor, or a destroyed one");
    if (descriptor->finalized) return fail(2000, "descriptor %d is finalized", descriptor->kind);
    const struct rule *rule = NULL;
    for (int place = 0; place < RULES; place++)
        if (rules[place].kind == descriptor->kind && rules[place].name == name) rule = &rules[place];
    if (!rule) return fail(2000, "descriptor %d has no attribute %d", descriptor->kind, name);
    int scale = rule->type == FLOAT_TYPE && type == DOUBLE_TYPE;
    if (type != rule->type && !scale) return fail(2010, "attribute %d takes type %d, not %d", name, rule->type, type);
    if (count < rule->required || count > rule->most) return fail(2005, "attribute %d cannot take %lld", name, (long long)count);
    if (count && !array) return fail(2002, "no elements");
    char line[2048] = "", text[64];
    struct attribute *attribute = assign(descriptor, name, type, 0);
    for (int64_t place = 0; place < count; place++) {
        int status = set_element(attribute, place, type, array, text, sizeof text);
        if (status) return status;
        attribute->count = place + 1;
        strcat(line, text);
    }
    note_call("set %d %d %d %lld:%s", descriptor->kind, name, type, (long long)count, line);
    return scripted("set", name);
}

/* -- finalizing: what the library looks at ------------------------------------------------------------------------ */

static int finalize(struct descriptor *descriptor) {
    for (int place = 0; place < RULES; place++)
        if (rules[place].kind == descriptor->kind && rules[place].required && !attribute_of(descriptor, rules[place].name))
            return fail(2000, "descriptor %d lacks attribute %d", descriptor->kind, rules[place].name);
    if (descriptor->kind == TENSOR) {
        int64_t alignment = integer_of(descriptor, 900), size = (int64_t)element_size((int)integer_of(descriptor, 901));
        if (attribute_of(descriptor, 902)->count != attribute_of(descriptor, 903)->count) return fail(2008, "ranks differ");
        if (alignment <= 0 || alignment % size) return fail(2000, "alignment %lld", (long long)alignment);
    }
    if (descriptor->kind == 1)
        for (int name = 102; name <= 105; name++)
            if (attribute_of(descriptor, name)->count != integer_of(descriptor, 106)) return fail(2008, "%d has another rank", name);
    if (descriptor->kind == ENGINE && !engine_of(descriptor)) return fail(3000, "no such engine");
    if (descriptor->kind == CONFIG && !config_of(descriptor)) return fail(3000, "no such choice of knobs");
    if (descriptor->kind == PACK && attribute_of(descriptor, 1000)->count != attribute_of(descriptor, 1001)->count)
        return fail(2008, "as many addresses as tensors");
    if (descriptor->kind == PLAN) {
        struct descriptor *engine = attribute_of(attribute_of(descriptor, 401)->value.descriptor[0], 300)->value.descriptor[0];
        int status = scripted("build", integer_of(engine, 1301));
        if (status) return status;
    }
    return scripted("finalize", descriptor->kind);
}

/* -- getting ------------------------------------------------------------------------------------------------------ */

static int fill(struct descriptor *target, const struct descriptor *heuristics, const struct config *listed) {
    struct descriptor *engine = create(ENGINE);
    refer(engine, 1300, attribute_of(heuristics, 201)->value.descriptor[0]);
    assign(engine, 1301, INT64, 1)->value.integer[0] = listed->engine;
    engine->finalized = target->finalized = 1;
    refer(target, 300, engine);
    release(engine);
    struct attribute *choices = assign(target, 302, DESCRIPTOR, listed->knobs);
    for (int knob = 0; knob < listed->knobs; knob++) {
        struct descriptor *choice = choices->value.descriptor[knob] = create(CHOICE);
        assign(choice, 600, 9, 1)->value.integer[0] = listed->type[knob];
        assign(choice, 601, INT64, 1)->value.integer[0] = listed->value[knob];
        choice->finalized = 1;
    }
    return 0;
}

static int get_results(const struct descriptor *heuristics, int64_t room, int64_t *count, void **array) {
    int64_t found = 0, mode = integer_of(heuristics, 200);
    const struct config *listed;
    for (int place = 0; (listed = config_at(place)); place++) {
        if (listed->mode != (mode == 3 ? 0 : mode)) continue; /* A is what INSTANT is */
        if (found < room) {
            struct descriptor *target = held(array[found]);
            if (!target || target->kind != CONFIG || target->finalized) return fail(2012, "no fresh engine configuration");
            fill(target, heuristics, listed);
        }
        found++;
    }
    *count = room && room < found ? room : found;
    return scripted("heuristics", mode);
}

/* A caller may read into one descriptor again and again, as into cuDNN's. */
static int copy_out(struct attribute *attribute, int kind, int64_t room, int64_t *count, void **array) {
    int64_t written = !attribute ? 0 : attribute->count < room ? attribute->count : room;
    for (int64_t place = 0; place < written; place++) {
        struct box *box = array[place];
        if (!held(box) || box->held->kind != kind) return fail(2012, "a descriptor of another kind");
        release(box->held);
        box->held = attribute->value.descriptor[place];
        box->held->references++;
    }
    *count = written;
    return 0;
}

static int get_notes(const int *notes, int known, int64_t room, int64_t *count, int *array) {
    for (int64_t place = 0; place < room && place < known; place++) array[place] = notes[place];
    *count = room && room < known ? room : known;
    return 0;
}

static int get(void *box, int name, int type, int64_t room, int64_t *count, void *array) {
    struct descriptor *descriptor = held(box);
    if (!descriptor || (room && !array) || !count) return fail(2002, "a null pointer");
    if (!descriptor->finalized) return fail(2004, "descriptor %d is not finalized", descriptor->kind);
    int status = scripted("get", name);
    if (status) return status;
    const struct engine *engine = descriptor->kind == ENGINE ? engine_of(descriptor) : NULL;
    const struct config *listed;
    int64_t key = descriptor->kind * 1000000LL + name * 100LL + type;
    *count = 1;
    switch (key) {
        case HEURISTICS * 1000000LL + 20200 + DESCRIPTOR: return get_results(descriptor, room, count, array);
        case CONFIG * 1000000LL + 30000 + DESCRIPTOR: return copy_out(attribute_of(descriptor, 300), ENGINE, room, count, array);
        case CONFIG * 1000000LL + 30200 + DESCRIPTOR: return copy_out(attribute_of(descriptor, 302), CHOICE, room, count, array);
        case CONFIG * 1000000LL + 30300 + INT64: *(int64_t *)array = config_of(descriptor)->workspace; return 0;
        case CONFIG * 1000000LL + 30400 + INT32_TYPE: *(int32_t *)array = 49152; return 0;
        case PLAN * 1000000LL + 40200 + INT64:
            listed = config_of(attribute_of(descriptor, 401)->value.descriptor[0]);
            *(int64_t *)array = listed->workspace + scripted("plan_workspace", listed->engine);
            return 0;
        case CHOICE * 1000000LL + 60000 + 9: *(int *)array = (int)integer_of(descriptor, 600); return 0;
        case CHOICE * 1000000LL + 60100 + INT64: *(int64_t *)array = integer_of(descriptor, 601); return 0;
        case ENGINE * 1000000LL + 130100 + INT64: *(int64_t *)array = integer_of(descriptor, 1301); return 0;
        case ENGINE * 1000000LL + 130300 + 11: return get_notes(engine->numerical, engine->numerical_notes, room, count, array);
        case ENGINE * 1000000LL + 130500 + 19: return get_notes(engine->behavior, engine->behavior_notes, room, count, array);
        default: return fail(2010, "descriptor %d cannot tell attribute %d as type %d", descriptor->kind, name, type);
    }
}

/* -- executing ---------------------------------------------------------------------------------------------------- */

static int check_addresses(const struct descriptor *operation, const struct descriptor *pack) {
    for (int place = 0; place < operation->attributes; place++) {
        struct attribute *attribute = operation->attribute[place];
        if (attribute->type != DESCRIPTOR || attribute->value.descriptor[0]->kind != TENSOR) continue;
        const struct descriptor *described = attribute->value.descriptor[0];
        struct tensor tensor = tensor_of(described, pack);
        if (!tensor.data) return fail(2000, "tensor %lld has no address", (long long)integer_of(described, 906));
        if ((uintptr_t)tensor.data % (uintptr_t)integer_of(described, 900) && !attribute_of(described, 908)) return fail(2003, "misaligned");
    }
    return 0;
}

static int execute(const struct descriptor *plan, const struct descriptor *pack) {
    const struct descriptor *config = attribute_of(plan, 401)->value.descriptor[0];
    const struct descriptor *engine = attribute_of(config, 300)->value.descriptor[0];
    const struct descriptor *graph = attribute_of(engine, 1300)->value.descriptor[0];
    const struct descriptor *operation = attribute_of(graph, 801)->value.descriptor[0];
    struct attribute *workspace = attribute_of(pack, 1003);
    int64_t needed = config_of(config)->workspace;
    int behaviour = engine_of(engine)->behaviour, status = scripted("execute", integer_of(engine, 1301));
    if (!status) status = check_addresses(operation, pack);
    if (!status && needed && (!workspace || !workspace->value.address[0])) status = fail(2002, "no workspace");
    if (status) return status;
    if (needed) memset(workspace->value.address[0], 0xa5, (size_t)needed + (behaviour == BEYOND_WORKSPACE));
    return operation->kind >= 29 ? compute_norm(operation, pack, behaviour) : compute_convolution(operation, pack, behaviour);
}

/* -- the library -------------------------------------------------------------------------------------------------- */

#define LOCKED(expression) (pthread_mutex_lock(&lock), status = (expression), pthread_mutex_unlock(&lock), status)

EXPORT size_t cudnnGetVersion(void) { return SHIM; }
EXPORT size_t cudnnGetCudartVersion(void) { return CUDART; }
EXPORT const char *cudnnGetErrorString(int status) {
    if (scripted("words", 0)) return scripted("words", 0) == 1 ? NULL : "\xff\xfe";
    return status / 1000 == 3 ? "FAKE_NOT_SUPPORTED" : status ? "FAKE_FAILURE" : "FAKE_SUCCESS";
}


EXPORT int cudnnGraphVersionCheck(void) {
#ifdef PARTS
    static const char *parts[] = {PARTS};
    for (size_t place = 0; place < sizeof parts / sizeof *parts; place++) {
        void *part = dlopen(parts[place], RTLD_LAZY);
        int (*version)(void) = part ? (int (*)(void))dlsym(part, "fake_part_version") : NULL;
        if (!version) return fail(1008, "cannot load %s", parts[place]);
        if (version() != SHIM) return fail(1002, "%s is of version %d", parts[place], version());
    }
#endif
    return scripted("version", 0);
}

EXPORT int cudnnCreate(struct handle **handle) {
    int status = scripted("create_handle", 0);
    if (status) return status;
    *handle = calloc(1, sizeof **handle);
    (*handle)->magic = GOOD_HANDLE;
    pthread_mutex_lock(&lock), live++, note_call("create handle"), pthread_mutex_unlock(&lock);
    return 0;
}

EXPORT int cudnnDestroy(struct handle *handle) {
    if (!handle || handle->magic != GOOD_HANDLE) return fail(2002, "no handle");
    handle->magic = 0;
    pthread_mutex_lock(&lock), live--, note_call("destroy handle"), pthread_mutex_unlock(&lock);
    return 0;
}

EXPORT int cudnnSetStream(struct handle *handle, void *stream) {
    if (!handle || handle->magic != GOOD_HANDLE) return fail(2002, "no handle");
    handle->stream = stream;
    pthread_mutex_lock(&lock), note_call("stream %p", stream), pthread_mutex_unlock(&lock);
    return scripted("stream", (int64_t)(intptr_t)stream);
}

EXPORT int cudnnBackendCreateDescriptor(int kind, struct box **box) {
    int known = 0, status = scripted("create", kind);
    for (int place = 0; place < RULES; place++) known |= rules[place].kind == kind;
    if (status || !known) return status ? status : fail(3000, "no descriptor %d", kind);
    *box = calloc(1, sizeof **box);
    pthread_mutex_lock(&lock);
    (*box)->magic = GOOD_BOX, (*box)->held = create(kind);
    pthread_mutex_unlock(&lock);
    return 0;
}

static int destroy(struct box *box) {
    if (!held(box)) return fail(2002, "destroyed twice");
    note_call("destroy %d", box->held->kind);
    int kind = box->held->kind;
    release(box->held);
    box->magic = 0, box->held = NULL;
    return scripted("destroy", kind);
}

static int finalize_box(struct box *box) {
    struct descriptor *descriptor = held(box);
    if (!descriptor) return fail(2002, "no descriptor, or a destroyed one");
    note_call("finalize %d", descriptor->kind);
    int status = finalize(descriptor);
    if (!status) descriptor->finalized = 1;
    return status;
}

static int start(struct handle *handle, void *plan, void *pack) {
    int good = handle && handle->magic == GOOD_HANDLE && held(plan) && held(pack);
    if (!good || !held(plan)->finalized || !held(pack)->finalized) return fail(2002, "no handle, plan or pack");
    const struct handle *maker = attribute_of(held(plan), 400)->value.address[0];
    if (maker->magic != GOOD_HANDLE) return fail(2002, "the plan's handle was destroyed");
    note_call("execute on %p", handle->stream);
    return 0;
}

EXPORT int cudnnBackendDestroyDescriptor(struct box *box) { int status; return LOCKED(destroy(box)); }
EXPORT int cudnnBackendFinalize(struct box *box) { int status; return LOCKED(finalize_box(box)); }
EXPORT int cudnnBackendSetAttribute(void *box, int name, int type, int64_t count, const void *array) { int status; return LOCKED(set(box, name, type, count, array)); }
EXPORT int cudnnBackendGetAttribute(void *box, int name, int type, int64_t room, int64_t *count, void *array) {
    int status;
    if (!LOCKED(get(box, name, type, room, count, array))) {
        *count += scripted("count", name);
        if (scripted("full", name)) *count = room;
    }
    return status;
}
EXPORT int cudnnBackendExecute(struct handle *handle, void *plan, void *pack) {
    int status;
    return LOCKED(start(handle, plan, pack)) ? status : execute(held(plan), held(pack));
}
