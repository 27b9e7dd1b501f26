/* Fused attention on CPUs: of decoding over the cache, and of training over packed segments.

   Shapes: H query heads, K key/value heads, D head width (a multiple of 16), R rows, T tokens. */

#include "vectors.h"

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

#define FETCHED 32768 /* bytes of a slot's keys, and of its values, asked for ahead */
#define TOKENS 64 /* of one softmax update */

typedef struct {
    const char *at, *values;
    int64_t left, turn, lines; /* lines of 64 bytes: to come; of values; at a time */
} Ahead;

typedef struct {
    float *queries;          /* [Q, D], scaled */
    uint16_t *narrow_queries; /* [Q, D], where pairs are used */
    float *sums;             /* [Q, D]; where pairs are used in their order, see in_order */
    float *tops;             /* [Q] */
    float *weights;          /* [Q] */
    Ahead *ahead;            /* what is read next, asked for bit by bit */
} State;

/* Memory waits least when it is asked all the time: a row's slot is fetched in many short runs
   while the row before it is computed. */
INLINE void fetch_some(Ahead *ahead) {
    for (int i = 0; i < ahead->lines && ahead->left > 0; i++, ahead->left--) {
        if (ahead->left == ahead->turn) ahead->at = ahead->values;
        __builtin_prefetch(ahead->at, 0, 2);
        ahead->at += 64;
    }
}

/* The scores of up to 16 tokens with one query; what is behind the last token is -inf. */
INLINE vf masked(vf scores, int64_t count) {
    return pick(lanes() < (int32_t)count, scores, all(-__builtin_inff()));
}

