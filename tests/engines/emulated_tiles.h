/* Matrix tiles by the book, for processors without them: every shape is checked, wrong ones abort.

   Included before the kernels' own code (-DEDUCE_EMULATED_TILES); slow, for tests. */

#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define __AMX_TILE__ 1
#define __AMX_BF16__ 1
#define __AMX_INT8__ 1
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#define _tile_zero emulated_zero
#define _tile_loadd emulated_load
#define _tile_stored emulated_store
#define _tile_dpbf16ps emulated_pairs
#define _tile_dpbssd emulated_bytes
#define _tile_release() (emulated.palette = 0)
#define LOAD_SHAPES(s) memcpy(&emulated, s, sizeof emulated)
#define MAY_USE_TILES() 1

#define EMULATED static inline __attribute__((unused)) void

static __thread struct {
    uint8_t palette, start, reserved[14];
    uint16_t columns[16];
    uint8_t rows[16];
} emulated;
static __thread unsigned char emulated_tile[8][16][64];

EMULATED emulated_zero(int t) {
    if (!emulated.palette || !emulated.rows[t]) abort();
    memset(emulated_tile[t], 0, sizeof emulated_tile[t]);
}

EMULATED emulated_load(int t, const void *from, int64_t stride) {
    emulated_zero(t);
    for (int r = 0; r < emulated.rows[t]; r++)
        memcpy(emulated_tile[t][r], (const char *)from + r * stride, emulated.columns[t]);
}

EMULATED emulated_store(int t, void *to, int64_t stride) {
    if (!emulated.palette || !emulated.rows[t]) abort();
    for (int r = 0; r < emulated.rows[t]; r++)
        memcpy((char *)to + r * stride, emulated_tile[t][r], emulated.columns[t]);
}

static inline void emulated_check(int c, int a, int b) {
    if (!emulated.palette || emulated.rows[c] != emulated.rows[a] ||
        emulated.columns[c] != emulated.columns[b] || emulated.columns[a] / 4 != emulated.rows[b])
        abort();
}

EMULATED emulated_pairs(int c, int a, int b) {
    emulated_check(c, a, b);
    for (int m = 0; m < emulated.rows[c]; m++) {
        __m512 sums = _mm512_loadu_ps(emulated_tile[c][m]);
        for (int k = 0; k < emulated.rows[b]; k++) {
            int32_t word;
            memcpy(&word, emulated_tile[a][m] + 4 * k, sizeof word);
            sums = _mm512_dpbf16_ps(sums, (__m512bh)_mm512_set1_epi32(word),
                                    (__m512bh)_mm512_loadu_si512(emulated_tile[b][k]));
        }
        _mm512_storeu_ps(emulated_tile[c][m], sums);
    }
}

EMULATED emulated_bytes(int c, int a, int b) {
    emulated_check(c, a, b);
    for (int m = 0; m < emulated.rows[c]; m++)
        for (int n = 0; n < emulated.columns[c] / 4; n++) {
            int32_t sum;
            memcpy(&sum, emulated_tile[c][m] + 4 * n, sizeof sum);
            for (int k = 0; k < emulated.columns[a]; k++)
                sum += (int8_t)emulated_tile[a][m][k] * (int8_t)emulated_tile[b][k / 4][4 * n + k % 4];
            memcpy(emulated_tile[c][m] + 4 * n, &sum, sizeof sum);
        }
}
