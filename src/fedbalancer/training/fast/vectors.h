/* Vectors of the processor's width for kernels that multiply: LANES floats, and ROWS rows of two vectors that fit its
 * registers. Tests may define both. */
#include <stdint.h>
#include <string.h>
#if defined(__AVX__)
#include <immintrin.h>
#endif

#ifndef LANES
#if defined(__AVX512F__)
#define LANES 16
#define ROWS 12
#elif defined(__AVX__)
#define LANES 8
#define ROWS 6
#elif defined(__aarch64__)
#define LANES 4
#define ROWS 12
#else
#define LANES 4
#define ROWS 6
#endif
#endif
#define WIDTH (2 * LANES)

typedef int64_t I;
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#define INLINE static inline __attribute__((always_inline))

INLINE vec get(const float *p) { return *(const loose *)p; }
INLINE void put(float *p, vec v) { *(loose *)p = v; }
INLINE vec all(float x) { return x - (vec){0}; }
INLINE I least(I a, I b) { return a < b ? a : b; }