INLINE void score_block(const char *keys, int64_t first, int64_t count, const State *s,
                        int64_t query, const int num_queries, const int vectors, const int narrow,
                        float scores[][TOKENS]) {
    const int64_t width = vectors * LANES, size = narrow ? 2 : 4;
    float wide[LANES * (narrow ? width : 1)];
    for (int64_t t = 0; t < count; t += LANES) {
        int64_t many = smaller(count - t, LANES);
        fetch_some(s->ahead);
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
        fetch_some(s->ahead);
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

#if TILES

#define CHUNK 128 /* tokens of one softmax update on tiles */
#define PART 32   /* tokens that a tile of weights holds */

/* Tiles: 0 scores [16 tokens, queries], 1 keys, 2 queries, 3 weights [queries, 32 tokens], 4 and 5
   values, 6 and 7 their sums [queries, 16 numbers]. */
static void shape_attention(int64_t num_queries) {
    Shapes s = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        s.columns[i] = i == 0 || i == 2 ? (uint16_t)(num_queries * 4) : 64;
        s.rows[i] = i == 3 || i > 5 ? (uint8_t)num_queries : LANES;
    }
    shape(&s);
}

/* Scores of four queries with 16 tokens, from rows [16 tokens, 16 queries] to [4 queries, tokens]. */
INLINE void turn_four(const float *from, float *to, int64_t stride) {
    __m512 rows[4];
    for (int i = 0; i < 4; i++) {
        __m512 v = _mm512_castps128_ps512(_mm_loadu_ps(from + i * LANES));
        v = _mm512_insertf32x4(v, _mm_loadu_ps(from + (4 + i) * LANES), 1);
        v = _mm512_insertf32x4(v, _mm_loadu_ps(from + (8 + i) * LANES), 2);
        rows[i] = _mm512_insertf32x4(v, _mm_loadu_ps(from + (12 + i) * LANES), 3);
    }
    __m512d a = (__m512d)_mm512_unpacklo_ps(rows[0], rows[1]);
    __m512d b = (__m512d)_mm512_unpacklo_ps(rows[2], rows[3]);
    __m512d c = (__m512d)_mm512_unpackhi_ps(rows[0], rows[1]);
    __m512d d = (__m512d)_mm512_unpackhi_ps(rows[2], rows[3]);
    store(to, (vf)_mm512_unpacklo_pd(a, b));
    store(to + stride, (vf)_mm512_unpackhi_pd(a, b));
    store(to + 2 * stride, (vf)_mm512_unpacklo_pd(c, d));
    store(to + 3 * stride, (vf)_mm512_unpackhi_pd(c, d));
}

/* Scores [queries, CHUNK] of up to CHUNK tokens; behind the last one -inf. */
INLINE void tile_scores(const uint16_t *keys, int64_t count, const uint32_t *packed,
                        int64_t num_queries, const int64_t width, float scores[][CHUNK],
                        Ahead *ahead) {
    uint16_t edge[LANES * width];
    float turned[LANES * LANES] __attribute__((aligned(64)));
    for (int64_t t = 0; t < count; t += LANES) {
        int64_t many = smaller(count - t, LANES);
        const uint16_t *from = keys + t * width;
        fetch_some(ahead);
        if (many < LANES) { /* what lies behind the end may be nobody's */
            memset(edge, 0, sizeof edge);
            memcpy(edge, from, (size_t)(many * width * 2));
            from = edge;
        }
        WRITTEN();
        _tile_zero(0);
        for (int64_t k = 0; k < width / PART; k++) {
            _tile_loadd(1, from + k * PART, width * 2);
            _tile_loadd(2, packed + k * LANES * num_queries, num_queries * 4);
            _tile_dpbf16ps(0, 1, 2);
        }
        _tile_stored(0, turned, LANES * 4);
        for (int64_t q = 0; q < num_queries; q += 4)
            turn_four(turned + q, &scores[q][t], CHUNK);
        if (many < LANES)
            for (int64_t q = 0; q < num_queries; q++)
                store(&scores[q][t], masked(load(&scores[q][t]), many));
    }
}

/* Values of tokens and their successors side by side: [parts, width / 16] tiles. */
INLINE void interleave(const uint16_t *values, int64_t count, const int64_t width, char *tiles,
                       Ahead *ahead) {
    const __m512i none = _mm512_setzero_si512();
    for (int64_t t = 0; t < (count + PART - 1) / PART * PART; t += 2) {
        const uint16_t *at = values + t * width;
        char *to = tiles + t / PART * (width / LANES) * 1024 + t % PART / 2 * 64;
        if (t % 8 == 0) fetch_some(ahead);
        for (int64_t j = 0; j < width; j += 2 * LANES, to += 2 * 1024) {
            __m512i a = t < count ? (__m512i)pairs(at + j) : none;
            __m512i b = t + 1 < count ? (__m512i)pairs(at + width + j) : none;
            _mm512_storeu_si512(to, _mm512_unpacklo_epi16(a, b));
            _mm512_storeu_si512(to + 1024, _mm512_unpackhi_epi16(a, b));
        }
    }
}

/* Up to CHUNK tokens seen by ``num_queries`` of the state's queries. */
INLINE void tile_attend(const char *keys, const char *values, int64_t length, const State *s,
                        int64_t query, int64_t num_queries, const int64_t width,
                        int64_t *shaped) {
    char tiles[CHUNK / PART * (width / LANES) * 1024] __attribute__((aligned(64)));
    uint32_t packed[LANES * width / 2];
    float scores[LANES][CHUNK] __attribute__((aligned(64)));
    uint16_t shares[LANES][CHUNK] __attribute__((aligned(64)));
    float found[LANES][PART] __attribute__((aligned(64)));
    for (int64_t first = 0; first < length; first += CHUNK) {
        int64_t count = smaller(length - first, CHUNK);
        int64_t parts = (count + PART - 1) / PART;
        interleave((const uint16_t *)values + first * width, count, width, tiles, s->ahead);
        for (int64_t from = query; from < query + num_queries; from += LANES) {
            int64_t many = smaller(query + num_queries - from, LANES);
            if (many != *shaped) shape_attention(*shaped = many);
            const uint32_t *words = (const uint32_t *)(s->narrow_queries + from * width);
            for (int64_t w = 0; w < width / 2; w++)
                for (int64_t q = 0; q < many; q++) packed[w * many + q] = words[q * width / 2 + w];
            tile_scores((const uint16_t *)keys + first * width, count, packed, many, width, scores,
                        s->ahead);
            for (int64_t q = 0; q < many; q++) {
                vf top = all(-__builtin_inff()), weight = all(0.0f);
                for (int64_t t = 0; t < count; t += LANES) top = larger(top, load(&scores[q][t]));
                float best = largest(top), before = s->tops[from + q];
                float *sums = s->sums + (from + q) * width;
                if (best > before) {
                    float by = exponential1(before - best);
                    s->weights[from + q] *= by;
                    for (int64_t i = 0; i < width; i += LANES) store(sums + i, load(sums + i) * by);
                    s->tops[from + q] = before = best;
                }
                for (int64_t t = 0; t < parts * PART; t += LANES) {
                    vf w = t < count ? exponential(load(&scores[q][t]) - before) : all(0.0f);
                    store_kind(&shares[q][t], 0, w, 1);
                    weight += w;
                }
                s->weights[from + q] += total(weight);
            }
            WRITTEN();
            for (int64_t i = 0; i < width; i += PART) {
                const char *at = tiles + i / LANES * 1024;
                _tile_zero(6);
                _tile_zero(7);
                for (int64_t p = 0; p < parts; p++, at += width / LANES * 1024) {
                    _tile_loadd(3, &shares[0][p * PART], CHUNK * 2);
                    _tile_loadd(4, at, 64);
                    _tile_loadd(5, at + 1024, 64);
                    _tile_dpbf16ps(6, 3, 4);
                    _tile_dpbf16ps(7, 3, 5);
                }
                _tile_stored(6, &found[0][0], PART * 4);
                _tile_stored(7, &found[0][LANES], PART * 4);
                for (int64_t q = 0; q < many; q++)
                    for (int64_t j = 0; j < PART; j += LANES) {
                        float *sum = s->sums + (from + q) * width + i + j;
                        store(sum, load(sum) + load(&found[q][j]));
                    }
            }
        }
    }
}

#define TILED(D)                                                                                  \
    static void tile_attend_##D(const char *k, const char *v, int64_t length, const State *s,     \
                                int64_t query, int64_t num_queries, int64_t *shaped) {            \
        tile_attend(k, v, length, s, query, num_queries, D, shaped);                              \
    }
