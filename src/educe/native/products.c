/* Matrix products on the tiles of AMX or by vectors of bf16 pairs, for rows that are few against the
   weights.

   Shapes: N rows, I inputs, O outputs; numbers are bf16 or int8, sums fp32 or int32.

   A product of few rows costs what reading its weights costs, so they lie in the order in which
   they are read: panels of 32 outputs, and in a panel steps of 64 bytes of the inputs, each two
   tiles [16 words, 16 outputs] of 4-byte words (two bf16 or four int8 numbers of one output).
   Every sum runs over the inputs in one order, whatever the number of rows and threads: a row's
   outputs do not depend on its neighbours. */

#include "vectors.h"

#if TILES
#include <sys/syscall.h>
#include <unistd.h>
#ifndef MAY_USE_TILES /* ARCH_REQ_XCOMP_PERM of XFEATURE_XTILEDATA */
#define MAY_USE_TILES() (syscall(SYS_arch_prctl, 0x1023L, 18L) == 0)
#endif
#endif

#define PANEL 32  /* outputs */
#define STEP 64   /* bytes of the inputs */
#define TILE 1024 /* bytes */

typedef struct {
    const char *x;      /* [N, I] bf16 or int8 */
    const char *weight; /* packed; where gated, panels of gate and up take turns */
    const float *bias;  /* [O] or NULL */
    const float *row_scales; /* [N], of int8 rows */
    const float *scales;     /* [O], of int8 weights, in the order of the packed panels */
    const int32_t *offsets;  /* [O], -128 times the sum of an output's int8 weights */
    void *out;               /* [N, O] */
    int64_t rows, bytes, outputs; /* bytes of a row of x; outputs of the product, not of the gate */
    int32_t integers;             /* int8 */
    int32_t gated;                /* out [N, O / 2] = silu(gate) * up */
    int32_t out_kind; /* 0 fp32, 1 bf16, 2 added to fp32 (after rounding to bf16, unless int8) */
} Product;

int educe_tiles;

/* Whether this processor has tiles and the system lets us use them; asks it. */
int educe_has_tiles(void) {
#if TILES
    educe_tiles = MAY_USE_TILES();
#endif
    return educe_tiles;
}

int educe_has_blocks(void) { return BLOCKS; }

/* Weights [O, words of 4 bytes] to panels. */

typedef struct {
    const uint32_t *weight;
    uint32_t *out;
    int64_t outputs, words;
} Pack;

static void pack_item(const void *arguments, int64_t panel) {
    const Pack *a = arguments;
    uint32_t *out = a->out + panel * PANEL * a->words;
    for (int64_t first = 0; first < a->words; first += LANES)
        for (int64_t half = 0; half < PANEL; half += LANES, out += LANES * LANES)
            for (int64_t n = 0; n < LANES; n++) {
                const uint32_t *from = a->weight + (panel * PANEL + half + n) * a->words + first;
                for (int64_t k = 0; k < LANES; k++) out[k * LANES + n] = from[k];
            }
}

void educe_pack(const Pack *a) { spread(pack_item, a, a->outputs / PANEL, 1 << 20); }

#if BLOCKS

#if TILES

/* Tiles 0 to 3 are sums (rows, then panels' halves), 4 and 5 rows, 6 and 7 weights. */
INLINE void shape_tiles(int64_t first, int64_t second) {
    Shapes s = {.palette = 1};
    for (int i = 0; i < 8; i++) s.columns[i] = STEP;
    s.rows[0] = s.rows[1] = s.rows[4] = (uint8_t)first;
    s.rows[2] = s.rows[3] = s.rows[5] = (uint8_t)(second ? second : 1);
    s.rows[6] = s.rows[7] = LANES;
    shape(&s);
}

