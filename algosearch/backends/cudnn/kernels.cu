// The source of kernels.ptx: what is run on the device beside what the library has. No run-time compiler is used for
// it: the PTX is in the package, and the driver turns it into machine code once, when the device is opened.
//
//     nvcc -ptx -arch=compute_75 -O3 kernels.cu -o kernels.ptx
//
// and then `.version 6.4` and `.target sm_70` at its head: it uses nothing newer, and so serves every driver and device
// that cuDNN 9 does.

typedef unsigned int u32;
typedef unsigned long long u64;

// -- the gate ---------------------------------------------------------------------------------------------------------

// Bounded by a clock, not by a flag of the host's: whatever becomes of the host, the stream goes on.
extern "C" __global__ void spin(u64 ns) {
    u64 start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - start < ns);
}

// -- element types ----------------------------------------------------------------------------------------------------

struct half { unsigned short bits; };
struct bfloat { unsigned short bits; };

__device__ inline float wide(half h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h.bits));
    return f;
}
__device__ inline float wide(bfloat b) { return __uint_as_float((u32)b.bits << 16); }
__device__ inline float wide(float f) { return f; }
__device__ inline double wide(double d) { return d; }
__device__ inline float wide(signed char c) { return (float)c; }

__device__ inline void narrow(float f, half &h) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(f)); }
__device__ inline void narrow(float f, bfloat &b) { b.bits = (unsigned short)(__float_as_uint(f) >> 16); }
__device__ inline void narrow(float f, float &to) { to = f; }
__device__ inline void narrow(float f, double &to) { to = f; }
__device__ inline void narrow(float f, signed char &to) { to = (signed char)__float2int_rd(f); }

// -- random data ------------------------------------------------------------------------------------------------------

// Evenly from low up to high, by an element's place alone: the same values on every load. `low` and `high` of int8 are
// whole numbers, and `high` is not drawn.
__device__ inline float drawn(u64 place, u32 seed) {
    u32 x = (u32)place * 0x9E3779B9u ^ (u32)(place >> 32) * 0x85EBCA6Bu ^ seed;
    x ^= x >> 16; x *= 0x7FEB352Du;
    x ^= x >> 15; x *= 0x846CA68Bu;
    x ^= x >> 16;
    return (float)(x >> 8) * 0x1p-24f;
}

template <typename T> __device__ inline void fill(T *to, u64 count, float low, float high, u32 seed) {
    u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        narrow(low + (high - low) * drawn(i, seed), to[i]);
}

// -- comparing --------------------------------------------------------------------------------------------------------

struct Verdict {
    u64 differing;  // elements
    u64 worst;      // bits of the excess (float32) in the upper half, the lower half of the element's place in the lower
};

// An element differs unless |found - other| <= absolute + relative * |other|; so NaN always differs.
template <typename T>
__device__ inline void compare(const T *found, const T *other, u64 count, double absolute, double relative,
                               Verdict *verdict) {
    u64 step = (u64)gridDim.x * blockDim.x, differing = 0, worst = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        auto a = wide(found[i]), b = wide(other[i]);
        auto gap = a - b < 0 ? b - a : a - b, size = b < 0 ? -b : b;
        auto allowed = (decltype(gap))absolute + (decltype(gap))relative * size;
        if (gap <= allowed) continue;
        float excess = (float)(gap / allowed);
        if (!(excess < 3.0e38f)) excess = 3.0e38f;
        u64 here = (u64)__float_as_uint(excess) << 32 | (u32)i;
        worst = here > worst ? here : worst;
        ++differing;
    }
    if (differing) {
        atomicAdd(&verdict->differing, differing);
        atomicMax(&verdict->worst, worst);
    }
}

#define KERNELS(name, T)                                                                                      \
    extern "C" __global__ void fill_##name(T *to, u64 count, float low, float high, u32 seed) {               \
        fill(to, count, low, high, seed);                                                                     \
    }                                                                                                         \
    extern "C" __global__ void compare_##name(const T *found, const T *other, u64 count, double absolute,     \
                                              double relative, Verdict *verdict) {                            \
        compare(found, other, count, absolute, relative, verdict);                                            \
    }

KERNELS(float16, half)
KERNELS(bfloat16, bfloat)
KERNELS(float32, float)
KERNELS(float64, double)
KERNELS(int8, signed char)

// -- rows of another width --------------------------------------------------------------------------------------------

struct alignas(16) Chunk { u32 words[4]; };

struct Rows {
    const void *from;
    void *to;
    u32 from_rows, from_width, to_rows, to_width;  // widths in elements
};

// Rows copied into wider ones; what is wider, and rows that are not there, are zeros. A thread writes 16 bytes: of a
// pixel of three channels it reads 6, and its neighbours read the 6 beside them. Both of the copies in one launch.
template <typename T> __device__ inline void widen(const Rows &first, const Rows &second) {
    constexpr u32 many = sizeof(Chunk) / sizeof(T);
    const Rows rows = blockIdx.y ? second : first;
    const u32 parts = rows.to_width / many, count = rows.to_rows * parts, step = gridDim.x * blockDim.x;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        const u32 row = i / parts, start = (i - row * parts) * many;
        T element[many] = {};
        if (row < rows.from_rows) {
            const T *from = (const T *)rows.from + (u64)row * rows.from_width + start;
            const u32 left = rows.from_width > start ? rows.from_width - start : 0;
#pragma unroll
            for (u32 n = 0; n < many; n++)
                if (n < left) element[n] = from[n];
        }
        Chunk whole = {};  // put together only when all is read, so that no read waits for another
#pragma unroll
        for (u32 n = 0; n < many; n++)
            whole.words[n * sizeof(T) / 4] |= (u32)element[n] << 8 * (n * sizeof(T) % 4);
        ((Chunk *)rows.to)[i] = whole;
    }
}

// Rows copied into narrower ones; what is wider, and rows that are too many, are left out.
template <typename T> __device__ inline void narrow_rows(const Rows &first, const Rows &second) {
    constexpr u32 many = sizeof(Chunk) / sizeof(T);
    const Rows rows = blockIdx.y ? second : first;
    const u32 parts = rows.from_width / many, count = rows.to_rows * parts, step = gridDim.x * blockDim.x;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        const u32 row = i / parts, start = (i - row * parts) * many;
        union { Chunk chunk; T element[many]; } whole;
        whole.chunk = ((const Chunk *)rows.from)[i];
        T *to = (T *)rows.to + (u64)row * rows.to_width;
#pragma unroll
        for (u32 n = 0; n < many; n++)
            if (start + n < rows.to_width) to[start + n] = whole.element[n];
    }
}

#define ROWS(size, T)                                                                                         \
    extern "C" __global__ void widen_##size(Rows first, Rows second) { widen<T>(first, second); }             \
    extern "C" __global__ void narrow_##size(Rows first, Rows second) { narrow_rows<T>(first, second); }

ROWS(2, unsigned short)
ROWS(4, u32)