TILED(32) TILED(64) TILED(96) TILED(128)
typedef void (*tiled_t)(const char *, const char *, int64_t, const State *, int64_t, int64_t,
                        int64_t *);
static const tiled_t tiled_table[5] = {NULL, tile_attend_32, tile_attend_64, tile_attend_96,
                                       tile_attend_128};
#endif

/* Prepare to ask for a row's slot while ``reads`` tokens are read. */
static void look_ahead(Ahead *ahead, const Attend *a, int64_t place, int64_t head, int64_t reads) {
    *ahead = (Ahead){0};
    if (place >= a->rows) return;
    int64_t row = a->order[place];
    int64_t bytes = smaller(a->lengths[row] * a->width * (a->narrow ? 2 : 4), FETCHED);
    ahead->at = a->slots + row * a->slot_row + head * a->slot_head;
    ahead->values = ahead->at + a->slot_values;
    ahead->turn = (bytes + 63) / 64;
    ahead->left = 2 * ahead->turn;
    ahead->lines = ahead->left * LANES / (3 * reads + 3) + 1; /* asked thrice in 16 tokens */
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
    const vf signs = {-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1};
    for (int64_t i = 0; i < width; i += LANES) {
        vf x = load(out + i), angles = load(rotation + i);
        vf cosines = __builtin_shufflevector(angles, angles, 0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10,
                                             12, 12, 14, 14);
        vf sines = __builtin_shufflevector(angles, angles, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11,
                                           13, 13, 15, 15);
        store(out + i, (x * cosines + swap1(x) * sines * signs) * by);
    }
}

