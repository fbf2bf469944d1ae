/* Tensors of the fake: elements of every type, read and written as double. */
#include "fake_cudnn.h"

#include <string.h>

size_t element_size(int type) {
    return type == INT8 ? 1 : type == HALF || type == BFLOAT16 ? 2 : type == DOUBLE ? 8 : 4;
}

int64_t elements_of(const struct tensor *tensor) {
    int64_t count = 1;
    for (int axis = 0; axis < tensor->rank; axis++) count *= tensor->shape[axis];
    return count;
}

static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float from_half(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = (half >> 10) & 31, fraction = half & 1023u;
    if (exponent == 31) return from_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent) return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    float tiny = (float)fraction / 16777216.0f; /* 2^-24, the least subnormal */
    return sign ? -tiny : tiny;
}

/* Round to nearest even, by letting float arithmetic do the rounding. */
static uint16_t to_half(float value) {
    uint32_t bits = to_bits(value), sign = bits & 0x80000000u, most = 0x47800000u; /* 65536 */
    bits ^= sign;
    if (bits >= most) return (uint16_t)(sign >> 16 | (bits > 0x7f800000u ? 0x7e00u : 0x7c00u));
    if (bits < 0x38800000u) { /* below 2^-14: subnormal */
        float shifted = from_bits(bits) + 0.5f;
        return (uint16_t)(sign >> 16 | (to_bits(shifted) - to_bits(0.5f)));
    }
    uint32_t odd = bits >> 13 & 1;
    return (uint16_t)(sign >> 16 | (bits - 0x38000000u + 0xfffu + odd) >> 13);
}

static uint16_t to_bfloat16(float value) {
    uint32_t bits = to_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

double load(const struct tensor *tensor, int64_t offset) {
    const char *at = tensor->data + offset * (int64_t)element_size(tensor->type);
    uint16_t half;
    switch (tensor->type) {
        case HALF: memcpy(&half, at, 2); return from_half(half);
        case BFLOAT16: memcpy(&half, at, 2); return from_bits((uint32_t)half << 16);
        case INT8: return *(const int8_t *)at;
        case INT32: return *(const int32_t *)at;
        case DOUBLE: return *(const double *)at;
        default: return *(const float *)at;
    }
}

void store(const struct tensor *tensor, int64_t offset, double value) {
    char *at = tensor->data + offset * (int64_t)element_size(tensor->type);
    uint16_t half;
    switch (tensor->type) {
        case HALF: half = to_half((float)value); memcpy(at, &half, 2); return;
        case BFLOAT16: half = to_bfloat16((float)value); memcpy(at, &half, 2); return;
        case INT8: *(int8_t *)at = (int8_t)(value > 127 ? 127 : value < -128 ? -128 : value); return;
        case INT32: *(int32_t *)at = (int32_t)value; return;
        case DOUBLE: *(double *)at = value; return;
        default: *(float *)at = (float)value;
    }
}

struct tensor tensor_of(const struct descriptor *described, const struct descriptor *pack) {
    struct attribute *shape = attribute_of(described, 902), *stride = attribute_of(described, 903);
    struct attribute *uids = attribute_of(pack, 1000), *pointers = attribute_of(pack, 1001);
    struct tensor tensor = {.type = (int)attribute_of(described, 901)->value.integer[0], .rank = (int)shape->count};
    for (int axis = 0; axis < tensor.rank; axis++) {
        tensor.shape[axis] = shape->value.integer[axis];
        tensor.stride[axis] = stride->value.integer[axis];
    }
    for (int64_t place = 0; place < uids->count; place++)
        if (uids->value.integer[place] == attribute_of(described, 906)->value.integer[0])
            tensor.data = pointers->value.address[place];
    return tensor;
}
