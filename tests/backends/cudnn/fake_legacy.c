/* The legacy batch norm of the fake: descriptors, size queries and calls as cudnn_ops.h of 9.28.0 declares them.
 *
 * Fused ops exist in half precision, channels last and persistent; persistent ones not in double. As in the library, an
 * activation's backward pass knows what was let through from the reserve, and from nothing else. A test may let a further
 * mode do fused ops, whose reserve is of another form: what one mode's forward pass wrote is of no use to the other's.
 * Derived descriptors are channels first, whatever the input is, and parameters are read and written by them.
 */
#include "fake_cudnn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PER_ACTIVATION = 0, SPATIAL = 1, PERSISTENT = 2, GOOD = 0x7e450 };

struct legacy { int magic, type, rank, shape[MOST_DIMENSIONS], stride[MOST_DIMENSIONS], mode, nan; double ceiling; };
typedef struct legacy *described;

static int is_good(const struct legacy *legacy) { return legacy && legacy->magic == GOOD; }

static int make(described *target) {
    *target = calloc(1, sizeof **target);
    (*target)->magic = GOOD;
    count_live(1);
    return 0;
}

static int unmake(described legacy) {
    if (!is_good(legacy)) return fail(2002, "destroyed twice");
    legacy->magic = 0;
    count_live(-1);
    return 0;
}

EXPORT int cudnnCreateTensorDescriptor(described *target) { return make(target); }
EXPORT int cudnnDestroyTensorDescriptor(described tensor) { return unmake(tensor); }
EXPORT int cudnnCreateActivationDescriptor(described *target) { return make(target); }
EXPORT int cudnnDestroyActivationDescriptor(described activation) { return unmake(activation); }

EXPORT int cudnnSetTensorNdDescriptor(described tensor, int type, int rank, const int *shape, const int *stride) {
    if (!is_good(tensor) || rank < 4 || rank > MOST_DIMENSIONS) return fail(2000, "no tensor of %d dimensions", rank);
    tensor->type = type, tensor->rank = rank;
    memcpy(tensor->shape, shape, (size_t)rank * sizeof *shape);
    memcpy(tensor->stride, stride, (size_t)rank * sizeof *stride);
    char told[200] = "";
    for (int axis = 0, at = 0; axis < rank; axis++)
        at += snprintf(told + at, sizeof told - (size_t)at, " %d/%d", shape[axis], stride[axis]);
    note_call("tensor %d:%s", type, told);
    return scripted("legacy", type);
}

EXPORT int cudnnDeriveBNTensorDescriptor(described derived, described x, int mode) {
    if (!is_good(derived) || !is_good(x)) return fail(2002, "no descriptor");
    *derived = *x;
    derived->mode = mode, derived->type = x->type == DOUBLE ? DOUBLE : FLOAT, derived->shape[0] = 1;
    for (int axis = 2; axis < x->rank; axis++)
        if (mode != PER_ACTIVATION) derived->shape[axis] = 1;
    int step = 1, first = scripted("derive", mode); /* the axis that lies closest together: else the last one */
    if (first) derived->stride[first] = step, step = derived->shape[first];
    for (int axis = x->rank - 1; axis >= 0; axis--)
        if (!first || axis != first) derived->stride[axis] = step, step *= derived->shape[axis];
    if (scripted("derive_type", mode)) derived->type = x->type;
    return 0;
}

EXPORT int cudnnGetTensorNdDescriptor(described tensor, int room, int *type, int *rank, int *shape, int *stride) {
    if (!is_good(tensor) || room < 1 || room > MOST_DIMENSIONS) return fail(2000, "no room for %d dimensions", room);
    *type = tensor->type, *rank = tensor->rank;
    int axes = room < tensor->rank ? room : tensor->rank;
    memcpy(shape, tensor->shape, (size_t)axes * sizeof *shape);
    memcpy(stride, tensor->stride, (size_t)axes * sizeof *stride);
    note_call("read %d of %d axes", axes, room);
    return 0;
}

EXPORT int cudnnSetActivationDescriptor(described activation, int mode, int nan, double ceiling) {
    if (!is_good(activation) || mode != 1) return fail(2000, "no ReLU");
    activation->mode = mode, activation->nan = nan, activation->ceiling = ceiling;
    return 0;
}

