/* Fused CPU kernels of training: norms, gates and log-probabilities, forwards and backwards.

   Shapes: N rows, W width, F feed-forward width, V vocabulary. */

#include "vectors.h"

/* y = weight * x / rms(x); keeps 1 / rms of each row. */

typedef struct {
    const float *x;      /* [N, W] */
    const float *weight; /* [W] */
    void *out;           /* [N, W] */
    float *scales;       /* [N] */
    int64_t rows, width;
    float epsilon;
    int32_t narrow; /* of out */
} RmsForward;

#define ROWS 16

static void rms_forward_item(const void *arguments, int64_t item) {
    const RmsForward *a = arguments;
    int64_t width = a->width, last = smaller(a->rows, (item + 1) * ROWS);
    for (int64_t n = item * ROWS; n < last; n++) {
        const float *x = a->x + n * width;
        vf squares = all(0.0f);
        for (int64_t i = 0; i < width; i += LANES) {
            vf v = load(x + i);
            squares += v * v;
        }
        float by = inverse_root(total(squares) / (float)width + a->epsilon);
        a->scales[n] = by;
        for (int64_t i = 0; i < width; i += LANES)
            store_kind(a->out, n * width + i, load(x + i) * by * load(a->weight + i), a->narrow);
    }
}

void educe_rms_forward(const RmsForward *a) {
    spread(rms_forward_item, a, (a->rows + ROWS - 1) / ROWS, a->rows * a->width);
}

/* With h = x / rms and g = grad * weight: grad_x = (g - h * mean(g * h)) / rms, and grad_weight is
   the sum over rows of grad * h, in parts of PART rows that do not depend on the threads. */

typedef struct {
    const float *x;       /* [N, W] */
    const float *weight;  /* [W] */
    const float *scales;  /* [N] */
    const void *grad;     /* [N, W] */
    float *grad_x;        /* [N, W] or NULL */
    float *parts;         /* [ceil(N / PART), W] or NULL */
    int64_t rows, width, part;
    int32_t narrow; /* of grad */
} RmsBackward;

static void rms_backward_item(const void *arguments, int64_t item) {
    const RmsBackward *a = arguments;
    int64_t width = a->width, last = smaller(a->rows, (item + 1) * a->part);
    float sums[width];
    memset(sums, 0, sizeof sums);
    for (int64_t n = item * a->part; n < last; n++) {
        const float *x = a->x + n * width;
        float by = a->scales[n];
        vf along = all(0.0f);
        for (int64_t i = 0; i < width; i += LANES) {
            vf product = load_kind(a->grad, n * width + i, a->narrow) * load(x + i) * by;
            along += product * load(a->weight + i);
            store(sums + i, load(sums + i) + product);
        }
        if (!a->grad_x) continue;
        float mean = total(along) / (float)width;
        for (int64_t i = 0; i < width; i += LANES) {
            vf g = load_kind(a->grad, n * width + i, a->narrow) * load(a->weight + i);
            store(a->grad_x + n * width + i, (g - load(x + i) * by * mean) * by);
        }
    }
    if (a->parts) memcpy(a->parts + item * width, sums, sizeof sums);
}

void educe_rms_backward(const RmsBackward *a) {
    spread(rms_backward_item, a, (a->rows + a->part - 1) / a->part, a->rows * a->width);
}

/* silu(gate) * up, the activation rounded to the type as a separate operation would. */

typedef struct {
    const void *gate, *up;     /* [M] */
    const void *grad;          /* [M] or NULL: forwards */
    void *out;                 /* [M]: the product, or the gradient of gate */
    void *grad_up;             /* [M] */
    int64_t size;
    int32_t narrow;
} Gate;

#define CHUNK 4096

INLINE vf rounded(vf v, int narrow) {
    if (!narrow) return v;
    return (vf)(__builtin_convertvector(narrowed(v), vu) << 16);
}

INLINE void gate_chunk(const Gate *a, int64_t first, int64_t last, const int narrow) {
    for (int64_t i = first; i < last; i += LANES) {
        vf g = load_kind(a->gate, i, narrow), u = load_kind(a->up, i, narrow);
        vf share = 1.0f / (1.0f + exponential(-g));
        vf active = rounded(g * share, narrow);
        if (!a->grad) {
            store_kind(a->out, i, active * u, narrow);
            continue;
        }
        vf d = load_kind(a->grad, i, narrow);
        store_kind(a->grad_up, i, active * d, narrow);
        store_kind(a->out, i, d * u * (share * (1.0f + g * (1.0f - share))), narrow);
    }
}

static void gate_item(const void *arguments, int64_t item) {
    const Gate *a = arguments;
    int64_t first = item * CHUNK, last = smaller(a->size, first + CHUNK);
    if (a->narrow)
        gate_chunk(a, first, last, 1);
    else
        gate_chunk(a, first, last, 0);
}

void educe_gate(const Gate *a) { spread(gate_item, a, (a->size + CHUNK - 1) / CHUNK, a->size); }

/* Log-probabilities of targets and entropies at a temperature; the gradient of the logits takes
   their place. With z = logits / temperature, p = softmax(z): d logp / dz = onehot - p and
   d entropy / dz = -p * (log p + entropy). */

typedef struct {
    void *logits;                /* [N, V] */
    const int64_t *targets;      /* [N] */
    const float *temperatures;   /* [N] */
    float *logprobs, *entropies; /* [N] */
    float *normalisers;          /* [N]: log-sum-exp of z */
    const float *grad_logprobs;  /* [N] or NULL: forwards */
    const float *grad_entropies; /* [N] or NULL: there is none */
    int64_t rows, vocabulary;
    int32_t narrow;
} Logprobs;

#define LOWEST -3.0e38f

