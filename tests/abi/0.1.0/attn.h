/* SPDX-License-Identifier: MIT */
/**
 * @file attn.h
 * @brief libattn: attention on the CPU. The whole interface, and its manual.
 *
 * What it computes
 * ----------------
 * Scaled dot-product attention, with float32 data and row-major tensors,
 *
 *     S   = scale * Q K^T                  scores
 *     A   = softmax(rules(S))              weights, one row per query
 *     O   = A V                            output
 *
 * for every batch item and head, in memory proportional to the lengths, not to
 * their product. The products are calls of `cblas_sgemm` (OpenBLAS); the
 * softmax between them is computed tile by tile with a running maximum and sum
 * (Milakov and Gimelshein, arXiv:1805.02867; Rabe and Staats,
 * arXiv:2112.05682; Dao et al., arXiv:2205.14135). Around it, an attn_layer
 * adds the projections Q = H W_Q, K = H W_K, V = H W_V and the output
 * projection of Vaswani et al., arXiv:1706.03762.
 *
 * A first program
 * ---------------
 *
 *     attn_op *op;
 *     if (attn_op_create(&op, 12, 12, 64, 64) != ATTN_OK) return 1;
 *     attn_op_set_causal(op, ATTN_CAUSAL_TOP_LEFT);
 *     attn_status st = attn_run(op, 1, L, L, q, k, v, out);
 *     if (st != ATTN_OK) puts(attn_status_string(st));
 *     attn_op_destroy(op);
 *
 * Words and axes
 * --------------
 *
 *     B   batch items
 *     Hq  query heads; Hk key/value heads, Hq % Hk == 0. Query head h uses
 *         key/value head h / (Hq / Hk): contiguous groups, not tiled ones
 *     Lq  queries of one item; Lk keys of one item
 *     Dk  size of a query or key head; Dv size of a value head
 *     E   width of a model (attn_layer)
 *
 * Sizes are int64_t counts of elements, strides are int64_t and count elements
 * (never bytes). i is a query index, j a key index, b a batch item, h a head.
 *
 * The order of the rules
 * ----------------------
 *
 *     s  = scale * (q . k)
 *     s  = softcap * tanh(s / softcap)          if a softcap is set
 *     s  = s - slope[h] * |i + off - j|         if ALiBi slopes are set
 *     s  = s + additive mask                    if one is set
 *     s  = -inf where a boolean rule says no    causal, window, chunks, key
 *                                               range, boolean mask, segments,
 *                                               -inf in the additive mask
 *     A  = softmax over the keys                a sink joins the denominator
 *
 * Boolean rules intersect, additive ones add. "Not visible" is decided by
 * selection, never by adding a large number: an invisible key has weight
 * exactly 0 and nothing that K or V hold there reaches the row, not even NaN.
 * A finite huge negative additive mask is plain arithmetic.
 *
 * Where queries stand on the key axis
 * -----------------------------------
 * One offset per item places query i at key index i + off[b]:
 *
 *     off[b] = pos[b]           if positions are set (attn_args_set_positions)
 *     off[b] = end[b] - Lq      else, for ATTN_CAUSAL_BOTTOM_RIGHT and _NONE
 *     off[b] = 0                else, for ATTN_CAUSAL_TOP_LEFT
 *
 * where end[b] is the end of the item's key range, or Lk. Causal: key j is
 * visible to query i iff j <= i + off. Window (left, right): iff
 * i + off - left <= j <= i + off + right, -1 meaning unbounded. Chunks of C: iff
 * floor((i + off) / C) == floor(j / C). ALiBi measures |i + off - j|. The
 * beginning of a key range hides keys and never moves an index. Note that with
 * ATTN_CAUSAL_NONE a window is aligned to the end (as in FlashAttention);
 * right-padded self-attention wants ATTN_CAUSAL_TOP_LEFT, or positions of 0.
 *
 * Edges
 * -----
 * - A row that sees no key has output 0, weights 0 and log-sum-exp -inf; so
 *   has a row whose visible scores are all -inf, and every row when Lk == 0
 *   (K and V may then be NULL).
 * - NaN or +inf in a visible score makes that row NaN, and no other row.
 * - NaN or Inf in K or V at a key that a row does not see never reaches that
 *   row. A visible key whose weight underflows to 0 and whose V holds NaN
 *   gives NaN (0 * NaN); one whose V holds Inf gives NaN or that Inf.
 * - Keys outside the key range are never read (but an attn_layer projects all
 *   of x_kv).
 * - In out and lse, a weight below 2^-100 of the row's largest counts as 0; in
 *   the weights that are asked for, one below 2^-126 of it.
 * - Weights are divided by their sum at the end, so |V| times the number of
 *   keys must stay within a float.
 * - B == 0 or Lq == 0: success once the options fit; nothing is written.
 *
 * Errors
 * ------
 * Every function that can fail returns an attn_status: 0 or a negative number
 * from the list below; treat a number that you do not know as an error. After
 * an argument error (ATTN_EINVAL, _EOVERFLOW, _ESTATE, _EUNSUPPORTED) nothing
 * has been written; after ATTN_ENOMEM, _EBLAS or _EINTERNAL from a run, its
 * outputs are undefined. attn_explain() says in words what is wrong with a run.
 * The library never aborts, exits, prints, reads the environment or installs a
 * signal handler (it registers fork handlers), and leaves no process-wide
 * setting changed.
 *
 * Threads
 * -------
 * Setters and destroy need the handle to themselves. Runs do not change what
 * an attn_op or attn_layer means: any number of threads may run one at once.
 * An attn_args serves one run at a time. The number of threads of a run never
 * changes its bits. The pool's threads take the CPU affinity of the thread whose
 * run first needed them.
 *
 * Rounding and the treatment of denormals are those of the caller in all threads
 * of a run.
 *
 * While a run, a projection, or the first attn_op_create() or attn_blas_info() of
 * a process is active, a build of OpenBLAS with threads of its own may have its
 * count at 1; the host's value is back when none is active. A serial build must
 * not be called by the host at the same time: neither result would be right.
 *
 * What is not promised
 * --------------------
 * The same bits between instruction sets, BLAS builds and cores, engines, or
 * versions of libattn. The ABI is promised from 0.1.0 on: see NEWS.
 */