static int64_t size_of(described x) {
    int64_t count = 1;
    for (int axis = 0; axis < x->rank; axis++) count *= x->shape[axis];
    return count;
}

static int supports(int mode, int ops, described x, described activation) {
    int half = x->type == HALF || x->type == BFLOAT16;
    if (ops && !is_good(activation)) return fail(2002, "no activation");
    if (ops && !(half && x->stride[1] == 1 && (mode == PERSISTENT || scripted("fused", mode)))) return fail(3000, "not fused like this");
    if (mode == PERSISTENT && x->type == DOUBLE) return fail(3003, "not persistent in double");
    return scripted("mode", mode);
}

static size_t workspace_of(int mode, described x) { return mode == PERSISTENT ? 64 + 16 * (size_t)x->shape[1] : 0; }
static size_t reserve_of(int mode, int ops, described x) {
    return !ops ? 0 : mode == PERSISTENT ? (size_t)(size_of(x) + 7) / 8 : (size_t)size_of(x);
}

EXPORT int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    void *handle, int mode, int ops, described x, described z, described y, described parameters, described activation, size_t *size
) {
    if (!handle || !is_good(x) || !is_good(y) || !is_good(parameters) || (ops == 2) != is_good(z)) return fail(2000, "tensors");
    *size = workspace_of(mode, x);
    return supports(mode, ops, x, activation);
}

EXPORT int cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    void *handle, int mode, int ops, described x, described y, described dy, described dz, described dx, described parameters,
    described activation, size_t *size
) {
    if (!handle || !is_good(x) || !is_good(dy) || !is_good(dx) || !is_good(parameters)) return fail(2000, "tensors");
    if ((ops == 2) != is_good(dz) || (ops != 0) != is_good(y)) return fail(2000, "tensors of a fusion");
    *size = 2 * workspace_of(mode, x);
    int status = supports(mode, ops, x, activation);
    return status ? status : scripted("backward", mode);
}

EXPORT int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
    void *handle, int mode, int ops, described activation, described x, size_t *size
) {
    if (!handle || !is_good(x)) return fail(2000, "tensors");
    *size = reserve_of(mode, ops, x);
    return supports(mode, ops, x, activation);
}

static void use(struct norm *norm, enum role role, described tensor, const void *data) {
    struct tensor *target = &norm->tensor[role];
    target->type = tensor->type, target->rank = tensor->rank, target->data = (char *)(uintptr_t)data;
    for (int axis = 0; axis < tensor->rank; axis++)
        target->shape[axis] = tensor->shape[axis], target->stride[axis] = tensor->stride[axis];
}

static int scales(described x, const void *one, const void *zero) {
    double first = x->type == DOUBLE ? *(const double *)one : *(const float *)one;
    double second = x->type == DOUBLE ? *(const double *)zero : *(const float *)zero;
    return first == 1 && second == 0 ? 0 : fail(2000, "scaled by %g and %g", first, second);
}

/* Each space is there, and really written. */
static int spaces(void *workspace, size_t room, size_t needed, void *reserve, size_t kept, size_t reserved) {
    if (room < needed || (needed && !workspace)) return fail(2006, "%zu bytes of workspace", room);
    if (kept < reserved || (reserved && !reserve)) return fail(2006, "%zu bytes of reserve", kept);
    if (needed) memset(workspace, 0xa5, needed);
    return 0;
}

