"""`/console/api/series`: series of the server's history, for charts."""

from __future__ import annotations

from pydantic import Field

from kvarn.gateway.console.router import console_router
from kvarn.gateway.console.time_range import RangeQuery
from kvarn.gateway.console.viewer import ConsoleViewer
from kvarn.gateway.dependencies import GatewayDep
from kvarn.gateway.query import Texts
from kvarn.observe.history import MAX_POINTS, HistoryPage, HistoryQuery
from kvarn.observe.samples import SERIES
from kvarn.wire.openai.errors import invalid_request

router = console_router()


class SeriesQuery(RangeQuery):
    names: Texts
    points: int = Field(MAX_POINTS, ge=1, le=MAX_POINTS)


@router.get("/series")
async def get_series(gateway: GatewayDep, viewer: ConsoleViewer, query: SeriesQuery) -> HistoryPage:
    """Series by their `names`, repeated or separated by commas. Raises `ApiError`: 400, there is no such series; 404,
    no such model."""
    names = list(dict.fromkeys(name for each in query.names for name in each.split(",") if name))
    if unknown := [name for name in names if name not in SERIES]:
        message = f"There is no series {unknown[0]!r}. There are: {', '.join(SERIES)}."
        raise invalid_request(message, "names")
    model = "" if query.model is None else viewer.find_model(gateway.models, query.model).name
    asked = HistoryQuery(seconds=query.seconds, model=model, names=names, points=query.points)
    return viewer.of_history(await gateway.control.history.read(asked))