#ifndef ATTN_H
#define ATTN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The version of this header; the library's own is attn_version(). */
#define ATTN_VERSION_MAJOR 0
#define ATTN_VERSION_MINOR 1 /**< grows with new functions */
#define ATTN_VERSION_PATCH 0 /**< grows with corrections */

#ifndef ATTN_API
#if defined(__GNUC__)
#define ATTN_API __attribute__((visibility("default")))
#else
#define ATTN_API
#endif
#endif

/* ---------------------------------------------------------------- types */

/** Status of a call: ATTN_OK, or one of the negative numbers below. */
typedef int32_t attn_status;

/** The statuses. Their numbers never change and are never used again. */
enum {
    ATTN_OK = 0,            /**< success */
    ATTN_EINVAL = -1,       /**< an argument is outside what its text allows */
    ATTN_ENOMEM = -2,       /**< memory could not be had */
    ATTN_EOVERFLOW = -3,    /**< a product of sizes, or an extent for BLAS, overflows */
    ATTN_ESTATE = -4,       /**< the handle is not ready (a weight is missing) */
    ATTN_EUNSUPPORTED = -5, /**< a valid wish that this build or CPU cannot serve */
    ATTN_EBLAS = -6,        /**< the BLAS found at run time is unusable */
    ATTN_EINTERNAL = -7     /**< a fault of libattn; please report it */
};

/** How queries and keys are aligned: for attn_op_set_causal(). */
enum {
    ATTN_CAUSAL_NONE = 0,        /**< every query may see every key */
    ATTN_CAUSAL_TOP_LEFT = 1,    /**< j <= i + off with off = 0 (PyTorch's is_causal) */
    ATTN_CAUSAL_BOTTOM_RIGHT = 2 /**< j <= i + off with off = end - Lq (FlashAttention's) */
};

/** Order of the axes of packed q, k, v and out: for attn_op_set_layout(). */
enum {
    ATTN_LAYOUT_BHLD = 0, /**< (batch, head, length, size), the default */
    ATTN_LAYOUT_BLHD = 1  /**< (batch, length, head, size) = (B, L, heads * size) */
};

/** What forms the two products: for attn_op_set_engine(). */
enum {
    ATTN_ENGINE_BLAS = 0,  /**< cblas_sgemm, the default */
    ATTN_ENGINE_VECTOR = 1 /**< tiles of our own, without BLAS */
};

/** Instruction sets, bits of a mask: for attn_op_set_isa(). */
enum {
    ATTN_ISA_BASE = 0,    /**< what every CPU of the platform has; always allowed */
    ATTN_ISA_AVX2 = 1,    /**< x86-64: AVX2 and FMA */
    ATTN_ISA_AVX512 = 2,  /**< x86-64: AVX-512 F, BW, DQ, VL (with AVX2 and FMA) */
    ATTN_ISA_ALL = 0x7fffffff
};

/** The tensors of a run, for attn_args_set_strides() and _set_type(). */
enum { ATTN_Q = 0, ATTN_K = 1, ATTN_V = 2, ATTN_OUT = 3 };

/** Element types, for attn_args_set_type() and, the integers, _set_offsets_q(). */
enum { ATTN_F32 = 0, ATTN_I32 = 1, ATTN_I64 = 2 };

/** Which scores to hand out: for attn_args_set_scores_out(). */
enum {
    ATTN_STAGE_RAW = 0,    /**< scale * (q . k) */
    ATTN_STAGE_CAPPED = 1, /**< after the softcap */
    ATTN_STAGE_MASKED = 2, /**< after every additive and boolean rule; invisible = -inf */
    ATTN_STAGE_WEIGHTS = 3 /**< after the softmax */
};

/** Flags of attn_args_set_scores_out(). */
enum {
    ATTN_MEAN_HEADS = 1 /**< (B, Lq, Lk): the mean over the query heads, summed in head order */
};

/** The weights of a layer, for attn_layer_set_weights() and _project(). */
enum { ATTN_W_Q = 0, ATTN_W_K = 1, ATTN_W_V = 2, ATTN_W_O = 3 };

/** Flags of attn_layer_set_weights(): exactly one of IN_OUT and OUT_IN. */
enum {
    ATTN_IN_OUT = 1,  /**< w is (E_in, N): y = x W, as in the books */
    ATTN_OUT_IN = 2,  /**< w is (N, E_in): y = x W^T, what PyTorch's Linear stores */
    ATTN_W_BORROW = 4 /**< reserved: ATTN_EUNSUPPORTED in this version */
};