EXPORT int cudnnBatchNormalizationForwardTrainingEx(
    void *handle, int mode, int ops, const void *alpha, const void *beta, described x, const void *x_data, described z,
    const void *z_data, described y, void *y_data, described parameters, const void *scale, const void *bias, double momentum,
    void *running_mean, void *running_variance, double epsilon, void *saved_mean, void *saved_inverse, described activation,
    void *workspace, size_t room, void *reserve, size_t kept
) {
    int status = supports(mode, ops, x, activation);
    if (!status) status = scales(x, alpha, beta);
    if (!status) status = spaces(workspace, room, workspace_of(mode, x), reserve, kept, reserve_of(mode, ops, x));
    if (!status) status = scripted("execute", mode);
    if (status || !handle || parameters->mode != mode) return status ? status : fail(2000, "another mode's parameters");
    size_t reserved = reserve_of(mode, ops, x);
    struct norm norm = {.epsilon = epsilon, .momentum = momentum, .mask = ops ? reserve : NULL, .wide = mode != PERSISTENT};
    use(&norm, X, x, x_data), use(&norm, Y, y, y_data), use(&norm, SCALE, parameters, scale), use(&norm, BIAS, parameters, bias);
    use(&norm, BEFORE_MEAN, parameters, running_mean), use(&norm, BEFORE_VARIANCE, parameters, running_variance);
    use(&norm, RUNNING_MEAN, parameters, running_mean), use(&norm, RUNNING_VARIANCE, parameters, running_variance);
    use(&norm, SAVED_MEAN, parameters, saved_mean), use(&norm, SAVED_INVERSE, parameters, saved_inverse);
    if (ops == 2) use(&norm, Z, z, z_data);
    unsigned char *elsewhere = ops && scripted("keep", mode) ? calloc(1, reserved) : NULL;
    if (elsewhere) norm.mask = elsewhere;
    norm_training(&norm);
    free(elsewhere);
    if (ops && scripted("beyond", mode)) norm.mask[reserved] = 1;
    return 0;
}

EXPORT int cudnnBatchNormalizationBackwardEx(
    void *handle, int mode, int ops, const void *alpha, const void *beta, const void *parameter_alpha, const void *parameter_beta,
    described x, const void *x_data, described y, const void *y_data, described dy, const void *dy_data, described dz, void *dz_data,
    described dx, void *dx_data, described parameters, const void *scale, const void *bias, void *dscale, void *dbias, double epsilon,
    const void *saved_mean, const void *saved_inverse, described activation, void *workspace, size_t room, void *reserve, size_t kept
) {
    int status = supports(mode, ops, x, activation);
    if (!status) status = scales(x, alpha, beta);
    if (!status) status = scales(x, parameter_alpha, parameter_beta);
    if (!status) status = spaces(workspace, room, 2 * workspace_of(mode, x), reserve, kept, reserve_of(mode, ops, x));
    if (!status) status = scripted("execute", mode);
    if (!status && ops && (!is_good(y) || !y_data || !bias)) status = fail(2002, "an activation needs output and bias");
    if (status || !handle || parameters->mode != mode) return status ? status : fail(2000, "another mode's parameters");
    struct norm norm = {.epsilon = epsilon, .mask = ops ? reserve : NULL, .wide = mode != PERSISTENT};
    use(&norm, X, x, x_data), use(&norm, DY, dy, dy_data), use(&norm, DX, dx, dx_data), use(&norm, SCALE, parameters, scale);
    use(&norm, DSCALE, parameters, dscale), use(&norm, DBIAS, parameters, dbias);
    use(&norm, SAVED_MEAN, parameters, saved_mean), use(&norm, SAVED_INVERSE, parameters, saved_inverse);
    if (ops == 2) use(&norm, DZ, dz, dz_data);
    norm_backward(&norm);
    return 0;
}

EXPORT int cudnnBatchNormalizationForwardInference(
    void *handle, int mode, const void *alpha, const void *beta, described x, const void *x_data, described y, void *y_data,
    described parameters, const void *scale, const void *bias, const void *mean, const void *variance, double epsilon
) {
    int status = supports(mode, 0, x, NULL);
    if (!status) status = scales(x, alpha, beta);
    if (!status) status = scripted("execute", mode);
    if (status || !handle || parameters->mode != mode) return status ? status : fail(2000, "another mode's parameters");
    struct norm norm = {.epsilon = epsilon};
    use(&norm, X, x, x_data), use(&norm, Y, y, y_data), use(&norm, SCALE, parameters, scale), use(&norm, BIAS, parameters, bias);
    use(&norm, RUNNING_MEAN, parameters, mean), use(&norm, RUNNING_VARIANCE, parameters, variance);
    norm_inference(&norm);
    return 0;
}
