/* Fused CPU kernels of sampling: what stands between two matrix products is one pass here.

   Shapes: N tokens, W width, H query heads, K key/value heads, D head width (a multiple of 16),
   R rows, T new tokens of a row, V vocabulary. */

#include "vectors.h"

parallel_t educe_parallel;
int educe_threads = 1;

void educe_use_threads(void *parallel, int count) {
    educe_parallel = (parallel_t)parallel;
    educe_threads = count;
}

/* Norms: the residual stream x [N, W] fp32 takes delta (or nothing) and leaves normalised. */

typedef struct {
    float *x;
    const void *delta;        /* [N, W] or NULL */
    const float *delta_scale; /* [N] or NULL */
    const float *delta_bias;  /* [W] or NULL */
    const float *weight;      /* [W] or NULL: of the norm */
    void *out;                /* [N, W]: narrow, wide, or int8 */
    float *scales;            /* [N]: of int8 rows */
    int64_t rows, width;
    float epsilon;
    int32_t delta_narrow;
    int32_t out_kind; /* 0 fp32, 1 bf16, 2 int8, 3 none */
} Norm;

#define NORM_ROWS 4

INLINE void quantise_row(const float *row, int64_t width, float factor, int8_t *out,
                         float *scale) {
    vf peak = all(0.0f);
    for (int64_t i = 0; i < width; i += LANES) {
        vf v = load(row + i);
        peak = larger(peak, larger(v, -v));
    }
    float top = largest(peak);
    top = top > 1e-20f ? top : 1e-20f;
    const float magic = 12582912.0f;
    float by = 127.0f / top;
    for (int64_t i = 0; i < width; i += LANES) {
        vf whole = load(row + i) * by + magic;
        vb bytes = __builtin_convertvector((vi)whole - 0x4b400000, vb);
        memcpy(out + i, &bytes, sizeof bytes);
    }
    *scale = top / 127.0f * factor;
}

static void norm_item(const void *arguments, int64_t item) {
    const Norm *a = arguments;
    int64_t width = a->width, last = (item + 1) * NORM_ROWS;
    float held[width];
    for (int64_t n = item * NORM_ROWS; n < a->rows && n < last; n++) {
        float *x = a->x + n * width;
        vf squares = all(0.0f);
        if (a->delta) {
            float by = a->delta_scale ? a->delta_scale[n] : 1.0f;
            for (int64_t i = 0; i < width; i += LANES) {
                vf d = load_kind(a->delta, n * width + i, a->delta_narrow) * by;
                if (a->delta_bias) d += load(a->delta_bias + i);
                vf v = load(x + i) + d;
                store(x + i, v);
                squares += v * v;
            }
        } else
            for (int64_t i = 0; i < width; i += LANES) {
                vf v = load(x + i);
                squares += v * v;
            }
        if (a->out_kind == 3) continue;
        float by = inverse_root(total(squares) / (float)width + a->epsilon);
        if (a->out_kind == 2) {
            for (int64_t i = 0; i < width; i += LANES)
                store(held + i, a->weight ? load(x + i) * load(a->weight + i) : load(x + i));
            quantise_row(held, width, by, (int8_t *)a->out + n * width, a->scales + n);
            continue;
        }
        for (int64_t i = 0; i < width; i += LANES) {
            vf v = load(x + i) * by;
            if (a->weight) v *= load(a->weight + i);
            store_kind(a->out, n * width + i, v, a->out_kind);
        }
    }
}

void educe_norm(const Norm *a) {
    spread(norm_item, a, (a->rows + NORM_ROWS - 1) / NORM_ROWS, a->rows * a->width);
}

/* int8 rows and their scales from [N, W]. */

typedef struct {
    const void *x;
    int8_t *out;
    float *scales;
    int64_t rows, width;
    int32_t narrow;
} Quantise;

static void quantise_item(const void *arguments, int64_t item) {
    const Quantise *a = arguments;
    int64_t width = a->width, last = (item + 1) * NORM_ROWS;
    float held[width];
    for (int64_t n = item * NORM_ROWS; n < a->rows && n < last; n++) {
        for (int64_t i = 0; i < width; i += LANES)
            store(held + i, load_kind(a->x, n * width + i, a->narrow));
        quantise_row(held, width, 1.0f, a->out + n * width, a->scales + n);
    }
}