/** How to attend: sizes and rules. Opaque. */
typedef struct attn_op attn_op;
/** The optional tensors of one run. Opaque. */
typedef struct attn_args attn_args;
/** Projection weights around an attn_op. Opaque. */
typedef struct attn_layer attn_layer;

/* ------------------------------------------------- attn_op: how to attend */

/**
 * Make an op with these sizes and the default rules: scale 1/sqrt(head_dim),
 * no causal rule, no window, no softcap, layout BHLD, engine BLAS, all threads
 * that the process may use, the best instruction set of this CPU.
 *
 * @param op        receives the handle; yours, to give to attn_op_destroy().
 *                  Set to NULL on error
 * @param heads     Hq >= 1
 * @param kv_heads  Hk >= 1, a divisor of heads. Hk == Hq: multi-head;
 *                  1 < Hk < Hq: grouped-query (Ainslie et al.,
 *                  arXiv:2305.13245); Hk == 1: multi-query (Shazeer,
 *                  arXiv:1911.02150)
 * @param head_dim  Dk >= 1
 * @param value_dim Dv >= 1
 * @return ATTN_EINVAL: op is NULL, a size < 1, or heads % kv_heads != 0.
 *         ATTN_EOVERFLOW: a head count or size above 2^31 - 1.
 *         ATTN_ENOMEM. ATTN_EBLAS: the BLAS that the loader found uses 64-bit
 *         integers, or got a small known product wrong (tried once a process).
 * Threads: any. Since 0.1.
 */
ATTN_API attn_status attn_op_create(attn_op **op, int64_t heads, int64_t kv_heads,
                                    int64_t head_dim, int64_t value_dim);

/**
 * Make a new op with the sizes and rules of another; the two are independent.
 *
 * @param copy receives the handle, yours to destroy; NULL on error
 * @return ATTN_EINVAL: a NULL argument. ATTN_ENOMEM.
 * Threads: no setter may run on op meanwhile; runs may. Since 0.1.
 */
ATTN_API attn_status attn_op_copy(attn_op **copy, const attn_op *op);

/** Free an op and its scratch memory. NULL is fine. No run may be using it. Since 0.1. */
ATTN_API void attn_op_destroy(attn_op *op);

/**
 * Set the factor of the scores. In s = scale * (q . k) the default is
 * 1/sqrt(Dk); the unscaled dot product of general attention is scale 1.
 *
 * @param scale any finite number, 0 and negative ones too
 * @return ATTN_EINVAL: op is NULL, or scale is not finite as a float.
 * Threads: op to yourself. Since 0.1.
 */
ATTN_API attn_status attn_op_set_scale(attn_op *op, double scale);

/**
 * Set the causal rule: key j is visible to query i iff j <= i + off (see
 * "Where queries stand on the key axis"). With Lq == Lk and no key range the
 * two alignments agree.
 *
 * @param causal ATTN_CAUSAL_NONE, _TOP_LEFT or _BOTTOM_RIGHT
 * @return ATTN_EINVAL: op is NULL or causal is none of these.
 * Threads: op to yourself. Since 0.1.
 */
ATTN_API attn_status attn_op_set_causal(attn_op *op, int32_t causal);

/**
 * Set a sliding window: i + off - left <= j <= i + off + right. Keys and tiles
 * that no query sees are skipped, so that time grows with Lq * (left + right).
 * A model's "sliding window of W" is left = W - 1 with a causal rule.
 *
 * @param left, right keys to the left and right of the query's own position;
 *                    -1: unbounded. Default (-1, -1)
 * @return ATTN_EINVAL: op is NULL, or a bound < -1.
 * Threads: op to yourself. Since 0.1.
 */
ATTN_API attn_status attn_op_set_window(attn_op *op, int64_t left, int64_t right);

/**
 * Cut the key axis into chunks of a size and let queries see keys of their own
 * chunk only: floor((i + off) / size) == floor(j / size) (chunked attention;
 * with a causal rule, Llama 4's). Keys of other chunks are skipped.
 *
 * @param size >= 1; 0 switches it off (the default)
 * @return ATTN_EINVAL: op is NULL or size < 0.
 * Threads: op to yourself. Since 0.1.
 */
ATTN_API attn_status attn_op_set_chunk(attn_op *op, int64_t size);

/**
 * Set a soft cap, s = cap * tanh(s / cap), applied before the masks; huge
 * scores saturate at +-cap (Gemma 2, arXiv:2408.00118).
 *
 * @param cap >= 2^-126 and finite as a float; 0 switches it off (the default)
 * @return ATTN_EINVAL: op is NULL, or any other cap.
 * Threads: op to yourself. Since 0.1.
 */
ATTN_API attn_status attn_op_set_softcap(attn_op *op, double cap);

/**
 * Set the layout of packed tensors.
 *
 * @param layout ATTN_LAYOUT_BHLD or ATTN_LAYOUT_BLHD
 * @return ATTN_EINVAL: op is NULL or layout is none of these.
 * Threads: op to yourself. Since 0.1.
 */
ATTN_API attn_status attn_op_set_layout(attn_op *op, int32_t layout);

/**
 * Set which engine forms the two products. Runs of few queries (decoding) use
 * vector kernels whatever the engine: a GEMM of one row is no use to anyone.
 *
 * @param engine ATTN_ENGINE_BLAS or ATTN_ENGINE_VECTOR
 * @return ATTN_EINVAL: op is NULL. ATTN_EUNSUPPORTED: an unknown engine, or
 *         one that this build or CPU does not have.
 * Threads: op to yourself. Since 0.1.
 */
