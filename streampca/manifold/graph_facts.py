"""Facts about a graph of nearest neighbours: components, equal samples and hubs; as plain data and as sentences."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import worded
from ..units import counted
from .neighbor_graph import NeighborGraph

Ints = npt.NDArray[np.intp]

SIZES = 10  # largest components whose sizes are listed
HUB = 10  # a hub is a neighbour of more than so many times the average number of samples


def facts_of(graph: NeighborGraph, sizes: Ints, *, connecting: int | None = None, looked_up_to: int) -> dict[str, Any]:
    """Return the facts about a graph as plain data.

    Parameters
    ----------
    graph : NeighborGraph
    sizes : ndarray
        Sizes of the components, descending.
    connecting : int, optional
        Smallest number of neighbours that connects the graph.
    looked_up_to : int
        Number of neighbours up to which this was searched for.
    """
    # Number of samples that have each sample as a neighbour.
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
            # All neighbours at distance 0: the graph says nothing about their surroundings.
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
    """Return a few lines that describe a graph and the facts about it."""
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
    """Return a sentence on whether a graph is connected, and what would connect it."""
    components = facts["components"]
    count, sizes, connecting = components["count"], components["sizes"], components["connecting"]
    if count == 1:
        return "connected: a path of neighbours leads from every sample to every other"
    listed = ", ".join(map(str, sizes)) + (f" and {count - len(sizes)} more" if count > len(sizes) else "")
    if connecting is not None:
        remedy = (
            f"--n-neighbors {connecting} (n_neighbors={connecting}) would {'' if exact else 'probably '}connect them"
        )
    else:
        remedy = f"no number of neighbours up to {components['looked_up_to']} connects them"
    return worded(f"not connected: {count} components, of {listed} samples; {remedy}")


def _duplicates(facts: dict[str, Any]) -> str:
    duplicates = facts["duplicates"]
    if not duplicates["samples"]:
        return "no two samples are equal"
    rest = f"; all neighbours of {duplicates['surrounded']} are equal to them" if duplicates["surrounded"] else ""
    return f"{counted(duplicates['samples'], 'sample')} at distance 0 from another{rest}"


def _hubs(facts: dict[str, Any]) -> str:
    hubs = facts["hubs"]
    line = f"hubs: sample {hubs['sample']} is a neighbour of {counted(hubs['most'], 'sample')}"
    line += f"; {hubs['count']} of more than {hubs['limit']}"
    return f"{line}; {hubs['never']} of none"
