/* Fused CPU kernels of sampling: what stands between two matrix products is one pass here.

   Shapes: N tokens, W width, R rows, V vocabulary. */

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