void educe_quantise(const Quantise *a) {
    spread(quantise_item, a, (a->rows + NORM_ROWS - 1) / NORM_ROWS, a->rows * a->width);
}

/* silu(gate * scale) * (up * scale), fp32 [N, F] to narrow or wide. */

typedef struct {
    const float *gate, *up;
    const float *scales; /* [N] */
    void *out;
    int64_t rows, width;
    int32_t narrow;
} Gated;

static void gated_item(const void *arguments, int64_t n) {
    const Gated *a = arguments;
    int64_t width = a->width;
    float by = a->scales[n];
    for (int64_t i = 0; i < width; i += LANES) {
        vf g = load(a->gate + n * width + i) * by, u = load(a->up + n * width + i) * by;
        store_kind(a->out, n * width + i, g / (1.0f + exponential(-g)) * u, a->narrow);
    }
}

void educe_gated(const Gated *a) { spread(gated_item, a, a->rows, a->rows * a->width); }

/* Attention of decode: norms of heads, rotary embedding, the cache's newest entries, then each
   query over its row's segments and slot with one running softmax. */

typedef struct {
    int64_t keys;   /* address of layer 0's keys of this segment, head 0, token 0 */
    int64_t layer;  /* bytes from a layer to the next */
    int64_t values; /* bytes from keys to values */
    int64_t head;   /* bytes from a head to the next */
    int64_t length; /* tokens */
} Segment;

typedef struct {
    const void *joined;      /* [R * T, (H + 2 K) * D]: queries, keys, values */
    const float *scales;     /* [R * T] or NULL: of the rows of joined */
    const float *bias;       /* [(H + 2 K) * D] or NULL: added after the scales */
    const float *rotation;   /* [R * T, D / 2, 2]: cosine and sine */
    const float *head_norms; /* [H + K, D] or NULL */
    char *slots;             /* this layer's keys of slot 0, head 0, token 0 */
    void *out;               /* [R * T, H * D] */
    const int64_t *order;    /* [R]: rows that share segments side by side */
    const int64_t *lengths;  /* [R]: tokens in the slot before the new ones */
    const int64_t *starts;   /* [R + 1]: each row's first segment in segments */
    const Segment *segments;
    int64_t slot_values;     /* bytes from a slot's keys to its values */
    int64_t slot_row;        /* bytes from a slot to the next */
    int64_t slot_head;       /* bytes from a head to the next */
    int64_t rows, new_tokens, heads, kv_heads, width, layer, block;
    float scale, epsilon;
    int32_t joined_narrow, narrow; /* narrow: of cache and output */
} Attend;

#define FETCHED 32768 /* bytes of a slot asked for before its row's segments are read */
#define TOKENS 64 /* of one softmax update */

typedef struct {
    float *queries;          /* [Q, D], scaled */
    uint16_t *narrow_queries; /* [Q, D], where pairs are used */
    float *sums;             /* [Q, D]; where pairs are used in their order, see in_order */
    float *tops;             /* [Q] */
    float *weights;          /* [Q] */
} State;

