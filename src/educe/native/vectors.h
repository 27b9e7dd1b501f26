/* Vectors, threads and numbers that the kernels share.

   Plain C with vector extensions (gcc 12, clang): no library is linked, threads are those of the
   process's own OpenMP runtime, handed over by its address (educe_use_threads). Numbers are
   computed in fp32; "narrow" arrays are bf16, rounded to nearest even. Every work item writes its
   own outputs only, so results do not depend on the number of threads. */

#ifndef EDUCE_VECTORS_H
#define EDUCE_VECTORS_H


#ifdef EDUCE_EMULATED_TILES /* of the tests, on processors without tiles */
#include EDUCE_EMULATED_TILES
#endif
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#define WIDE 1 /* vectors are registers of this processor */
#else
#define WIDE 0
#endif
#if WIDE && defined(__AVX512BF16__)
#define PAIRS 1 /* one instruction multiplies pairs of bf16 and adds them in fp32 */
#else
#define PAIRS 0
#endif

#if PAIRS && defined(__AVX512VNNI__)
#define BLOCKS 1 /* matrices are multiplied by our own code: on tiles where there are such, or by pairs */
#else
#define BLOCKS 0
#endif
#if BLOCKS && defined(__x86_64__) && defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__) && \
    defined(__linux__)
#define TILES 1 /* matrices of 16 rows of 64 bytes are multiplied at once */
#else
#define TILES 0
#endif
extern int educe_tiles; /* and the system lets us */

#define LANES 16
#define INLINE static inline __attribute__((always_inline))

#if TILES
/* Rows and bytes of a row of the eight tiles. */
typedef struct {
    uint8_t palette, start, reserved[14];
    uint16_t columns[16];
    uint8_t rows[16];
} Shapes;

/* gcc's own says that it reads eight bytes, so that the stores of the others may be left out. */
#ifndef LOAD_SHAPES
#define LOAD_SHAPES(s) __asm__ volatile("ldtilecfg %0" : : "m"(*(s)))
#endif
INLINE void shape(const Shapes *s) { LOAD_SHAPES(s); }

/* Nor do gcc's tile loads say that they read memory: what they read is written before this. */
#define WRITTEN() __asm__ volatile("" : : : "memory")
#endif

typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef uint32_t vu __attribute__((vector_size(64)));
typedef uint16_t vh __attribute__((vector_size(32)));
typedef int8_t vb __attribute__((vector_size(16)));

/* Threads */

typedef void (*parallel_t)(void (*)(void *), void *, unsigned, unsigned);
extern parallel_t educe_parallel;
extern int educe_threads;

typedef struct {
    void (*run)(const void *, int64_t);
    const void *arguments;
    int64_t count;
    int64_t next;
} Work;

static void work(void *data) {
    Work *todo = data;
    int64_t item;
    while ((item = __atomic_fetch_add(&todo->next, 1, __ATOMIC_RELAXED)) < todo->count)
        todo->run(todo->arguments, item);
}

static void spread(void (*run)(const void *, int64_t), const void *arguments, int64_t count,
                   int64_t size) {
    /* size: numbers touched in all; a small job is not worth waking another thread. */
    Work todo = {run, arguments, count, 0};
    if (educe_parallel && educe_threads > 1 && count > 1 && size > 8192)
        educe_parallel(work, &todo, (unsigned)educe_threads, 0);
    else
        work(&todo);
}

/* Vectors */

INLINE vf load(const float *from) { vf v; memcpy(&v, from, sizeof v); return v; }
INLINE void store(float *to, vf v) { memcpy(to, &v, sizeof v); }
INLINE vf all(float x) { return x - (vf){0}; }

INLINE vf load_narrow(const uint16_t *from) {
    vh h;
    memcpy(&h, from, sizeof h);
    return (vf)(__builtin_convertvector(h, vu) << 16);
}

INLINE vh narrowed(vf v) {
#if PAIRS
    __m256bh h = _mm512_cvtneps_pbh((__m512)v); /* the same, but numbers below 1e-38 become zero */
    vh out;
    memcpy(&out, &h, sizeof out);
    return out;
#else
    vu bits = (vu)v;
    vu rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    vu number = (vu)(v == v);
    return __builtin_convertvector((rounded & number) | (~number & 0x7fc0u), vh);
#endif
}

INLINE vf load_kind(const void *from, int64_t at, int narrow) {
    return narrow ? load_narrow((const uint16_t *)from + at) : load((const float *)from + at);
}

INLINE void store_kind(void *to, int64_t at, vf v, int narrow) {
    if (narrow) {
        vh h = narrowed(v);
        memcpy((uint16_t *)to + at, &h, sizeof h);
    } else
        store((float *)to + at, v);
}