ATTN_API attn_status attn_op_set_engine(attn_op *op, int32_t engine);

/**
 * Set how many threads a run may use, the caller's included. Runs of a few
 * microseconds stay on the caller's thread, and those of a few dozen do unless
 * threads of the pool are still awake from a run just before and no other
 * caller has a run. The pool's threads are made at first need and shared by all
 * ops; a run goes on with fewer when they cannot be had. BLAS's own threads are
 * not used. The count never changes the bits of a result.
 *
 * @param n 1 to 4096; 0, the default: the CPUs that this process may use,
 *          counted now
 * @return ATTN_EINVAL: op is NULL or n is outside 0..4096.
 * Threads: op to yourself. Since 0.1.
 */
ATTN_API attn_status attn_op_set_threads(attn_op *op, int32_t n);

/**
 * Restrict the instruction sets of our own kernels (not of BLAS).
 *
 * @param mask bits ATTN_ISA_*, ANDed with what this CPU has; the best of the
 *             rest is taken. ATTN_ISA_ALL is the default, ATTN_ISA_BASE the
 *             plain code
 * @return ATTN_EINVAL: op is NULL.
 * Threads: op to yourself. Since 0.1.
 */
ATTN_API attn_status attn_op_set_isa(attn_op *op, int32_t mask);

/**
 * Free the scratch memory that past runs of this op left for the next ones (as
 * many blocks as its peak of concurrent runs). Safe while others run it; the
 * blocks in use then are kept.
 *
 * @return ATTN_EINVAL: op is NULL.
 * Threads: any. Since 0.1.
 */
ATTN_API attn_status attn_op_trim(attn_op *op);

/* ------------------------------------ attn_args: optional tensors of a run */

/**
 * Make an empty args. Small arrays (of B or Hq elements) are copied by their
 * setter. Large ones (masks, segment ids, scores, log-sum-exp, workspace) are BORROWED: they must
 * stay valid during every run that uses the args, and stay set until replaced,
 * set to NULL, or attn_args_clear(). Borrowed outputs must not overlap each
 * other, an input, or out. Pointers must be aligned to their element.
 *
 * @param args receives the handle, yours to destroy; NULL on error
 * @return ATTN_EINVAL: args is NULL. ATTN_ENOMEM.
 * Threads: any. Since 0.1.
 */
ATTN_API attn_status attn_args_create(attn_args **args);

/** Free an args (never what it borrows). NULL is fine. Since 0.1. */
ATTN_API void attn_args_destroy(attn_args *args);

/**
 * Forget everything that was set; as new.
 * @return ATTN_EINVAL: args is NULL.
 * Threads: args to yourself. Since 0.1.
 */
ATTN_API attn_status attn_args_clear(attn_args *args);

/**
 * Set the strides of q, k, v or out, in elements, always in the order
 * (B, H, L, D) whatever the layout. Checked by the run: strides of axes of
 * length <= 1 are ignored; the D stride must be 1; the L stride must be at
 * least the head size; B and H strides of inputs may be anything (0
 * broadcasts, negative goes backwards from the pointer); those of out must be
 * positive, and out must not overlap itself or an input. A view with another
 * inner stride must be copied first.
 *
 * @param slot    ATTN_Q, ATTN_K, ATTN_V or ATTN_OUT
 * @param strides four numbers, copied; NULL: packed again
 * @return ATTN_EINVAL: args is NULL or slot is none of these.
 * Threads: args to yourself. Since 0.1.
 */
ATTN_API attn_status attn_args_set_strides(attn_args *args, int32_t slot,
                                           const int64_t strides[4]);

/**
 * Set a boolean mask over (B, Hq, Lq, Lk): nonzero = attend, 0 = not. (The
 * opposite polarity of PyTorch's key_padding_mask.)
 *
 * @param mask    borrowed; NULL: no mask
 * @param dims    four extents, copied. dims[0..2] are 1 (the same for all) or
 *                the full extent; dims[3] = n <= Lk: keys from n on are not
 *                visible. To broadcast along keys give the full extent and a
 *                stride of 0. NULL is allowed when mask is NULL
 * @param strides four strides in elements, copied, any sign; those of axes of
 *                extent 1 are ignored. NULL: packed row-major in dims
 * @return ATTN_EINVAL: args is NULL, dims is NULL with a mask, or an extent is
 *         negative. ATTN_EOVERFLOW: the product of the extents overflows.
 *         Extents are compared with the sizes by the run.
 * Threads: args to yourself. Since 0.1.
 */
ATTN_API attn_status attn_args_set_mask_bool(attn_args *args, const uint8_t *mask,
                                             const int64_t dims[4], const int64_t strides[4]);

/**
 * Set an additive mask: like attn_args_set_mask_bool(), but its floats are
 * added to the scores, after the softcap. -inf means "not visible" exactly as
 * false does, even on a NaN score; NaN and +inf make the row NaN where they
 * are visible. Both masks may be set; they combine.
 *
 * @return as attn_args_set_mask_bool().
 * Threads: args to yourself. Since 0.1.
 */
ATTN_API attn_status attn_args_set_mask_add(attn_args *args, const float *mask,
                                            const int64_t dims[4], const int64_t strides[4]);