/* Whether two rows see the same segments. */
static int same_chain(const Attend *a, int64_t row, int64_t other) {
    int64_t first = a->starts[row], many = a->starts[row + 1] - first, at = a->starts[other];
    if (a->starts[other + 1] - at != many) return 0;
    for (int64_t i = 0; i < many; i++)
        if (a->segments[first + i].keys != a->segments[at + i].keys) return 0;
    return 1;
}

typedef struct {
    const Attend *a;
    const attend_t *table;
    const State *s;
    int64_t shaped; /* queries that the tiles are shaped for */
} Reader;

/* A range that ``num_queries`` queries see. */
static void read_range(Reader *r, const char *keys, const char *values, int64_t length,
                       int64_t query, int64_t num_queries) {
#if TILES
    int64_t width = r->a->width;
    if (educe_tiles && r->a->narrow && width % PART == 0 && width / PART <= 4) {
        tiled_table[width / PART](keys, values, length, r->s, query, num_queries, &r->shaped);
        return;
    }
#endif
    attend_tokens(keys, values, length, r->s, query, num_queries, r->table);
}

/* Read the new tokens of a row: its keys and values to the slot, its queries to the state. */
static void read_row(const Attend *a, int64_t row, int64_t head, float *queries) {
    int64_t width = a->width, group = a->heads / a->kv_heads, length = a->lengths[row];
    char *keys = a->slots + row * a->slot_row + head * a->slot_head;
    char *values = keys + a->slot_values;
    float part[width];
    for (int64_t t = 0; t < a->new_tokens; t++) {
        int64_t token = row * a->new_tokens + t, at = (length + t) * width;
        read_head(a, token, a->heads + head, 1, 1.0f, part);
        for (int64_t i = 0; i < width; i += LANES)
            store_kind(keys, at + i, load(part + i), a->narrow);
        read_head(a, token, a->heads + a->kv_heads + head, 0, 1.0f, part);
        for (int64_t i = 0; i < width; i += LANES)
            store_kind(values, at + i, load(part + i), a->narrow);
        for (int64_t g = 0; g < group; g++)
            read_head(a, token, head * group + g, 1, a->scale, queries + (t * group + g) * width);
    }
}

static void attend_item(const void *arguments, int64_t item) {
    const Attend *a = arguments;
    int64_t head = item % a->kv_heads, block = item / a->kv_heads;
    int64_t width = a->width, group = a->heads / a->kv_heads, fresh = a->new_tokens;
    int64_t first = block * a->block, last = smaller(first + a->block, a->rows);
    int64_t own = group * fresh, num_queries = own * (last - first);
    float queries[num_queries * width], sums[num_queries * width];
    float tops[num_queries], weights[num_queries];
    uint16_t narrow_queries[num_queries * width];
    int paired = uses_pairs(width / LANES, a->narrow);
    Ahead ahead;
    State s = {queries, narrow_queries, sums, tops, weights, &ahead};
    Reader reader = {a, attend_table[width / LANES][a->narrow], &s, 0};
    memset(sums, 0, sizeof sums);
    for (int64_t q = 0; q < num_queries; q++) {
        tops[q] = -__builtin_inff();
        weights[q] = 0.0f;
    }
    for (int64_t place = first; place < last; place++)
        read_row(a, a->order[place], head, queries + (place - first) * own * width);
    for (int64_t i = 0; paired && i < num_queries * width; i += LANES)
        store_kind(narrow_queries, i, load(queries + i), 1);
    /* Rows that see the same segments read them together. */
    for (int64_t place = first, next; place < last; place = next) {
        int64_t row = a->order[place], reads = 0;
        for (next = place + 1; next < last && same_chain(a, row, a->order[next]);) next++;
        for (int64_t i = a->starts[row]; i < a->starts[row + 1]; i++) reads += a->segments[i].length;
        look_ahead(&ahead, a, place, head, reads);
        for (int64_t i = a->starts[row]; i < a->starts[row + 1]; i++) {
            const Segment *part_of = a->segments + i;
            const char *from =
                (const char *)part_of->keys + a->layer * part_of->layer + head * part_of->head;
            read_range(&reader, from, from + part_of->values, part_of->length,
                       (place - first) * own, (next - place) * own);
        }
        for (int64_t at = place; at < next; at++) {
            int64_t one = a->order[at], length = a->lengths[one], query = (at - first) * own;
            const char *keys = a->slots + one * a->slot_row + head * a->slot_head;
            const char *values = keys + a->slot_values;
            look_ahead(&ahead, a, at + 1, head, length + 1);
            /* What is in the slot all new tokens see, then each sees itself and those before. */
            if (fresh == 1)
                read_range(&reader, keys, values, length + 1, query, own);
            else
                for (int64_t t = 0; t < fresh; t++)
                    read_range(&reader, keys, values, length + t + 1, query + t * group, group);
        }
    }
#if TILES
    if (reader.shaped) _tile_release();
#endif
    for (int64_t place = first; place < last; place++)
        for (int64_t t = 0; t < fresh; t++)
            for (int64_t g = 0; g < group; g++) {
                int64_t q = (place - first) * own + t * group + g;
                int64_t to =
                    ((a->order[place] * fresh + t) * a->heads + head * group + g) * width;
                float by = 1.0f / weights[q];
                if (paired) in_order(sums + q * width, width);
                for (int64_t i = 0; i < width; i += LANES)
                    store_kind(a->out, to + i, load(sums + q * width + i) * by, a->narrow);
            }
}

