# SPDX-License-Identifier: MIT
"""A heat map of attention weights, by matplotlib."""
from __future__ import annotations

from typing import Any, Sequence


from . import _arrays


def plot_weights(A: _arrays.Tensor, tokens: Sequence[str],
                 key_tokens: Sequence[str] | None = None, *, ax: Any = None,
                 title: str | None = None) -> Any:
    """Draw the weights of one head: a row for each query, a column for each key.

    A           (Lq, Lk): one head of what attention(..., return_weights=True) returns
    tokens      Lq names of the queries, and of the keys where key_tokens is None
    key_tokens  Lk names of the keys
    ax          matplotlib axes to draw into; default: a new figure

    Returns the axes; `plot_weights(...).figure.savefig("weights.svg")` saves. Needs matplotlib:
    pip install matplotlib. Raises ValueError where the names do not fit.
    """
    weights = _arrays.as_array(A, "A")
    keys = tokens if key_tokens is None else key_tokens
    if weights.ndim != 2 or weights.shape != (len(tokens), len(keys)):
        raise ValueError(f"A must be (queries, keys) = {(len(tokens), len(keys))}, "
                         f"not the shape {weights.shape}")
    if ax is None:
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            raise ImportError('plot_weights() needs matplotlib: pip install matplotlib') \
                from error
        size = [max(3.0, 1.8 + 0.36 * len(names)) for names in (keys, tokens)]
        _, ax = plt.subplots(figsize=size, layout="constrained")
    image = ax.imshow(weights, cmap="viridis", vmin=0, vmax=1)
    ax.set_xticks(range(len(keys)), list(keys), rotation=60, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(len(tokens)), list(tokens))
    ax.set_xlabel("key: the token that is looked at")
    ax.set_ylabel("query: the token that looks")
    if title:
        ax.set_title(title)
    ax.figure.colorbar(image, ax=ax, label="weight")
    return ax
