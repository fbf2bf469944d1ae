/* What the files of the fake share. Numbers are those of cudnn_graph.h, cuDNN 9.28.0. */
#ifndef FAKE_CUDNN_H
#define FAKE_CUDNN_H

#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

enum { MOST_KNOBS = 80, MOST_NOTES = 24 };
enum { MOST_ELEMENTS = 512, MOST_ATTRIBUTES = 24, MOST_DIMENSIONS = 8 };
enum { HALF = 2, FLOAT = 0, DOUBLE = 1, INT8 = 3, INT32 = 4, BFLOAT16 = 9 };
enum { ALRIGHT = 0, WRONG = 1, BEYOND = 2, BEYOND_WORKSPACE = 3 };

struct descriptor;

struct attribute {
    int name, type;
    int64_t count;
    union {
        int64_t integer[MOST_ELEMENTS];
        double number[MOST_ELEMENTS];
        void *address[MOST_ELEMENTS];
        struct descriptor *descriptor[MOST_ELEMENTS];
    } value;
};

/* A library's object, kept alive by whatever was set to it, as cuDNN's are. */
struct descriptor {
    int kind, finalized, references, attributes;
    struct attribute *attribute[MOST_ATTRIBUTES];
};

/* A tensor of a plan that is being executed. */
struct tensor {
    int type, rank;
    int64_t shape[MOST_DIMENSIONS], stride[MOST_DIMENSIONS];
    char *data;
};

struct attribute *attribute_of(const struct descriptor *descriptor, int name);
struct tensor tensor_of(const struct descriptor *tensor, const struct descriptor *pack);
size_t element_size(int type);
int64_t elements_of(const struct tensor *tensor);
double load(const struct tensor *tensor, int64_t offset);
void store(const struct tensor *tensor, int64_t offset, double value);

/* A batch norm, whichever API it came by. A tensor that it does not have has no data. */
enum role { X, Y, Z, DY, DX, DZ, SCALE, BIAS, DSCALE, DBIAS, BEFORE_MEAN, BEFORE_VARIANCE, RUNNING_MEAN, RUNNING_VARIANCE, SAVED_MEAN, SAVED_INVERSE, ROLES };
struct norm {
    struct tensor tensor[ROLES];
    double epsilon, momentum;
    int wide; /* the mask has a byte for each element, in place of a bit */
    unsigned char *mask; /* of what an activation let through: written forward, read backward; NULL without one */
};
void norm_training(struct norm *norm);
void norm_inference(struct norm *norm);
void norm_backward(struct norm *norm);

/* Computes the operation on host memory; `behaviour` says how badly. */
int compute_convolution(const struct descriptor *operation, const struct descriptor *pack, int behaviour);
int compute_norm(const struct descriptor *operation, const struct descriptor *pack, int behaviour);

/* What tests script. */
struct engine { int index, behaviour, numerical_notes, behavior_notes, numerical[MOST_NOTES], behavior[MOST_NOTES]; };
struct config { int mode, engine, knobs, type[MOST_KNOBS]; int64_t value[MOST_KNOBS], workspace; };
const struct engine *engine_at(int64_t index);
const struct config *config_at(int place); /* NULL behind the last one */
int fail(int status, const char *format, ...);
int scripted(const char *call, int64_t what);
void note_call(const char *format, ...);
void count_live(int change);

#endif