void educe_attend(const Attend *a) {
    int64_t blocks = (a->rows + a->block - 1) / a->block;
    spread(attend_item, a, blocks * a->kv_heads, 1 << 20);
}

/* Attention of training over a forest of segments laid out depth first: a token sees the tokens
   before it in its segment and all of the segments above. Everything is fp32 inside: rows
   [heads, T, D] to be read a token at a time, columns [heads, D, S] to be read 16 tokens at a time
   (S is at least T + 16: what lies behind the end is read and masked). */

typedef struct {
    const void *x;     /* [T, heads, D] */
    float *rows;       /* [heads, T, D] or NULL */
    float *columns;    /* [heads, D, S] or NULL */
    const void *other; /* [T, heads, D] or NULL */
    float *products;   /* [heads, S]: of x with other, where there is one */
    int64_t tokens, heads, width, stride;
    float scale;
    int32_t narrow, other_narrow;
} Heads;

static void heads_item(const void *arguments, int64_t item) {
    const Heads *a = arguments;
    int64_t head = item % a->heads, first = item / a->heads * LANES;
    int64_t width = a->width, last = smaller(a->tokens, first + LANES);
    float held[LANES * width];
    for (int64_t t = first; t < last; t++) {
        int64_t at = (t * a->heads + head) * width;
        vf sum = all(0.0f);
        for (int64_t i = 0; i < width; i += LANES) {
            vf v = load_kind(a->x, at + i, a->narrow);
            if (a->other) sum += v * load_kind(a->other, at + i, a->other_narrow);
            store(held + (t - first) * width + i, v * a->scale);
        }
        if (a->other) a->products[head * a->stride + t] = total(sum);
        if (a->rows)
            memcpy(a->rows + (head * a->tokens + t) * width, held + (t - first) * width,
                   (size_t)width * sizeof(float));
    }
    if (!a->columns) return;
    float *columns = a->columns + head * width * a->stride + first;
    for (int64_t i = 0; i < width; i++)
        for (int64_t t = 0; t < last - first; t++) columns[i * a->stride + t] = held[t * width + i];
}

void educe_heads(const Heads *a) {
    spread(heads_item, a, (a->tokens + LANES - 1) / LANES * a->heads,
           a->tokens * a->heads * a->width);
}

typedef struct {
    int64_t first, last;         /* up to 16 tokens of one segment */
    int64_t start, end, below;   /* the segment, and the end of what descends from it */
    int64_t ancestors, how_many; /* ranges in ``ranges`` */
} Block;

