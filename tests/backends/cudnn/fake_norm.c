/* Batch norm by its definition, in double, for tensors and parameters of any strides. */
#include "fake_cudnn.h"

#include <math.h>
#include <stdlib.h>

/* Where the element with this number lies in a tensor; along an axis of size 1 it is the same for all. */
static int64_t place(const struct tensor *tensor, const struct tensor *numbered, int64_t number) {
    int64_t offset = 0;
    for (int axis = numbered->rank - 1; axis >= 0; axis--) {
        int64_t index = number % numbered->shape[axis];
        number /= numbered->shape[axis];
        if (tensor->shape[axis] > 1) offset += index * tensor->stride[axis];
    }
    return offset;
}

static double at(const struct norm *norm, enum role role, int64_t number) {
    const struct tensor *tensor = &norm->tensor[role];
    return load(tensor, place(tensor, &norm->tensor[X], number));
}

static void put(const struct norm *norm, enum role role, int64_t number, double value) {
    const struct tensor *tensor = &norm->tensor[role];
    if (tensor->data) store(tensor, place(tensor, &norm->tensor[X], number), value);
}

/* For each parameter, the sum of a value of every element that shares it. */
static double *sums(const struct norm *norm, double (*value)(const struct norm *, int64_t, const double *), const double *means) {
    const struct tensor *scale = &norm->tensor[SCALE];
    double *total = calloc((size_t)elements_of(scale), sizeof *total);
    for (int64_t number = 0; number < elements_of(&norm->tensor[X]); number++)
        total[place(scale, &norm->tensor[X], number)] += value(norm, number, means);
    return total;
}

static int64_t parameter(const struct norm *norm, int64_t number) { return place(&norm->tensor[SCALE], &norm->tensor[X], number); }

static double share(const struct norm *norm) {
    return (double)elements_of(&norm->tensor[SCALE]) / (double)elements_of(&norm->tensor[X]);
}

static double input(const struct norm *norm, int64_t number, const double *means) {
    (void)means;
    return at(norm, X, number);
}

static double squared(const struct norm *norm, int64_t number, const double *means) {
    double off = at(norm, X, number) - means[parameter(norm, number)];
    return off * off;
}

static void normalise(struct norm *norm, int64_t number, double mean, double inverse) {
    double value = at(norm, SCALE, number) * (at(norm, X, number) - mean) * inverse + at(norm, BIAS, number);
    if (norm->tensor[Z].data) value += at(norm, Z, number);
    if (norm->mask) {
        int through = value > 0;
        if (norm->wide) norm->mask[number] = through ? 1 : 2;
        else norm->mask[number / 8] = (unsigned char)((norm->mask[number / 8] & ~(1 << number % 8)) | through << number % 8);
        value = through ? value : 0;
    }
    put(norm, Y, number, value);
}

void norm_training(struct norm *norm) {
    const struct tensor *x = &norm->tensor[X], *scale = &norm->tensor[SCALE];
    int64_t parameters = elements_of(scale);
    double one = share(norm), count = 1 / one, *mean = sums(norm, input, NULL), *variance;
    for (int64_t each = 0; each < parameters; each++) mean[each] *= one;
    variance = sums(norm, squared, mean);
    for (int64_t each = 0; each < parameters; each++) {
        double found = variance[each] * one, unbiased = count > 1 ? variance[each] / (count - 1) : 0, kept = 1 - norm->momentum;
        double before_mean = load(&norm->tensor[BEFORE_MEAN], each), before_variance = load(&norm->tensor[BEFORE_VARIANCE], each);
        store(&norm->tensor[RUNNING_MEAN], each, kept * before_mean + norm->momentum * mean[each]);
        store(&norm->tensor[RUNNING_VARIANCE], each, kept * before_variance + norm->momentum * unbiased);
        store(&norm->tensor[SAVED_MEAN], each, mean[each]);
        store(&norm->tensor[SAVED_INVERSE], each, 1 / sqrt(found + norm->epsilon));
        variance[each] = 1 / sqrt(found + norm->epsilon);
    }
    for (int64_t number = 0; number < elements_of(x); number++)
        normalise(norm, number, mean[parameter(norm, number)], variance[parameter(norm, number)]);
    free(mean), free(variance);
}

void norm_inference(struct norm *norm) {
    for (int64_t number = 0; number < elements_of(&norm->tensor[X]); number++)
        normalise(norm, number, at(norm, RUNNING_MEAN, number), 1 / sqrt(at(norm, RUNNING_VARIANCE, number) + norm->epsilon));
}

static double gradient(const struct norm *norm, int64_t number, const double *means) {
    (void)means;
    int through = !norm->mask || (norm->wide ? norm->mask[number] == 1 : norm->mask[number / 8] >> number % 8 & 1);
    return through ? at(norm, DY, number) : 0;
}

static double normed(const struct norm *norm, int64_t number) {
    return (at(norm, X, number) - at(norm, SAVED_MEAN, number)) * at(norm, SAVED_INVERSE, number);
}

static double weighted(const struct norm *norm, int64_t number, const double *means) {
    return gradient(norm, number, means) * normed(norm, number);
}

void norm_backward(struct norm *norm) {
    double one = share(norm), *bias = sums(norm, gradient, NULL), *scale = sums(norm, weighted, NULL);
    for (int64_t number = 0; number < elements_of(&norm->tensor[X]); number++) {
        int64_t each = parameter(norm, number);
        double passed = gradient(norm, number, NULL), rest = passed - bias[each] * one - normed(norm, number) * scale[each] * one;
        put(norm, DX, number, at(norm, SCALE, number) * at(norm, SAVED_INVERSE, number) * rest);
        put(norm, DZ, number, passed);
    }
    for (int64_t each = 0; each < elements_of(&norm->tensor[SCALE]); each++) {
        store(&norm->tensor[DSCALE], each, scale[each]);
        store(&norm->tensor[DBIAS], each, bias[each]);
    }
    free(bias), free(scale);
}

int compute_norm(const struct descriptor *operation, const struct descriptor *pack, int behaviour) {
    static const int forward[ROLES] = {2002, 2013, 0, 0, 0, 0, 2005, 2006, 0, 0, 2009, 2010, 2011, 2012, 2003, 2004};
    static const int backward[ROLES] = {2101, 0, 0, 2104, 2109, 0, 2105, 0, 2107, 2108, 0, 0, 0, 0, 2102, 2103};
    const int *names = operation->kind == 29 ? forward : backward;
    struct norm norm = {0};
    for (int role = 0; role < ROLES; role++)
        if (names[role]) norm.tensor[role] = tensor_of(attribute_of(operation, names[role])->value.descriptor[0], pack);
    if (operation->kind == 29) {
        struct tensor epsilon = tensor_of(attribute_of(operation, 2007)->value.descriptor[0], pack);
        struct tensor momentum = tensor_of(attribute_of(operation, 2008)->value.descriptor[0], pack);
        norm.epsilon = load(&epsilon, 0), norm.momentum = load(&momentum, 0);
        norm_training(&norm);
    } else {
        norm_backward(&norm);
    }
    const struct tensor *result = &norm.tensor[operation->kind == 29 ? Y : DX];
    if (behaviour == WRONG) store(result, 0, load(result, 0) + 100);
    if (behaviour == BEYOND) store(result, elements_of(result), 1);
    return 0;
}