/* The scores of up to 16 tokens with one query; what is behind the last token is -inf. */
INLINE vf masked(vf scores, int64_t count) {
    static const int32_t places[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    vi at;
    memcpy(&at, places, sizeof at);
    return pick(at < (int32_t)count, scores, all(-__builtin_inff()));
}

INLINE void score_block(const char *keys, int64_t first, int64_t count, const State *s,
                        int64_t query, const int num_queries, const int vectors, const int narrow,
                        float scores[][TOKENS]) {
    const int64_t width = vectors * LANES, size = narrow ? 2 : 4;
    float wide[LANES * (narrow ? width : 1)];
    for (int64_t t = 0; t < count; t += LANES) {
        int64_t many = smaller(count - t, LANES);
        const float *from = (const float *)keys + (first + t) * width;
        if (narrow) {
            const char *at = keys + (first + t) * width * size;
            for (int64_t i = 0; i < many * width; i += LANES)
                store(wide + i, load_narrow((const uint16_t *)at + i));
            from = wide;
        }
        for (int q = 0; q < num_queries; q++) {
            vf held[vectors], dots[LANES];
            for (int j = 0; j < vectors; j++)
                held[j] = load(s->queries + (query + q) * width + j * LANES);
            for (int64_t i = 0; i < LANES; i++) {
                const float *key = from + smaller(i, many - 1) * width;
                vf dot = load(key) * held[0];
                for (int j = 1; j < vectors; j++) dot += load(key + j * LANES) * held[j];
                dots[i] = dot;
            }
            store(scores[q] + t, masked(totals(dots), many));
        }
    }
}

INLINE void add_block(const char *values, int64_t first, int64_t count, const State *s,
                      int64_t query, const int num_queries, const int vectors, const int narrow,
                      float scores[][TOKENS]) {
    const int64_t width = vectors * LANES, size = narrow ? 2 : 4;
    vf held[num_queries][vectors];
    for (int q = 0; q < num_queries; q++)
        for (int j = 0; j < vectors; j++)
            held[q][j] = load(s->sums + (query + q) * width + j * LANES);
    const char *at = values + first * width * size;
    for (int64_t t = 0; t < count; t++, at += width * size)
        for (int j = 0; j < vectors; j++) {
            vf v = load_kind(at, j * LANES, narrow);
            for (int q = 0; q < num_queries; q++) held[q][j] += v * scores[q][t];
        }
    for (int q = 0; q < num_queries; q++)
        for (int j = 0; j < vectors; j++)
            store(s->sums + (query + q) * width + j * LANES, held[q][j]);
}

#if PAIRS
INLINE __m512bh pairs(const void *from) {
    __m512bh v;
    memcpy(&v, from, sizeof v);
    return v;
}

INLINE void score_pairs(const char *keys, int64_t first, int64_t count, const State *s,
                        int64_t query, const int num_queries, const int vectors,
                        float scores[][TOKENS]) {
    const int64_t width = vectors * LANES;
    for (int64_t t = 0; t < count; t += LANES) {
        int64_t many = smaller(count - t, LANES);
        const uint16_t *from = (const uint16_t *)keys + (first + t) * width;
        for (int q = 0; q < num_queries; q++) {
            __m512bh held[vectors / 2];
            vf dots[LANES];
            for (int j = 0; j < vectors / 2; j++)
                held[j] = pairs(s->narrow_queries + (query + q) * width + j * 2 * LANES);
            for (int64_t i = 0; i < LANES; i++) {
                const uint16_t *key = from + smaller(i, many - 1) * width;
                __m512 dot = _mm512_setzero_ps();
                for (int j = 0; j < vectors / 2; j++)
                    dot = _mm512_dpbf16_ps(dot, held[j], pairs(key + j * 2 * LANES));
                dots[i] = (vf)dot;
            }
            store(scores[q] + t, masked(totals(dots), many));
        }
    }
}

/* Two tokens at once: their values interleaved, their weights side by side. */
INLINE void add_pairs(const char *values, int64_t first, int64_t count, const State *s,
                      int64_t query, const int num_queries, const int vectors,
                      float scores[][TOKENS]) {
    const int64_t width = vectors * LANES;
    uint16_t shares[num_queries][TOKENS];
    for (int q = 0; q < num_queries; q++)
        for (int64_t t = 0; t < count; t += LANES) {
            vh h = narrowed(load(scores[q] + t)); /* zero behind the last token */
            memcpy(shares[q] + t, &h, sizeof h);
        }
    __m512 held[num_queries][vectors];
    for (int q = 0; q < num_queries; q++)
        for (int j = 0; j < vectors; j++)
            held[q][j] = (__m512)load(s->sums + (query + q) * width + j * LANES);
    const uint16_t *at = (const uint16_t *)values + first * width;
    for (int64_t t = 0; t < count; t += 2, at += 2 * width) {
        const uint16_t *other = t + 1 < count ? at + width : at;
        for (int j = 0; j < vectors; j += 2) {
            __m512i a = (__m512i)pairs(at + j * LANES), b = (__m512i)pairs(other + j * LANES);
            __m512bh low = (__m512bh)_mm512_unpacklo_epi16(a, b);
            __m512bh high = (__m512bh)_mm512_unpackhi_epi16(a, b);
            for (int q = 0; q < num_queries; q++) {
                int32_t two;
                memcpy(&two, shares[q] + t, sizeof two);
                __m512bh share = (__m512bh)_mm512_set1_epi32(two);
                held[q][j] = _mm512_dpbf16_ps(held[q][j], share, low);
                held[q][j + 1] = _mm512_dpbf16_ps(held[q][j + 1], share, high);
            }
        }
    }
    for (int q = 0; q < num_queries; q++)
        for (int j = 0; j < vectors; j++)
            store(s->sums + (query + q) * width + j * LANES, (vf)held[q][j]);
}
#endif

INLINE int uses_pairs(int64_t vectors, int narrow) { return PAIRS && narrow && vectors % 2 == 0; }

/* Interleaving takes four numbers of each half in turn; here they are put back. */
static void in_order(float *sums, int64_t width) {
    for (int64_t i = 0; i < width; i += 2 * LANES) {
        vf a = load(sums + i), b = load(sums + i + LANES);
        store(sums + i, __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20,
                                                21, 22, 23));
        store(sums + i + LANES, __builtin_shufflevector(a, b, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13,
                                                        14, 15, 28, 29, 30, 31));
    }
}