/* Sums [up to 32, 32] of one panel; each step asks for ``lines`` of what is read next. */
INLINE void sum_panel(const char *x, int64_t stride, const char *weight, int64_t steps,
                      const int two, const int integers, const char *ahead, const int lines,
                      void *sums) {
    WRITTEN();
    _tile_zero(0);
    _tile_zero(1);
    if (two) {
        _tile_zero(2);
        _tile_zero(3);
    }
    const char *below = x + LANES * stride;
    for (int64_t k = 0; k < steps; k++, weight += 2 * TILE) {
        for (int i = 0; i < lines; i++) __builtin_prefetch(ahead + i * 64, 0, 2);
        ahead += lines * 64;
        _tile_loadd(4, x + k * STEP, stride);
        if (two) _tile_loadd(5, below + k * STEP, stride);
        _tile_loadd(6, weight, STEP);
        _tile_loadd(7, weight + TILE, STEP);
        if (integers) {
            _tile_dpbssd(0, 4, 6);
            _tile_dpbssd(1, 4, 7);
            if (two) {
                _tile_dpbssd(2, 5, 6);
                _tile_dpbssd(3, 5, 7);
            }
        } else {
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            if (two) {
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
        }
    }
    char *to = sums;
    _tile_stored(0, to, PANEL * 4);
    _tile_stored(1, to + LANES * 4, PANEL * 4);
    if (two) {
        _tile_stored(2, to + LANES * PANEL * 4, PANEL * 4);
        _tile_stored(3, to + LANES * PANEL * 4 + LANES * 4, PANEL * 4);
    }
}

#endif

/* The same by vectors, of up to BLOCK_ROWS rows. */
INLINE void sum_rows(const char *x, int64_t stride, const char *weight, int64_t steps,
                     const int count, const int integers, const int32_t *offsets,
                     const char *ahead, int64_t lines, float *sums) {
    vf held[BLOCK_ROWS][2];
#pragma GCC unroll 12
    for (int m = 0; m < count; m++)
        for (int i = 0; i < 2; i++)
            held[m][i] = integers ? load((const float *)offsets + i * LANES) : all(0.0f);
    for (int64_t k = 0; k < steps; k++, weight += 2 * TILE) {
        for (int64_t i = 0; i < lines; i++) __builtin_prefetch(ahead + i * 64, 0, 2);
        ahead += lines * 64;
        multiply_step(x + k * STEP, stride, weight, weight + TILE, count, integers, held);
    }
#pragma GCC unroll 12
    for (int m = 0; m < count; m++)
        for (int i = 0; i < 2; i++) store(sums + m * PANEL + i * LANES, held[m][i]);
}

#define OF_ROWS(N)                                                                              \
    static void sum_##N(const char *x, int64_t stride, const char *weight, int64_t steps,       \
                        const int32_t *offsets, const char *ahead, int64_t lines, float *sums) { \
        if (offsets)                                                                            \
            sum_rows(x, stride, weight, steps, N, 1, offsets, ahead, lines, sums);              \
        else                                                                                    \
            sum_rows(x, stride, weight, steps, N, 0, offsets, ahead, lines, sums);              \
    }
OF_ROWS(1) OF_ROWS(2) OF_ROWS(3) OF_ROWS(4) OF_ROWS(5) OF_ROWS(6)
OF_ROWS(7) OF_ROWS(8) OF_ROWS(9) OF_ROWS(10) OF_ROWS(11) OF_ROWS(12)
typedef void (*sum_t)(const char *, int64_t, const char *, int64_t, const int32_t *, const char *,
                      int64_t, float *);
static const sum_t sum_table[BLOCK_ROWS + 1] = {NULL,  sum_1, sum_2, sum_3,  sum_4,  sum_5, sum_6,
                                          sum_7, sum_8, sum_9, sum_10, sum_11, sum_12};

INLINE vf rounded(vf v) { return (vf)(__builtin_convertvector(narrowed(v), vu) << 16); }

/* Sixteen outputs of one row, from their sums. */
INLINE vf finished(const Product *a, const void *sums, int64_t row, int64_t output,
                   const int integers) {
    vf v;
    if (integers) {
        vi whole;
        memcpy(&whole, sums, sizeof whole);
        v = __builtin_convertvector(whole, vf) * load(a->scales + output) * a->row_scales[row];
    } else
        v = load(sums);
    if (a->bias) v += load(a->bias + output);
    return v;
}

INLINE void finish_panel(const Product *a, const float *sums, int64_t first, int64_t count,
                         int64_t output, const int integers) {
    for (int64_t m = 0; m < count; m++)
        for (int64_t i = 0; i < PANEL; i += LANES) {
            int64_t row = first + m, at = row * a->outputs + output + i;
            vf v = finished(a, sums + m * PANEL + i, row, output + i, integers);
            if (a->out_kind == 2) {
                float *to = (float *)a->out + at;
                store(to, load(to) + (integers ? v : rounded(v)));
            } else
                store_kind(a->out, at, v, a->out_kind);
        }
}

INLINE void finish_gated(const Product *a, const float *gates, const float *ups, int64_t first,
                         int64_t count, int64_t output, const int integers) {
    for (int64_t m = 0; m < count; m++)
        for (int64_t i = 0; i < PANEL; i += LANES) {
            int64_t row = first + m, at = row * (a->outputs / 2) + output / 2 + i;
            vf g = finished(a, gates + m * PANEL + i, row, output + i, integers);
            vf u = finished(a, ups + m * PANEL + i, row, output + PANEL + i, integers);
            if (!integers) g = rounded(g), u = rounded(u); /* as the trainer's products are */
            store_kind(a->out, at, silu(g) * u, a->out_kind);
        }
}

typedef struct {
    const Product *product;
    int64_t rows;   /* of a chunk */
    int64_t pieces; /* groups of panels */
    int64_t group;  /* panels, or pairs of them */
} Shared;