typedef struct {
    int64_t first, last;
} Range;

typedef struct {
    const Block *blocks;
    const Range *ranges;
    const float *query_rows, *key_rows, *value_rows, *grad_rows; /* [heads, T, D] */
    const float *query_columns, *key_columns, *value_columns, *grad_columns; /* [heads, D, S] */
    float *lse;           /* [H, S] */
    const float *deltas;  /* [H, S]: gradient times output */
    void *out;            /* [T, H, D]: output, or gradient of queries */
    void *grad_keys, *grad_values; /* [T, K, D] */
    int64_t num_blocks, tokens, heads, kv_heads, width, stride;
    float scale;
    int32_t narrow; /* of out and the gradients */
} Forest;

static void forest_forward_item(const void *arguments, int64_t item) {
    const Forest *a = arguments;
    int64_t head = item % a->kv_heads, width = a->width, group = a->heads / a->kv_heads;
    const Block *block = a->blocks + item / a->kv_heads;
    int64_t count = block->last - block->first, num_queries = count * group;
    const attend_t *table = attend_table[width / LANES][0];
    float queries[num_queries * width], sums[num_queries * width];
    float tops[num_queries], weights[num_queries];
    Ahead nothing = {0};
    State s = {queries, NULL, sums, tops, weights, &nothing};
    memset(sums, 0, sizeof sums);
    for (int64_t q = 0; q < num_queries; q++) {
        int64_t token = block->first + q / group, own = head * group + q % group;
        memcpy(queries + q * width, a->query_rows + (own * a->tokens + token) * width,
               (size_t)width * sizeof(float));
        tops[q] = -__builtin_inff();
        weights[q] = 0.0f;
    }
    const float *keys = a->key_rows + head * a->tokens * width;
    const float *values = a->value_rows + head * a->tokens * width;
    for (int64_t i = 0; i < block->how_many; i++) {
        const Range *r = a->ranges + block->ancestors + i;
        attend_tokens((const char *)(keys + r->first * width),
                      (const char *)(values + r->first * width), r->last - r->first, &s, 0,
                      num_queries, table);
    }
    attend_tokens((const char *)(keys + block->start * width),
                  (const char *)(values + block->start * width), block->first - block->start, &s,
                  0, num_queries, table);
    for (int64_t t = 0; t < count; t++)
        attend_tokens((const char *)(keys + block->first * width),
                      (const char *)(values + block->first * width), t + 1, &s, t * group, group,
                      table);
    for (int64_t q = 0; q < num_queries; q++) {
        int64_t token = block->first + q / group, own = head * group + q % group;
        int64_t to = (token * a->heads + own) * width;
        float by = 1.0f / weights[q];
        for (int64_t i = 0; i < width; i += LANES)
            store_kind(a->out, to + i, load(sums + q * width + i) * by, a->narrow);
        a->lse[own * a->stride + token] = tops[q] + __builtin_logf(weights[q]);
    }
}

void educe_forest_forward(const Forest *a) {
    spread(forest_forward_item, a, a->num_blocks * a->kv_heads, 1 << 20);
}

/* The backward has two passes, each of which owns what it writes: queries gather over keys, then
   keys gather over queries. Both look at 4 own rows against 16 others:
   score = own . other, slope = own' . other', weight = exp(score - lse), and the gradient of the
   score is weight * (slope - delta). */

#define OWN 4

INLINE void products(const float *const own[OWN], const float *const mates[OWN],
                     const float *columns, const float *mate_columns, int64_t stride,
                     const int vectors, vf scores[OWN], vf slopes[OWN]) {
    for (int i = 0; i < OWN; i++) scores[i] = slopes[i] = all(0.0f);
    for (int64_t d = 0; d < vectors * LANES; d++) {
        vf x = load(columns + d * stride), y = load(mate_columns + d * stride);
        for (int i = 0; i < OWN; i++) {
            scores[i] += x * own[i][d];
            slopes[i] += y * mates[i][d];
        }
    }
}

