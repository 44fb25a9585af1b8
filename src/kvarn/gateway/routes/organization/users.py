"""People: `/v1/organization/users`, and `users` of a project."""

from __future__ import annotations

from pydantic import Field

from kvarn.gateway.dependencies import ADMINISTRATION, AdminDep
from kvarn.gateway.openapi import json_router
from kvarn.gateway.query import OldestFirstQuery, Texts, list_answer
from kvarn.gateway.routes.organization.objects import project_user_object, role_of, user_object
from kvarn.store.repositories.tenants import users
from kvarn.wire.openai.lists import DeletedObject, ListObject
from kvarn.wire.openai.organization.objects import ProjectUserObject, UserObject
from kvarn.wire.openai.organization.requests import ProjectUserCreate, ProjectUserUpdate, UserCreate, UserUpdate

router = json_router("/v1/organization", "administration", ADMINISTRATION)

_MEMBERS = "/projects/{project_id}/users"


class UserQuery(OldestFirstQuery):
    emails: Texts = Field(description="With these addresses only.")


@router.get("/users", summary="List users")
async def list_users(admin: AdminDep, query: UserQuery) -> ListObject[UserObject]:
    """People of the organisation, oldest first; with these `emails`, or all."""
    return list_answer(await admin.read(users.list_users, query.cursor, query.emails), user_object)


@router.post("/users", summary="Add a user")
async def create_user(admin: AdminDep, body: UserCreate) -> UserObject:
    """A new person. An operation of ours: OpenAI sends invitations by mail."""
    name = body.name or body.email.partition("@")[0]
    return user_object(await admin.change(users.add_user, body.email, name, role_of(body.role)))


@router.get("/users/{user_id}", summary="Retrieve a user")
async def get_user(admin: AdminDep, user_id: str) -> UserObject:
    return user_object(await admin.read(users.get_user, user_id))


@router.post("/users/{user_id}", summary="Modify a user's role")
async def modify_user(admin: AdminDep, user_id: str, body: UserUpdate) -> UserObject:
    """Make a person an administrator (`owner`) or not (`reader`): their administrator's keys follow."""
    return user_object(await admin.change(users.change_user, user_id, role_of(body.role)))


@router.delete("/users/{user_id}", summary="Delete a user")
async def delete_user(admin: AdminDep, user_id: str) -> DeletedObject:
    await admin.change(users.delete_user, user_id)
    return DeletedObject(id=user_id, object="organization.user.deleted")


@router.get(_MEMBERS, summary="List a project's users")
async def list_members(admin: AdminDep, project_id: str, query: OldestFirstQuery) -> ListObject[ProjectUserObject]:
    return list_answer(await admin.read(users.list_members, project_id, query.cursor, "person"), project_user_object)


@router.post(_MEMBERS, summary="Add a user to a project")
async def create_member(admin: AdminDep, project_id: str, body: ProjectUserCreate) -> ProjectUserObject:
    """Give a person of the organisation a place in the project."""
    async with admin.audited_change() as change:
        if body.user_id is not None:
            user = await users.get_user(change.session, admin.organization_id, body.user_id)
        else:
            user = await users.find_user(change.session, admin.organization_id, body.email or "")
        member = await users.add_member(change, admin.organization_id, project_id, user, body.role)
    return project_user_object(member)


@router.get(_MEMBERS + "/{user_id}", summary="Retrieve a project's user")
async def get_member(admin: AdminDep, project_id: str, user_id: str) -> ProjectUserObject:
    return project_user_object(await admin.read(users.get_member, project_id, user_id, "person"))


@router.post(_MEMBERS + "/{user_id}", summary="Modify a project's user")
async def modify_member(admin: AdminDep, project_id: str, user_id: str, body: ProjectUserUpdate) -> ProjectUserObject:
    return project_user_object(await admin.change(users.change_member, project_id, user_id, "person", role=body.role))


@router.delete(_MEMBERS + "/{user_id}", summary="Remove a user from a project")
async def delete_member(admin: AdminDep, project_id: str, user_id: str) -> DeletedObject:
    """Take a person out of the project; the keys they have in it are revoked."""
    await admin.change(users.remove_member, project_id, user_id)
    return DeletedObject(id=user_id, object="organization.project.user.deleted")