INLINE void product_rows(const Product *a, int64_t unit, int64_t first, int64_t count,
                         const int integers, const int tiles, const char *ahead,
                         const int64_t lines) {
    const int64_t steps = a->bytes / STEP, panel = steps * 2 * TILE, pair = a->gated ? 2 : 1;
    const char *x = a->x + first * a->bytes;
    const char *weight = a->weight + unit * panel * pair;
    float sums[2][PANEL * PANEL] __attribute__((aligned(64)));
    (void)tiles;
    for (int64_t g = 0; g < pair; g++) {
        const int32_t *offsets = integers ? a->offsets + (unit * pair + g) * PANEL : NULL;
#if TILES
        if (tiles && count > LANES)
            sum_panel(x, a->bytes, weight, steps, 1, integers, ahead, (int)lines, sums[g]);
        else if (tiles)
            sum_panel(x, a->bytes, weight, steps, 0, integers, ahead, (int)lines, sums[g]);
        else
#endif
            sum_table[count](x, a->bytes, weight, steps, offsets, ahead, lines, sums[g]);
        weight += panel;
        ahead += steps * lines * 64;
    }
    if (a->gated)
        finish_gated(a, sums[0], sums[1], first, count, unit * 2 * PANEL, integers);
    else
        finish_panel(a, sums[0], first, count, unit * PANEL, integers);
}

/* What is read after a piece: the next one, and at the end of a group what this thread will take,
   or what lies behind this matrix, which is the one that is multiplied next. */
INLINE const char *next_piece(const Shared *s, int64_t unit, int64_t last, int64_t size) {
    int64_t next = unit + 1 < last ? unit + 1 : unit + 1 + s->group * (educe_threads - 1);
    return s->product->weight + next * size;
}

INLINE void product_kind(const Shared *s, int64_t item, const int integers, const int tiles) {
    const Product *a = s->product;
    int64_t pair = a->gated ? 2 : 1, units = a->outputs / PANEL / pair;
    int64_t first_row = item / s->pieces * s->rows;
    int64_t last_row = smaller(first_row + s->rows, a->rows);
    int64_t unit = item % s->pieces * s->group, last = smaller(unit + s->group, units);
    int64_t steps = a->bytes / STEP * pair, size = steps * 2 * TILE, many = last_row - first_row;
    /* Blocks of rows, by vectors all of about the same size. */
    int64_t blocks = tiles ? (many + PANEL - 1) / PANEL : (many + BLOCK_ROWS - 1) / BLOCK_ROWS;
    int64_t side = tiles ? PANEL : (many + blocks - 1) / blocks;
    /* Each asks for its part of what is read next; many rows make reading the weights no matter. */
    int64_t lines = blocks > 8 ? 0 : (PANEL + blocks - 1) / blocks;
#if TILES
    int64_t shaped = 0;
#endif
    for (; unit < last; unit++) {
        const char *ahead = next_piece(s, unit, last, size);
        for (int64_t row = first_row; row < last_row; row += side, ahead += steps * lines * 64) {
            int64_t count = smaller(last_row - row, side);
#if TILES
            if (tiles && count != shaped) {
                shape_tiles(smaller(count, LANES), count > LANES ? count - LANES : 0);
                shaped = count;
            }
#endif
            if (lines == 32)
                product_rows(a, unit, row, count, integers, tiles, ahead, 32);
            else if (lines == 16)
                product_rows(a, unit, row, count, integers, tiles, ahead, 16);
            else
                product_rows(a, unit, row, count, integers, tiles, ahead, lines);
        }
    }
#if TILES
    if (tiles) _tile_release();
#endif
}

static void product_item(const void *arguments, int64_t item) {
    const Shared *s = arguments;
    int integers = s->product->integers;
#if TILES
    if (educe_tiles && integers)
        product_kind(s, item, 1, 1);
    else if (educe_tiles)
        product_kind(s, item, 0, 1);
    else
#endif
    if (integers)
        product_kind(s, item, 1, 0);
    else
        product_kind(s, item, 0, 0);
}

#define CHUNK (768 * 1024) /* bytes of rows that stay in a core's cache beside a panel */

void educe_product(const Product *a) {
    int64_t units = a->outputs / PANEL / (a->gated ? 2 : 1);
    int64_t rows = CHUNK / a->bytes / PANEL * PANEL;
    rows = rows < PANEL ? PANEL : rows;
    int64_t chunks = (a->rows + rows - 1) / rows;
    int64_t group = units * chunks / (8 * educe_threads);
    group = group < 1 ? 1 : smaller(group, 8);
    Shared s = {a, rows, (units + group - 1) / group, group};
    spread(product_item, &s, chunks * s.pieces, 1 << 20);
}

#else

void educe_product(const Product *a) { (void)a; }

#endif