/* sums [OWN, D] += weights [OWN, 16] . rows [count, D] */
INLINE void gather(float *sums, float weights[OWN][LANES], const float *rows, int64_t count,
                   const int vectors) {
    vf held[OWN][vectors];
    for (int i = 0; i < OWN; i++)
        for (int j = 0; j < vectors; j++) held[i][j] = load(sums + (i * vectors + j) * LANES);
    for (int64_t t = 0; t < count; t++)
        for (int j = 0; j < vectors; j++) {
            vf row = load(rows + (t * vectors + j) * LANES);
            for (int i = 0; i < OWN; i++) held[i][j] += row * weights[i][t];
        }
    for (int i = 0; i < OWN; i++)
        for (int j = 0; j < vectors; j++) store(sums + (i * vectors + j) * LANES, held[i][j]);
}

/* Four rows and their mates from ``first`` on; behind the last one it stands again. */
INLINE void take(const float *own[OWN], const float *mates[OWN], const float *rows,
                 const float *mate_rows, int64_t first, int64_t last, int64_t width) {
    for (int i = 0; i < OWN; i++) {
        int64_t token = smaller(first + i, last - 1);
        own[i] = rows + token * width;
        mates[i] = mate_rows + token * width;
    }
}

/* Gradient of up to 16 queries of one head from the keys [first, last). */
INLINE void query_range(const Forest *a, const Block *block, int64_t head, int64_t first,
                        int64_t last, int causal, float *sums, const int vectors) {
    const int64_t width = vectors * LANES, kv = head / (a->heads / a->kv_heads);
    const float *rows = a->query_rows + head * a->tokens * width;
    const float *grads = a->grad_rows + head * a->tokens * width;
    const float *keys = a->key_rows + kv * a->tokens * width;
    const float *columns = a->key_columns + kv * width * a->stride;
    const float *mates = a->value_columns + kv * width * a->stride;
    const float *lse = a->lse + head * a->stride, *deltas = a->deltas + head * a->stride;
    for (int64_t t = first; t < last; t += LANES) {
        int64_t count = smaller(last - t, LANES);
        for (int64_t q = block->first; q < block->last; q += OWN) {
            if (causal && q + OWN - 1 < t) continue;
            const float *own[OWN], *mate[OWN];
            vf scores[OWN], slopes[OWN];
            float slants[OWN][LANES];
            take(own, mate, rows, grads, q, block->last, width);
            products(own, mate, columns + t, mates + t, a->stride, vectors, scores, slopes);
            for (int i = 0; i < OWN; i++) {
                int64_t token = smaller(q + i, block->last - 1);
                int64_t seen = causal ? smaller(count, token - t + 1) : count;
                vf weight = exponential(scores[i] - lse[token]);
                store(slants[i], pick(lanes() < (int32_t)seen, weight * (slopes[i] - deltas[token]),
                                      all(0.0f)));
            }
            gather(sums + (q - block->first) * width, slants, keys + t * width, count, vectors);
        }
    }
}

INLINE void query_item(const Forest *a, int64_t item, const int vectors) {
    const int64_t width = vectors * LANES;
    int64_t head = item % a->heads;
    const Block *block = a->blocks + item / a->heads;
    float sums[(LANES + OWN) * width];
    memset(sums, 0, sizeof sums);
    for (int64_t i = 0; i < block->how_many; i++) {
        const Range *r = a->ranges + block->ancestors + i;
        query_range(a, block, head, r->first, r->last, 0, sums, vectors);
    }
    query_range(a, block, head, block->start, block->last, 1, sums, vectors);
    for (int64_t t = block->first; t < block->last; t++)
        for (int64_t i = 0; i < width; i += LANES)
            store_kind(a->out, (t * a->heads + head) * width + i,
                       load(sums + (t - block->first) * width + i) * a->scale, a->narrow);
}