INLINE float scalar_kind(const void *from, int64_t at, int narrow) {
    if (!narrow) return ((const float *)from)[at];
    uint32_t bits = (uint32_t)((const uint16_t *)from)[at] << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

INLINE vf pick(vi mask, vf yes, vf no) { return (vf)(((vi)yes & mask) | ((vi)no & ~mask)); }
INLINE vf larger(vf a, vf b) {
#if WIDE
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return pick(a > b, a, b);
#endif
}

/* 0 to 15 */
INLINE vi lanes(void) {
    static const int32_t places[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    vi at;
    memcpy(&at, places, sizeof at);
    return at;
}

/* Products of blocks by vectors */

#if BLOCKS
#define BLOCK_ROWS 12 /* whose sums stay in registers: 24 of 32, and two for the weights */

/* sums += x . y, four bytes of x without sign by four of y with one. By name: between the types that
   the intrinsic wants gcc copies sums to memory and back. */
INLINE void add_bytes(vf *sums, __m512i x, __m512i y) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sums) : "v"(x), "v"(y));
}

/* sums [count, 32] += rows [count, 64 bytes] . two tiles [16 words, 16 outputs], word by word: pairs
   of bf16, or with ``integers`` four int8 each. Integer rows count 128 more than they are. */
INLINE void multiply_step(const char *rows, int64_t stride, const char *low, const char *high,
                          const int count, const int integers, vf sums[][2]) {
    for (int64_t w = 0; w < 64; w += 4) {
        __m512i one = _mm512_loadu_si512(low + w * LANES), two = _mm512_loadu_si512(high + w * LANES);
#pragma GCC unroll 12
        for (int m = 0; m < count; m++) {
            int32_t word;
            memcpy(&word, rows + m * stride + w, sizeof word);
            __m512i x = _mm512_set1_epi32(word);
            if (integers) {
                x = _mm512_xor_si512(x, _mm512_set1_epi32((int32_t)0x80808080));
                add_bytes(&sums[m][0], x, one);
                add_bytes(&sums[m][1], x, two);
            } else {
                sums[m][0] = (vf)_mm512_dpbf16_ps((__m512)sums[m][0], (__m512bh)x, (__m512bh)one);
                sums[m][1] = (vf)_mm512_dpbf16_ps((__m512)sums[m][1], (__m512bh)x, (__m512bh)two);
            }
        }
    }
}
#endif

INLINE vf swap8(vf v) {
    return __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
}
INLINE vf swap4(vf v) {
    return __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
}
INLINE vf swap2(vf v) {
    return __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
}
INLINE vf swap1(vf v) {
    return __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
}
INLINE float total(vf v) {
    v += swap8(v);
    v += swap4(v);
    v += swap2(v);
    v += swap1(v);
    return v[0];
}
INLINE float largest(vf v) {
    v = larger(v, swap8(v));
    v = larger(v, swap4(v));
    v = larger(v, swap2(v));
    v = larger(v, swap1(v));
    return v[0];
}

/* Sixteen vectors to the vector of their totals, in order: 45 instructions instead of 16 * 8. */
#define FOLD8(a, b) \
    (__builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) + \
     __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31))
#define FOLD4(a, b) \
    (__builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) + \
     __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31))
#define FOLD2(a, b) \
    (__builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) + \
     __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31))
#define FOLD1(a, b) \
    (__builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30) + \
     __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31))
INLINE vf totals(vf v[LANES]) {
    for (int i = 0; i < 8; i++) v[i] = FOLD8(v[i], v[i + 8]);
    for (int i = 0; i < 4; i++) v[i] = FOLD4(v[i], v[i + 4]);
    for (int i = 0; i < 2; i++) v[i] = FOLD2(v[i], v[i + 2]);
    return FOLD1(v[0], v[1]);
}

/* e^x to about 1 ulp; 0 below -87.3 (the smallest normal number), e^88 from there on. Range reduction by
   ln 2 in two parts, then the Taylor polynomial of degree 7 on |r| <= ln 2 / 2 (next term: 4e-10). */
INLINE vf polynomial(vf r) {
    vf p = all(1.0f / 5040);
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    return p * r + 1.0f;
}

INLINE vf exponential(vf x) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
#if WIDE
    __mmask16 there = _mm512_cmp_ps_mask((__m512)x, (__m512)all(-87.3f), _CMP_NLT_UQ);
    vf safe = (vf)_mm512_min_ps((__m512)all(88.0f), (__m512)x); /* x where it is no number */
    vf n = (safe * 1.44269504088896341f + magic) - magic;
    vf r = safe - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    return (vf)_mm512_maskz_scalef_ps(there, (__m512)polynomial(r), (__m512)n);
#else
    vi gone = x < -87.3f; /* not of what is no number, which stays none */
    vf safe = pick(gone, all(0.0f), pick(x > 88.0f, all(88.0f), x));
    vf shifted = safe * 1.44269504088896341f + magic;
    vf n = shifted - magic;
    vf r = safe - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    vi power = (((vi)shifted - 0x4b400000) + 127) << 23;
    return pick(gone, all(0.0f), polynomial(r) * (vf)power);
#endif
}

/* x / (1 + e^-x) */
INLINE vf silu(vf x) {
    vf below = 1.0f + exponential(-x);
#if PAIRS
    vf guess = (vf)_mm512_rcp14_ps((__m512)below); /* one step of Newton's makes 14 bits 24 or so */
    return x * (guess * (2.0f - below * guess));
#else
    return x / below;
#endif
}

INLINE float exponential1(float x) { return exponential(all(x))[0]; }

INLINE float inverse_root(float x) { return 1.0f / __builtin_sqrtf(x); }

INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

#endif
