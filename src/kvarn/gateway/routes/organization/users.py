"""`/v1/organization/users`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from kvarn.gateway.admin_context import admin_context
from kvarn.gateway.answer import json_response
from kvarn.gateway.openapi import shapes
from kvarn.gateway.pagination import ListQuery, list_answer
from kvarn.gateway.parameters import Texts
from kvarn.gateway.query import check_query
from kvarn.gateway.routes.organization.objects import deleted_object, role_of, user_object
from kvarn.store.repositories.tenants import users
from kvarn.wire.openai.lists import DeletedObject, ListObject
from kvarn.wire.openai.organization.objects import UserObject
from kvarn.wire.openai.organization.requests import UserCreate, UserUpdate

router = APIRouter(prefix="/v1/organization/users", tags=["administration"])

_EMAILS = Texts("emails", "With these addresses only.")
_LIST = ListQuery(_EMAILS, ascending=True, ordered=False)


@router.get("", summary="List users", openapi_extra=_LIST.described)
@shapes(ListObject[UserObject])
async def list_users(request: Request) -> Response:
    """People of the organisation, oldest first; with these `emails`, or all."""
    admin = admin_context(request)
    cursor = _LIST.read(request)
    emails = _EMAILS.read(request)
    async with admin.reading() as session:
        page = await users.list_users(session, admin.organization_id, cursor, emails)
    return json_response(list_answer(page, user_object))


@router.post("", summary="Add a user")
@shapes(UserObject, UserCreate)
async def create_user(request: Request) -> Response:
    """A new person. An operation of ours: OpenAI sends invitations by mail."""
    admin = admin_context(request)
    check_query(request)
    asked = await admin.gateway.read(request, UserCreate)
    async with admin.audited_change() as change:
        name = asked.name or asked.email.partition("@")[0]
        user = await users.add_user(change, admin.organization_id, asked.email, name, role_of(asked.role))
    return json_response(user_object(user))


@router.get("/{user_id}", summary="Retrieve a user")
@shapes(UserObject)
async def get_user(request: Request, user_id: str) -> Response:
    """One person."""
    admin = admin_context(request)
    check_query(request)
    async with admin.reading() as session:
        user = await users.get_user(session, admin.organization_id, user_id)
    return json_response(user_object(user))


@router.post("/{user_id}", summary="Modify a user's role")
@shapes(UserObject, UserUpdate)
async def modify_user(request: Request, user_id: str) -> Response:
    """Make a person an administrator (`owner`) or not (`reader`): their administrator's keys follow."""
    admin = admin_context(request)
    check_query(request)
    asked = await admin.gateway.read(request, UserUpdate)
    async with admin.audited_change() as change:
        user = await users.change_user(change, admin.organization_id, user_id, role_of(asked.role))
    return json_response(user_object(user))


@router.delete("/{user_id}", summary="Delete a user")
@shapes(DeletedObject)
async def delete_user(request: Request, user_id: str) -> Response:
    """Delete a person with all their keys."""
    admin = admin_context(request)
    check_query(request)
    async with admin.audited_change() as change:
        await users.delete_user(change, admin.organization_id, user_id)
    return json_response(deleted_object("organization.user", user_id))
