"""Facts about a graph of nearest neighbours: components, equal samples and hubs; as plain data and in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..units import counted
from .neighbor_graph import NeighborGraph

Ints = npt.NDArray[np.intp]

SIZES = 10  # components that are listed
HUB = 10  # times as many samples as on average, of which a hub is a neighbour of more


def facts_of(graph: NeighborGraph, sizes: Ints, *, connecting: int | None = None, looked_up_to: int) -> dict[str, Any]:
    """Return what is known of a graph as plain data.

    Parameters
    ----------
    graph : NeighborGraph
    sizes : ndarray
        Sizes of its components, descending.
    connecting : int, optional
        Fewest neighbours that connect it.
    looked_up_to : int
        Number of neighbours up to which this was looked for.
    """
    named = np.bincount(graph.indices.reshape(-1), minlength=graph.n_samples)
    limit = HUB * graph.n_neighbors
    return {
        "components": {
            "count": len(sizes),
            "sizes": sizes[:SIZES].tolist(),
            "connecting": connecting,
            "looked_up_to": looked_up_to,
        },
        "duplicates": {
            "samples": int(np.count_nonzero(graph.distances[:, 0] == 0)),
            "surrounded": int(np.count_nonzero(graph.distances[:, -1] == 0)),
        },
        "hubs": {
            "most": int(named.max()),
            "sample": int(named.argmax()),
            "limit": limit,
            "count": int(np.count_nonzero(named > limit)),
            "never": int(np.count_nonzero(named == 0)),
        },
    }


def sentences(graph: NeighborGraph) -> list[str]:
    """Say in a few lines what a graph is, and what was found out about it."""
    about = graph.provenance
    lines = [_what(graph)]
    if (within := about.get("largest_component")) is not None:
        lines.append(f"the largest component, {within['samples']} of {within['of']} samples")
    if (recall := about.get("recall")) is not None:
        share, count = recall["share"], recall["samples"]
        lines.append(f"recall {share:.4f}: the share of the true neighbours of {counted(count, 'sample')} that it has")
    if (facts := about.get("facts")) is not None:
        lines += [components_sentence(facts, exact=about.get("method") != "hnsw"), _duplicates(facts), _hubs(facts)]
    return lines


def _what(graph: NeighborGraph) -> str:
    about = graph.provenance
    features = f" of {counted(about['n_features'], 'feature')}" if "n_features" in about else ""
    source = f" ({about['source']})" if "source" in about else ""
    method = f", by method {about['method']!r}" if "method" in about else ""
    k, samples = graph.n_neighbors, counted(graph.n_samples, "sample")
    return f"{counted(k, 'nearest neighbour')} of each of {samples}{features}{source}{method}"


def components_sentence(facts: dict[str, Any], *, exact: bool = True) -> str:
    """Say whether a graph is connected, and what would connect it."""
    found = facts["components"]
    count, sizes, connecting = found["count"], found["sizes"], found["connecting"]
    if count == 1:
        return "connected: a path of neighbours leads from every sample to every other"
    listed = ", ".join(map(str, sizes)) + (f" and {count - len(sizes)} more" if count > len(sizes) else "")
    if connecting is not None:
        remedy = (
            f"--n-neighbors {connecting} (n_neighbors={connecting}) would {'' if exact else 'probably '}connect them"
        )
    else:
        remedy = f"no number of neighbours up to {found['looked_up_to']} connects them"
    return f"not connected: {count} components, of {listed} samples; {remedy}"


def _duplicates(facts: dict[str, Any]) -> str:
    found = facts["duplicates"]
    if not found["samples"]:
        return "no two samples are equal"
    rest = f"; all neighbours of {found['surrounded']} are equal to them" if found["surrounded"] else ""
    return f"{counted(found['samples'], 'sample')} at distance 0 from another{rest}"


def _hubs(facts: dict[str, Any]) -> str:
    found = facts["hubs"]
    line = f"hubs: sample {found['sample']} is a neighbour of {counted(found['most'], 'sample')}"
    line += f"; {found['count']} of more than {found['limit']}"
    return f"{line}; {found['never']} of none"
