/* Attention of training in blocks, on the tiles of AMX or by vectors of bf16 pairs, for bf16 packs.

   Shapes: T tokens, P tokens filled up to whole blocks of 32, H query heads, K key/value heads, D
   head width (a multiple of 32).

   A pack lies depth first, so one number a key says who sees it: query q sees key k exactly if
   k <= q < last[k]. Blocks of 32 queries meet blocks of 32 keys: such that nobody sees are passed
   over, such that all see need no mask. Up to four blocks are one softmax update and one inner
   product of 128. Every work item writes its own outputs only.

   An operand lies in up to three orders, all [heads, P, D] and block after block:
   rows   as they are;
   words  of 16 tokens: tiles [16 pairs of numbers, 16 tokens], to be multiplied over D;
   pairs  of 32 tokens: tiles [16 pairs of tokens, 16 numbers], to be multiplied over tokens. */

#include "vectors.h"

#if BLOCKS

#define SIDE 32
#define PARTS 4
#define CHUNK (SIDE * PARTS)

typedef struct {
    const uint16_t *x;     /* [T, heads, D] */
    const uint16_t *other; /* [T, heads, D] or NULL */
    uint16_t *rows, *words, *pairs; /* or NULL */
    float *products;                /* [heads, P]: of x with other */
    int64_t tokens, padded, heads, width;
} Arrange;

static void arrange_item(const void *arguments, int64_t item) {
    const Arrange *a = arguments;
    const int64_t width = a->width, head = item % a->heads, first = item / a->heads * SIDE;
    const int64_t count = smaller(a->tokens - first, SIDE), place = (head * a->padded + first) * width;
    uint16_t held[SIDE * width] __attribute__((aligned(64)));
    memset(held, 0, sizeof held);
    for (int64_t t = 0; t < count; t++) {
        const int64_t at = ((first + t) * a->heads + head) * width;
        memcpy(held + t * width, a->x + at, (size_t)width * 2);
        if (a->other) {
            vf sum = all(0.0f);
            for (int64_t i = 0; i < width; i += LANES)
                sum += load_narrow(a->x + at + i) * load_narrow(a->other + at + i);
            a->products[head * a->padded + first + t] = total(sum);
        }
    }
    if (a->rows) memcpy(a->rows + place, held, sizeof held);
    if (a->words) {
        const uint32_t *from = (const uint32_t *)held;
        uint32_t *to = (uint32_t *)(a->words + place);
        for (int64_t half = 0; half < SIDE; half += LANES)
            for (int64_t w = 0; w < width / 2; w++)
                for (int64_t t = 0; t < LANES; t++, to++) *to = from[(half + t) * width / 2 + w];
    }
    if (a->pairs) {
        uint16_t *to = a->pairs + place;
        for (int64_t i = 0; i < width; i += LANES)
            for (int64_t t = 0; t < SIDE; t += 2, to += 2 * LANES) {
                vh one, two;
                memcpy(&one, held + t * width + i, sizeof one);
                memcpy(&two, held + (t + 1) * width + i, sizeof two);
                vu both = __builtin_convertvector(one, vu) | __builtin_convertvector(two, vu) << 16;
                memcpy(to, &both, sizeof both);
            }
    }
}

void educe_arrange(const Arrange *a) {
    spread(arrange_item, a, a->padded / SIDE * a->heads, 1 << 20);
}

typedef struct {
    const uint16_t *query_rows, *query_words, *query_pairs;
    const uint16_t *key_rows, *key_words, *key_pairs;
    const uint16_t *value_rows, *value_words, *value_pairs;
    const uint16_t *grad_rows, *grad_words, *grad_pairs;
    const int32_t *last;               /* [P]; 0 behind the last token */
    const int32_t *smallest, *largest; /* [P / 32]: of last */
    float *lse;                        /* [H, P] */
    const float *deltas;               /* [H, P]: gradient times output */
    uint16_t *out;                     /* [T, H, D]: output, or gradient of queries */
    uint16_t *grad_keys, *grad_values; /* [T, K, D] */
    int64_t tokens, padded, heads, kv_heads, width;
    float scale;
} Tiled;

/* Blocks that are seen, up to four, and whether each must be masked. */
typedef struct {
    int64_t count, at[PARTS];
    int32_t partly[PARTS];
} Found;

