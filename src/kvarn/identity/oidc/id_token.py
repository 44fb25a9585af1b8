"""ID tokens: whose they are, once everything about them has been checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvarn.wire.openai.errors import ApiError

_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA")
"""Signatures with a key of the provider's alone: neither `none` nor those with a shared secret."""


class UnknownKeyError(Exception):
    """No known key of the provider signed the token: it may have got new ones."""


def read_id_token(
    text: str,
    keys: list[Mapping[str, Any]],
    *,
    issuer: str,
    client_id: str,
    nonce: str,
    access_token: str | None,
    now: float,
    skew_s: float,
) -> dict[str, Any]:
    """The claims of a token that the provider issued just now, to this server, for this sign-in.

    Args:
        keys: The provider's JSON web keys.
        now: Seconds since 1970.

    Raises:
        UnknownKeyError: None of `keys` has its id.
        ApiError: 403, it is not to be believed.
    """
    from authlib.oidc.core import CodeIDToken  # an extra
    from joserfc import jwk, jws, jwt
    from joserfc.errors import JoseError

    try:
        header = jws.extract_compact(text.encode()).headers()
        if header.get("alg") not in _ALGORITHMS:
            raise refused(f"its ID token is signed in a way that is not accepted ({str(header.get('alg'))[:20]!r})")
        key = jwk.import_key(dict(_find(keys, header.get("kid"))))
        token = jwt.decode(text, key, algorithms=list(_ALGORITHMS))
        claims = CodeIDToken(
            token.claims,
            token.header,
            options={"iss": {"essential": True, "value": issuer}, "aud": {"essential": True, "value": client_id}},
            params={"nonce": nonce, "client_id": client_id, "access_token": access_token},
        )
        claims.validate(now=int(now), leeway=int(skew_s))
    except JoseError as error:
        hint = "; compare the clocks of both machines" if error.error == "expired_token" else ""
        raise refused(f"its ID token is not valid: {error}{hint}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise refused(f"its ID token cannot be read ({type(error).__name__})") from None
    return dict(claims)


def refused(why: str) -> ApiError:
    """The 403 for what the provider sent. Messages are shown to the person."""
    return ApiError(403, f"The sign-in was refused: what the provider sent is wrong: {why}.", code="sign_in_refused")


def _find(keys: list[Mapping[str, Any]], kid: object) -> Mapping[str, Any]:
    """The key with an id; of a provider with one key, that, where the token names none."""
    signing = [key for key in keys if key.get("kty") in ("RSA", "EC", "OKP") and key.get("use", "sig") == "sig"]
    named = signing if kid is None else [key for key in signing if key.get("kid") == kid]
    if len(named) != 1:
        raise UnknownKeyError
    return named[0]