INLINE void attend_block(const char *keys, const char *values, int64_t first, int64_t count,
                         const State *s, int64_t query, const int num_queries, const int vectors,
                         const int narrow) {
    const int64_t width = vectors * LANES;
    float scores[num_queries][TOKENS];
#if PAIRS
    if (uses_pairs(vectors, narrow))
        score_pairs(keys, first, count, s, query, num_queries, vectors, scores);
    else
#endif
        score_block(keys, first, count, s, query, num_queries, vectors, narrow, scores);
    for (int q = 0; q < num_queries; q++) {
        vf top = all(-__builtin_inff());
        for (int64_t t = 0; t < count; t += LANES) top = larger(top, load(scores[q] + t));
        float *sums = s->sums + (query + q) * width;
        float best = largest(top), before = s->tops[query + q];
        if (best > before) {
            float by = exponential1(before - best);
            s->weights[query + q] *= by;
            for (int j = 0; j < vectors; j++)
                store(sums + j * LANES, load(sums + j * LANES) * by);
            s->tops[query + q] = before = best;
        }
        vf weight = all(0.0f);
        for (int64_t t = 0; t < count; t += LANES) {
            vf w = exponential(load(scores[q] + t) - before);
            store(scores[q] + t, w);
            weight += w;
        }
        s->weights[query + q] += total(weight);
    }
#if PAIRS
    if (uses_pairs(vectors, narrow))
        add_pairs(values, first, count, s, query, num_queries, vectors, scores);
    else
#endif
        add_block(values, first, count, s, query, num_queries, vectors, narrow, scores);
}

#define ATTEND(Q, J, B)                                                                            \
    static void attend_##Q##_##J##_##B(const char *k, const char *v, int64_t first, int64_t count, \
                                       const State *s, int64_t query) {                            \
        attend_block(k, v, first, count, s, query, Q, J, B);                                       \
    }
#define ATTEND_WIDTH(J) \
    ATTEND(1, J, 0) ATTEND(2, J, 0) ATTEND(3, J, 0) ATTEND(4, J, 0) \
    ATTEND(1, J, 1) ATTEND(2, J, 1) ATTEND(3, J, 1) ATTEND(4, J, 1)
#define TABLE(J, B) {attend_1_##J##_##B, attend_2_##J##_##B, attend_3_##J##_##B, attend_4_##J##_##B}
ATTEND_WIDTH(1) ATTEND_WIDTH(2) ATTEND_WIDTH(4) ATTEND_WIDTH(5) ATTEND_WIDTH(6) ATTEND_WIDTH(8)
typedef void (*attend_t)(const char *, const char *, int64_t, int64_t, const State *, int64_t);
static const attend_t attend_table[9][2][4] = {
    [1] = {TABLE(1, 0), TABLE(1, 1)}, [2] = {TABLE(2, 0), TABLE(2, 1)},
    [4] = {TABLE(4, 0), TABLE(4, 1)}, [5] = {TABLE(5, 0), TABLE(5, 1)},
    [6] = {TABLE(6, 0), TABLE(6, 1)}, [8] = {TABLE(8, 0), TABLE(8, 1)},
};

int educe_can_attend(int64_t width) {
    return width > 0 && width % LANES == 0 && width / LANES <= 8 &&
           attend_table[width / LANES][0][0] != NULL;
}

