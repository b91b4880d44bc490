"""Who waits for whom, as a graph."""

from collections.abc import Iterable, Sequence

from distdiag.findings import Arrow, Report
from distdiag.reporters._chart import CULPRIT, MOST_ROW_PIXELS, VICTIM, Chart, Figure
from distdiag.wording import fold

MOST_CLASSES = 40


def waiting_chart(arrows: Sequence[Arrow], report: Report) -> Chart | None:
    """Draw who waits for whom: ranks that wait in the same operations are one node, sinks stand at the right."""
    if not arrows:
        return None
    roles: dict[tuple[frozenset[int], frozenset[int]], list[int]] = {}
    for rank in sorted({rank for arrow in arrows for rank in (*arrow.waiters, *arrow.absent)}):
        waits = frozenset(number for number, arrow in enumerate(arrows) if rank in arrow.waiters)
        needed = frozenset(number for number, arrow in enumerate(arrows) if rank in arrow.absent)
        roles.setdefault((waits, needed), []).append(rank)
    nodes = list(roles)[:MOST_CLASSES]
    edges = {
        (waiter, other): sorted(nodes[waiter][0] & nodes[other][1])
        for waiter in range(len(nodes))
        for other in range(len(nodes))
        if waiter != other and nodes[waiter][0] & nodes[other][1]
    }
    place = _placed(len(nodes), edges)
    culprits = set(report.verdict.culprits)
    names = [f"rank{'s' * (len(roles[node]) > 1)} {fold(roles[node])}" for node in nodes]
    markers: Figure = {
        "type": "scatter",
        "mode": "markers+text",
        "x": [place[number][0] for number in range(len(nodes))],
        "y": [place[number][1] for number in range(len(nodes))],
        "text": names,
        "textposition": "top center",
        "hoverinfo": "text",
        "marker": {"size": 22, "color": [CULPRIT if culprits & set(roles[node]) else VICTIM for node in nodes]},
    }
    annotations = [
        _arrow(place[waiter], place[other], arrows[operations[0]].operation)
        for (waiter, other), operations in edges.items()
    ]
    hidden = {"visible": False}
    depth = 1 + max(y for _, y in place.values()) - min(y for _, y in place.values())
    layout = {
        "height": min(200 + 60 * round(depth), MOST_ROW_PIXELS),
        "xaxis": hidden | {"range": [min(x for x, _ in place.values()) - 0.6, 0.6]},
        "yaxis": hidden | {"range": [min(y for _, y in place.values()) - 0.8, max(y for _, y in place.values()) + 0.8]},
        "annotations": annotations,
        "showlegend": False,
    }
    told = "; ".join(
        f"{fold(a.waiters)} wait{'s' * (len(a.waiters) == 1)} for {fold(a.absent)} in {a.operation}" for a in arrows[:4]
    )
    return Chart(
        key="waiting", title="Who waits for whom", told=told + ".", figure={"data": [markers], "layout": layout}
    )


def _arrow(begin: tuple[float, float], end: tuple[float, float], operation: str) -> Figure:
    return {
        "x": end[0],
        "y": end[1],
        "ax": begin[0],
        "ay": begin[1],
        "xref": "x",
        "yref": "y",
        "axref": "x",
        "ayref": "y",
        "arrowhead": 2,
        "standoff": 14,
        "startstandoff": 14,
        "text": "",
        "hovertext": operation,
    }


def _placed(count: int, edges: Iterable[tuple[int, int]]) -> dict[int, tuple[float, float]]:
    """Return a place for each node: as many columns left of the right edge as its shortest way to a sink is long."""
    edges = list(edges)
    waiting = {waiter for waiter, _ in edges}
    distance = {node: 0 for node in range(count) if node not in waiting} or {0: 0}
    grown = True
    while grown:
        grown = False
        for waiter, other in edges:
            if other in distance and waiter not in distance:
                distance[waiter] = distance[other] + 1
                grown = True
    columns: dict[int, list[int]] = {}
    for node in range(count):
        columns.setdefault(distance.get(node, 0), []).append(node)
    return {
        node: (-float(column), (len(inside) - 1) / 2 - row)
        for column, inside in columns.items()
        for row, node in enumerate(inside)
    }
