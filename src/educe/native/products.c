/* Matrix products on the tiles of AMX, for rows that are few against the weights.

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
    const long ask = 0x1023, tile_data = 18; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    educe_tiles = syscall(SYS_arch_prctl, ask, tile_data) == 0;
#endif
    return educe_tiles;
}

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
                         const int integers, const char *ahead, const int lines) {
    const int64_t steps = a->bytes / STEP, panel = steps * 2 * TILE;
    const char *x = a->x + first * a->bytes;
    const char *weight = a->weight + unit * panel * (a->gated ? 2 : 1);
    float sums[2][PANEL * PANEL] __attribute__((aligned(64)));
    for (int g = 0; g < (a->gated ? 2 : 1); g++) {
        if (count > LANES)
            sum_panel(x, a->bytes, weight, steps, 1, integers, ahead, lines, sums[g]);
        else
            sum_panel(x, a->bytes, weight, steps, 0, integers, ahead, lines, sums[g]);
        weight += panel;
        ahead += steps * lines * 64;
    }
    if (a->gated)
        finish_gated(a, sums[0], sums[1], first, count, unit * 2 * PANEL, integers);
    else
        finish_panel(a, sums[0], first, count, unit * PANEL, integers);
}

INLINE void product_kind(const Shared *s, int64_t item, const int integers) {
    const Product *a = s->product;
    int64_t pair = a->gated ? 2 : 1, units = a->outputs / PANEL / pair;
    int64_t first_row = item / s->pieces * s->rows;
    int64_t last_row = smaller(first_row + s->rows, a->rows);
    int64_t unit = item % s->pieces * s->group, last = smaller(unit + s->group, units);
    int64_t shaped = 0, size = a->bytes / STEP * 2 * TILE * pair;
    int64_t blocks = (last_row - first_row + PANEL - 1) / PANEL;
    for (; unit < last; unit++) {
        /* Each block of rows asks for its part of what is read next: of the next piece's, and at
           the end of what lies behind this matrix, which is the one that is multiplied next. */
        int64_t next = unit + 1 < last ? unit + 1 : unit + 1 + s->group * (educe_threads - 1);
        const char *ahead = a->weight + next * size;
        for (int64_t row = first_row; row < last_row; row += PANEL) {
            int64_t count = smaller(last_row - row, PANEL);
            if (count != shaped) {
                shape_tiles(smaller(count, LANES), count > LANES ? count - LANES : 0);
                shaped = count;
            }
            const int64_t part = (row - first_row) / PANEL;
            if (blocks == 1)
                product_rows(a, unit, row, count, integers, ahead, 32);
            else if (blocks == 2)
                product_rows(a, unit, row, count, integers, ahead + part * size / 2, 16);
            else if (blocks <= 4)
                product_rows(a, unit, row, count, integers, ahead + part * size / 4, 8);
            else /* so many rows that reading the weights is no matter */
                product_rows(a, unit, row, count, integers, ahead, 0);
        }
    }
    _tile_release();
}

static void product_item(const void *arguments, int64_t item) {
    const Shared *s = arguments;
    if (s->product->integers)
        product_kind(s, item, 1);
    else
        product_kind(s, item, 0);
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