static void attend_tokens(const char *keys, const char *values, int64_t length, const State *s,
                          int64_t query, int64_t num_queries, const attend_t *table) {
    for (int64_t first = 0; first < length; first += TOKENS) {
        int64_t count = length - first < TOKENS ? length - first : TOKENS;
        int64_t q = 0;
        for (; q + 4 <= num_queries; q += 4) table[3](keys, values, first, count, s, query + q);
        if (q < num_queries)
            table[num_queries - q - 1](keys, values, first, count, s, query + q);
    }
}

/* Ask for memory that is read next: many short runs, which the processor would not foresee. */
static void fetch(const char *from, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i, 0, 2);
}

/* One head's part of one token, to fp32: scaled, biased, normalised and turned. */
static void read_head(const Attend *a, int64_t token, int64_t head, int turns, float by,
                      float *out) {
    int64_t width = a->width, at = head * width;
    int64_t stride = (a->heads + 2 * a->kv_heads) * width;
    float scale = a->scales ? a->scales[token] : 1.0f;
    vf squares = all(0.0f);
    for (int64_t i = 0; i < width; i += LANES) {
        vf v = load_kind(a->joined, token * stride + at + i, a->joined_narrow) * scale;
        if (a->bias) v += load(a->bias + at + i);
        squares += v * v;
        store(out + i, v);
    }
    if (!turns) return;
    if (a->head_norms) {
        float root = inverse_root(total(squares) / (float)width + a->epsilon);
        for (int64_t i = 0; i < width; i += LANES)
            store(out + i, load(out + i) * root * load(a->head_norms + at + i));
    }
    const float *rotation = a->rotation + token * width;
    for (int64_t i = 0; i < width; i += 2) {
        float x = out[i], y = out[i + 1], c = rotation[i], d = rotation[i + 1];
        out[i] = (x * c - y * d) * by;
        out[i + 1] = (x * d + y * c) * by;
    }
}

static void attend_item(const void *arguments, int64_t item) {
    const Attend *a = arguments;
    int64_t head = item % a->kv_heads, block = item / a->kv_heads;
    int64_t width = a->width, group = a->heads / a->kv_heads, fresh = a->new_tokens;
    int64_t num_queries = group * fresh;
    const attend_t *table = attend_table[width / LANES][a->narrow];
    float queries[num_queries * width], sums[num_queries * width];
    float tops[num_queries], weights[num_queries], part[width];
    uint16_t narrow_queries[num_queries * width];
    State s = {queries, narrow_queries, sums, tops, weights};
    int paired = uses_pairs(width / LANES, a->narrow);
    int64_t last = (block + 1) * a->block;
    for (int64_t place = block * a->block; place < a->rows && place < last; place++) {
        int64_t row = a->order[place], length = a->lengths[row];
        char *keys = a->slots + row * a->slot_row + head * a->slot_head;
        char *values = keys + a->slot_values;
        int64_t bytes = length * width * (a->narrow ? 2 : 4);
        fetch(keys, smaller(bytes, FETCHED));
        fetch(values, smaller(bytes, FETCHED));
        for (int64_t t = 0; t < fresh; t++) {
            int64_t token = row * fresh + t, at = (length + t) * width;
            read_head(a, token, a->heads + head, 1, 1.0f, part);
            for (int64_t i = 0; i < width; i += LANES)
                store_kind(keys, at + i, load(part + i), a->narrow);
            read_head(a, token, a->heads + a->kv_heads + head, 0, 1.0f, part);
            for (int64_t i = 0; i < width; i += LANES)
                store_kind(values, at + i, load(part + i), a->narrow);
            for (int64_t g = 0; g < group; g++)
                read_head(a, token, head * group + g, 1, a->scale,
                          queries + (t * group + g) * width);
        }
        for (int64_t i = 0; paired && i < num_queries * width; i += LANES)
            store_kind(narrow_queries, i, load(queries + i), 1);
        memset(sums, 0, sizeof sums);
        for (int64_t q = 0; q < num_queries; q++) {
            tops[q] = -__builtin_inff();
            weights[q] = 0.0f;
        }
        for (int64_t i = a->starts[row]; i < a->starts[row + 1]; i++) {
            const Segment *part_of = a->segments + i;
            const char *from =
                (const char *)part_of->keys + a->layer * part_of->layer + head * part_of->head;
            attend_tokens(from, from + part_of->values, part_of->length, &s, 0, num_queries, table);
        }
        /* What is in the slot all new tokens see, then each sees itself and those before it. */
        if (fresh == 1)
            attend_tokens(keys, values, length + 1, &s, 0, num_queries, table);
        else
            for (int64_t t = 0; t < fresh; t++)
                attend_tokens(keys, values, length + t + 1, &s, t * group, group, table);
        for (int64_t t = 0; t < fresh; t++)
            for (int64_t g = 0; g < group; g++) {
                int64_t q = t * group + g;
                int64_t to = ((row * fresh + t) * a->heads + head * group + g) * width;
                float by = 1.0f / weights[q];
                if (paired) in_order(sums + q * width, width);
                for (int64_t i = 0; i < width; i += LANES)
                    store_kind(a->out, to + i, load(sums + q * width + i) * by, a->narrow);
            }
    }
}