/* Gradients of up to 16 keys and values from the queries [first, last) of one head. */
INLINE void key_range(const Forest *a, const Block *block, int64_t head, int64_t first,
                      int64_t last, int causal, float *key_sums, float *value_sums,
                      const int vectors) {
    const int64_t width = vectors * LANES, kv = head / (a->heads / a->kv_heads);
    const float *keys = a->key_rows + kv * a->tokens * width;
    const float *values = a->value_rows + kv * a->tokens * width;
    const float *rows = a->query_rows + head * a->tokens * width;
    const float *grads = a->grad_rows + head * a->tokens * width;
    const float *columns = a->query_columns + head * width * a->stride;
    const float *mates = a->grad_columns + head * width * a->stride;
    const float *lse = a->lse + head * a->stride, *deltas = a->deltas + head * a->stride;
    for (int64_t t = first; t < last; t += LANES) {
        int64_t count = smaller(last - t, LANES);
        vf norms = load(lse + t), drops = load(deltas + t);
        for (int64_t k = block->first; k < block->last; k += OWN) {
            if (causal && t + count - 1 < k) continue;
            const float *own[OWN], *mate[OWN];
            vf scores[OWN], slopes[OWN];
            float shares[OWN][LANES], slants[OWN][LANES];
            take(own, mate, keys, values, k, block->last, width);
            products(own, mate, columns + t, mates + t, a->stride, vectors, scores, slopes);
            for (int i = 0; i < OWN; i++) {
                int64_t token = smaller(k + i, block->last - 1);
                vi seen = lanes() < (int32_t)count;
                if (causal) seen &= lanes() >= (int32_t)(token - t);
                vf weight = pick(seen, exponential(scores[i] - norms), all(0.0f));
                store(shares[i], weight);
                store(slants[i], pick(seen, weight * (slopes[i] - drops), all(0.0f)));
            }
            int64_t to = (k - block->first) * width;
            gather(value_sums + to, shares, grads + t * width, count, vectors);
            gather(key_sums + to, slants, rows + t * width, count, vectors);
        }
    }
}

INLINE void key_item(const Forest *a, int64_t item, const int vectors) {
    const int64_t width = vectors * LANES;
    int64_t kv = item % a->kv_heads, group = a->heads / a->kv_heads;
    const Block *block = a->blocks + item / a->kv_heads;
    float key_sums[(LANES + OWN) * width], value_sums[(LANES + OWN) * width];
    memset(key_sums, 0, sizeof key_sums);
    memset(value_sums, 0, sizeof value_sums);
    for (int64_t head = kv * group; head < (kv + 1) * group; head++) {
        key_range(a, block, head, block->first, block->end, 1, key_sums, value_sums, vectors);
        key_range(a, block, head, block->end, block->below, 0, key_sums, value_sums, vectors);
    }
    for (int64_t t = block->first; t < block->last; t++)
        for (int64_t i = 0; i < width; i += LANES) {
            int64_t from = (t - block->first) * width + i;
            int64_t to = (t * a->kv_heads + kv) * width + i;
            store_kind(a->grad_keys, to, load(key_sums + from), a->narrow);
            store_kind(a->grad_values, to, load(value_sums + from), a->narrow);
        }
}

#define BY_WIDTH(DO, a, item)                    \
    switch ((a)->width / LANES) {                \
    case 1: DO(a, item, 1); break;               \
    case 2: DO(a, item, 2); break;               \
    case 4: DO(a, item, 4); break;               \
    case 5: DO(a, item, 5); break;               \
    case 6: DO(a, item, 6); break;               \
    case 8: DO(a, item, 8); break;               \
    }

static void query_work(const void *arguments, int64_t item) {
    const Forest *a = arguments;
    BY_WIDTH(query_item, a, item)
}

static void key_work(const void *arguments, int64_t item) {
    const Forest *a = arguments;
    BY_WIDTH(key_item, a, item)
}

void educe_forest_backward(const Forest *a) {
    spread(query_work, a, a->num_blocks * a->heads, 1 << 20);
    spread(key_work, a, a->num_blocks * a->kv_heads, 1 << 20);
}
