/* The convolution by its definition, in double, for tensors of any strides: three directions, one loop. */
#include "fake_cudnn.h"

#include <stdlib.h>

struct problem {
    struct tensor input, filter, output;
    int64_t size[3], taps[3], outputs[3], stride[3], dilation[3], padding[3], in[3], kernel[3], out[3];
    int64_t batch, filters, channels, groups;
};

static void set_axes(int64_t *to, const int64_t *from, int axes, int64_t otherwise) {
    for (int axis = 0; axis < 3; axis++) to[axis] = axis < 3 - axes ? otherwise : from[axis - (3 - axes)];
}

static int read_problem(struct problem *problem, const struct descriptor *operation, const struct descriptor *pack) {
    int first = operation->kind == 10 ? 700 : operation->kind == 12 ? 706 : 712; /* ALPHA of the direction */
    int convolution = first + 2, x = operation->kind == 10 ? 704 : operation->kind == 12 ? 710 : 716;
    int w = operation->kind == 10 ? 703 : operation->kind == 12 ? 709 : 715, y = operation->kind == 10 ? 705 : operation->kind == 12 ? 711 : 717;
    const struct descriptor *how = attribute_of(operation, convolution)->value.descriptor[0];
    problem->input = tensor_of(attribute_of(operation, x)->value.descriptor[0], pack);
    problem->filter = tensor_of(attribute_of(operation, w)->value.descriptor[0], pack);
    problem->output = tensor_of(attribute_of(operation, y)->value.descriptor[0], pack);
    int axes = problem->input.rank - 2;
    set_axes(problem->size, problem->input.shape + 2, axes, 1);
    set_axes(problem->taps, problem->filter.shape + 2, axes, 1);
    set_axes(problem->outputs, problem->output.shape + 2, axes, 1);
    set_axes(problem->in, problem->input.stride + 2, axes, 0);
    set_axes(problem->kernel, problem->filter.stride + 2, axes, 0);
    set_axes(problem->out, problem->output.stride + 2, axes, 0);
    set_axes(problem->dilation, attribute_of(how, 102)->value.integer, axes, 1);
    set_axes(problem->stride, attribute_of(how, 103)->value.integer, axes, 1);
    set_axes(problem->padding, attribute_of(how, 105)->value.integer, axes, 0);
    problem->batch = problem->input.shape[0];
    problem->filters = problem->filter.shape[0];
    problem->channels = problem->filter.shape[1]; /* of a group */
    problem->groups = problem->input.shape[1] / problem->channels;
    return problem->input.data && problem->filter.data && problem->output.data ? 0 : 2000;
}

/* Where input coordinates of one output and tap lie; 0 if in the padding. */
static int place(const struct problem *p, const int64_t *output, const int64_t *tap, int64_t *offset) {
    *offset = 0;
    for (int axis = 0; axis < 3; axis++) {
        int64_t at = output[axis] * p->stride[axis] - p->padding[axis] + tap[axis] * p->dilation[axis];
        if (at < 0 || at >= p->size[axis]) return 0;
        *offset += at * p->in[axis];
    }
    return 1;
}

int compute_convolution(const struct descriptor *operation, const struct descriptor *pack, int behaviour) {
    struct problem p;
    int status = read_problem(&p, operation, pack);
    if (status) return fail(status, "a tensor without an address");
    struct tensor *result = operation->kind == 10 ? &p.output : operation->kind == 12 ? &p.input : &p.filter;
    int64_t extent = 1;
    for (int axis = 0; axis < result->rank; axis++) extent += (result->shape[axis] - 1) * result->stride[axis];
    double *sums = calloc((size_t)extent, sizeof *sums);
    int64_t o[3], t[3], inside;
    for (int64_t n = 0; n < p.batch; n++)
    for (int64_t k = 0; k < p.filters; k++)
    for (o[0] = 0; o[0] < p.outputs[0]; o[0]++)
    for (o[1] = 0; o[1] < p.outputs[1]; o[1]++)
    for (o[2] = 0; o[2] < p.outputs[2]; o[2]++)
    for (t[0] = 0; t[0] < p.taps[0]; t[0]++)
    for (t[1] = 0; t[1] < p.taps[1]; t[1]++)
    for (t[2] = 0; t[2] < p.taps[2]; t[2]++) {
        if (!place(&p, o, t, &inside)) continue;
        int64_t group = k / (p.filters / p.groups);
        int64_t y = n * p.output.stride[0] + k * p.output.stride[1] + o[0] * p.out[0] + o[1] * p.out[1] + o[2] * p.out[2];
        for (int64_t c = 0; c < p.channels; c++) {
            int64_t x = n * p.input.stride[0] + (group * p.channels + c) * p.input.stride[1] + inside;
            int64_t w = k * p.filter.stride[0] + c * p.filter.stride[1] + t[0] * p.kernel[0] + t[1] * p.kernel[1] + t[2] * p.kernel[2];
            if (result == &p.output) sums[y] += load(&p.input, x) * load(&p.filter, w);
            else if (result == &p.input) sums[x] += load(&p.output, y) * load(&p.filter, w);
            else sums[w] += load(&p.output, y) * load(&p.input, x);
        }
    }
    for (int64_t place = 0; place < extent; place++) store(result, place, sums[place]);
    if (behaviour == WRONG) store(result, extent / 2, sums[extent / 2] + 100);
    if (behaviour == BEYOND) store(result, extent, 1);
    free(sums);
    return 0;
}
