"""`/mcp`: this server for clients of the Model Context Protocol (streamable HTTP, without sessions)."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from kvarn.gateway.dependencies import GatewayDep, RecordDep
from kvarn.gateway.mcp_server import read_exchange

router = APIRouter()


@router.post("/mcp", include_in_schema=False)
async def answer_mcp(request: Request, gateway: GatewayDep, record: RecordDep) -> Response:
    """Answer one message of the protocol."""
    return await read_exchange(gateway, record, request)