/**
 * Set the range of keys of each item: keys j with begin[b] <= j < end[b] exist,
 * the others are never read. end = lengths of right-padded items, or how far a
 * cache is filled.
 *
 * @param batch the number of elements, compared with B by the run; 0: no ranges
 * @param begin copied; NULL: 0 for all
 * @param end   copied; NULL: Lk for all. The run wants
 *              0 <= begin[b] <= end[b] <= Lk
 * @return ATTN_EINVAL: args is NULL or batch < 0. ATTN_EOVERFLOW: batch too
 *         large. ATTN_ENOMEM (what was set before stays).
 * Threads: args to yourself. Since 0.1.
 */
ATTN_API attn_status attn_args_set_key_range(attn_args *args, int64_t batch,
                                             const int64_t *begin, const int64_t *end);

/**
 * Set where each item's query 0 stands on the key axis: off[b] = pos[b], any
 * int64 (arithmetic saturates). For chunks of a prompt: pos = number of keys
 * before this chunk. Positions alone switch no rule on.
 *
 * @param batch the number of elements, compared with B by the run; 0: none
 * @param pos   copied; may be NULL when batch is 0
 * @return ATTN_EINVAL: args is NULL, batch < 0, or pos is NULL with a batch.
 *         ATTN_EOVERFLOW: batch too large. ATTN_ENOMEM (what was set stays).
 * Threads: args to yourself. Since 0.1.
 */
ATTN_API attn_status attn_args_set_positions(attn_args *args, int64_t batch, const int64_t *pos);

/**
 * Set ALiBi slopes: adds -slopes[h] * |i + off - j| to the scores, computed in
 * the kernel without a matrix (Press et al., arXiv:2108.12409). The distance is
 * a float: exact up to 2^24.
 *
 * @param heads  the number of elements, compared with Hq by the run; 0: none
 * @param slopes one finite number a query head, copied; attn_alibi_slopes()
 *               gives the usual ones. May be NULL when heads is 0
 * @return ATTN_EINVAL: args is NULL, heads < 0, slopes is NULL with heads, or a
 *         slope is not finite. ATTN_EOVERFLOW, ATTN_ENOMEM (what was set stays).
 * Threads: args to yourself. Since 0.1.
 */
ATTN_API attn_status attn_args_set_alibi(attn_args *args, int64_t heads, const float *slopes);

/**
 * Set attention sinks: one more logit per query head that takes part in the
 * denominator of the softmax only (Xiao et al., arXiv:2309.17453; gpt-oss):
 *
 *     w[j] = exp(s[j] - m) / (exp(sinks[h] - m) + sum_j exp(s[j] - m))
 *
 * Output and weights include it; the log-sum-exp does not; a row that sees no
 * key stays 0 and -inf.
 *
 * @param heads the number of elements, compared with Hq by the run; 0: none
 * @param sinks one number a query head, copied; finite, or -inf for no effect.
 *              May be NULL when heads is 0
 * @return as attn_args_set_alibi().
 * Threads: args to yourself. Since 0.1.
 */
ATTN_API attn_status attn_args_set_sinks(attn_args *args, int64_t heads, const float *sinks);

/**
 * Set segment ids: key j is visible to query i iff their ids are equal
 * (documents packed into one row). Tiles without a common id are skipped.
 *
 * @param q_ids (B, Lq), borrowed; of packed queries one a token
 * @param k_ids (B, Lk), borrowed; of packed keys one a token. Both or neither
 *              are NULL: no segments
 * @return ATTN_EINVAL: args is NULL, or one of the two is NULL.
 * Threads: args to yourself. Since 0.1.
 */
ATTN_API attn_status attn_args_set_segments(attn_args *args, const int32_t *q_ids,
                                            const int32_t *k_ids);

/**
 * Say that the queries (q and out) are packed: sequences of any lengths, one
 * after the other in one buffer of tokens, without padding. Sequence b has the
 * tokens offsets[b] .. offsets[b + 1] - 1; tokens outside all sequences are
 * neither read nor written. Then
 *
 *     B   is the number of sequences, Lq the number of tokens in the buffer
 *     q   (token, head, Dk), out (token, head, Dv), whatever the layout;
 *         of strides set for them that of B is ignored
 *     lse (Hq, Lq)
 *
 * and key range, positions and alignment count within each sequence. Masks and
 * score outputs have no shape there: ATTN_EUNSUPPORTED by the run. Either side
 * may be packed alone, or both.
 *
 * @param offsets     n_sequences + 1 numbers, copied, never decreasing, >= 0;
 *                    the last is at most Lq (checked by the run). NULL: not
 *                    packed
 * @param index_type  ATTN_I32 or ATTN_I64: what offsets points to
 * @param n_sequences >= 0, compared with B by the run
 * @return ATTN_EINVAL: args is NULL, an unknown type, n_sequences < 0, offsets
 *         that decrease or are negative. ATTN_EOVERFLOW, ATTN_ENOMEM (what was
 *         set before stays).
 * Threads: args to yourself. Since 0.1.
 */
ATTN_API attn_status attn_args_set_offsets_q(attn_args *args, const void *offsets,
                                             int32_t index_type, int64_t n_sequences);

/**
 * Like attn_args_set_offsets_q(), but for keys and values: k (token, kv head,
 * Dk), v (token, kv head, Dv), Lk the number of tokens in the buffer.
 *
 * @return as attn_args_set_offsets_q().
 * Threads: args to yourself. Since 0.1.
 */
ATTN_API attn_status attn_args_set_offsets_k(attn_args *args, const void *offsets,
                                             int32_t index_type, int64_t n_sequences);