static int is_seen(const Tiled *a, int64_t queries, int64_t keys) {
    return a->largest[keys] > queries * SIDE;
}

static void found_block(const Tiled *a, Found *f, int64_t block, int64_t queries, int64_t keys) {
    f->at[f->count] = block;
    f->partly[f->count++] = queries == keys || a->smallest[keys] < (queries + 1) * SIDE;
}

static void shape_blocks(void) {
#if TILES
    if (!educe_tiles) return;
    Shapes s = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        s.columns[i] = 64;
        s.rows[i] = LANES;
    }
    shape(&s);
#endif
}

static void release_blocks(void) {
#if TILES
    if (educe_tiles) _tile_release();
#endif
}

#if TILES
INLINE void multiply_on_tiles(const uint16_t *rows, const uint16_t *words, float *out,
                     const int64_t width) {
    WRITTEN();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < width / SIDE; k++) {
        _tile_loadd(4, rows + k * SIDE, width * 2);
        _tile_loadd(5, rows + LANES * width + k * SIDE, width * 2);
        _tile_loadd(6, words + k * LANES * SIDE, 64);
        _tile_loadd(7, words + LANES * width + k * LANES * SIDE, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, out, CHUNK * 4);
    _tile_stored(1, out + LANES, CHUNK * 4);
    _tile_stored(2, out + LANES * CHUNK, CHUNK * 4);
    _tile_stored(3, out + LANES * CHUNK + LANES, CHUNK * 4);
}