INLINE void logprobs_row(const Logprobs *a, int64_t n, const int narrow) {
    int64_t size = a->vocabulary, from = n * size, whole = size - size % LANES;
    float by = 1.0f / a->temperatures[n];
    vf peak = all(-__builtin_inff());
    for (int64_t i = 0; i < whole; i += LANES) peak = larger(peak, load_kind(a->logits, from + i, narrow));
    float top = largest(peak);
    for (int64_t i = whole; i < size; i++) {
        float x = scalar_kind(a->logits, from + i, narrow);
        top = x > top ? x : top;
    }
    /* Sums of a vocabulary in fp32 would lose digits: every 4096 terms they move to fp64. */
    double sum = 0.0, inner = 0.0;
    for (int64_t first = 0; first < size; first += CHUNK) {
        int64_t last = smaller(size, first + CHUNK), full = last - (last - first) % LANES;
        vf weights = all(0.0f), products = all(0.0f);
        for (int64_t i = first; i < full; i += LANES) {
            vf z = (load_kind(a->logits, from + i, narrow) - top) * by;
            vf w = exponential(z);
            weights += w;
            products += w * larger(z, all(LOWEST)); /* 0 * -inf would be no number */
        }
        for (int64_t i = full; i < last; i++) {
            float z = (scalar_kind(a->logits, from + i, narrow) - top) * by, w = exponential1(z);
            sum += w;
            inner += w * (z > LOWEST ? z : LOWEST);
        }
        sum += total(weights);
        inner += total(products);
    }
    double log_sum = __builtin_log(sum);
    double picked = ((double)scalar_kind(a->logits, from + a->targets[n], narrow) - top) * by;
    a->logprobs[n] = (float)(picked - log_sum);
    a->entropies[n] = (float)(log_sum - inner / sum);
    a->normalisers[n] = (float)((double)top * by + log_sum);
}

INLINE vf logit_gradient(vf logits, float by, float normaliser, float factor, float slope,
                         float entropy) {
    vf logp = logits * by - normaliser;
    vf p = exponential(logp);
    vf grad = p * -factor;
    if (slope != 0.0f) grad -= slope * p * (larger(logp, all(LOWEST)) + entropy);
    return grad;
}

INLINE void logprobs_row_backward(const Logprobs *a, int64_t n, const int narrow) {
    int64_t size = a->vocabulary, from = n * size, whole = size - size % LANES;
    float by = 1.0f / a->temperatures[n], factor = a->grad_logprobs[n] * by;
    float slope = a->grad_entropies ? a->grad_entropies[n] * by : 0.0f;
    float normaliser = a->normalisers[n], entropy = a->entropies[n];
    int64_t target = a->targets[n];
    float own = logit_gradient(all(scalar_kind(a->logits, from + target, narrow)), by, normaliser,
                               factor, slope, entropy)[0] + factor;
    for (int64_t i = 0; i < whole; i += LANES)
        store_kind(a->logits, from + i,
                   logit_gradient(load_kind(a->logits, from + i, narrow), by, normaliser, factor,
                                  slope, entropy),
                   narrow);
    for (int64_t i = whole; i < size; i++) {
        vf grad = logit_gradient(all(scalar_kind(a->logits, from + i, narrow)), by, normaliser,
                                 factor, slope, entropy);
        if (narrow) ((uint16_t *)a->logits)[from + i] = narrowed(grad)[0];
        else ((float *)a->logits)[from + i] = grad[0];
    }
    if (narrow) ((uint16_t *)a->logits)[from + target] = narrowed(all(own))[0];
    else ((float *)a->logits)[from + target] = own;
}

static void logprobs_item(const void *arguments, int64_t n) {
    const Logprobs *a = arguments;
    if (a->grad_logprobs) {
        if (a->narrow) logprobs_row_backward(a, n, 1);
        else logprobs_row_backward(a, n, 0);
    } else if (a->narrow)
        logprobs_row(a, n, 1);
    else
        logprobs_row(a, n, 0);
}

void educe_logprobs(const Logprobs *a) {
    spread(logprobs_item, a, a->rows, a->rows * a->vocabulary);
}

/* Rotary embedding as transformers arranges it: numbers i and i + D / 2 of a head turn together.
   A negative sign turns back, which is the gradient. */

typedef struct {
    const void *x;     /* [N, heads, D] */
    const float *cosine, *sine; /* [N, D] */
    void *out;         /* [N, heads, D] */
    int64_t rows, heads, width;
    float sign;
    int32_t narrow, out_narrow;
} Rotate;

INLINE void rotate_row(const Rotate *a, int64_t n, const int narrow, const int out_narrow) {
    int64_t half = a->width / 2;
    const float *cosine = a->cosine + n * a->width, *sine = a->sine + n * a->width;
    for (int64_t h = 0; h < a->heads; h++) {
        int64_t at = (n * a->heads + h) * a->width;
        for (int64_t i = 0; i < half; i += LANES) {
            vf x = load_kind(a->x, at + i, narrow), y = load_kind(a->x, at + half + i, narrow);
            vf c = load(cosine + i), s = load(sine + i) * a->sign;
            store_kind(a->out, at + i, x * c - y * s, out_narrow);
            store_kind(a->out, at + half + i, y * c + x * s, out_narrow);
        }
    }
}

static void rotate_item(const void *arguments, int64_t n) {
    const Rotate *a = arguments;
    if (a->narrow && a->out_narrow) rotate_row(a, n, 1, 1);
    else if (a->narrow) rotate_row(a, n, 1, 0);
    else if (a->out_narrow) rotate_row(a, n, 0, 1);
    else rotate_row(a, n, 0, 0);
}

void educe_rotate(const Rotate *a) {
    spread(rotate_item, a, a->rows, a->rows * a->heads * a->width);
}