/**
 * Ask for the weights A: attn_args_set_scores_out(args, ATTN_STAGE_WEIGHTS,
 * weights, 0).
 *
 * @param weights (B, Hq, Lq, Lk) packed, borrowed; every row sums to 1 (to less
 *                with sinks), or is 0 when it sees no key. NULL: do not
 * @return ATTN_EINVAL: args is NULL.
 * Threads: args to yourself. Since 0.1.
 */
ATTN_API attn_status attn_args_set_weights(attn_args *args, float *weights);

/**
 * Ask for the scores at a stage; each stage has a buffer of its own and any
 * number may be asked for at once. out has the same bits with and without.
 * Outside the key range all scores are -inf and weights 0; RAW and CAPPED give
 * the score of every key in the range, visible or not.
 *
 * @param stage ATTN_STAGE_RAW, _CAPPED, _MASKED or _WEIGHTS
 * @param out   (B, Hq, Lq, Lk) packed, or (B, Lq, Lk) with ATTN_MEAN_HEADS;
 *              borrowed; NULL: do not
 * @param flags 0 or ATTN_MEAN_HEADS
 * @return ATTN_EINVAL: args is NULL, an unknown stage, or an unknown flag.
 * Threads: args to yourself. Since 0.1.
 */
ATTN_API attn_status attn_args_set_scores_out(attn_args *args, int32_t stage, float *out,
                                              int32_t flags);

/**
 * Ask for the natural logarithm of each row's sum of exp(s),
 * lse = m + log(sum_j exp(s_j - m)); -inf for a row that sees no key.
 *
 * @param lse (B, Hq, Lq) packed, borrowed ((Hq, Lq) of packed queries); NULL:
 *            do not
 * @return ATTN_EINVAL: args is NULL.
 * Threads: args to yourself. Since 0.1.
 */
ATTN_API attn_status attn_args_set_lse(attn_args *args, float *lse);

/**
 * Set the element type of q, k, v or out.
 *
 * @param slot ATTN_Q, ATTN_K, ATTN_V or ATTN_OUT
 * @param type ATTN_F32
 * @return ATTN_EINVAL: args is NULL or slot is none of these.
 *         ATTN_EUNSUPPORTED: any other type, in this version.
 * Threads: args to yourself. Since 0.1.
 */
ATTN_API attn_status attn_args_set_type(attn_args *args, int32_t slot, int32_t type);

/**
 * Give the memory that a run may use, so that it allocates nothing, ever, but
 * the pool's threads and BLAS's own buffers at their first need.
 *
 * @param memory borrowed, any alignment; its contents mean nothing before or
 *               after a run. NULL with bytes 0: none
 * @param bytes  at least what attn_workspace_bytes() (or, for a layer,
 *               attn_layer_workspace_bytes()) says; a smaller workspace is
 *               ATTN_EINVAL by the run, before any write
 * @return ATTN_EINVAL: args is NULL, or memory is NULL and bytes is not 0.
 * Threads: args to yourself. Since 0.1.
 */
ATTN_API attn_status attn_args_set_workspace(attn_args *args, void *memory, size_t bytes);

/* ------------------------------------------------------------------- runs */

/**
 * Attend: out = softmax(rules(scale * Q K^T)) V, packed tensors.
 *
 * Sizes in layout BHLD: q (B, Hq, Lq, Dk), k (B, Hk, Lk, Dk), v (B, Hk, Lk,
 * Dv), out (B, Hq, Lq, Dv); in BLHD the second and third axes change places.
 * Nothing is kept after the call. The plain loop:
 *
 *     for b, h, i:   j runs over the keys that i sees, g = h / (Hq / Hk)
 *         s[j]   = scale * sum_d q[b,h,i,d] * k[b,g,j,d]
 *         w[j]   = exp(s[j] - max s) / sum_j exp(s[j] - max s)
 *         out[b,h,i,d] = sum_j w[j] * v[b,g,j,d]
 *
 * @return ATTN_EINVAL: op is NULL, a negative size, a NULL tensor that has
 *         elements, a pointer that is not aligned to 4 bytes, out overlapping
 *         an input. ATTN_EOVERFLOW: a tensor's extent overflows, or a stride
 *         exceeds BLAS's integer. ATTN_ENOMEM.
 * Threads: any number may run one op. Since 0.1.
 */
ATTN_API attn_status attn_run(const attn_op *op, int64_t B, int64_t Lq, int64_t Lk,
                              const float *q, const float *k, const float *v, float *out);

/**
 * Like attn_run(), but with optional tensors; args may be NULL. Strides set in
 * args replace the packed ones of the op's layout.
 *
 * @return as attn_run(), and ATTN_EINVAL for: strides, mask extents, key
 *         ranges or counts of elements that do not fit the sizes, a workspace
 *         that is too small, outputs that overlap. ATTN_EOVERFLOW: score
 *         outputs of more than 2^31 - 1 keys. ATTN_EUNSUPPORTED: masks or score
 *         outputs with packed sequences.
 * Threads: any number may run one op, each with its own args. Since 0.1.
 */
ATTN_API attn_status attn_run_args(const attn_op *op, int64_t B, int64_t Lq, int64_t Lk,
                                   const void *q, const void *k, const void *v, void *out,
                                   const attn_args *args);