void educe_attend(const Attend *a) {
    int64_t blocks = (a->rows + a->block - 1) / a->block;
    spread(attend_item, a, blocks * a->kv_heads, 1 << 20);
}

/* One token of each row by the inverse of its distribution function, and its log-probability. */

typedef struct {
    const void *logits; /* [R, V], rows `stride` apart */
    const float *temperatures; /* [R]; 0 takes the most likely token */
    const double *draws;       /* [R] in [0, 1) */
    int64_t *tokens;           /* [R] */
    double *shares;            /* [R]: the token's share of the weights */
    int64_t rows, vocabulary, stride;
    int32_t narrow;
} Sample;

#define BLOCK 256

INLINE vf weights_at(const Sample *a, int64_t from, int64_t i, float by, float top) {
    if (i + LANES <= a->vocabulary)
        return exponential((load_kind(a->logits, from + i, a->narrow) - top) * by);
    vf v = all(-__builtin_inff());
    for (int64_t j = i; j < a->vocabulary; j++) v[j - i] = scalar_kind(a->logits, from + j, a->narrow);
    return exponential((v - top) * by);
}

static void sample_item(const void *arguments, int64_t row) {
    const Sample *a = arguments;
    int64_t size = a->vocabulary, from = row * a->stride;
    int64_t blocks = (size + BLOCK - 1) / BLOCK;
    double ends[blocks];
    vf peak = all(-__builtin_inff());
    int64_t whole = size - size % LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        peak = larger(peak, load_kind(a->logits, from + i, a->narrow));
    float top = largest(peak);
    for (int64_t i = whole; i < size; i++) {
        float x = scalar_kind(a->logits, from + i, a->narrow);
        top = x > top ? x : top;
    }
    float temperature = a->temperatures[row];
    float by = temperature > 0 ? 1.0f / temperature : 1.0f;
    double sum = 0.0;
    for (int64_t b = 0; b < blocks; b++) {
        vf part = all(0.0f);
        for (int64_t i = b * BLOCK; i < (b + 1) * BLOCK && i < size; i += LANES)
            part += weights_at(a, from, i, by, top);
        sum += total(part);
        ends[b] = sum;
    }
    int64_t token = -1;
    float weight = 1.0f;
    if (temperature > 0) {
        double target = a->draws[row] * sum;
        int64_t block = 0;
        while (block < blocks - 1 && ends[block] <= target) block++;
        double seen = block ? ends[block - 1] : 0.0;
        for (int64_t i = block * BLOCK; i < (block + 1) * BLOCK && i < size; i += LANES) {
            vf w = weights_at(a, from, i, by, top);
            for (int64_t j = 0; j < LANES && i + j < size; j++) {
                /* Rounding at a block's end must not pick a token of probability zero. */
                if (w[j] <= 0) continue;
                token = i + j;
                weight = w[j];
                seen += w[j];
                if (seen > target) goto found;
            }
        }
    }
found:
    if (token < 0) /* greedy, or no number among the logits: the first of the largest */
        for (int64_t i = 0; i < size; i++)
            if (scalar_kind(a->logits, from + i, a->narrow) == top) {
                token = i;
                break;
            }
    a->tokens[row] = token < 0 ? 0 : token;
    a->shares[row] = (double)weight / sum;
}

void educe_sample(const Sample *a) { spread(sample_item, a, a->rows, a->rows * a->vocabulary); }