INLINE void add_on_tiles(float *sums, const uint16_t *shares, const uint16_t *pairs, const Found *f,
                       const int64_t width) {
    WRITTEN();
    for (int64_t i = 0; i < width; i += SIDE) {
        float *low = sums + i, *high = sums + LANES * width + i;
        _tile_loadd(0, low, width * 4);
        _tile_loadd(1, low + LANES, width * 4);
        _tile_loadd(2, high, width * 4);
        _tile_loadd(3, high + LANES, width * 4);
        for (int64_t p = 0; p < f->count; p++) {
            const uint16_t *from = pairs + (f->at[p] * width + i) * SIDE;
            _tile_loadd(4, shares + p * SIDE, CHUNK * 2);
            _tile_loadd(5, shares + LANES * CHUNK + p * SIDE, CHUNK * 2);
            _tile_loadd(6, from, 64);
            _tile_loadd(7, from + LANES * SIDE, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, low, width * 4);
        _tile_stored(1, low + LANES, width * 4);
        _tile_stored(2, high, width * 4);
        _tile_stored(3, high + LANES, width * 4);
    }
}
#endif

/* ``count`` rows of what ``multiply`` does, by vectors. */
INLINE void multiply_rows(const uint16_t *rows, const uint16_t *words, float *out,
                          const int64_t width, const int count) {
    vf sums[BLOCK_ROWS][2] = {0};
    for (int64_t k = 0; k < width / SIDE; k++)
        multiply_step((const char *)(rows + k * SIDE), width * 2,
                      (const char *)(words + k * LANES * SIDE),
                      (const char *)(words + LANES * width + k * LANES * SIDE), count, 0, sums);
#pragma GCC unroll 12
    for (int m = 0; m < count; m++)
        for (int i = 0; i < 2; i++) store(out + m * CHUNK + i * LANES, sums[m][i]);
}

/* out [32, 32] = rows [32, D] . words^T */
INLINE void multiply(const uint16_t *rows, const uint16_t *words, float *out,
                     const int64_t width) {
#if TILES
    if (educe_tiles) {
        multiply_on_tiles(rows, words, out, width);
        return;
    }
#endif
    multiply_rows(rows, words, out, width, 12);
    multiply_rows(rows + 12 * width, words, out + 12 * CHUNK, width, 12);
    multiply_rows(rows + 24 * width, words, out + 24 * CHUNK, width, 8);
}

INLINE void add_rows(float *sums, const uint16_t *shares, const uint16_t *pairs, const Found *f,
                     const int64_t width, const int count) {
    for (int64_t i = 0; i < width; i += SIDE) {
        vf held[BLOCK_ROWS][2];
#pragma GCC unroll 12
        for (int m = 0; m < count; m++)
            for (int j = 0; j < 2; j++) held[m][j] = load(sums + m * width + i + j * LANES);
        for (int64_t p = 0; p < f->count; p++) {
            const uint16_t *from = pairs + (f->at[p] * width + i) * SIDE;
            multiply_step((const char *)(shares + p * SIDE), CHUNK * 2, (const char *)from,
                          (const char *)(from + LANES * SIDE), count, 0, held);
        }
#pragma GCC unroll 12
        for (int m = 0; m < count; m++)
            for (int j = 0; j < 2; j++) store(sums + m * width + i + j * LANES, held[m][j]);
    }
}

/* sums [32, D] += shares [32, 32 a block] . the blocks' pairs */
INLINE void add_blocks(float *sums, const uint16_t *shares, const uint16_t *pairs, const Found *f,
                       const int64_t width) {
#if TILES
    if (educe_tiles) {
        add_on_tiles(sums, shares, pairs, f, width);
        return;
    }
#endif
    add_rows(sums, shares, pairs, f, width, 12);
    add_rows(sums + 12 * width, shares + 12 * CHUNK, pairs, f, width, 12);
    add_rows(sums + 24 * width, shares + 24 * CHUNK, pairs, f, width, 8);
}

/* Which of 16 keys a query sees. */
INLINE vi seen_keys(const Tiled *a, int64_t query, int64_t first_key) {
    vi lasts;
    memcpy(&lasts, a->last + first_key, sizeof lasts);
    return (lanes() + (int32_t)first_key <= (int32_t)query) & (lasts > (int32_t)query);
}

/* Which of 16 queries see a key. */
INLINE vi seeing_queries(const Tiled *a, int64_t first_query, int64_t key) {
    vi queries = lanes() + (int32_t)first_query;
    return (queries >= (int32_t)key) & (queries < a->last[key]);
}

/* Write rows [32, D] of a block to [T, heads, D]. */
static void write_block(const Tiled *a, uint16_t *out, int64_t heads, int64_t head, int64_t block,
                        const float *sums, const float *by, float scale) {
    for (int64_t t = 0; t < SIDE && block * SIDE + t < a->tokens; t++) {
        uint16_t *to = out + ((block * SIDE + t) * heads + head) * a->width;
        float factor = by ? scale / by[t] : scale;
        for (int64_t i = 0; i < a->width; i += LANES)
            store_kind(to, i, load(sums + t * a->width + i) * factor, 1);
    }
}

/* Forward: a block of queries of the heads that share keys. */

typedef struct {
    float *sums, *tops, *weights;
} Running;

INLINE void forward_blocks(const Tiled *a, const Found *f, int64_t block, int64_t head, int64_t kv,
                           const Running *r, const int64_t width) {
    float scores[SIDE][CHUNK] __attribute__((aligned(64)));
    uint16_t shares[SIDE][CHUNK] __attribute__((aligned(64)));
    const uint16_t *rows = a->query_rows + (head * a->padded + block * SIDE) * width;
    const uint16_t *words = a->key_words + kv * a->padded * width;
    for (int64_t p = 0; p < f->count; p++)
        multiply(rows, words + f->at[p] * SIDE * width, &scores[0][p * SIDE], width);
    for (int64_t q = 0; q < SIDE; q++) {
        vf top = all(-__builtin_inff()), weight = all(0.0f);
        for (int64_t p = 0; p < f->count; p++)
            for (int64_t i = 0; i < SIDE; i += LANES) {
                float *at = &scores[q][p * SIDE + i];
                vf v = load(at) * a->scale;
                if (f->partly[p])
                    v = pick(seen_keys(a, block * SIDE + q, f->at[p] * SIDE + i), v,
                             all(-__builtin_inff()));
                store(at, v);
                top = larger(top, v);
            }
        float best = largest(top), before = r->tops[q], *sums = r->sums + q * width;
        if (best > before) {
            float by = exponential1(before - best);
            r->weights[q] *= by;
            for (int64_t i = 0; i < width; i += LANES) store(sums + i, load(sums + i) * by);
            r->tops[q] = before = best;
        }
        for (int64_t t = 0; t < f->count * SIDE; t += LANES) {
            vf w = exponential(load(&scores[q][t]) - before);
            store_kind(&shares[q][t], 0, w, 1);
            weight += w;
        }
        r->weights[q] += total(weight);
    }
    add_blocks(r->sums, &shares[0][0], a->value_pairs + kv * a->padded * width, f, width);
}

INLINE void forward_item(const Tiled *a, int64_t item, const int64_t width) {
    const int64_t kv = item % a->kv_heads, group = a->heads / a->kv_heads;
    const int64_t block = a->padded / SIDE - 1 - item / a->kv_heads; /* long ones first */
    float sums[group][SIDE * width] __attribute__((aligned(64)));
    float tops[group][SIDE], weights[group][SIDE];
    memset(sums, 0, sizeof sums);
    memset(weights, 0, sizeof weights);
    for (int64_t g = 0; g < group; g++)
        for (int64_t q = 0; q < SIDE; q++) tops[g][q] = -1e30f; /* finite: a first part may be masked */
    shape_blocks();
    Found f = {0};
    for (int64_t keys = 0; keys <= block; keys++) {
        if (is_seen(a, block, keys)) found_block(a, &f, keys, block, keys);
        if (f.count < PARTS && (keys < block || !f.count)) continue;
        for (int64_t g = 0; g < group; g++) {
            Running r = {sums[g], tops[g], weights[g]};
            forward_blocks(a, &f, block, kv * group + g, kv, &r, width);
        }
        f.count = 0;
    }
    release_blocks();
    for (int64_t g = 0; g < group; g++) {
        const int64_t head = kv * group + g;
        write_block(a, a->out, a->heads, head, block, sums[g], weights[g], 1.0f);
        for (int64_t q = 0; q < SIDE; q++)
            a->lse[head * a->padded + block * SIDE + q] =
                weights[g][q] > 0.0f ? tops[g][q] + __builtin_logf(weights[g][q]) : 0.0f;
    }
}

/* Backward to the queries: as forward, with score = exp(. - lse) * (slope - delta). */

INLINE void query_blocks(const Tiled *a, const Found *f, int64_t block, int64_t head, int64_t kv,
                         float *sums, const int64_t width) {
    float scores[SIDE][CHUNK] __attribute__((aligned(64)));
    float slopes[SIDE][CHUNK] __attribute__((aligned(64)));
    uint16_t shares[SIDE][CHUNK] __attribute__((aligned(64)));
    const int64_t own = (head * a->padded + block * SIDE) * width, others = kv * a->padded * width;
    for (int64_t p = 0; p < f->count; p++) {
        const int64_t at = others + f->at[p] * SIDE * width;
        multiply(a->query_rows + own, a->key_words + at, &scores[0][p * SIDE], width);
        multiply(a->grad_rows + own, a->value_words + at, &slopes[0][p * SIDE], width);
    }
    for (int64_t q = 0; q < SIDE; q++) {
        const int64_t token = head * a->padded + block * SIDE + q;
        const float lse = a->lse[token], delta = a->deltas[token];
        for (int64_t p = 0; p < f->count; p++)
            for (int64_t i = 0; i < SIDE; i += LANES) {
                const int64_t t = p * SIDE + i;
                vf v = exponential(load(&scores[q][t]) * a->scale - lse);
                v *= load(&slopes[q][t]) - delta;
                if (f->partly[p])
                    v = pick(seen_keys(a, block * SIDE + q, f->at[p] * SIDE + i), v, all(0.0f));
                store_kind(&shares[q][t], 0, v, 1);
            }
    }
    add_blocks(sums, &shares[0][0], a->key_pairs + others, f, width);
}

INLINE void query_item(const Tiled *a, int64_t item, const int64_t width) {
    const int64_t kv = item % a->kv_heads, group = a->heads / a->kv_heads;
    const int64_t block = a->padded / SIDE - 1 - item / a->kv_heads;
    float sums[group][SIDE * width] __attribute__((aligned(64)));
    memset(sums, 0, sizeof sums);
    shape_blocks();
    Found f = {0};
    for (int64_t keys = 0; keys <= block; keys++) {
        if (is_seen(a, block, keys)) found_block(a, &f, keys, block, keys);
        if (f.count < PARTS && (keys < block || !f.count)) continue;
        for (int64_t g = 0; g < group; g++)
            query_blocks(a, &f, block, kv * group + g, kv, sums[g], width);
        f.count = 0;
    }
    release_blocks();
    for (int64_t g = 0; g < group; g++)
        write_block(a, a->out, a->heads, kv * group + g, block, sums[g], NULL, a->scale);
}

/* Backward to keys and values: a block of keys meets the queries that see it. */

INLINE void key_blocks(const Tiled *a, const Found *f, int64_t block, int64_t head, int64_t kv,
                       float *key_sums, float *value_sums, const int64_t width) {
    float scores[SIDE][CHUNK] __attribute__((aligned(64)));
    float slopes[SIDE][CHUNK] __attribute__((aligned(64)));
    uint16_t shares[SIDE][CHUNK] __attribute__((aligned(64)));
    uint16_t slants[SIDE][CHUNK] __attribute__((aligned(64)));
    const int64_t own = (kv * a->padded + block * SIDE) * width, others = head * a->padded * width;
    for (int64_t p = 0; p < f->count; p++) {
        const int64_t at = others + f->at[p] * SIDE * width;
        multiply(a->key_rows + own, a->query_words + at, &scores[0][p * SIDE], width);
        multiply(a->value_rows + own, a->grad_words + at, &slopes[0][p * SIDE], width);
    }
    for (int64_t p = 0; p < f->count; p++)
        for (int64_t i = 0; i < SIDE; i += LANES) {
            const int64_t query = f->at[p] * SIDE + i, at = p * SIDE + i;
            const vf lse = load(a->lse + head * a->padded + query);
            const vf delta = load(a->deltas + head * a->padded + query);
            for (int64_t t = 0; t < SIDE; t++) {
                vf weight = exponential(load(&scores[t][at]) * a->scale - lse);
                vf slant = weight * (load(&slopes[t][at]) - delta);
                if (f->partly[p]) {
                    vi seen = seeing_queries(a, query, block * SIDE + t);
                    weight = pick(seen, weight, all(0.0f));
                    slant = pick(seen, slant, all(0.0f));
                }
                store_kind(&shares[t][at], 0, weight, 1);
                store_kind(&slants[t][at], 0, slant, 1);
            }
        }
    add_blocks(value_sums, &shares[0][0], a->grad_pairs + others, f, width);
    add_blocks(key_sums, &slants[0][0], a->query_pairs + others, f, width);
}

INLINE void key_item(const Tiled *a, int64_t item, const int64_t width) {
    const int64_t kv = item % a->kv_heads, group = a->heads / a->kv_heads;
    const int64_t block = item / a->kv_heads, blocks = a->padded / SIDE;
    float key_sums[SIDE * width] __attribute__((aligned(64)));
    float value_sums[SIDE * width] __attribute__((aligned(64)));
    memset(key_sums, 0, sizeof key_sums);
    memset(value_sums, 0, sizeof value_sums);
    shape_blocks();
    for (int64_t head = kv * group; head < (kv + 1) * group; head++) {
        Found f = {0};
        for (int64_t queries = block; queries < blocks && is_seen(a, queries, block); queries++) {
            found_block(a, &f, queries, queries, block);
            if (f.count < PARTS) continue;
            key_blocks(a, &f, block, head, kv, key_sums, value_sums, width);
            f.count = 0;
        }
        if (f.count) key_blocks(a, &f, block, head, kv, key_sums, value_sums, width);
    }
    release_blocks();
    write_block(a, a->grad_keys, a->kv_heads, kv, block, key_sums, NULL, a->scale);
    write_block(a, a->grad_values, a->kv_heads, kv, block, value_sums, NULL, 1.0f);
}

#define BY_WIDTH(DO)                                     \
    static void DO##_work(const void *arguments, int64_t item) { \
        const Tiled *a = arguments;                      \
        switch (a->width) {                              \
        case 32: DO(a, item, 32); break;                 \
        case 64: DO(a, item, 64); break;                 \
        case 96: DO(a, item, 96); break;                 \
        case 128: DO(a, item, 128); break;               \
        }                                                \
    }
BY_WIDTH(forward_item)
BY_WIDTH(query_item)
BY_WIDTH(key_item)

void educe_tiled_forward(const Tiled *a) {
    spread(forward_item_work, a, a->padded / SIDE * a->kv_heads, 1 << 20);
}

void educe_tiled_backward(const Tiled *a) {
    spread(query_item_work, a, a->padded / SIDE * a->kv_heads, 1 << 20);
    spread(key_item_work, a, a->padded / SIDE * a->kv_heads, 1 << 20);
}

#else

typedef struct Arrange Arrange;
typedef struct Tiled Tiled;
void educe_arrange(const Arrange *a) { (void)a; }
void educe_tiled_forward(const Tiled *a) { (void)a; }
void educe_tiled_backward(const Tiled *a) { (void)a; }

#endif