/**
 * Fold one partial result into another: results of the same queries over two
 * disjoint sets of keys become the result over their union, for each row
 *
 *     lse = log(exp(lse_acc) + exp(lse_part))
 *     o   = exp(lse_acc - lse) * o_acc + exp(lse_part - lse) * o_part
 *
 * computed without overflow. Two empty parts (lse -inf) give 0 and -inf.
 * Expect a relative error of 1e-4 + 2^-23 * max |lse|: the log-sum-exp is a
 * float. For runs without sinks. The four arrays must not overlap.
 *
 * @param rows     rows of the four arrays, >= 0
 * @param Dv       size of a row of o, >= 1
 * @param o_acc    (rows, Dv), updated;  lse_acc (rows), updated
 * @param o_part   (rows, Dv);           lse_part (rows)
 * @return ATTN_EINVAL: a size out of range, or a NULL array with rows > 0.
 *         ATTN_EOVERFLOW: rows * Dv overflows.
 * Threads: any, on distinct accumulators. Since 0.1.
 */
ATTN_API attn_status attn_merge(int64_t rows, int64_t Dv, float *o_acc, float *lse_acc,
                                const float *o_part, const float *lse_part);

/**
 * Apply sinks once, after all parts have been merged: scales each row of o by
 * 1 / (1 + exp(sinks[h] - lse)); rows with lse -inf stay as they are. lse does
 * not include sinks and does not change.
 *
 * @param o     (B, Hq, Lq, Dv), updated
 * @param lse   (B, Hq, Lq)
 * @param sinks (Hq)
 * @return ATTN_EINVAL: a size out of range, or a NULL array with rows.
 *         ATTN_EOVERFLOW.
 * Threads: any, on distinct o. Since 0.1.
 */
ATTN_API attn_status attn_merge_sinks(int64_t B, int64_t Hq, int64_t Lq, int64_t Dv, float *o,
                                      const float *lse, const float *sinks);

/* ---------------------------------------------------------------- helpers */

/**
 * The usual ALiBi slopes: for a power of two of heads 2^(-8 (h + 1) / heads);
 * for other counts those of the next lower power of two, followed by every
 * other one of twice that power (as in the reference code of ALiBi).
 *
 * @param heads  >= 1
 * @param slopes receives heads numbers
 * @return ATTN_EINVAL: heads < 1 or slopes is NULL.
 * Threads: any. Since 0.1.
 */
ATTN_API attn_status attn_alibi_slopes(int64_t heads, float *slopes);

/**
 * Extents and strides for attn_args_set_mask_*() from the shape of a packed
 * mask, as NumPy broadcasts it: axes are aligned on the right, missing ones
 * count as 1, a last extent of 1 goes for all keys. A last extent n of
 * 1 < n < Lk is a short mask: keys from n on are not visible.
 *
 * @param rank  0 to 4
 * @param shape rank extents; may be NULL when rank is 0
 * @param Lk    keys of the run
 * @param dims, strides receive four numbers each; untouched on error
 * @return ATTN_EINVAL: a NULL array, rank or an extent out of range.
 *         ATTN_EOVERFLOW: the product of the extents overflows.
 * Threads: any. Since 0.1.
 */
ATTN_API attn_status attn_mask_dims(int64_t rank, const int64_t *shape, int64_t Lk,
                                    int64_t dims[4], int64_t strides[4]);

/* ------------------------------------------- attn_layer: weights around an op */

/**
 * Make a multi-head attention layer around the settings of an op:
 *
 *     Q = X_q W_Q + b_Q,  K = X_kv W_K + b_K,  V = X_kv W_V + b_V
 *     Y = attention(Q, K, V) W_O + b_O
 *
 * Head h owns the columns h * D .. h * D + D - 1 of a projection.
 *
 * @param layer receives the handle, yours to destroy; NULL on error
 * @param op    copied; later changes to it do not reach the layer
 * @param E_q   width of x_q, >= 1
 * @param E_kv  width of x_kv, >= 1
 * @param E_out width of the output, >= 1; Hq * Dv when no W_O will be set
 * @return ATTN_EINVAL: a NULL argument or a width < 1. ATTN_EOVERFLOW: a width,
 *         Hq * Dk or Hq * Dv above 2^31 - 1, or a matrix too large.
 *         ATTN_ENOMEM.
 * Threads: no setter may run on op meanwhile. Since 0.1.
 */
ATTN_API attn_status attn_layer_create(attn_layer **layer, const attn_op *op, int64_t E_q,
                                       int64_t E_kv, int64_t E_out);

/** Free a layer. NULL is fine. No run may be using it. Since 0.1. */
ATTN_API void attn_layer_destroy(attn_layer *layer);

/**
 * Set a weight matrix and its bias; copied into the layer's own form, so the
 * arrays may go at once. W_Q, W_K and W_V are needed before a run; without
 * W_O the joined heads (Hq * Dv) are the output.
 *
 * @param which ATTN_W_Q (E_in = E_q, N = Hq * Dk), ATTN_W_K (E_kv, Hk * Dk),
 *              ATTN_W_V (E_kv, Hk * Dv) or ATTN_W_O (Hq * Dv, E_out)
 * @param flags ATTN_IN_OUT: w is (E_in, N) with row stride ld >= N;
 *              ATTN_OUT_IN: w is (N, E_in) with row stride ld >= E_in
 * @param w     the matrix; NULL removes it
 * @param ld    row stride in elements; 0: packed
 * @param bias  N numbers, or NULL for none
 * @return ATTN_EINVAL: layer is NULL, an unknown which, flags that are not
 *         exactly one of the two, ld too small. ATTN_EUNSUPPORTED:
 *         ATTN_W_BORROW. ATTN_ENOMEM (what was set before stays).
 * Threads: layer to yourself. Since 0.1.
 */
ATTN_API attn_status attn_layer_set_weights(attn_layer *layer, int32_t which, int32_t flags,
                                            const float *w, int64_t ld, const float *bias);

/**
 * One projection, y = x W + b, written where you want it: straight into a
 * key/value cache, for instance.
 *
 * @param which     ATTN_W_Q, _K, _V or _O
 * @param B, L      x is (B, L, E_in), packed
 * @param y         (B, H, L, D) with H and D of the projection (for ATTN_W_O:
 *                  H = 1, D = E_out)
 * @param y_strides four strides in the order (B, H, L, D), D stride 1; y must
 *                  not overlap itself or x. NULL: packed (B, L, H * D)
 * @return ATTN_EINVAL: layer is NULL, an unknown which, a negative size, a
 *         NULL tensor that has elements, bad strides, a pointer that is not
 *         aligned to 4 bytes, y overlapping itself or x. ATTN_ESTATE: this
 *         weight is not set. ATTN_EOVERFLOW, ATTN_ENOMEM.
 * Threads: any number may use one layer. Since 0.1.
 */
ATTN_API attn_status attn_layer_project(const attn_layer *layer, int32_t which, int64_t B,
                                        int64_t L, const float *x, float *y,
                                        const int64_t y_strides[4]);

/**
 * Run the layer: project, attend, project. Inputs and output are always
 * (B, L, E), packed, whatever the op's layout;
 * sequences packed by offsets are (token, E).
 *
 * @param x_q  (B, Lq, E_q)
 * @param x_kv (B, Lk, E_kv); NULL: self-attention, x_kv = x_q, which needs
 *             E_kv == E_q, Lk == Lq, and both sides packed or neither
 * @param out  (B, Lq, E_out)
 * @param args optional tensors, or NULL; strides must not be set in it, and
 *             its workspace counts for the whole layer
 * @return as attn_run_args(), and ATTN_ESTATE: W_Q, W_K or W_V is not set.
 *         ATTN_EINVAL: no W_O and E_out != Hq * Dv; x_kv NULL with other
 *         widths or lengths; strides in args.
 * Threads: any number may run one layer, each with its own args. Since 0.1.
 */
ATTN_API attn_status attn_layer_run(const attn_layer *layer, int64_t B, int64_t Lq, int64_t Lk,
                                    const float *x_q, const float *x_kv, float *out,
                                    const attn_args *args);

/* ----------------------------------------------------------------- asking */

/**
 * How large a workspace a run needs; enough for every smaller B, Lq and Lk
 * with the same op and the same optional outputs.
 *
 * @param args  the optional tensors, or NULL
 * @param bytes receives the number; untouched on error
 * @return ATTN_EINVAL: op or bytes is NULL, a negative size. ATTN_EOVERFLOW.
 * Threads: any. Since 0.1.
 */
ATTN_API attn_status attn_workspace_bytes(const attn_op *op, int64_t B, int64_t Lq, int64_t Lk,
                                          const attn_args *args, size_t *bytes);

/**
 * Like attn_workspace_bytes(), but for attn_layer_run(). Ask after the weights
 * are set: with W_O a layer needs more.
 *
 * @return ATTN_EINVAL: layer or bytes is NULL, a negative size. ATTN_EOVERFLOW.
 * Threads: any. Since 0.1.
 */
ATTN_API attn_status attn_layer_workspace_bytes(const attn_layer *layer, int64_t B, int64_t Lq,
                                                int64_t Lk, const attn_args *args, size_t *bytes);

/**
 * Say what attn_run_args() would do with these arguments, without doing it:
 * returns the status that the run would return, and writes a sentence about
 * what is wrong, or which path, engine, tiles, threads, workspace, flops and
 * BLAS it would use. Looks at sizes and pointers, never at the data behind
 * tensor pointers. The wording is for people and may change.
 *
 * @param text   receives at most cap bytes, always ended by a 0 when cap > 0;
 *               may be NULL when cap is 0
 * @param needed receives the size that the whole text needs, the 0 included;
 *               may be NULL
 * @return the status of the run; ATTN_EINVAL also when text is NULL and cap is
 *         not 0.
 * Threads: any. Since 0.1.
 */
ATTN_API attn_status attn_explain(const attn_op *op, int64_t B, int64_t Lq, int64_t Lk,
                                  const void *q, const void *k, const void *v, const void *out,
                                  const attn_args *args, char *text, size_t cap, size_t *needed);

/** The version of the library, "MAJOR.MINOR.PATCH"; a static string. Since 0.1. */
ATTN_API const char *attn_version(void);

/**
 * A short English text for a status; a static string, never NULL, also for
 * numbers that are none.
 * Threads: any. Since 0.1.
 */
ATTN_API const char *attn_status_string(attn_status status);

/**
 * Which BLAS is in use: name and version, core, kind of threading and count,
 * whether it knows this CPU, and whether it was found usable. Text, cap, needed as in attn_explain().
 *
 * @return ATTN_OK, ATTN_EBLAS when the BLAS is unusable (the text says why),
 *         ATTN_EINVAL when text is NULL and cap is not 0.
 * Threads: any. Since 0.1.
 */
ATTN_API attn_status attn_blas_info(char *text, size_t cap, size_t *needed);

#ifdef __cplusplus
}
#endif

#endif /* ATTN_H */
